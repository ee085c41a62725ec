"""A trace that `train` recorded on an NVIDIA H200: full tuning of a Llama of 1.24 billion parameters, 4 x 4,096 tokens.

Torch 2.11, CUDA 13, Liger 0.8.5. It was recorded before the window waited for the device: kernels of the step before
are in it. Shapes, launches and paths are left out of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ascendtune.check.profile.advice import advice_for
from ascendtune.check.profile.profile import RankProfile, read_profile
from ascendtune.check.profile.trace import COPY, KERNEL, read_trace

TRACE = Path(__file__).parents[3] / "fixtures/profile/h200-1b-full.trace.json.gz"


@pytest.fixture(scope="module")
def rank() -> RankProfile:
    (found,) = read_profile(TRACE)
    return found


def busy(start: float, end: float) -> Iterator[float]:
    """Microseconds of each stretch in which kernels or copies run."""
    trace = read_trace(TRACE)
    work = sorted(
        (max(trace.start[each], start), min(trace.start[each] + trace.duration[each], end))
        for each in range(len(trace))
        if trace.category[each] in (KERNEL, COPY)
    )
    reached = start
    for begins, ends in work:
        if ends > max(begins, reached):
            yield ends - max(begins, reached)
            reached = ends


def test_parts_add_up_to_the_step_and_to_the_time_in_which_the_device_is_busy(rank: RankProfile) -> None:
    split = rank.split
    assert split.on_device and split.steps == 1
    assert split.parts() == pytest.approx(split.total, rel=1e-6)
    (window,) = split.windows
    assert split.total - split.idle() == pytest.approx(sum(busy(*window)) * 1e-6, rel=1e-6)


def test_kernels_of_hopper_are_of_the_kind_of_their_module(rank: RankProfile) -> None:
    split = rank.split
    kinds: dict[str, set[str]] = {}
    for (name, kind), _ in split.operators.items():
        kinds.setdefault(name.split("<")[0].split("_v_")[0], set()).add(kind)
    of = {start: {kind for name, found in kinds.items() if start in name for kind in found} for start in (
        "flash_fwd", "flash_bwd", "_rms_norm_backward", "_triton_rope", "_swiglu_backward",
    )}  # fmt: skip
    assert of == {
        "flash_fwd": {"attention"}, "flash_bwd": {"attention"}, "_rms_norm_backward": {"norm"},
        "_triton_rope": {"rotary"}, "_swiglu_backward": {"activation"},
    }  # fmt: skip
    assert {"matmul"} <= {kind for name, found in kinds.items() if name.startswith("nvjet") for kind in found}
    shares = {kind: seconds / split.total for kind, seconds in split.compute.items()}
    assert shares["matmul"] == pytest.approx(0.576, abs=0.005) and shares["attention"] == pytest.approx(
        0.169, abs=0.005
    )


def test_the_one_wait_of_a_recorded_step_is_seen_and_no_change_is_proposed(rank: RankProfile) -> None:
    assert {phase for _, phase in rank.split.sync_calls} == {"collective"}
    assert advice_for([rank]) == []
