"""`ascendtune migrate`: what is printed, what is passed on, what is refused."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from ascendtune.cli import migrate
from ascendtune.cli.main import main
from ascendtune.job.backend import local
from ascendtune.job.result import JobResult
from ascendtune.job.spec import JobSpec
from ascendtune.machine import visible
from ascendtune.machine.vendor.npu import NpuVendor
from ascendtune.machine.visible import VisibleDevices


def _called(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["migrate", *words])
    return int(ended.value.code or 0)


def test_check_prints_places_and_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.py").write_text("x = x.double()\n" * 20 + "import xformers\n")
    assert _called("check", str(tmp_path)) == 1
    out = capsys.readouterr().out
    assert out.startswith("1 file read: 1 problem on Ascend, 1 warning\nfailure  xformers")
    assert f"{tmp_path}/x.py:21:" in out and "… and 12 more; --all prints them" in out
    assert _called("check", str(tmp_path), "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["exit_code"] == 1 and [len(each["evidence"]) for each in answer["findings"]] == [1, 20]
    assert _called("check", str(tmp_path / "y.py")) == 2
    assert "did you mean" in capsys.readouterr().err


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[JobSpec]:
    """On a machine with four NPUs: what would be started."""
    specs: list[JobSpec] = []

    def note(spec: JobSpec) -> JobResult:
        specs.append(spec)
        return JobResult(5)

    monkeypatch.setattr(local, "start", note)
    monkeypatch.setattr(visible, "visible_devices", lambda: VisibleDevices("npu", ("0", "1", "2", "3")))
    return specs


def test_all_names_what_moves_by_itself_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "x.py"
    script.write_text('import torch\ntorch.distributed.init_process_group("nccl")\n')
    assert _called("check", str(script)) == 0 and f"{script}:2:" not in capsys.readouterr().out
    assert _called("check", str(script), "--all") == 0 and f"{script}:2:" in capsys.readouterr().out


def test_run_hands_everything_behind_the_script_on(tmp_path: Path, started: list[JobSpec]) -> None:
    script = tmp_path / "train.py"
    script.touch()
    words = ["--devices", "8", "--debug", "-x", "--help", "run"]
    assert _called("run", str(script), *words) == 5
    assert _called("run", "--devices", "2", str(script), "a") == 5
    assert _called("run", "--device-ids", "1,3", str(script)) == 5
    one, two, chosen = started
    assert one.argv == (sys.executable, str(script), *words)
    assert (one.nproc, two.nproc, chosen.nproc) == (1, 2, 2)
    assert two.argv == (sys.executable, str(script), "a") and chosen.device_ids == ("1", "3")
    assert all(spec.variables == NpuVendor().cuda_environment(os.environ) != {} for spec in started)
    assert {spec.kind for spec in started} == {"npu"}


def test_run_refuses_missing_scripts_directories_and_devices(
    tmp_path: Path, started: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert migrate.run.__doc__
    assert _called("run", str(tmp_path / "gone.py")) == 2
    (tmp_path / "train.py").touch()
    assert _called("run", str(tmp_path)) == 2
    assert f"the script is a directory\n   do: give a Python file, such as {tmp_path}/train.py" in (
        capsys.readouterr().err
    )
    assert _called("run", "--devices", "5", str(tmp_path / "train.py")) == 3
    assert "4 NPU visible" in capsys.readouterr().err
    assert not started


def test_run_needs_an_npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.setattr(visible, "visible_devices", lambda: VisibleDevices("cpu", ("0",)))
    assert _called("run", str(tmp_path / "train.py")) == 3
    assert "code: no-usable-npu" in capsys.readouterr().err
