"""Answers of npu-smi that end in the middle: no number that the whole answer lacks, no card called free on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ascendtune.machine.free_devices import why_not_free
from ascendtune.machine.npu.info import NpuSmiInfo, read_info

_COMMITTED = Path(__file__).parents[3] / "fixtures" / "ascend"
_CUTS = 40


def _free(info: NpuSmiInfo, **known: bool) -> set[tuple[int | None, int | None]]:
    """The chips that `devices --free` may hand out, wherever their logical ids come from."""
    return {
        (device.npu_id, device.chip_id)
        for device in info.devices
        if why_not_free(replace(device, logical_id=0, **known)) is None  # type: ignore[arg-type]
    }


def _codes(text: str) -> list[str]:
    return [trouble.code for trouble in read_info(text).troubles]


def _numbers(info: NpuSmiInfo) -> list[dict[str, Any]]:
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


_MESSAGES = ("[drv] get power failed, ret -1", "[WARNING] dcmi | timeout")


def _with_a_damaged_line(text: str) -> Iterator[str]:
    """`text` with each line in turn lost, doubled, or overwritten by a message of the driver."""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        before, after = lines[:at], lines[at + 1 :]
        for lines_instead in ([], [line, line]):
            yield "\n".join([*before, *lines_instead, *after, ""])
        for message in _MESSAGES:
            places = {0, 9, 25, len(line) // 2}
            ends = [line[:place] + message for place in places]
            inside = [line[:place] + message + line[place + len(message) :] for place in places]
            for instead in {*ends, *inside}:
                yield "\n".join([*before, instead, *after, ""])


def _ids(info: NpuSmiInfo) -> dict[tuple[int | None, int | None], int]:
    """The logical ids of chips whose place in the table is their id."""
    return {(device.npu_id, device.chip_id): place for place, device in enumerate(info.devices) if info.whole}


def _holds_when_damaged(text: str) -> None:
    """No busy device is called free, and no device gets the id of another."""
    # An id of a table without one of its lines for "lines are left out" cannot be told from a whole one's.
    whole = read_info(text.replace("\r", "").replace("...", ""))
    known, idle = _ids(whole), _free(whole, processes_known=True)
    for damaged in _with_a_damaged_line(text.replace("\r", "").replace("...", "")):
        info = read_info(damaged)
        for npu, chip in _free(info):
            assert (npu, chip) in idle or (chip is None and npu in {card for card, _ in idle}), damaged
        assert all(known.get(chip) == place for chip, place in _ids(info).items() if chip in known), damaged


@pytest.mark.parametrize("path", sorted(_COMMITTED.glob("info_*.txt")), ids=lambda path: path.stem)
def test_damaged_line_frees_no_busy_device_and_shifts_no_id(path: Path) -> None:
    _holds_when_damaged(path.read_bytes().decode())


@pytest.mark.soak
def test_damaged_line_of_a_long_table_frees_no_busy_device_and_shifts_no_id(shared: Path) -> None:
    for text in _transcripts(shared):
        _holds_when_damaged(text)


@pytest.mark.parametrize("row", ["| 3     Ascend910           | OK            | 181.2", "| 0     6 "])
def test_chip_with_one_of_its_two_lines_frees_no_other(transcript: Callable[[str], str], row: str) -> None:
    """The lost chip is busy; the process table says so, or does not show its container's processes."""
    busy = transcript("info_a3_24.1.rc3.3_two_dies")
    listed = busy.replace(
        f"| {'No running processes found in NPU 3':<95}|",
        "| 3       0                 | 990700        | python                   | 47746                   |",
    )
    assert listed != busy and _free(read_info(listed)) == {(3, 1)}
    for text in (busy, listed):
        info = read_info("\n".join(line for line in text.splitlines() if not line.startswith(row)))
        assert len(info.devices) >= 3 and not _free(info) and not info.whole
        assert "npu_smi_cut_off" in {trouble.code for trouble in info.troubles}


def test_process_on_a_chip_that_is_not_listed_frees_no_other(transcript: Callable[[str], str]) -> None:
    lines = transcript("info_a3_24.1.rc3.3_two_dies").splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("| 1     9 "))
    info = read_info("\n".join([*lines[: at - 1], *lines[at + 1 :]]))
    assert [trouble.code for trouble in info.troubles] == ["process_without_device"] and not _free(info)


def test_gap_of_chips_or_physical_ids_leaves_the_logical_ids_open(transcript: Callable[[str], str]) -> None:
    lines = transcript("info_a3_24.1.rc3.3_two_dies").splitlines()
    for lost in (6, 9, 12):
        assert not read_info("\n".join([*lines[:lost], *lines[lost + 3 :]])).whole


def test_lines_below_a_complete_table_damage_nothing(transcript: Callable[[str], str]) -> None:
    text = transcript("info_910b4_25.2.0_process")
    noise = "[WARNING]The driver package may not be completely installed\n| 12 | of another tool\n"
    assert _free(read_info(text + noise)) == _free(read_info(text)) != set()


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
