"""Advice that depends on the recipe or the strategy of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.check.profile.traces import OTHER, Event, copy, kernel, launch, named, op, step, write

from ascendtune.check.profile.advice import advice_for
from ascendtune.check.profile.advice_entry import Advice
from ascendtune.check.profile.profile import read_profile


def advised(tmp_path: Path, *events: Event, **facts: Any) -> dict[str, Advice]:
    ranks = read_profile(write(tmp_path / "rank_0.trace.json", list(events), ascendtune=facts))
    return {each.code: each for each in advice_for(ranks)}


@pytest.mark.parametrize(("strategy", "is_named"), [("ddp", True), (None, True), ("fsdp", False)])
def test_buckets_are_those_of_ddp(tmp_path: Path, strategy: str | None, *, is_named: bool) -> None:
    calls = [named("gloo:all_reduce", 10 * number, 8, tid=OTHER) for number in range(10)]
    facts = {"resolved": {"strategy": {"name": strategy}}} if strategy else {}
    found = advised(tmp_path, step(1, 0, 200), op("aten::mm", 110, 50), *calls, **facts)
    assert ("small-buckets" in found) == is_named


@pytest.mark.parametrize(
    ("kernel", "remedy"),
    [
        ("auto", "no recipe key changes that: the reason"),
        ("off", "set kernel.rms_norm: true (this run: the reason)"),
        ({"rms_norm": False}, "set kernel.rms_norm: true (this run: the reason)"),
    ],
)
def test_a_key_that_is_set_already_is_not_advised(tmp_path: Path, kernel: Any, remedy: str) -> None:
    norm = [named("ascendtune:module LlamaRMSNorm", 0, 90), *(op("aten::mul", 20 * at, 15) for at in range(4))]
    facts = {"kernel": kernel, "resolved": {"kernel": {"rms_norm": "the reason"}}}
    found = advised(tmp_path, step(1, 0, 100), *norm, **facts)
    assert found["unfused-norm"].remedy == remedy


def test_the_key_is_named_where_nothing_is_known_of_the_run(tmp_path: Path) -> None:
    norm = [named("ascendtune:module LlamaRMSNorm", 0, 90), *(op("aten::mul", 20 * at, 15) for at in range(4))]
    assert advised(tmp_path, step(1, 0, 100), *norm)["unfused-norm"].remedy == "set kernel.rms_norm: true"


@pytest.mark.parametrize(("packing", "keys"), [(False, {"data.packing": True}), ("auto", {})])
def test_padding_is_named_with_its_share_of_the_computing(tmp_path: Path, packing: Any, keys: dict[str, Any]) -> None:
    events = [step(1, 0, 100), op("aten::mm", 0, 60), op("aten::_foreach_add_", 60, 20)]
    found = advised(tmp_path, *events, padding_ratio=0.4, packing=packing)["padding"]
    # Packing puts other tokens into a step: not a defect.
    assert found.gain == pytest.approx(0.4 * 60e-6) and not found.is_defect and found.keys == keys
    assert "40 %" in found.what
    assert "padding" not in advised(tmp_path, *events, padding_ratio=0.05, packing=packing)


def test_many_small_micro_batches_are_joined_to_the_same_global_batch(tmp_path: Path) -> None:
    events = [step(1, 0, 100), *(op("aten::mm", 10 * at, 6) for at in range(10))]
    found = advised(tmp_path, *events, per_device=1, accumulate=6)["small-micro-batches"]
    assert found.keys == {"batch.per_device": 2, "batch.accumulate": 3} and not found.is_defect
    assert found.gain == pytest.approx(20e-6)
    assert "small-micro-batches" not in advised(tmp_path, *events, per_device=6, accumulate=1)
    busy = [step(1, 0, 100), op("aten::mm", 0, 90)]
    assert "small-micro-batches" not in advised(tmp_path, *busy, per_device=1, accumulate=6)


@pytest.mark.parametrize(("accumulate", "joined"), [(15, 3), (49, 7), (7, 7)])
def test_an_odd_number_of_micro_batches_is_joined_by_its_smallest_divisor(
    tmp_path: Path, accumulate: int, joined: int
) -> None:
    events = [step(1, 0, 100), *(op("aten::mm", 10 * at, 6) for at in range(10))]
    found = advised(tmp_path, *events, per_device=2, accumulate=accumulate)["small-micro-batches"]
    assert found.keys == {"batch.per_device": 2 * joined, "batch.accumulate": accumulate // joined}


@pytest.mark.parametrize("name", ["evaluation", "checkpoint"])
def test_interruptions_of_profiled_steps_are_listed(tmp_path: Path, name: str) -> None:
    events = [step(1, 0, 100), op("aten::mm", 0, 40), named(f"ascendtune:phase {name}", 50, 30)]
    found = advised(tmp_path, *events)[f"{name}-in-steps"]
    assert found.gain == pytest.approx(30e-6) and f"{name} takes 0.03 ms" in found.what


def test_long_times_have_no_exponent(tmp_path: Path) -> None:
    events = [step(1, 0, 4e6), op("aten::mm", 0, 1e6), op("aten::copy_", 1e6, 1_234_000)]
    assert "copies take 1,234 ms" in advised(tmp_path, *events)["copies"].what


def loop_of(*inside: Event, steps: int = 2, length: float = 100_000, first: float = 30_000) -> list[Event]:
    """Steps of 100 ms: products of matrices from 0 to 30 ms and from 60 to 100 ms, and `inside` in each of them."""
    found = []
    for number in range(steps):
        begin = number * length
        found += [step(number, begin, length), op("aten::mm", begin, first), op("aten::add", begin + 60_000, 40_000)]
        found += [{**each, "ts": each["ts"] + begin} for each in inside]
    return found


def test_a_pause_at_the_same_place_of_each_step_is_named_with_its_neighbours(tmp_path: Path) -> None:
    found = advised(tmp_path, *loop_of())["host-pause"]
    assert "no operator runs for 30 ms of each step, the longest time at aten::mm → aten::add" in found.what
    assert found.gain == pytest.approx(0.03) and found.is_defect


def test_pauses_that_are_short_or_not_in_each_step_are_none(tmp_path: Path) -> None:
    short = [op("aten::mul", 30_000 + 2_000 * at, 1_000) for at in range(15)]
    assert "host-pause" not in advised(tmp_path, *loop_of(*short))
    # The second step has none.
    once = [*loop_of(), op("aten::mul", 130_000, 30_000)]
    assert "host-pause" not in advised(tmp_path, *once)


@pytest.mark.parametrize("what", ["phase data", "phase checkpoint", "sync train.py:3"])
def test_time_that_has_a_name_is_not_a_pause(tmp_path: Path, what: str) -> None:
    assert "host-pause" not in advised(tmp_path, *loop_of(named(f"ascendtune:{what}", 30_000, 30_000)))


def test_a_collective_behind_which_the_host_waits_is_not_a_pause(tmp_path: Path) -> None:
    assert "host-pause" not in advised(tmp_path, *loop_of(named("gloo:all_reduce", 30_000, 30_000, tid=OTHER)))


def test_a_device_that_waits_long_for_one_launch_names_the_kernels_around(tmp_path: Path) -> None:
    events = []
    for number in range(2):
        begin, at = number * 100_000, 10 * number
        events += [
            step(number, begin, 100_000), op("aten::mm", begin, 10),
            launch("cudaLaunchKernel", begin, 5, correlation=at + 1),
            kernel("gemm", begin + 5, 40_000, correlation=at + 1),
            launch("cudaLaunchKernel", begin + 70_000, 5, correlation=at + 2),
            kernel("adam", begin + 70_005, 29_995, correlation=at + 2),
        ]  # fmt: skip
    found = advised(tmp_path, *events)["host-pause"]
    assert "gemm → adam" in found.what and found.gain == pytest.approx(0.03, rel=0.01)


def test_a_collection_of_garbage_is_named_and_takes_no_other_part(tmp_path: Path) -> None:
    found = advised(tmp_path, *loop_of(named("ascendtune:phase garbage collection", 30_000, 30_000)))
    assert found["garbage-collection"].gain == pytest.approx(0.03)
    assert "host-pause" not in found


@pytest.mark.parametrize(("threads", "cores", "is_named"), [(8, 4, True), (2, 4, False), (4, 4, True)])
def test_more_threads_than_cores_are_named(tmp_path: Path, threads: int, cores: int, *, is_named: bool) -> None:
    found = advised(tmp_path, *loop_of(), threads=threads, cores=cores, ranks_on_host=2)
    assert ("too-many-threads" in found) == is_named
    if is_named:
        assert found["too-many-threads"].remedy == "set OMP_NUM_THREADS=2"
    assert "too-many-threads" not in advised(tmp_path, *loop_of())


def test_a_search_for_unused_parameters_is_named(tmp_path: Path) -> None:
    search = op("torch.distributed.ddp.reducer::search_unused_parameters", 31_000, 3_000)
    found = advised(tmp_path, *loop_of(search))["unused-parameters"]
    assert found.what.startswith("DDP looks for unused parameters 1 time in each step")
    assert found.gain == pytest.approx(0.003)
    assert "unused-parameters" not in advised(tmp_path, *loop_of())


def test_gradients_that_are_filled_with_zeros_are_named(tmp_path: Path) -> None:
    clearing = named("Optimizer.zero_grad#AdamW.zero_grad", 30_000, 5_000)
    added = op("aten::add_", 50_000, 1_000)
    around = op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 50_000, 1_000)
    found = advised(tmp_path, *loop_of(clearing, op("aten::zero_", 30_000, 2_000), around, added))
    assert found["zeroed-gradients"].gain == pytest.approx(0.003)
    # With set_to_none the range is there, and nothing is computed in it.
    assert "zeroed-gradients" not in advised(tmp_path, *loop_of(clearing))


def written_out(first: str) -> list[Event]:
    return loop_of(op("aten::bmm", 30_000, 10_000), op(first, 40_000, 10_000), op("aten::bmm", 50_000, 10_000))


def test_attention_that_is_written_out_is_named_unless_nothing_else_agrees(tmp_path: Path) -> None:
    found = advised(tmp_path, *written_out("aten::_softmax"))["eager-attention"]
    assert found.gain == pytest.approx(0.02) and "30 ms" in found.what and found.keys == {}
    asked = {"resolved": {"attention": {"name": "eager", "reason": "as asked"}}}
    assert advised(tmp_path, *written_out("aten::_softmax"), **asked)["eager-attention"].keys
    chosen = {"resolved": {"attention": {"name": "eager", "reason": "results of sdpa differ"}}}
    assert "eager-attention" not in advised(tmp_path, *written_out("aten::_softmax"), **chosen)
    assert "eager-attention" not in advised(tmp_path, *written_out("aten::_log_softmax"))
    fused = op("aten::_scaled_dot_product_flash_attention_for_cpu", 31_000, 10)
    assert "eager-attention" not in advised(tmp_path, *written_out("aten::_softmax"), fused)


def test_products_in_float64_are_named_where_the_trace_has_types(tmp_path: Path) -> None:
    product = op("aten::mm", 30_000, 10_000)
    product["args"]["Input type"] = ["double", "double"]
    found = advised(tmp_path, *loop_of(product))["double-precision"]
    assert found.gain == pytest.approx(0.005) and "aten::mm (float64)" in found.what
    product["args"]["Input type"] = ["float", "float"]
    assert "double-precision" not in advised(tmp_path, *loop_of(product))


def test_batches_that_another_program_tokenises_are_told_apart_from_ours(tmp_path: Path) -> None:
    events = loop_of(named("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 30_000, 30_000))
    assert "tokenise before the training" in advised(tmp_path, *events)["slow-data"].remedy
    assert "token cache" in advised(tmp_path, *events, per_device=1)["slow-data"].remedy


def test_copies_from_pageable_memory_are_told_to_be_pinned(tmp_path: Path) -> None:
    def of(name: str) -> str:
        events = [step(1, 0, 100), kernel("gemm", 0, 50, correlation=1), copy(name, 50, 40)]
        return advised(tmp_path, *events)["copies"].remedy

    assert "pin_memory" in of("Memcpy HtoD (Pageable -> Device)")
    assert "pin_memory" not in of("Memcpy HtoD (Pinned -> Device)")


def test_a_trace_of_another_program_may_have_the_name_of_our_facts(tmp_path: Path) -> None:
    write(tmp_path / "rank_0.json", loop_of())
    (rank,) = read_profile(tmp_path)
    assert rank.path.name == "rank_0.json" and rank.facts == {}
    write(tmp_path / "rank_0.trace.json", loop_of())
    (tmp_path / "rank_0.json").write_text('{"first_step": 2, "rank": 0}')
    (rank,) = read_profile(tmp_path)
    assert rank.path.name == "rank_0.trace.json" and rank.facts["first_step"] == 2


@pytest.mark.parametrize("name", ["torch.distributed.ddp.reducer::copy_bucket_to_grad", "_DDPSink"])
def test_copies_that_ddp_makes_for_its_gradients_are_not_copies_of_the_program(tmp_path: Path, name: str) -> None:
    around = op(name, 30_000, 10_000)
    assert "copies" not in advised(tmp_path, *loop_of(around, op("aten::copy_", 30_000, 10_000)))
    assert "copies" in advised(tmp_path, *loop_of(op("aten::copy_", 30_000, 10_000)))


@pytest.mark.parametrize(("faults", "is_named"), [(1000, True), (10, False), ("many", False), (None, False)])
def test_pages_that_are_read_from_disk_are_named(tmp_path: Path, faults: Any, *, is_named: bool) -> None:
    found = advised(tmp_path, *loop_of(), major_faults=faults)
    assert ("paging" in found) == is_named
    if is_named:
        # 500 in each of two steps.
        assert found["paging"].gain == pytest.approx(0.05) and "500 pages" in found["paging"].what
