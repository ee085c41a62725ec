"""`ascendtune doctor` as a user meets it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("preloaded")

Run = Callable[..., "subprocess.CompletedProcess[str]"]
PLAIN = {"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"}


def test_a_machine_without_accelerators(ascendtune: Run) -> None:
    result = ascendtune("doctor", "accelerators", "limits", "npu_smi", **PLAIN)
    assert result.returncode == 0 and result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0].startswith("this machine trains on the CPU (")
    assert lines[-1] == "not applicable on this machine: npu_smi"


def test_json(ascendtune: Run) -> None:
    result = ascendtune("doctor", "--json", **PLAIN)
    told = json.loads(result.stdout)
    assert told["exit_code"] == result.returncode == 0
    assert told["verdict"].startswith("this machine trains on the CPU") and "npu_smi" in told["not_applicable"]
    assert {"accelerators", "disk", "network"} <= {each["code"] for each in told["findings"]}


def test_a_bundle_beside_json(ascendtune: Run, tmp_path: Path) -> None:
    result = ascendtune("doctor", "limits", "--json", "--bundle", "report.tar.gz", **PLAIN)
    assert json.loads(result.stdout)["findings"] and result.stderr.startswith("wrote report.tar.gz")
    assert (tmp_path / "report.tar.gz").stat().st_size > 500


def test_the_list(ascendtune: Run) -> None:
    result = ascendtune("doctor", "--list")
    assert result.returncode == 0 and "npu_network" in result.stdout
    told = json.loads(ascendtune("doctor", "--list", "--json").stdout)
    assert {"code", "what", "why", "fix"} == set(told[0]) and len(told) > 20


def test_an_unknown_check(ascendtune: Run) -> None:
    result = ascendtune("doctor", "version")
    assert result.returncode == 2 and "did you mean versions?" in result.stderr


def test_a_hanging_npu_smi_costs_five_seconds_once(ascendtune: Run, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "npu-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\nsleep 60\n")
    program.chmod(0o755)
    began = time.monotonic()
    result = ascendtune("doctor", HF_HUB_OFFLINE="1", PATH=f"{program.parent}:/usr/bin:/bin")
    assert time.monotonic() - began >= 5
    assert (tmp_path / "asked").read_text() == "asked\n"
    assert result.returncode == 1
    assert result.stdout.startswith("this machine cannot train: npu-smi info gave no answer within 5 s; do: ")


def test_no_torch() -> None:
    look = (
        "import sys; from ascendtune.cli.main import main\n"
        "try: main(['doctor'])\n"
        "except SystemExit: print([name for name in ('torch', 'numpy', 'transformers') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
