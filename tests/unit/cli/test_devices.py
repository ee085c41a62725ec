"""`ascendtune devices` with an npu-smi that prints what a driver printed."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ascend_node.node import Chip, Node, Process
from ascendtune.cli import devices
from ascendtune.core import language
from ascendtune.core.procfs import user_name
from ascendtune.core.terminal_text import columns_of
from ascendtune.machine import inventory
from ascendtune.machine.host import HostInfo
from ascendtune.machine.inventory import Accelerator

TESTS = Path(__file__).parents[2]
GOLDEN = TESTS / "golden" / "devices"
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def ascendtune(in_process: Run) -> Run:
    return in_process


@pytest.fixture
def printing(tmp_path: Path) -> Callable[[str], str]:
    """A PATH with an npu-smi that prints a transcript, whatever it is asked."""

    def path(name: str) -> str:
        return _path_with(tmp_path, f"cat {shlex.quote(str(TESTS / 'fixtures' / 'ascend' / f'{name}.txt'))}")

    return path


def _path_with(directory: Path, command: str) -> str:
    program = directory / "bin" / "npu-smi"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\n{command}\n")
    program.chmod(0o755)
    return f"{program.parent}:/usr/bin:/bin"


@pytest.mark.parametrize("name", ["info_a3_24.1.rc3.3_two_dies", "info_950", "info_310b4_23.0.0_alarm"])
def test_devices_json_equals_the_golden_file(ascendtune: Run, printing: Callable[[str], str], name: str) -> None:
    result = ascendtune("devices", "--json", PATH=printing(name))
    assert result.returncode == 0 and result.stderr == ""
    told = json.loads(result.stdout)
    expected = json.loads((GOLDEN / f"{name}.json").read_text())
    for device in expected["devices"]:
        del device["lines"]
    assert told.pop("host")["cores"] >= 1
    assert told.pop("troubles") == []
    assert told == expected


def test_devices_prints_a_table_with_memory_and_processes(ascendtune: Run, printing: Callable[[str], str]) -> None:
    result = ascendtune("devices", PATH=printing("info_a3_24.1.rc3.3_two_dies"))
    assert result.returncode == 0 and "\x1b" not in result.stdout
    lines = result.stdout.splitlines()
    assert lines[0].startswith("npu-smi 24.1.rc3.3, driver 24.1.rc3.3")
    assert " ".join(lines[4].split()) == "Ascend910 2 4.0 OK 0% 51.3 GiB / 64.0 GiB 180 W 36 C 0000:8D:00.0"
    assert lines[6] == "" == lines[10]
    assert lines[7].split() == ["device", "pid", "user", "memory", "age", "command"]
    assert " ".join(lines[8].split()) == "NPU 4 957687 - 48.1 GiB - pt_main_thread"
    assert " ".join(lines[9].split()) == "NPU 4 chip 1 957770 - 48.1 GiB - pt_main_thread"
    assert lines[11].startswith("host: ")


def test_processes_on_devices_are_shown_with_user_age_and_command(
    ascendtune: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["sleep", "60"]) as holder:
        chips = (Chip(memory_used_megabytes=20000, processes=(Process(holder.pid, "sleep", 19000),)),)
        path = f"{Node(chips=chips).lay_out(tmp_path / 'machine')['PATH']}:/usr/bin:/bin"
        monkeypatch.setattr(inventory, "is_first_pid_namespace", lambda: True)
        shown = ascendtune("devices", PATH=path).stdout
        [device] = json.loads(ascendtune("devices", "--json", PATH=path).stdout)["devices"]
        # In a container the host's number is that of another process.
        monkeypatch.setattr(inventory, "is_first_pid_namespace", lambda: False)
        elsewhere = ascendtune("devices", PATH=path).stdout
        holder.kill()
    user = user_name(os.getuid())
    assert re.search(rf"\nNPU 0 +{holder.pid} +{user} +18\.6 GiB +\d+\.\d s +sleep 60\n", shown)
    [process] = device["processes"]
    assert (process["user"], process["command"]) == (user, "sleep 60") and 0 <= process["age_seconds"] < 60
    assert re.search(rf"\nNPU 0 +{holder.pid} +- +18\.6 GiB +- +sleep\n", elsewhere)


def _on_terminal(path: str, columns: int, *words: str, **env: str) -> str:
    """What appears on a terminal of this width until the command ends."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR")}
    environment |= {"PATH": path, "TERM": "xterm", **env}
    argv = [sys.executable, "-m", "ascendtune", "devices", *words]
    with subprocess.Popen(argv, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, env=environment):
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:
                break
            if not piece:
                break
            shown += piece
    os.close(ours)
    return shown.decode()


