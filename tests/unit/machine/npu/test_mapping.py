from __future__ import annotations

from collections.abc import Callable

from ascendtune.machine.npu.smi import ChipIds, read_mapping

Text = Callable[[str], str]


def test_mapping_of_910_a3_and_950_is_read(transcript: Text) -> None:
    assert read_mapping(transcript("info_m_910a")) == [ChipIds(npu, 0, npu, None, "Ascend 910A") for npu in range(8)]
    assert read_mapping(transcript("info_m_a3")) == [ChipIds(0, 2, None, None, "Mcu"), ChipIds(1, 0, 2, 2, "Ascend910")]
    assert read_mapping(transcript("info_m_950")) == [ChipIds(0, 0, None, 0, "xxx")]


def test_without_its_header_no_number_has_a_meaning(transcript: Text) -> None:
    assert read_mapping("\n".join(transcript("info_m_a3").splitlines()[1:])) == []
    assert read_mapping(transcript("info_a3_24.1.rc3.3_two_dies")) == []
