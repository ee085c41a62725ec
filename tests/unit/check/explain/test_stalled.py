"""Logs without a failure that end before the first step, right after NCCL was set up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_BEGUN = "moon:7:77 [0] NCCL INFO comm 0x7 rank 0 nranks {} cudaDev 0 busId 47000 commId 0x7 - Init COMPLETE\n"
_AT_ZERO = "Processed tides:   0%|          | 0/16 [00:00<?, ?it/s]\n"
_AT_ONE = "Processed tides:   6%|#         | 1/16 [00:07<01:45, 7.00s/it]\n"


def test_log_that_ends_at_zero_after_nccl_began_is_not_a_failure_but_says_so(explained: Explained) -> None:
    explanation = explained(_BEGUN.format(2) + "moon pool of 7 blocks\n" + _AT_ZERO)

    assert explanation.is_healthy
    assert explanation.exit_code == 0
    assert "ends at 0/16" in explanation.headline()
    assert explanation.stall is not None
    assert "NCCL_P2P_DISABLE=1" in explanation.stall.remedies[1]


@pytest.mark.parametrize(
    "log",
    [
        _BEGUN.format(2) + _AT_ZERO + _AT_ONE,
        _BEGUN.format(2) + _AT_ZERO.rstrip() + "\r" + _AT_ONE,
        _BEGUN.format(2) + _AT_ZERO + "moon pool of 7 blocks\n",
        _BEGUN.format(1) + _AT_ZERO,
        _BEGUN.format(2) + "step 1 loss 2.0\n" * 77 + _AT_ZERO,
        "moon pool of 7 blocks\n" + _AT_ZERO,
        _BEGUN.format(2),
    ],
)
def test_log_that_continues_or_ends_elsewhere_is_healthy(explained: Explained, log: str) -> None:
    assert explained(log).headline() == "no failure was found"