@pytest.mark.long
def test_table_of_devices_fits_a_narrow_terminal(printing: Callable[[str], str]) -> None:
    path = printing("info_a3_24.1.rc3.3_two_dies")
    for columns in (60, 100):
        shown = _on_terminal(path, columns, NO_COLOR="1")
        assert "\x1b" not in shown and "51.3 GiB / 64.0 GiB" in shown
        assert max(map(len, shown.splitlines())) <= columns
    assert "\x1b[1mname" in _on_terminal(path, 100)


def test_chinese_lines_fit_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "width", lambda stream: 40)
    host = HostInfo("node1", "x86_64", "Kylin 10", "6.1", "EPYC", 192, 96, 2.5, 1 << 40, 1 << 39, None, {})
    with language.using("zh"):
        lines = devices._wrapped(devices._host(host))
    assert len(lines) > 2 and max(map(columns_of, lines)) <= 40
    assert all(line.startswith("  ") for line in lines[1:])


def test_an_alarm_is_coloured(printing: Callable[[str], str]) -> None:
    assert "\x1b[31m310B4" in _on_terminal(printing("info_310b4_23.0.0_alarm"), 100)


def test_free_prints_ids_or_names_who_holds_the_others(ascendtune: Run, printing: Callable[[str], str]) -> None:
    path = printing("info_a3_24.1.rc3.3_two_dies")
    result = ascendtune("devices", "--free", "2", PATH=path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "0,1\n", "")
    result = ascendtune("devices", "--free", "3", PATH=path)
    assert result.returncode == 3 and result.stdout == ""
    assert "3 free devices requested, 2 of 4 free" in result.stderr
    assert "NPU 4 chip 1: in use by pt_main_thread (pid 957770, 48.1 GiB)" in result.stderr


def test_topology_prints_links_and_near_cores(ascendtune: Run, printing: Callable[[str], str]) -> None:
    result = ascendtune("devices", "--topology", PATH=printing("topo_950_ub"))
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert lines[1].split() == ["NPU0", "X", "UB", *["SYS"] * 6]
    assert any(line.startswith("NPU4: cores 64-127,192-255") for line in lines)
    assert lines[-2:] == ["UB: unified bus (950)", "SYS: between CPUs"]


