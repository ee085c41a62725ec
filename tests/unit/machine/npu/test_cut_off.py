"""Answers of npu-smi that end in the middle: no number that the whole answer lacks, no card called free on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ascendtune.machine.free import why_not_free
from ascendtune.machine.npu.info import Info, read_info

_COMMITTED = Path(__file__).parents[3] / "fixtures" / "ascend"
_CUTS = 40


def _free(info: Info) -> set[tuple[int | None, int | None]]:
    """The chips that `devices --free` may hand out, wherever their logical ids come from."""
    return {
        (device.npu_id, device.chip_id)
        for device in info.devices
        if why_not_free(replace(device, logical_id=0)) is None
    }


def _codes(text: str) -> list[str]:
    return [trouble.code for trouble in read_info(text).troubles]


def _numbers(info: Info) -> list[dict[str, Any]]:
    return [device.as_json() for device in info.devices]


def _holds_when_cut(text: str, ends: Iterable[int]) -> None:
    """Before the last character of the last border no card is free; what stands there is what the whole says."""
    whole = read_info(text)
    known, free = _numbers(whole), _free(whole)
    # Older drivers draw the same border below each card: a table that ends at one of them looks whole.
    last_border = text.rfind("+") if "Process" in text else 0
    for end in ends:
        part = read_info(text[:end])
        assert _free(part) <= (free if end > last_border else set()), text[:end][-300:]
        for device in _numbers(part):
            assert any(_says_no_more(device, other) for other in known), text[:end][-300:]


def _says_no_more(part: dict[str, Any], whole: dict[str, Any]) -> bool:
    """Every value of `part` is None or the one of `whole`."""
    return all(
        all(any(_says_no_more(process, other) for other in whole["processes"]) for process in value)
        if name == "processes"
        else value in (None, whole[name])
        for name, value in part.items()
    )


def _transcripts(shared: Path) -> list[str]:
    paths = [*(shared / "fixtures" / "ascend").glob("info_*.txt"), *_COMMITTED.glob("info_*.txt")]
    assert len(paths) > 40
    return [path.read_bytes().decode(errors="replace") for path in sorted(paths)]


@pytest.mark.long
def test_answers_that_are_cut_invent_nothing(shared: Path) -> None:
    for text in _transcripts(shared):
        # The step is odd, so that cuts stand at different places of the lines.
        _holds_when_cut(text, (*range(0, len(text), len(text) // _CUTS | 1), *range(len(text) - 8, len(text))))


@pytest.mark.soak
def test_answers_cut_at_every_byte_invent_nothing(shared: Path) -> None:
    for text in _transcripts(shared):
        _holds_when_cut(text, range(len(text)))


@pytest.mark.parametrize(
    ("name", "free"),
    [
        ("info_910B4_26.0.rc1", 0),  # no process table
        ("info_910B1_23.0.rc2_truncated", 0),
        ("info_910A_23.0.rc1.b070_warning", 0),  # the process table ends after NPU 0 of 4
        ("info_310P3_22.0.2_ver_mismatch", 0),  # a driver without process table; no bottom border
    ],
)
def test_cut_off_table_is_reported_and_frees_no_unknown_card(shared: Path, name: str, free: int) -> None:
    text = (shared / "fixtures" / "ascend" / f"{name}.txt").read_text()
    assert _codes(text) == ["npu_smi_cut_off"]
    assert len(_free(read_info(text))) == free


def test_card_that_only_the_process_table_knows_frees_no_other(shared: Path) -> None:
    """Three lines are missing: the second of NPU 4 and the first of NPU 5, so that NPU 4 has the bus of NPU 5."""
    lines = (shared / "fixtures" / "ascend" / "info_910B3_23.0.7.txt").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("| 4 "))
    text = "\n".join(lines[: first + 1] + lines[first + 4 :])
    assert _codes(text) == ["npu_smi_cut_off"] and not _free(read_info(text))


def test_eight_gibibytes_without_process_table_are_not_free(transcript: Callable[[str], str]) -> None:
    text = transcript("info_910b4_25.2.0_process")
    busy = text[: text.index("| NPU     Chip")].replace("2872 / 32768", "4300 / 32768")
    assert _codes(busy) == ["npu_smi_cut_off"] and not _free(read_info(busy))
    assert not _codes(text)


@pytest.mark.parametrize("name", ["info_910A_1.9.3_npus4to7", "info_910B_22.0.4.1_single"])
def test_drivers_without_process_table_are_whole_below_a_border_of_equal_signs(shared: Path, name: str) -> None:
    text = (shared / "fixtures" / "ascend" / f"{name}.txt").read_text()
    assert not _codes(text) and _free(read_info(text))
    without_border = text.rstrip().rpartition("\n")[0]
    assert _codes(without_border) == ["npu_smi_cut_off"]


_OF_A_310 = """\
+------------------------------------------------------------------------------+
| npu-smi 21.0.3.1                     Version: 21.0.3.1                       |
+-------------------+-----------------+----------------------------------------+
| NPU     Name      | Health          | Power(W)          Temp(C)              |
| Chip    Device    | Bus-Id          | AICore(%)         Memory-Usage(MB)     |
+===================+=================+========================================+
| 0       310       | OK              | 12.8              58                   |
| 0       0         | NA              | 0                 324 / 8192           |
+===================+=================+========================================+
"""


def test_bottom_border_of_equal_signs_ends_the_table_of_a_310() -> None:
    assert not _codes(_OF_A_310) and _free(read_info(_OF_A_310)) == {(0, 0)}
    assert read_info(_OF_A_310).devices[0].name == "310"
    assert _codes(_OF_A_310.rstrip().rpartition("\n")[0]) == ["npu_smi_cut_off"]
