"""`doctor --fix`: what is planned, what is done, and what is left alone."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ascend_node.scenarios import SCENARIOS
from ascendtune.check.doctor import fixes
from ascendtune.check.doctor.check import examine
from ascendtune.check.doctor.fixes import FixPlan, plan_fixes
from ascendtune.check.doctor.system import System
from ascendtune.cli.doctor import apply_fixes
from ascendtune.core.directories import building_of, lock_of
from ascendtune.core.locks import file_lock

Lay = Callable[..., System]


def _planned(system: System, *codes: str) -> FixPlan:
    return plan_fixes(examine(system, codes or ("environment", "visible_devices", "driver_firmware")), system)


def _carry_out(planned: FixPlan) -> None:
    for action in planned.actions:
        action.do()


def test_a_healthy_machine_needs_nothing(lay: Lay) -> None:
    planned = _planned(lay("healthy-910b4"))
    assert (planned.actions, planned.shell, planned.left) == ((), (), ())


def test_variables_are_lines_for_the_shell_and_the_system_is_left(lay: Lay) -> None:
    system = lay("firmware-differs", ASCEND_RT_VISIBLE_DEVICES="1, 2,3", ASCEND_LAUNCH_BLOCKING="1", NCCL_DEBUG="INFO")
    planned = _planned(system)
    assert set(planned.shell) == {
        "export ASCEND_RT_VISIBLE_DEVICES=1,2,3",
        "unset ASCEND_LAUNCH_BLOCKING",
        "unset NCCL_DEBUG",
    }
    assert [each.code for each in planned.left] == ["driver_firmware"] and planned.actions == ()


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "NPU_VISIBLE_DEVICES"])
@pytest.mark.parametrize("value", ["0;touch gone", "$(touch gone)", "0`touch gone`", "0 && reboot"])
def test_no_line_for_the_shell_carries_foreign_commands(lay: Lay, name: str, value: str) -> None:
    planned = _planned(lay("healthy-910b4", **{name: value}), "visible_devices")
    assert planned.shell == (() if name.startswith("CUDA") else ("unset NPU_VISIBLE_DEVICES",)) and planned.left == ()


def test_missing_cache_directories_are_made(lay: Lay, tmp_path: Path) -> None:
    system = lay("healthy-910b4", HF_HOME=str(tmp_path / "hub"), MODELSCOPE_CACHE="/mnt-not-mounted/ms/x")
    system = replace(system, cache=tmp_path / "cache" / "ascendtune")
    planned = _planned(system)
    assert len(planned.actions) == 2
    _carry_out(planned)
    assert (tmp_path / "hub").is_dir() and system.cache.is_dir() and _planned(system).actions == ()


def test_abandoned_builds_are_removed_and_running_ones_kept(lay: Lay) -> None:
    system = lay("healthy-910b4")
    tokens = system.cache / "tokens"
    for name in ("dead", "alive"):
        building_of(tokens, name).mkdir(parents=True)
        (building_of(tokens, name) / "part").write_text("x" * 2048)
    with file_lock(lock_of(tokens, "alive"), wait=True):
        planned = _planned(system)
        assert [each.what for each in planned.actions] == [
            f"remove {tokens}/.building-dead (2.0 KiB): data that a killed process was preparing"
        ]
        assert building_of(tokens, "dead").exists()
        with file_lock(lock_of(tokens, "dead"), wait=True):  # somebody began anew while the user read the plan
            _carry_out(planned)
        assert building_of(tokens, "dead").exists()
        _carry_out(planned)
    assert not building_of(tokens, "dead").exists() and building_of(tokens, "alive").exists()


def test_unfinished_files_go_when_old_and_their_process_is_dead(lay: Lay) -> None:
    system = lay("healthy-910b4")
    jobs = system.state / "jobs"
    jobs.mkdir()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    old = time.time() - 3 * 24 * 3600
    gone, fresh, lives, other = (
        jobs / name for name in (f".a.json.{ended.pid}", f".b.json.{ended.pid}", f".c.json.{os.getpid()}", "d.json")
    )
    for path in (gone, fresh, lives, other):
        path.write_text("{")
        os.utime(path, (old, old))
    os.utime(fresh)
    _carry_out(_planned(system))
    assert sorted(jobs.iterdir()) == sorted([fresh, lives, other])


def test_number_that_no_process_can_have_is_of_none(lay: Lay) -> None:
    system = lay("healthy-910b4")
    path = system.cache / f".a.json.{10**12}"
    path.write_text("")
    os.utime(path, (0, 0))
    _carry_out(_planned(system))
    assert not path.exists()


def test_cache_that_may_not_be_looked_at_is_left_alone(lay: Lay, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(directory: Path) -> list[Path]:
        raise PermissionError(errno.EACCES, "Permission denied", str(directory))

    monkeypatch.setattr(fixes, "abandoned", forbidden)
    monkeypatch.setattr(fixes, "unfinished_files", forbidden)
    assert _planned(lay("healthy-910b4")).actions == ()


def test_a_failed_removal_is_not_reported_as_done(lay: Lay, monkeypatch: pytest.MonkeyPatch) -> None:
    system = lay("healthy-910b4")
    building_of(system.cache / "tokens", "dead").mkdir(parents=True)
    planned = _planned(system)

    def forbidden(*anything: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("os.rmdir", forbidden)
    assert apply_fixes(planned) == []


def test_directory_below_a_file_is_not_offered(lay: Lay, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert _planned(lay("healthy-910b4", HF_HOME=str(tmp_path / "file" / "hub"))).actions == ()


def _doctor(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "ASCEND_LAUNCH_BLOCKING": "1"}
    command = [sys.executable, "-m", "ascendtune", "doctor", "environment", *options]
    return subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.long
def test_the_command_shows_first_and_does_only_what_is_agreed_to(tmp_path: Path) -> None:
    shown = _doctor(tmp_path, "--fix")
    assert f"  create the cache directory {tmp_path}/cache/ascendtune\n" in shown.stdout
    assert "  unset ASCEND_LAUNCH_BLOCKING\n" in shown.stdout and "add --yes" in shown.stderr
    assert not (tmp_path / "cache").exists()
    done = _doctor(tmp_path, "--fix", "--yes")
    assert done.stderr.startswith("done: create the cache directory") and (tmp_path / "cache/ascendtune").is_dir()
    assert "--fix has nothing to do here" in _doctor(tmp_path, "--fix").stdout


@pytest.mark.long
def test_json_says_what_was_done(tmp_path: Path) -> None:
    for options, done in ((["--fix"], False), (["--fix", "--yes"], True)):
        told = json.loads(_doctor(tmp_path, "--json", *options).stdout)["fix"]
        assert [each["done"] for each in told["actions"]] == [done]
        assert told["shell"] == ["unset ASCEND_LAUNCH_BLOCKING"] and told["left"] == []


def test_yes_alone_is_refused(tmp_path: Path) -> None:
    assert _doctor(tmp_path, "--yes").returncode == 2


def test_scenarios_never_plan_to_touch_anything(lay: Lay) -> None:
    assert _planned(lay(SCENARIOS["leftover-process"]), "device_memory").actions == ()