def test_ids_of_free_gpus_of_several_types_come_with_the_order_that_they_hold_in(
    ascendtune: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = tuple(
        Accelerator(
            "cuda", phy_id=number, logical_id=number, name=name, memory_used_bytes=0, memory_total_bytes=1 << 30
        )
        for number, name in enumerate(("NVIDIA T1000", "NVIDIA RTX 4090"))
    )
    monkeypatch.setattr("ascendtune.machine.snapshot.gpus", lambda: (gpus, None, ()))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    told = ascendtune("devices", "--free", "1", PATH="/usr/bin:/bin")
    assert told.stdout == "0\n"
    assert "valid with CUDA_DEVICE_ORDER=PCI_BUS_ID only" in told.stderr
    told = ascendtune("devices", "--free", "1", PATH="/usr/bin:/bin", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert (told.stdout, told.stderr) == ("0\n", "")


def test_devices_without_accelerators_succeeds_and_free_is_refused(ascendtune: Run) -> None:
    for words in ([], ["--json"], ["--topology"]):
        result = ascendtune("devices", *words, PATH="/usr/bin:/bin")
        assert result.returncode == 0 and result.stderr == "" and result.stdout
    result = ascendtune("devices", "--free", "1", PATH="/usr/bin:/bin")
    assert result.returncode == 3 and "do: `ascendtune doctor accelerators` says why" in result.stderr


def test_a_tool_that_fails_is_not_an_empty_machine(ascendtune: Run, printing: Callable[[str], str]) -> None:
    result = ascendtune("devices", PATH=printing("err_dcmi_-8005"))
    assert result.returncode == 3
    assert result.stdout.startswith("accelerators: unknown") and "host: " in result.stdout
    assert result.stderr.startswith("warning: npu-smi cannot open") and "\n     do: " in result.stderr
    result = ascendtune("devices", "--free", "1", PATH=printing("err_dcmi_-8005"))
    assert (result.returncode, result.stdout) == (3, "")
    assert "warning: npu-smi cannot open" in result.stderr and "accelerators: unknown, the tool" in result.stderr
    assert "accelerators-unknown" in result.stderr and "no accelerator is visible" not in result.stderr


@pytest.mark.long
def test_a_hanging_tool_costs_five_seconds_once(ascendtune: Run, tmp_path: Path) -> None:
    began = time.monotonic()
    result = ascendtune("devices", "--json", PATH=_path_with(tmp_path, f"echo asked >> {tmp_path}/asked; sleep 60"))
    assert time.monotonic() - began >= 5
    assert (tmp_path / "asked").read_text() == "asked\n"
    assert result.returncode == 3 and json.loads(result.stdout)["devices"] == []
    assert "no answer within 5 s" in result.stderr


def test_watching_prints_one_json_a_line_until_it_is_stopped(printing: Callable[[str], str], tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "ascendtune", "devices", "--watch", "--json", "--interval", "0.5"]
    env = {**os.environ, "PATH": printing("info_950")}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        seen = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stderr is not None and process.stderr.read() == ""
    assert [each["devices"][0]["memory_total_bytes"] for each in seen] == [86016 << 20] * 2
    assert 0.5 <= seen[1]["time"] - seen[0]["time"] < 60


@pytest.mark.parametrize("term", [None, "dumb", "xterm"])
def test_each_picture_has_its_time_and_replaces_the_last_on_a_terminal_alone(
    printing: Callable[[str], str], term: str | None
) -> None:
    argv = [sys.executable, "-m", "ascendtune", "devices", "--watch", "--interval", "0.5"]
    env = {**os.environ, "PATH": printing("info_950"), "TERM": term or "xterm"}
    ours, theirs = os.openpty() if term else os.pipe()
    with subprocess.Popen(argv, stdout=theirs, stdin=subprocess.DEVNULL, env=env) as process:
        os.close(theirs)
        seen = ""
        while seen.count("until Ctrl-C") < 2:
            seen += os.read(ours, 65536).decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    os.close(ours)
    assert re.search(r"^\S*\d{4}-\d\d-\d\d \d\d:\d\d:\d\d, every 0.5 s until Ctrl-C\r?$", seen, re.MULTILINE)
    assert seen.count("\x1b[2J") == (2 if term == "xterm" else 0)


@pytest.mark.parametrize("words", [["--free", "1", "--json"], ["--watch", "--topology"], ["--free", "0"]])
def test_conflicting_options_are_refused(ascendtune: Run, words: list[str]) -> None:
    assert ascendtune("devices", *words).returncode == 2


def test_devices_does_not_import_torch() -> None:
    look = (
        "import sys; from ascendtune.cli.main import main\n"
        "try: main(['devices'])\n"
        "except SystemExit: print([name for name in ('torch', 'numpy', 'transformers') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
