"""`ascendtune doctor` from the command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
_HAN = re.compile("[\u4e00-\u9fff]")
PLAIN = {"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"}


@pytest.fixture
def ascendtune(in_process: Run) -> Run:
    return in_process


def test_doctor_without_accelerators_names_the_cpu(ascendtune: Run) -> None:
    result = ascendtune("doctor", "accelerators", "limits", "npu_smi", **PLAIN)
    assert result.returncode == 0 and result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0].startswith("this machine trains on the CPU (")
    assert lines[-1] == "not applicable on this machine: npu_smi"


def test_doctor_json_holds_verdict_findings_and_exit_code(ascendtune: Run) -> None:
    result = ascendtune("doctor", "--json", **PLAIN)
    told = json.loads(result.stdout)
    assert told["exit_code"] == result.returncode == 0
    assert told["verdict"].startswith("this machine trains on the CPU") and "npu_smi" in told["not_applicable"]
    assert {"accelerators", "disk", "network"} <= {each["code"] for each in told["findings"]}


def test_bundle_is_written_beside_json(ascendtune: Run, tmp_path: Path) -> None:
    result = ascendtune("doctor", "limits", "--json", "--bundle", "report.tar.gz", **PLAIN)
    assert json.loads(result.stdout)["findings"] and "wrote report.tar.gz" in result.stderr
    assert result.stderr.startswith("report.tar.gz will contain:\n  doctor.json (") and "masked: " in result.stderr
    assert (tmp_path / "report.tar.gz").stat().st_size > 500


def test_doctor_list_describes_every_check(ascendtune: Run) -> None:
    result = ascendtune("doctor", "--list")
    assert result.returncode == 0 and "npu_network" in result.stdout
    named = json.loads(ascendtune("doctor", "--list", "--json", "clock_skew", "npu_smi").stdout)
    assert [each["code"] for each in named] == ["clock_skew", "npu_smi"]
    told = json.loads(ascendtune("doctor", "--list", "--json").stdout)
    assert {"code", "what", "why", "fix"} == set(told[0]) and len(told) > 20


@pytest.mark.parametrize(
    "words",
    [
        ("doctor", "--list"),
        ("doctor", "accelerators", "limits", "shared_memory", "npu_smi"),
        ("doctor", "limits", "--fix"),
        ("env", "install-plan"),
        ("devices",),
        ("devices", "--free", "1"),
    ],
    ids=" ".join,
)
def test_no_line_is_english_prose_in_a_chinese_locale(ascendtune: Run, words: tuple[str, ...]) -> None:
    result = ascendtune(*words, **PLAIN, LC_ALL="zh_CN.UTF-8")
    lines = result.stdout.splitlines()

    assert [line for line in lines if re.search(r"[A-Za-z]+ [a-z]+ [a-z]+", line) and not _HAN.search(line)] == []
    assert _HAN.search(result.stdout + result.stderr)


def test_unknown_check_is_refused_with_the_nearest_name(ascendtune: Run) -> None:
    result = ascendtune("doctor", "version")
    assert result.returncode == 2 and "did you mean 'versions'?" in result.stderr


@pytest.mark.long
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
    assert result.stdout.startswith("this machine cannot train: npu-smi info gave no answer within 5 s\n")


def test_doctor_does_not_import_torch() -> None:
    look = (
        "import sys; from ascendtune.cli.main import main\n"
        "try: main(['doctor'])\n"
        "except SystemExit: print([name for name in ('torch', 'numpy', 'transformers') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_recipe_is_checked_in_chinese(ascendtune: Run, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(
        "model: {path: ./none}\ndata: {train: ./rows.jsonl}\nparallel: {strategy: deepspeed}\n"
    )
    result = ascendtune("doctor", "r.yaml", "recipe", "--lang", "zh", **PLAIN)
    assert result.returncode == 1 and "配方需要的包没有安装：deepspeed" in result.stdout
    assert "./none" in result.stdout and "./rows.jsonl" in result.stdout
    english = ascendtune("doctor", "r.yaml", "recipe", "--json", LANG="zh_CN.UTF-8", **PLAIN)
    assert "the recipe needs packages that are not installed: deepspeed" in english.stdout


def test_recipe_that_is_wrong_stops(ascendtune: Run, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("model: {path: org/m}\ndata: {train: x.jsonl}\nprecission: bf16\n")
    result = ascendtune("doctor", "r.yaml", **PLAIN)
    assert result.returncode == 2 and "unknown-recipe-key" in result.stderr
