"""The memory of a profile: categories over time, what is held at the peak, and the advice about gaps."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.check.profile.traces import MAIN, Event, allocation, kernel, launch, named, op, step, write

from ascendtune.check.profile.advice import advice_for
from ascendtune.check.profile.memory import CATEGORIES, MemoryOwner, memory_use
from ascendtune.check.profile.page import write_page
from ascendtune.check.profile.profile import RankProfile, read_profile
from ascendtune.check.profile.show import as_plain, as_text
from ascendtune.check.profile.trace import ProfileTrace
from ascendtune.core import language
from ascendtune.machine.torch_backend import device

_MIB = 1 << 20
_DOCS = Path(__file__).parents[4] / "docs"


@pytest.mark.parametrize("page", ["profile.md", "profile.zh-CN.md"])
def test_page_explains_each_category_once(page: str) -> None:
    rows = re.findall(r"^\| ([a-z, ]+?) \|", (_DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
    first = rows.index(", ".join(CATEGORIES[:3]))
    assert ", ".join(rows[first : first + len(CATEGORIES) - 2]) == ", ".join(CATEGORIES)


def training_step() -> list[Event]:
    """A step that holds 10 bytes of a batch, 300 of activations, 40 of the loss, 100 of gradients, 200 of state."""
    return [
        step(1, 0, 1000),
        named("ascendtune:phase data", 0, 50), op("aten::stack", 10, 20), allocation(15, 10, 1),
        named("ascendtune:phase forward", 100, 300),
        op("aten::mm", 110, 50), op("aten::empty", 111, 2), allocation(112, 300, 2),
        op("aten::silu", 200, 50), allocation(210, 70, 3), allocation(240, -70, 3),
        op("aten::_log_softmax", 300, 50), allocation(310, 40, 4),
        named("ascendtune:phase backward", 400, 300),
        op("autograd::engine::evaluate_function: MmBackward0", 410, 100),
        allocation(420, 100, 5), allocation(450, -300, 2), allocation(460, -40, 4),
        named("ascendtune:phase optimizer", 700, 200), op("aten::_fused_adamw_", 710, 100),
        allocation(720, 200, 6), allocation(890, -100, 5),
    ]  # fmt: skip


def read(tmp_path: Path, events: list[Event], **facts: Any) -> RankProfile:
    (rank,) = read_profile(write(tmp_path / "rank_0.trace.json.gz", events, ascendtune=facts))
    return rank


def test_allocations_count_for_what_they_are_used_for(tmp_path: Path) -> None:
    memory = read(tmp_path, training_step(), held_bytes={"weights": 1000, "unknown": 5}, first_step=7).memory
    assert memory is not None
    # When the gradient is allocated, activations and loss are still there.
    assert memory.peak == {"weights": 1000, "activations": 300, "loss": 40, "gradients": 100, "batches": 10}
    assert (memory.peak_bytes, memory.peak_phase, memory.peak_step) == (1450, "backward", 0)
    assert memory.peak_seconds == pytest.approx(420e-6)
    assert memory.curve["temporary"][int(0.22 * 360)] == 70
    assert memory.curve["optimizer state"][-1] == 200 and memory.curve["gradients"][-1] == 0
    assert memory.reserved is None and memory.unused() == 0
    largest = memory.owners[0]
    # The view-like `aten::empty` allocates for the product around it.
    assert largest == MemoryOwner("activations", "aten::mm", "forward", size_bytes=300, count=1)


def test_recomputed_activations_are_not_gradients(tmp_path: Path) -> None:
    events = [
        step(1, 0, 1000),
        named("ascendtune:phase backward", 0, 900),
        named("ascendtune:module LlamaMLP", 100, 100), op("aten::mm", 110, 50), allocation(120, 64, 1),
        op("autograd::engine::evaluate_function: MmBackward0", 300, 100), allocation(350, -64, 1),
    ]  # fmt: skip
    memory = read(tmp_path, events).memory
    assert memory is not None and memory.peak == {"activations": 64}
    assert memory.owners[0].phase == "recomputation"


def test_phases_of_other_programs_follow_from_their_operators(tmp_path: Path) -> None:
    events = [
        op("aten::mm", 0, 50), allocation(10, 64, 1),
        op("autograd::engine::evaluate_function: MmBackward0", 100, 100), allocation(150, 32, 2),
        allocation(160, -64, 1),
        named("Optimizer.step#AdamW.step", 300, 100), op("aten::_foreach_add_", 310, 80), allocation(320, 16, 3),
    ]  # fmt: skip
    memory = read(tmp_path, events).memory
    assert memory is not None
    assert memory.peak == {"activations": 64, "gradients": 32}
    assert memory.curve["optimizer state"][-1] == 16


def test_gathered_weights_are_communication(tmp_path: Path) -> None:
    events = [
        step(1, 0, 100), named("ascendtune:phase forward", 0, 90), named("FSDP::pre_forward", 10, 20),
        allocation(15, 512, 1), op("aten::mm", 40, 10), allocation(80, -512, 1),
    ]  # fmt: skip
    memory = read(tmp_path, events).memory
    assert memory is not None and memory.peak == {"communication": 512}


def test_copies_of_a_collective_are_not_held_for_ever(tmp_path: Path) -> None:
    events = [
        step(1, 0, 100), named("ascendtune:phase backward", 0, 90), named("FSDP::post_backward_reduce", 10, 60),
        allocation(12, 64, 1),
        op("c10d::_reduce_scatter_base_", 20, 40), op("aten::clone", 25, 10),
        # Gloo frees the first two elsewhere; the address of the first is given out again.
        allocation(26, 512, 2), allocation(27, 256, 3), allocation(28, 16, 4), allocation(40, -16, 4),
        op("aten::add", 72, 8), allocation(74, 8, 2),
    ]  # fmt: skip
    memory = read(tmp_path, events).memory
    assert memory is not None and memory.peak == {"gradients": 64, "communication": 16}
    assert memory.curve["gradients"][-1] == 64 + 8 and memory.curve["communication"][-1] == 0


def of_a_device(reserved: int) -> list[Event]:
    """An accelerator that uses 600 MiB, of which 500 MiB were there before, while a CPU tensor is made."""
    on_device = {"device": (1, 0), "reserved": reserved * _MIB}
    return [
        step(1, 0, 100), allocation(1, 4096, 9), op("aten::mm", 10, 50), kernel("gemm", 10, 80),
        allocation(20, 100 * _MIB, 1, allocated=600 * _MIB, **on_device),
        allocation(90, -100 * _MIB, 1, allocated=500 * _MIB, **on_device),
    ]  # fmt: skip


def test_the_allocator_of_an_accelerator_tells_what_was_there_before(tmp_path: Path) -> None:
    memory = read(tmp_path, of_a_device(700), held_bytes={"weights": 300 * _MIB}).memory
    assert memory is not None
    assert memory.initial == {"weights": 300 * _MIB, "other": 200 * _MIB}
    assert (memory.peak_bytes, memory.allocated, memory.reserved) == (600 * _MIB, 600 * _MIB, 700 * _MIB)
    assert memory.unused() == 100 * _MIB


def test_gaps_in_the_memory_are_named_first(tmp_path: Path) -> None:
    first = advice_for([read(tmp_path, of_a_device(1600))])[0]
    assert first.code == "fragmentation"
    assert "1.6 GiB" in first.what and "600.0 MiB" in first.what
    few = advice_for([read(tmp_path, of_a_device(700))])
    assert "fragmentation" not in [each.code for each in few]


def test_calls_of_the_driver_for_memory_are_not_values_that_the_host_reads(tmp_path: Path) -> None:
    events = [
        step(1, 0, 100), named("ascendtune:phase forward", 0, 100), kernel("gemm", 0, 30, correlation=1),
        launch("cudaFree", 10, 40), launch("cudaMalloc", 52, 10), launch("cudaLaunchKernel", 65, 2, correlation=2),
        kernel("gemm", 70, 30, correlation=2),
    ]  # fmt: skip
    (advice,) = [each for each in advice_for([read(tmp_path, events)]) if each.is_defect]
    assert advice.code == "fragmentation" and "2 times" in advice.what
    assert advice.gain == pytest.approx(35e-6)


def test_memory_is_in_text_json_and_page(tmp_path: Path) -> None:
    hostile = [*training_step(), op("<script>\x1b[31m", 600, 20), allocation(610, 5000, 8)]
    rank = read(tmp_path, hostile, held_bytes={"weights": 1000}, first_step=7)
    text = as_text([rank], [], 60)
    assert "in step 7 (optimizer)" in text and "optimizer state" in text
    assert all(len(line) <= 60 for line in text.splitlines()) and "\x1b" not in text
    with language.using("zh"):
        assert "第 7 步（优化器）" in as_text([rank], [], 60)
    plain = as_plain([rank], [])["ranks"][0]["memory"]
    assert plain["peak_bytes"] == sum(plain["at_peak_bytes"].values())
    assert {len(values) for values in plain["curve"]["bytes"].values()} == {len(plain["curve"]["seconds"])}
    write_page(tmp_path / "report.html", [rank])
    page = (tmp_path / "report.html").read_text()
    assert "<script" not in page and "\x1b" not in page
    assert page.count("<polygon") == len(plain["curve"]["bytes"])
    heights = [float(y) for y in re.findall(r"\d,(-?[\d.]+)", page)]
    assert min(heights) >= 7.9
    assert max(heights) <= 196.1


_event = st.tuples(st.integers(0, 100), st.integers(-50, 50), st.integers(0, 4), st.integers(-3, 200))


@settings(max_examples=100)
@given(st.lists(_event, max_size=30), st.integers(0, 3))
def test_no_events_give_a_negative_size(events: list[tuple[int, ...]], kind: int) -> None:
    trace = ProfileTrace()
    for time, size, address, total in events:
        trace.add_memory((1, MAIN), time, {
            "Device Type": kind, "Device Id": 0, "Bytes": size, "Addr": address, "Total Allocated": total,
            "Total Reserved": total + 10,
        })  # fmt: skip
    found = memory_use(trace.memory_of_device(), [(10.0, 60.0)], {"weights": 7})
    if found is None:
        assert not events
        return
    assert all(value >= 0 for values in found.curve.values() for value in values)
    assert set(found.peak) <= set(CATEGORIES) and found.peak_bytes >= 0


@pytest.mark.parametrize("arguments", [{}, {"Bytes": "many"}, {"Bytes": 1 << 70, "Addr": 1}, {"Bytes": True}])
def test_damaged_allocations_are_left_out(arguments: dict[str, Any]) -> None:
    trace = ProfileTrace()
    trace.add_memory((1, MAIN), 0.0, {"Device Type": 0, "Device Id": -1, **arguments})
    assert trace.memory_of_device() is None


def test_a_snapshot_is_written_and_recording_ends_after_an_error(tmp_path: Path) -> None:
    calls: list[Any] = []
    recorder = SimpleNamespace(
        _record_memory_history=lambda enabled="all", **_: calls.append(enabled), _dump_snapshot=calls.append
    )
    with device._memory_history(recorder, tmp_path / "a.pickle"):
        calls.append("steps")
    assert calls == ["all", "steps", str(tmp_path / "a.pickle"), None]
    calls.clear()
    with pytest.raises(RuntimeError), device._memory_history(recorder, tmp_path / "b.pickle"):
        raise RuntimeError
    assert calls == ["all", None]
