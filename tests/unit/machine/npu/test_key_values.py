from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ascendtune.machine.inventory import DeviceProcess
from ascendtune.machine.npu.key_values import Chip, read_facts, read_processes

Text = Callable[[str], str]
GIB = 1 << 30


def test_usages_of_910_and_950_are_read(transcript: Text) -> None:
    (old,), (new,) = read_facts(transcript("usages_910b1")), read_facts(transcript("usages_950"))
    # The 910 writes the chip's number behind its values, the 950 none at all.
    assert (old.npu_id, old.chip_id) == (0, 0) and (new.npu_id, new.chip_id) == (0, None)
    assert old.facts["hbm_capacity_bytes"] == 64 * GIB and old.facts["hbm_usage_ratio"] == 0.04
    assert new.facts["hbm_capacity_bytes"] == 128 * GIB and new.facts["ctrlcpu_usage_ratio"] == 0.40
    assert new.facts["npu_utilization_ratio"] == 0 and new.facts["ddr_hugepages_total_pages"] == 0


def test_two_chips_keep_their_values_apart(transcript: Text) -> None:
    one = transcript("usages_910b1").split("Chip Count                     : 1\n")[1]
    other = one.replace("HBM Usage Rate(%)              : 4", "HBM Usage Rate(%)              : 9").replace(
        "Chip ID                        : 0", "Chip ID                        : 1"
    )
    for between in ("", "\n"):
        chips = read_facts(f"NPU ID : 3\nChip Count : 2\n{one}{between}{other}")
        assert [(chip.npu_id, chip.chip_id, chip.facts["hbm_usage_ratio"]) for chip in chips] == [
            (3, 0, 0.04),
            (3, 1, 0.09),
        ]


def test_common_has_the_helper_chip_apart(transcript: Text) -> None:
    chip, helper = read_facts(transcript("common_910b1_mcu"))
    assert chip == Chip(
        1,
        0,
        {
            "memory_usage_ratio": 0.0,
            "hbm_usage_ratio": 0.04,
            "aicore_usage_ratio": 0.0,
            "aicore_freq_hertz": 1_800_000_000,
            "aicore_curfreq_hertz": 800_000_000,
            "aicore_count": 24,
            "temperature_celsius": 46,
            "npu_real_time_power_watts": 93.4,
        },
    )
    assert helper == Chip(1, None, {"chip_name": "mcu", "temperature_celsius": 38})


def test_board_facts_are_read(transcript: Text) -> None:
    (board,) = read_facts(transcript("board_910"))
    assert board.facts["software_version"] == "23.0.5" and board.facts["firmware_version"] == "7.1.0.7.220"
    assert board.facts["compatibility"] == "OK" and board.facts["pcie_bus_info"] == "0000:61:00.0"
    assert board.facts["board_id"] == "0x02" and board.facts["class_id"] is None and board.facts["chip_count"] == 1
    (chip,) = read_facts(transcript("board_chip_910"))
    assert (chip.npu_id, chip.chip_id) == (0, 0) and str(chip.facts["vdie_id"]).startswith("42C711D4 ")
    (later,) = read_facts(transcript("board_950"))
    assert later.facts["main_board_id"] == "0x68(1P)" and later.facts["slot_id"] == 0


@pytest.mark.parametrize(("name", "npu"), [("health_910", None), ("health_950", 0)])
def test_health_has_one_name_in_all_generations(transcript: Text, name: str, npu: int | None) -> None:
    assert read_facts(transcript(name)) == [
        Chip(npu, None, {"health": "OK", "error_code": None, "error_information": None})
    ]


def test_ecc_and_memory_facts_are_read(transcript: Text) -> None:
    (ecc,) = read_facts(transcript("ecc_910"))
    assert (ecc.npu_id, ecc.chip_id) == (1, 0) and len(ecc.facts) == 12 and set(ecc.facts.values()) == {0}
    (later,) = read_facts(transcript("ecc_950"))
    assert later.facts["hbm_double_bit_next_isolated_pages_count"] == 0
    (memory,) = read_facts(transcript("memory_950"))
    assert memory.facts["hbm_clock_speed_hertz"] == 3_200_000_000 and memory.facts["hbm_temperature_celsius"] == 63


def test_processes_with_memory_are_read(transcript: Text) -> None:
    assert read_processes(transcript("proc-mem_950")) == [DeviceProcess(395864, None, "power_test", 5118 << 20)]


@pytest.mark.parametrize("name", ["info_910b4_25.2.0_process", "spod-info_unsupported", "err_dcmi_-8005"])
def test_other_answers_hold_no_facts(transcript: Text, name: str) -> None:
    assert read_facts(transcript(name)) == [] and read_processes(transcript(name)) == []


def test_recorded_answers_of_a_950_are_read(shared: Path) -> None:
    def facts(name: str) -> dict[str, object]:
        (chip,) = read_facts((shared / "fixtures" / "ascend" / f"{name}.txt").read_text())
        return chip.facts

    assert facts("a950_power") == {"npu_real_time_power_watts": 296.5}
    assert facts("a950_temp") == {"temperature_celsius": 53}
    assert facts("a950_sensors") == {
        "soc_max_temperature_celsius": 67,
        "sfp_temperature_celsius": None,
        "ndie_temperature_celsius": 65,
        "hbm_temperature_celsius": 63,
    }
    assert facts("a950_phyid-remap") == {"chip_phy_id": 0, "slot_id": 0}
    assert facts("a950_sio-info") == {"tx_error_count": 0, "rx_error_count": 0}
    assert facts("a950_version") == {"npu_smi_version": "x.x.x"}
    assert facts("a950_current-fault-event")["fault_event_count"] == 1
    before = read_facts((shared / "fixtures" / "ascend" / "faultdiag_npu_info_before.txt").read_text())
    usages = [chip for chip in before if "hbm_capacity_bytes" in chip.facts]
    assert [(chip.npu_id, chip.chip_id, chip.facts["hbm_capacity_bytes"]) for chip in usages] == [(0, 0, 31129 << 20)]


@pytest.mark.parametrize("name", ["health_910", "health_950", "usages_910b1", "ecc_910", "proc-mem_950"])
def test_answers_that_are_cut_off_give_no_value_that_the_whole_lacks(transcript: Text, name: str) -> None:
    text = transcript(name)
    facts, processes = [chip.facts for chip in read_facts(text)], read_processes(text)
    for end in range(len(text)):
        for chip in read_facts(text[:end]):
            assert any(chip.facts.items() <= whole.items() for whole in facts), text[:end][-80:]
        assert set(read_processes(text[:end])) <= set(processes)
