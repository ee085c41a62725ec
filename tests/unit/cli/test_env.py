"""`ascendtune env …` as a user gives it."""

from __future__ import annotations

import json
import os
import time
from functools import partial
from pathlib import Path

import pytest

from ascendtune.check.doctor.check import Examination
from ascendtune.check.doctor.install_plan import InstallPlan, PlannedPackage
from ascendtune.check.doctor.system import System
from ascendtune.check.finding import failure
from ascendtune.cli import main as command_line
from ascendtune.machine.environment import mirrors
from ascendtune.machine.environment.conda_files import all_settings
from ascendtune.machine.environment.pip_files import indexes
from hub_server import Hub, serving


def main(*words: str) -> object:
    """The exit code of the command line."""
    with pytest.raises(SystemExit) as left:
        command_line.main(["env", *words])
    return left.value.code


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
        (tmp_path / name.lower()).mkdir()
    for name in ("PIP_INDEX_URL", "HF_ENDPOINT", "XDG_CONFIG_HOME", "PIP_CONFIG_FILE", "GIT_CONFIG_GLOBAL", "CONDARC"):
        monkeypatch.delenv(name, raising=False)
    # Not what this machine is configured to use.
    for name in ("VIRTUAL_ENV", "CONDA_EXE", "CONDA_PREFIX"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(mirrors, "indexes", lambda env, root: indexes({**env, "VIRTUAL_ENV": str(tmp_path)}, tmp_path))
    monkeypatch.setattr(mirrors, "all_settings", lambda env, root: all_settings(env, tmp_path))
    # Without it torch's place in /tmp counts, where somebody may have compiled something.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def test_mirrors_are_shown_used_and_undone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("mirrors", "use", "tuna") == 2, "there is no terminal to answer on"
    refused = capsys.readouterr()
    assert "confirmation-needed" in refused.err and "+index-url = https://pypi.tuna" in refused.out
    assert not (home / ".condarc").exists()
    assert main("mirrors", "use", "tuna", "--only", "pip,huggingface", "--yes") == 0
    capsys.readouterr()
    assert main("mirrors", "show", "--json") == 0
    found = {each["tool"]: each["address"] for each in json.loads(capsys.readouterr().out)}
    assert "tuna" in found["pip"] and "tuna" not in found["conda"]
    assert main("export") == 0
    assert capsys.readouterr().out == "export HF_ENDPOINT=https://hf-mirror.com;\n"
    assert main("mirrors", "undo") == 0
    assert f"removed {home / '.config/pip/pip.conf'}" in capsys.readouterr().out
    assert not (home / ".config/pip/pip.conf").exists()
    assert main("export") == 0
    assert capsys.readouterr().out == "", "no empty line"


def test_password_in_a_configuration_file_is_not_shown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / ".config/pip").mkdir(parents=True)
    (home / ".config/pip/pip.conf").write_text("[global]\nindex-url = https://me:hunter2@corp/simple\n")
    assert main("mirrors", "use", "aliyun", "--yes") == 0
    assert "hunter2" not in "".join(capsys.readouterr())


def test_use_warns_of_what_passes_the_mirror_by(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / ".config/pip").mkdir(parents=True)
    (home / ".config/pip/pip.conf").write_text("[install]\nindex-url = https://me:hunter2@corp/simple\n")
    for _ in ("changed", "nothing to change"):
        assert main("mirrors", "use", "aliyun", "--only", "pip", "--yes") == 0
        warned = capsys.readouterr().err
        assert "[install]" in warned and "do: remove index-url from [install]" in warned and "hunter2" not in warned


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["mirrors", "use"], "option-missing"),
        (["mirrors", "use", "kernel.org"], "unknown-name"),
        (["mirrors", "use", "tuna", "--only", "npm"], "unknown-name"),
        (["mirrors", "use", "tuna", "--only", "pip,"], "unknown-name"),
        (["mirrors", "show", "tuna"], "conflicting-options"),
        (["mirrors", "undo"], "nothing-to-undo"),
        (["mount", "check", "/no/such/directory"], "not-a-directory"),
        (["caches", "--clean", "home"], "unknown-name"),
        (["conda", "clone", "a", "b"], "program-missing"),
    ],
)
def test_wrong_use_is_told(
    words: list[str], code: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CONDA_EXE", raising=False)
    assert main(*words) in (2, 3)
    assert f"code: {code}" in capsys.readouterr().err


def test_choices_of_a_missing_argument_are_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("conda") == 2
    assert "error: missing argument 'rename|clone'. Choose from: rename, clone\n" in capsys.readouterr().err


def test_mirrors_are_compared_and_a_dead_one_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Hub({"a.json": b"{}"}, frozenset())) as hub:
        probes = {"good": f"{hub.endpoint}/api/models/o/m/revision/main", "dead": "http://127.0.0.1:9/simple"}
        monkeypatch.setattr(mirrors, "PROBES", probes)
        assert main("mirrors", "test", "--json") == 0
    good, dead = json.loads(capsys.readouterr().out)
    assert good["seconds"] is not None and good["error"] is None
    assert dead["seconds"] is None and dead["error"]
    monkeypatch.setattr(mirrors, "PROBES", {"dead": "http://127.0.0.1:9/simple"})
    assert main("mirrors", "test") == 3
    assert "hub-unreachable" in capsys.readouterr().err


