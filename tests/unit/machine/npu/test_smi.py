"""npu-smi as a program on PATH: a script that prints what a driver printed."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ascendtune.machine.npu.smi import NpuSmi

Text = Callable[[str], str]
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put an npu-smi on PATH that answers its arguments ("info -m") with a text; `otherwise` answers all others."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def put(answers: dict[str, str], otherwise: str = "Error parameter of -t\n", exit_code: int = 0) -> None:
        cases = "".join(f"{shlex.quote(words)}) printf %s {shlex.quote(text)};;\n" for words, text in answers.items())
        program = tmp_path / "npu-smi"
        log = tmp_path / "asked"
        program.write_text(
            f'#!/bin/sh\necho "$*" >> {log}\ncase "$*" in\n{cases}*) printf %s {shlex.quote(otherwise)};;\nesac\n'
            f"exit {exit_code}\n"
        )
        program.chmod(0o755)

    return put


def _asked(tmp_path: Path) -> list[str]:
    return (tmp_path / "asked").read_text().splitlines()


def test_ids_come_from_the_mapping(install: Install, transcript: Text, tmp_path: Path) -> None:
    header = "\tNPU ID    Chip ID    Chip Logic ID    Chip Phy-ID    Chip Name\n"
    rows = [(3, 0, 4, 6), (3, 1, 5, 7), (4, 0, 6, 8), (4, 1, 7, 9)]
    mapping = header + "".join("\t{}    {}    {}    {}    Ascend910\n".format(*row) for row in rows)
    install({"info": transcript("info_a3_24.1.rc3.3_two_dies"), "info -m": mapping + "\t3    2    -    -    Mcu\n"})
    info = NpuSmi().info()
    assert [device.logical_id for device in info.devices] == [4, 5, 6, 7]
    assert [device.phy_id for device in info.devices] == [6, 7, 8, 9]
    # Nothing was left open, so nothing else was asked.
    assert _asked(tmp_path) == ["info", "info -m"]


def test_without_a_mapping_the_place_in_the_table_is_the_id(install: Install, transcript: Text) -> None:
    install({"info": transcript("info_910a_1.9.3_container")})
    assert [(device.npu_id, device.logical_id) for device in NpuSmi().info().devices] == [(4, 0), (5, 1)]
    install({"info": transcript("info_310p3_24.1.0.1_two_chips")})
    assert [device.logical_id for device in NpuSmi().info().devices] == [0, 1, 2, 3]
    install({"info": transcript("info_910b1_23.0.rc2_elided")})
    assert [device.logical_id for device in NpuSmi().info().devices] == [None, None, None]


def test_the_950_tells_its_chip_by_the_mapping(install: Install, transcript: Text) -> None:
    install({"info": transcript("info_950"), "info -m": transcript("info_m_950")})
    (device,) = NpuSmi().info().devices
    assert (device.chip_id, device.phy_id, device.logical_id) == (0, 0, 0)


def test_usages_fill_values_missing_from_the_table(install: Install, transcript: Text) -> None:
    table = (
        transcript("info_910b1_23.0.rc2_elided")
        .replace("AICore(%)", "AICore(?)")
        .replace("HBM-Usage(MB)", "HBM-Usage(??)")
    )
    usages = transcript("usages_910b1").replace(
        "Aicore Usage Rate(%)           : 0", "Aicore Usage Rate(%)           : 37"
    )
    install({"info": table, "info -t usages -i 0 -c 0": usages})
    first, second, _ = NpuSmi().info().devices
    assert (first.utilization_ratio, first.memory_used_bytes, first.memory_total_bytes) == (0.0, None, 64 << 30)
    assert second.memory_total_bytes is None


def test_the_950_is_asked_by_card_alone(install: Install, transcript: Text) -> None:
    table = transcript("info_950").replace("HBM-Usage(MB)", "HBM-Usage(??)")
    install({"info": table, "info -m": transcript("info_m_950"), "info -t usages -i 0": transcript("usages_950")})
    (device,) = NpuSmi().info().devices
    assert (device.chip_id, device.memory_used_bytes, device.memory_total_bytes) == (0, None, 128 << 30)


def test_a_full_list_of_processes_is_asked_for_the_rest(install: Install, transcript: Text, tmp_path: Path) -> None:
    line = "| 0       0                 | 472206        | python3.9                | 113                     |\n"
    assert line in transcript("info_910b4_25.2.0_process")
    eight = "".join(line.replace("472206", f"47220{number}") for number in range(8))
    table = transcript("info_910b4_25.2.0_process").replace(line, eight)
    told = "".join(
        f"        Process id:47220{number}  Process name:python3.9        Process memory(MB):113\n"
        for number in range(10)
    )
    install({"info": table, "info -t proc-mem -i 0 -c 0": f"        NPU ID                         : 0\n{told}"})
    first, second = NpuSmi().info().devices
    assert [process.pid for process in first.processes] == [472200 + number for number in range(10)]
    assert second.processes == () and _asked(tmp_path)[1:] == ["info -t proc-mem -i 0 -c 0", "info -m"]


def test_one_text_for_every_question_is_enough(install: Install, transcript: Text) -> None:
    for name in ("info_910b1_23.0.rc2.2_headless", "info_910b4_25.2.0_process", "info_950"):
        text = transcript(name)
        install({}, otherwise=text)
        smi = NpuSmi()
        assert len(smi.info().devices) == (1 if name == "info_950" else 2)
        assert smi.topology() is None


def test_npu_smi_topology_is_read(install: Install, transcript: Text) -> None:
    install({"info -t topo": transcript("topo_950_ub")})
    topology = NpuSmi().topology()
    assert topology is not None and topology.links[0, 1] == "UB"


def test_errors_of_npu_smi_become_troubles(install: Install, transcript: Text) -> None:
    install({}, otherwise=transcript("err_dcmi_-8005"), exit_code=255)
    smi = NpuSmi()
    assert smi.info().devices == ()
    assert [(trouble.code, trouble.blinding) for trouble in smi.troubles] == [("dcmi_not_initialized", True)]
    install({}, otherwise="hello\n")
    smi = NpuSmi()
    smi.info()
    assert [(trouble.code, trouble.evidence) for trouble in smi.troubles] == [("npu_smi_no_table", "hello")]


def test_a_missing_library_is_not_a_missing_program(install: Install, transcript: Text, tmp_path: Path) -> None:
    program = tmp_path / "npu-smi"
    program.write_text(f"#!/bin/sh\nprintf %s {shlex.quote(transcript('err_loader_libdrvdsmi_host'))} >&2\nexit 127\n")
    program.chmod(0o755)
    smi = NpuSmi()
    smi.info()
    assert [trouble.code for trouble in smi.troubles] == ["library_missing"]


@pytest.mark.long
def test_hanging_costs_its_limit_once(tmp_path: Path, install: Install) -> None:
    program = tmp_path / "npu-smi"
    program.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/asked\nexec sleep 60\n")
    program.chmod(0o755)
    smi = NpuSmi(timeout_seconds=2)
    began = time.monotonic()
    smi.info()
    smi.topology()
    assert time.monotonic() - began < 30
    assert (tmp_path / "asked").read_text() == "asked\n"
    (trouble,) = smi.troubles
    assert trouble.code == "npu_smi_hangs" and trouble.blinding and "2 s" in trouble.what


@pytest.mark.parametrize("content", ["\x7fELF of another machine", "echo no first line"])
def test_a_program_that_cannot_run(tmp_path: Path, install: Install, content: str) -> None:
    (tmp_path / "npu-smi").write_text(content)
    (tmp_path / "npu-smi").chmod(0o755)
    smi = NpuSmi()
    assert smi.info().devices == ()
    assert [trouble.code for trouble in smi.troubles] == ["npu_smi_not_executable"]


@pytest.mark.skipif(Path("/usr/local/bin/npu-smi").exists(), reason="this machine has npu-smi")
def test_no_npu_smi_is_not_a_problem(tmp_path: Path, install: Install) -> None:
    smi = NpuSmi()
    assert smi.info().devices == () and smi.troubles == [] and not smi.is_available
