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


@pytest.mark.parametrize(
    ("last", "is_in_set_up"),
    [
        ("tide:77:77 NCCL CALL ncclGetUniqueId(0x7777)", True),
        ("tide:77:78 [0] NCCL INFO Channel 00/04 :    0   1   2   3", True),
        ("tide:77:78 [0] NCCL INFO comm 0x7 rank 0 nranks 2 cudaDev 0 busId 7 - Destroy COMPLETE", False),
        ("step 7 loss 0.7", False),
    ],
)
def test_log_that_ends_within_the_set_up_of_nccl_tells_what_to_look_at(
    explained: Callable[..., Explanation], last: str, is_in_set_up: bool
) -> None:
    explanation = explained(f"tide:77:77 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.7<0>\n{last}\n")

    assert explanation.is_healthy
    assert ("ends while NCCL is being set up" in explanation.headline()) == is_in_set_up
    assert (explanation.stall is not None) == is_in_set_up


def test_headline_of_a_short_log_without_a_failure_has_its_notice(explained: Callable[..., Explanation]) -> None:
    warning = (
        "WARNING[XFORMERS]: xFormers can't load C++/CUDA extensions. xFormers was built for:\n"
        "    PyTorch 2.7.0+cu118 with CUDA 1108 (you have 2.7.1)\n"
    )

    assert "built for another torch" in explained(warning).headline()
    assert explained(warning + "step 7 loss 0.7\n" * 200).headline() == "no failure was found"
