"""`all_reduce` and `transfer_to_npu`, checks of --deep: what their programs say, and what is made of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ascendtune.check.doctor.check import examine
from ascendtune.check.doctor.system import System, package_version
from ascendtune.check.finding import Finding
from ascendtune.machine.visible import VisibleDevices

pytestmark = pytest.mark.long

Lay = Callable[..., System]
RIGHT = {"backend": "hccl", "wrong_elements": 0, "bytes_per_second": 1 << 30}


@pytest.mark.long
def test_all_reduce_sums_over_two_ranks_of_this_machine() -> None:
    system = System(env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}, package=package_version)
    (found,) = examine(system, ["all_reduce"]).findings
    assert found.status == "ok" and "gloo sums over 2 ranks on the CPU" in found.measured


@pytest.fixture
def two_npus(lay: Lay, monkeypatch: pytest.MonkeyPatch) -> System:
    """A machine whose torch is a shell script (see `_speaking`)."""
    monkeypatch.setattr(
        "ascendtune.check.doctor.system.visible_devices", lambda env, dev: VisibleDevices("npu", ("3", "5"))
    )
    return lay("healthy-910b4")


def _speaking(system: System, body: str) -> System:
    program = Path(system.root) / "bin" / "python"
    program.write_text(f"#!/bin/sh\n# -P -m module all_reduce kind rank ranks store\nrank=$6\n{body}\n")
    program.chmod(0o755)
    system.program = str(program)
    return system


def _only(system: System, code: str) -> Finding:
    (found,) = examine(system, [code]).findings
    return found


def _say(told: dict[str, object]) -> str:
    return f"echo '{json.dumps(told)}'"


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (_say(RIGHT), "ok", "hccl sums over 2 ranks on NPU 3 and NPU 5 at 1.0 GiB/s"),
        (
            f"if [ $rank = 1 ]; then {_say({**RIGHT, 'wrong_elements': 7})}; else {_say(RIGHT)}; fi",
            "failure",
            "hccl computes wrong sums: rank 1 on NPU 5 has 7 wrong elements",
        ),
        (
            "if [ $rank = 1 ]; then echo 'EI0006: getting socket times out' >&2; exit 3; fi\n"
            "echo 'RuntimeError: Connection closed by peer [127.0.0.1]' >&2; exit 1",
            "failure",
            "rank 1 of 2, on NPU 5, ended with exit code 3: EI0006",
        ),
        ("kill -SEGV $$", "failure", "rank 0 of 2, on NPU 3, ended with signal 11"),
    ],
    ids=["right", "wrong", "guilty", "crash"],
)
def test_what_two_ranks_say(two_npus: System, body: str, status: str, said: str) -> None:
    found = _only(_speaking(two_npus, body), "all_reduce")
    assert found.status == status and said in found.measured


def test_one_device_is_said_to_have_no_partner(two_npus: System, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = VisibleDevices("npu", ("3",))
    monkeypatch.setattr("ascendtune.check.doctor.system.visible_devices", lambda env, dev: alone)
    found = _only(_speaking(two_npus, f'[ "$5" = cpu ] && {_say({**RIGHT, "backend": "gloo"})}'), "all_reduce")
    assert found.status == "ok" and "on the CPU" in found.measured and "one device is visible" in found.measured


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (_say({"is_available": True, "device": "npu", "error": 1e-6}), "ok", "reach NPU 3"),
        (_say({"is_available": True, "device": "npu", "error": 0.5}), "failure", "relative error 0.5"),
        (_say({"is_available": False, "device": "cpu", "error": 0.0}), "failure", "run on cpu"),
        (
            "echo $PYTHONPATH | grep -q transfer_to_npu && echo 'Error: Torch not compiled' >&2; exit 1",
            "failure",
            "not c",
        ),
    ],
    ids=["right", "wrong", "elsewhere", "refused"],
)
def test_what_a_script_for_cuda_says(two_npus: System, body: str, status: str, said: str) -> None:
    found = _only(_speaking(two_npus, body), "transfer_to_npu")
    assert found.status == status and said in found.measured


@pytest.mark.parametrize("code", ["all_reduce", "transfer_to_npu"])
def test_checks_of_two_ranks_without_torch_are_unknown(lay: Lay, code: str) -> None:
    system = lay("healthy-910b4")
    system.package = lambda name: None
    assert _only(system, code).status == "unknown"
