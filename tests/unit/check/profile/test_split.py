"""The time of a step, divided: each part against times that are known, and the sum of parts against the step."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.check.profile.traces import OTHER, Event, copy, kernel, launch, named, op, step, write

from ascendtune.check.profile.kinds import kind_of_operator
from ascendtune.check.profile.profile import read_profile
from ascendtune.check.profile.split import Split, split_of
from ascendtune.check.profile.trace import KERNEL, LAUNCH, OP, RANGE, ProfileTrace, read_trace

MICRO = 1e-6


def split(tmp_path: Path, *events: Event) -> Split:
    found = split_of(read_trace(write(tmp_path / "trace.json.gz", list(events))))
    assert found.parts() == pytest.approx(found.total, rel=1e-9)
    return found


def microseconds(values: dict[str, float]) -> dict[str, float]:
    return {name: round(seconds / MICRO, 3) for name, seconds in values.items() if seconds}


def test_operators_on_the_host_have_the_time_outside_those_inside_them(tmp_path: Path) -> None:
    found = split(
        tmp_path,
        step(1, 0, 100),
        op("aten::linear", 10, 40),
        op("aten::addmm", 20, 25),
        op("aten::scaled_dot_product_attention", 60, 20),
        op("aten::transpose", 61, 5),
    )
    assert microseconds(found.compute) == {"matmul": 40, "attention": 20}
    assert found.launch / MICRO == pytest.approx(40)
    assert found.operators["aten::linear", "matmul"].seconds / MICRO == pytest.approx(15)
    assert found.operators["aten::linear", "matmul"].calls == 1


def test_time_outside_the_steps_counts_for_nothing(tmp_path: Path) -> None:
    found = split(
        tmp_path, op("aten::mm", 0, 90), step(1, 100, 50), op("aten::mm", 110, 20), step(2, 150, 70),
        op("aten::mm", 160, 10), op("aten::mm", 230, 40),
    )  # fmt: skip
    assert found.step_seconds == pytest.approx([50 * MICRO, 70 * MICRO])
    assert microseconds(found.compute) == {"matmul": 30}


def test_number_of_ranks_that_no_job_has_is_left_out(tmp_path: Path) -> None:
    facts = {"world_size": 10**400, "tokens_per_step": 100, "flops_per_token": 1e6, "peak_flops": 1e12}
    file = write(tmp_path / "trace.json", [step(1, 0, 1e6), op("aten::mm", 0, 1e6)], ascendtune=facts)
    [rank] = read_profile(file)
    assert rank.utilisation() == pytest.approx(1e-4)


def test_a_trace_without_steps_is_one_step(tmp_path: Path) -> None:
    found = split(tmp_path, op("aten::mm", 100, 20), op("aten::mm", 180, 20))
    assert found.step_seconds == pytest.approx([100 * MICRO])


def test_microseconds_since_1970_are_times_too(tmp_path: Path) -> None:
    since = 1_712_195_495_519_689
    events = [{**each, "ts": each["ts"] + since} for each in (step(1, 0, 100), op("aten::mm", 10, 30))]
    found = split(tmp_path, *events)
    assert found.total == pytest.approx(100e-6) and microseconds(found.compute) == {"matmul": 30}


def test_kernels_of_libraries_have_their_kinds() -> None:
    kinds = {
        "aclnnForeachAddListV2_ForeachAddListV2_ForeachAddList": "optimizer",
        "ForeachNorm": "clip",
        "void fbgemm_gpu::split_embedding_codegen_forward_kernel<float>": "other",
        "ampere_sgemm_128x64_tn": "matmul",
    }
    assert {name: kind_of_operator(name) for name in kinds} == kinds


@pytest.mark.parametrize(
    ("module", "node"), [("Qwen2MLP", "_LinearWithAdapter"), ("Qwen2Attention", "_QuantisedProduct")]
)
def test_dequantising_a_weight_is_neither_an_activation_nor_a_rotary_embedding(
    tmp_path: Path, module: str, node: str
) -> None:
    backward = f"autograd::engine::evaluate_function: {node}Backward"
    found = split(
        tmp_path,
        step(1, 0, 200),
        named(f"ascendtune:module {module}", 0, 100),
        op(node, 10, 60),
        op("aten::index_select", 12, 20),
        op("aten::copy_", 34, 8),
        op("aten::mm", 44, 16),
        op(backward, 110, 50),
        op("aten::copy_", 112, 8),
        op("aten::mm", 130, 20),
    )
    assert microseconds(found.compute) == {"matmul": 36, "other": 44 + 30} and not found.copies


def test_phases_and_modules_of_ours_decide_the_kind(tmp_path: Path) -> None:
    found = split(
        tmp_path,
        step(1, 0, 1000),
        named("ascendtune:phase data", 0, 50),
        op("aten::lift_fresh", 10, 5),
        named("ascendtune:phase forward", 100, 200),
        named("ascendtune:module LlamaRMSNorm", 100, 50),
        op("aten::pow", 100, 20, sequence=1),
        op("aten::to", 120, 6),
        op("aten::_to_copy", 121, 4),
        op("aten::mul", 130, 20, sequence=2),
        named("ascendtune:phase backward", 300, 100),
        op("autograd::engine::evaluate_function: PowBackward0", 300, 40, sequence=1),
        op("aten::mul", 310, 20),
        named("ascendtune:phase optimizer", 500, 100),
        op("aten::_foreach_mul_", 500, 30),
        named("Optimizer.step#AdamW.step", 540, 50),
        op("aten::_fused_adamw_", 545, 40),
        named("ascendtune:phase evaluation", 700, 100),
        op("aten::mm", 700, 60),
    )
    assert microseconds(found.compute) == {"norm": 86, "clip": 30, "optimizer": 40}
    assert found.data / MICRO == pytest.approx(50)
    assert microseconds(found.aside) == {"evaluation": 100}
    # pow, the conversion, mul: the other operators are views, or inside these.
    assert (found.modules["LlamaRMSNorm"].calls, found.modules["LlamaRMSNorm"].operators) == (1, 3)


def test_a_value_read_on_the_host_is_a_wait_at_its_place(tmp_path: Path) -> None:
    found = split(
        tmp_path,
        step(1, 0, 100),
        named("ascendtune:phase forward", 0, 100),
        named("ascendtune:sync train/loop.py:7", 20, 30),
        op("aten::item", 25, 10),
    )
    assert microseconds(found.sync) == {"train/loop.py:7": 30}
    assert dict(found.sync_calls) == {("train/loop.py:7", "forward"): 1}


def test_collectives_of_gloo_are_exposed_where_the_main_thread_computes_nothing(tmp_path: Path) -> None:
    found = split(
        tmp_path,
        step(1, 0, 100),
        op("aten::mm", 0, 50),
        named("gloo:all_reduce", 30, 50, tid=OTHER),
        named("gloo:all_reduce", 85, 30, tid=OTHER),
    )
    assert microseconds(found.communication) == {"all-reduce": 45}
    assert microseconds(found.hidden) == {"all-reduce": 20}
    assert [round(each / MICRO) for each in found.collectives["all-reduce"]] == [50, 15]
    assert found.launch / MICRO == pytest.approx(5)


def test_kernels_communication_copies_and_gaps_of_a_device(tmp_path: Path) -> None:
    found = split(
        tmp_path,
        step(1, 0, 200),
        op("aten::mm", 0, 5, external=1),
        launch("cudaLaunchKernel", 1, 2, correlation=11),
        kernel("sm90_xmma_gemm_bf16", 10, 40, correlation=11, external=1),
        kernel("ncclDevKernel_AllReduce_Sum", 30, 40, stream=9),
        copy("Memcpy HtoD (Pinned -> Device)", 60, 20),
        # Launched before the device was free: a gap of the device.
        launch("cudaLaunchKernel", 20, 2, correlation=12),
        kernel("elementwise_kernel", 90, 10, correlation=12),
        # Launched 20 us after the device had become free.
        launch("cudaLaunchKernel", 120, 2, correlation=13),
        kernel("elementwise_kernel", 125, 75, correlation=13),
    )
    assert found.on_device
    assert microseconds(found.compute) == {"matmul": 40, "other": 85}
    assert microseconds(found.communication) == {"all-reduce": 20}
    assert microseconds(found.hidden) == {"all-reduce": 20}
    assert microseconds(found.copies) == {"Memcpy HtoD (Pinned -> Device)": 10}
    # The device is idle in 0-10, 80-90 and 100-125; what ends these spans was launched at 1, 20 and 120.
    assert found.launch / MICRO == pytest.approx(1 + 0 + 20)
    assert found.gaps / MICRO == pytest.approx(9 + 10 + 5)


def test_a_device_that_waits_after_a_synchronisation_waits_for_that(tmp_path: Path) -> None:
    found = split(
        tmp_path,
        step(1, 0, 100),
        named("ascendtune:phase backward", 0, 100),
        kernel("gemm", 0, 40, correlation=1),
        named("ascendtune:sync a.py:3", 10, 35),
        launch("cudaStreamSynchronize", 12, 32),
        launch("cudaLaunchKernel", 60, 2, correlation=2),
        kernel("gemm", 65, 35, correlation=2),
    )
    assert microseconds(found.sync) == {"a.py:3": 20}
    assert found.gaps / MICRO == pytest.approx(5)
    assert dict(found.sync_calls) == {("a.py:3", "backward"): 1}


_event = st.tuples(
    st.sampled_from([OP, RANGE, KERNEL, LAUNCH]),
    st.sampled_from(["aten::mm", "gloo:all_reduce", "ascendtune:phase data", "ascendtune:sync x:1", "Memcpy", "nccl"]),
    st.integers(0, 2), st.integers(0, 100), st.integers(0, 40), st.integers(-1, 3), st.integers(-1, 3),
)  # fmt: skip


@pytest.mark.long
@settings(max_examples=150)
@given(st.lists(_event, min_size=1, max_size=25), st.booleans())
def test_the_parts_add_up_whatever_the_events_are(events: list[tuple[int, ...]], has_steps: bool) -> None:
    trace = ProfileTrace()
    for category, name, thread, start, duration, one, other in events:
        trace.add(category, str(name), (1, thread), start, duration, one, other, other)
    if has_steps:
        trace.add(RANGE, "ProfilerStep#1", (1, 0), 5, 50)
        # A hostile trace may have steps that overlap.
        trace.add(RANGE, "ProfilerStep#2", (1, 0), 50, 30)
    elif all(category == LAUNCH for category, *_ in events):
        return
    found = split_of(trace)
    assert found.parts() == pytest.approx(found.total, abs=1e-12)


@pytest.mark.long
def test_many_steps_and_deeply_nested_operators_do_not_multiply() -> None:
    trace = ProfileTrace()
    for number in range(8_000):
        trace.add(RANGE, f"ProfilerStep#{number}", (1, 0), number, 1)
        trace.add(KERNEL, "nccl", (1, 7), number + 0.2, 0.5)
        trace.add(OP, "aten::mm", (1, 1), 0, 8_000 - number)
    found = split_of(trace)
    assert found.parts() == pytest.approx(found.total)
    assert sum(found.communication.values()) == pytest.approx(4_000e-6)
