"""`compute`, the check of --deep: torch in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ascendtune.check.doctor.check import examine
from ascendtune.check.doctor.system import System, package_version

Lay = Callable[..., System]
RIGHT = {"name": "910B4", "memory_total_bytes": 1, "errors": {"fp32": 1e-6, "bf16": 2e-3}, "allocated_bytes": 1 << 30}


@pytest.mark.long
def test_compute_agrees_with_the_cpu_on_this_machine() -> None:
    (found,) = examine(
        System(env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}, package=package_version), ["compute"]
    ).findings
    assert found.status == "ok" and "fp32" in found.measured and "agree with the CPU" in found.measured


def _with_program(lay: Lay, body: str) -> System:
    system = lay("healthy-910b4")
    program = Path(system.root) / "bin" / "python"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    system.program = str(program)
    return system


def _printing(told: object) -> str:
    return f"echo 'a warning of a plugin'\ncat <<'END'\n{json.dumps(told)}\nEND"


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (_printing(RIGHT), "ok", "fp32, bf16 agree with the CPU; 1.0 GiB allocated"),
        (
            _printing({**RIGHT, "errors": {"fp32": 1e-6, "bf16": 0.3}}),
            "failure",
            "multiplies incorrectly: relative error bf16 0.3",
        ),
        (
            _printing({**RIGHT, "errors": {"fp32": float("nan")}}),
            "failure",
            "multiplies incorrectly: relative error fp32 nan",
        ),
        ("kill -SEGV $$", "failure", "ended with signal 11"),
        ("echo 'ImportError: libhccl.so' >&2; exit 1", "failure", "exit code 1: ImportError: libhccl.so"),
        ("exit 0", "failure", "no message"),
    ],
    ids=["right", "wrong", "nan", "crash", "import", "silent"],
)
def test_what_the_process_says(lay: Lay, body: str, status: str, said: str) -> None:
    (found,) = examine(_with_program(lay, body), ["compute"]).findings
    assert found.status == status and said in found.measured


def test_compute_without_torch_is_unknown(lay: Lay) -> None:
    system = lay("healthy-910b4")
    system.package = lambda name: None
    assert [each.status for each in examine(system, ["compute"]).findings] == ["unknown"]
