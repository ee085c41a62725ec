"""The batch sizes in DeepSpeed's message: the nearest ones that go together."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.facts.batch_sizes import batch_sizes_in

_SAID = (
    "AssertionError: Check batch related parameters. train_batch_size is not equal to "
    "micro_batch_per_gpu * gradient_acc_step * world_size {}"
)


@pytest.mark.parametrize(
    ("equation", "parts"),
    [
        ("100 != 3 * 4 * 7", ("100 is not a multiple of 3 (micro-batch) × 7 (ranks)", "84 / 105 fits")),
        ("96 != 2 * 13 * 7", ("84 / 98 fits", "or start 6 / 8 ranks")),
        ("5 != 2 * 1 * 7", ("batch size of 14 fits",)),
        ("64 != 4 * 3 * 4", ("gradient_accumulation_steps: 4 (64 = 4 × 4 × 4 ranks)", "train_batch_size: 48")),
    ],
)
def test_remedy_names_sizes_that_go_together(
    explained: Callable[..., Explanation], equation: str, parts: tuple[str, ...]
) -> None:
    remedy = explained(_SAID.format(equation) + "\n").remedies()[0]

    assert all(part in remedy for part in parts)


@pytest.mark.parametrize("equation", ["64 != 4 * 2 * 1", "64 != 4 * 2 * 99999999999", f"{'7' * 5000} != 4 * 2 * 7"])
def test_no_sizes_of_one_rank_or_beyond_any_job(equation: str) -> None:
    assert batch_sizes_in(_SAID.format(equation)) is None
