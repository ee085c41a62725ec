from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ascendtune.machine.npu.info import NpuSmiInfo, read_info

MIB = 1 << 20
GOLDEN = Path(__file__).parents[3] / "golden" / "devices"


def as_json(info: NpuSmiInfo) -> dict[str, Any]:
    """What `ascendtune devices --json` says of it, without the host."""
    return json.loads(
        json.dumps(
            {
                "npu_smi_version": info.npu_smi_version,
                "driver_version": info.driver_version,
                "devices": [device.as_json() for device in info.devices],
            }
        )
    )


def test_every_layout_is_read_as_by_eye(read: Any) -> None:
    assert as_json(read_info(read.text)) == read.expected


def test_whole_transcripts_are_read_as_by_eye(read_shared: Any) -> None:
    assert as_json(read_info(read_shared.text)) == read_shared.expected


def _numbers(device: dict[str, Any]) -> list[float]:
    """Every number of a device, in the unit that npu-smi prints."""
    found = []
    for holder in (device, *device["processes"]):
        for name, value in holder.items():
            if isinstance(value, int | float):
                found.append(
                    value * 100 if name.endswith("_ratio") else value / MIB if name.endswith("_bytes") else value
                )
    return found


def test_every_number_is_in_the_lines_of_its_device(read: Any) -> None:
    text = read.text.splitlines()
    for device, lines in zip(as_json(read_info(read.text))["devices"], read.lines, strict=True):
        mine = [float(number) for line in lines for number in re.findall(r"[0-9]+(?:\.[0-9]+)?", text[line - 1])]
        assert all(number in mine for number in _numbers(device))


def test_other_answers_are_not_tables(shared: Path) -> None:
    tables = {path.stem for path in (GOLDEN / "shared").iterdir()}
    others = [path for path in (shared / "fixtures" / "ascend").iterdir() if path.stem not in tables]
    assert len(others) >= 60
    for path in others:
        assert read_info(path.read_text()).devices == (), path.name


def test_no_answer_at_all() -> None:
    assert read_info("") == NpuSmiInfo()


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("err_dcmi_-8005", "dcmi_not_initialized"),
        ("err_dcmi_-8020_device_used", "device_in_use"),
        ("err_board_type_-9005_only", "board_not_listed"),
        ("err_loader_libdrvdsmi_host", "library_missing"),
        ("err_param_t_usage", "unknown_question"),
        ("spod-info_unsupported", "not_supported"),
    ],
)
def test_error_texts_are_findings(transcript: Callable[[str], str], name: str, code: str) -> None:
    (trouble,) = read_info(transcript(name)).troubles
    assert trouble.code == code and trouble.remedy
    assert trouble.evidence in transcript(name)


@pytest.mark.parametrize(
    ("ret", "code"),
    [
        (-8002, "not_permitted"),
        (-8003, "inner_error"),
        (-8005, "dcmi_not_initialized"),
        (-8006, "device_not_ready"),
        (-8008, "device_absent"),
        (-8012, "device_not_ready"),
    ],
)
def test_codes_of_the_management_interface_have_remedies(ret: int, code: str) -> None:
    (trouble,) = read_info(f"dcmi module initialize failed. ret is {ret}\n").troubles
    assert trouble.code == code and trouble.blinding


def test_an_error_beside_a_table_spoils_nothing(transcript: Callable[[str], str]) -> None:
    table = transcript("info_910b4_25.2.0_process")
    warning = "[WARNING]The driver package may not be completely installed, which may cause function abnormal.\n"
    info = read_info(table + warning)
    assert len(info.devices) == 2 and [trouble.code for trouble in info.troubles] == ["driver_incomplete"]


def test_a_process_goes_nowhere_rather_than_to_another_device(transcript: Callable[[str], str]) -> None:
    lines = transcript("info_910b4_25.2.0_process").splitlines()
    info = read_info("\n".join(lines[:6] + lines[9:]))
    assert [device.npu_id for device in info.devices] == [1] and info.devices[0].processes == ()
    assert [trouble.code for trouble in info.troubles] == ["npu_smi_cut_off", "process_without_device"]
    assert "472206" in info.troubles[1].what


def test_a_chip_that_is_listed_twice_is_one(transcript: Callable[[str], str]) -> None:
    text = transcript("info_910b4_25.2.0_process")
    without_version = "\n".join(line for line in text.splitlines() if "Version" not in line) + "\n"
    info = read_info(without_version * 2)
    assert [device.npu_id for device in info.devices] == [0, 1] and not info.troubles
    assert [process.pid for process in info.devices[0].processes] == [472206]


def test_a_table_with_gaps_says_so(transcript: Callable[[str], str]) -> None:
    assert read_info(transcript("info_a3_24.1.rc3.3_two_dies")).whole
    assert not read_info(transcript("info_910b1_23.0.rc2_elided")).whole
    assert not read_info(transcript("info_910b1_23.0.rc2.2_headless")).whole


def test_the_last_of_several_tables_counts(transcript: Callable[[str], str]) -> None:
    older, newer = transcript("info_910b4_25.2.0_process"), transcript("info_a3_24.1.rc3.3_two_dies")
    assert read_info(older + newer) == read_info(newer)


def test_a_column_of_a_later_driver_is_passed_over(transcript: Callable[[str], str]) -> None:
    text = transcript("info_910b4_25.2.0_process")
    wider = text.replace("Temp(C)  ", "Fan Speed(%)  Temp(C)  ").replace("  38    ", "  71  38    ")
    assert wider.count("  71  38") == 1
    first = read_info(wider).devices[0]
    assert (first.power_watts, first.temperature_celsius) == (84.7, 38)


def test_a_unit_that_we_do_not_know_is_not_guessed(transcript: Callable[[str], str]) -> None:
    text = (
        transcript("info_910b4_25.2.0_process")
        .replace("HBM-Usage(MB)", "HBM-Usage(qB)")
        .replace("Power(W)", "Power(u)")
    )
    first = read_info(text).devices[0]
    assert (first.memory_used_bytes, first.memory_total_bytes, first.power_watts) == (None, None, None)
    assert first.temperature_celsius == 38


def test_process_memory_follows_the_unit_of_its_header(transcript: Callable[[str], str]) -> None:
    text = transcript("info_910b4_25.2.0_process").replace("Process memory(MB)", "Process memory(B) ")
    assert read_info(text).devices[0].processes[0].memory_used_bytes == 113
