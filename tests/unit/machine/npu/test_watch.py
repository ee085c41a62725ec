from __future__ import annotations

from pathlib import Path

import pytest

from ascendtune.machine.npu.watch import Sample, read_watch

# One reduced form of each layout; sources in the index of shared/fixtures/ascend.
BOARD = """\
(base) root@davinci-mini:~# npu-smi info watch
NpuID(Idx)  ChipId(Idx) Pwr(W)      Temp(C)     AI Core(%)  AI Cpu(%)   Ctrl Cpu(%) Memory(%)   Memory BW(%)
0           0           8.7         56          25          2           67          71          7          \x20
0           0           8.8         5
"""
A950 = """\
    NpuID(Idx)  Pwr(W)      Temp(C)     AI Core(%)  AI Cpu(%)   Ctrl Cpu(%) Memory(%)   Memory BW(%)   NPU Util(%)    AI Cube(%)
    7           289.3       51          0           0           14          3           0              0              4
    npu-smi info watch -i 0 -d 2 -s pt
    NpuID(Idx)  Pwr(W)      Temp(C)
    0           280.8       NA
"""  # noqa: E501


def test_a_row_that_is_cut_off_is_left_out() -> None:
    (sample,) = read_watch(BOARD.splitlines())
    assert sample == Sample(
        npu_id=0,
        chip_id=0,
        power_watts=8.7,
        temperature_celsius=56,
        ai_core_ratio=0.25,
        ai_cpu_ratio=0.02,
        control_cpu_ratio=0.67,
        memory_ratio=0.71,
        memory_bandwidth_ratio=0.07,
    )


def test_each_header_names_the_columns_below_it() -> None:
    whole, chosen = read_watch(A950.splitlines())
    assert whole.npu_id == 7 and whole.chip_id is None and whole.control_cpu_ratio == 0.14
    assert whole.npu_ratio == 0.0 and whole.ai_cube_ratio == 0.04
    assert chosen == Sample(npu_id=0, power_watts=280.8)


def test_rows_without_a_header_say_nothing() -> None:
    assert not list(read_watch(["0 280.8 84", "", "npu-smi: command not found"]))


@pytest.mark.parametrize(
    ("name", "count", "watts"),
    [("a950_watch", 14, 280.8), ("watch_310B_trailing_spaces", 5, 8.7), ("watch_910B_single", 5, 90.2)],
)
def test_transcripts(shared: Path, name: str, count: int, watts: float) -> None:
    samples = list(read_watch((shared / f"fixtures/ascend/{name}.txt").read_text().splitlines()))
    assert len(samples) == count
    assert samples[-1].power_watts == watts
    assert all(sample.temperature_celsius and sample.npu_id is not None for sample in samples)