def test_only_old_entries_of_named_caches_are_removed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = Path(os.environ["XDG_CACHE_HOME"]) / "torch_extensions"
    for name, age in (("py310_cpu", 7200), ("py311_cpu", 0)):
        (cache / name).mkdir(parents=True)
        (cache / name / "x.so").write_bytes(b"x" * 5000)
        then = time.time() - age
        os.utime(cache / name / "x.so", (then, then))
        os.utime(cache / name, (then, then))
    assert main("caches", "--json") == 0
    assert {each["cache"] for each in json.loads(capsys.readouterr().out)} == {"torch_extensions"}
    assert main("caches", "--clean", "torch_extensions") == 2
    assert (cache / "py310_cpu").exists()
    assert main("caches", "--clean", "torch_extensions", "--yes") == 0
    assert not (cache / "py310_cpu").exists() and (cache / "py311_cpu").exists()


def test_mount_check_measures_each_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main("mount", "check", str(tmp_path), "--json") == 0
    (found,) = [each for each in json.loads(capsys.readouterr().out)["findings"] if each["status"] == "ok"]
    assert found["code"] == "storage" and "writes" in found["measured"] and str(tmp_path) in found["measured"]
    monkeypatch.setattr("ascendtune.check.doctor.storage._SLOW_BYTES_PER_SECOND", 1 << 60)
    assert main("mount", "check", str(tmp_path), "/proc", "--json") == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [each["status"] for each in findings] == ["warning", "warning", "ok"], "the speeds are shown all the same"
    assert "/proc on proc: not measured" in findings[-1]["measured"]
    assert main("mount", "check", "--lang", "zh") == 0
    shown = capsys.readouterr().out
    assert "目录" in shown and shown.startswith("发现 2 个问题\n")


def test_permissions_fix_runs_the_commands_that_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ("sudo", "usermod", "-aG", "HwHiAiUser", "me")
    finding = failure("device_nodes", "closed", remedy="join the group", repair=argv)
    monkeypatch.setattr("ascendtune.check.doctor.check.examine", lambda *_: Examination((finding,), ()))
    sudo = tmp_path / "sudo"
    sudo.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$*\" >> {tmp_path}/ran\n[ ! -e {tmp_path}/refuse ]\n")
    sudo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert main("permissions") == 1
    assert not (tmp_path / "ran").exists()
    assert main("permissions", "--fix") == 2, "there is no terminal to answer on"
    assert not (tmp_path / "ran").exists() and "sudo usermod -aG HwHiAiUser me" in capsys.readouterr().err
    assert main("permissions", "--fix", "--yes") == 0
    assert (tmp_path / "ran").read_text() == "-n usermod -aG HwHiAiUser me\n"
    (tmp_path / "refuse").touch()
    assert main("permissions", "--fix", "--yes") == 1
    assert "repair-failed" in capsys.readouterr().err


def test_install_plan_is_applied_by_pip_after_the_packages_were_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/ran\n[ "$4" = freeze ] && echo torch==2.5.1\nexit 0\n')
    python.chmod(0o755)
    plans = [("==2.6.0", "2.5.1"), ("==2.6.0", "2.5.1"), ("==2.6.0", "2.5.1"), None]

    def plan_of(system: object) -> InstallPlan:
        wanted = plans.pop(0)
        packages = (PlannedPackage("torch", *wanted, "torch-npu needs exactly this torch"),) if wanted else ()
        return InstallPlan("3.11", "25.2.0", "8.2.RC1", (), packages, True)

    monkeypatch.setattr("ascendtune.check.doctor.install_plan.make_install_plan", plan_of)
    monkeypatch.setattr("ascendtune.check.doctor.system.System", partial(System, program=str(python)))
    assert main("install-plan") == 1
    shown = capsys.readouterr().out
    assert "torch==2.6.0" in shown and "installed 2.5.1" in shown and not (tmp_path / "ran").exists()
    assert main("install-plan", "--apply") == 2, "there is no terminal to answer on"
    assert main("install-plan", "--apply", "--yes") == 0
    assert "-m pip install torch==2.6.0" in (tmp_path / "ran").read_text()
    before = Path(os.environ["XDG_STATE_HOME"]) / "ascendtune/packages_before_install.txt"
    assert before.read_text() == "torch==2.5.1\n"


def test_a_change_has_no_json_and_nothing_is_changed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("mirrors", "use", "tuna", "--yes", "--json") == 2
    assert json.loads(capsys.readouterr().out)["errors"][0]["code"] == "conflicting-options"
    assert main("mirrors", "undo", "--json") == 2
