"""The memory estimate for models with known numbers, and the choice of `auto`."""

from dataclasses import replace

import pytest

from ascendtune.train.strategy.choose import ParameterCounts, choose_strategy, memory_need

GIB = 2**30
# Qwen2.5-7B: 7.62 billion, of which 1.09 billion embeddings and head; 28 blocks.
QWEN_7B = ParameterCounts(
    all=7_615_616_512, trained=7_615_616_512, frozen=0, outside=1_089_998_336, block=233_057_792,
    frozen_bytes=4, trained_bytes=4, computed_bytes=2,
)  # fmt: skip
ADAPTER = replace(QWEN_7B, trained=40_000_000, frozen=QWEN_7B.all, frozen_bytes=2)


def chosen(weights: ParameterCounts, memory: float, ranks: int = 8) -> tuple[str, bool]:
    need = memory_need(weights, states=2, ranks=ranks)
    return choose_strategy(need, memory_bytes=int(memory * GIB), ranks=ranks)[:2]


def test_ddp_holds_sixteen_bytes_a_parameter_and_the_copies_of_autocast() -> None:
    assert memory_need(QWEN_7B, states=2, ranks=8).ddp == 18 * QWEN_7B.all
    in_fp32 = replace(QWEN_7B, computed_bytes=4)
    assert memory_need(in_fp32, states=2, ranks=8).ddp == 16 * QWEN_7B.all


def test_fsdp_holds_a_share_and_what_is_gathered() -> None:
    need = memory_need(QWEN_7B, states=2, ranks=8)
    # Outside the blocks: weights, gradient, copy. Two blocks: weights and gradient in bf16.
    gathered = 10 * QWEN_7B.outside + 8 * QWEN_7B.block
    assert need.fsdp == pytest.approx(16 * QWEN_7B.all / 8 + gathered)


@pytest.mark.parametrize(
    ("weights", "memory", "expected"),
    [
        (QWEN_7B, 80, ("fsdp", False)),
        (QWEN_7B, 64, ("fsdp", False)),
        (QWEN_7B, 24, ("fsdp", True)),
        (QWEN_7B, 200, ("ddp", False)),
        (ADAPTER, 64, ("ddp", False)),
        (ADAPTER, 16, ("fsdp", False)),
    ],
)
def test_auto_takes_the_simplest_that_fits(weights: ParameterCounts, memory: float, expected: tuple[str, bool]) -> None:
    assert chosen(weights, memory) == expected


def test_the_reason_names_what_was_compared() -> None:
    need = memory_need(QWEN_7B, states=2, ranks=8)
    reason = choose_strategy(need, memory_bytes=64 * GIB, ranks=8)[2]
    assert reason == (
        "weights, gradients and optimizer state take 127.7 GiB, more than 44.8 GiB (70% of the device's 64.0 GiB); "
        "26.1 GiB when divided among 8 devices"
    )


def test_modules_that_are_trained_beside_adapters_take_nothing_from_the_frozen_model() -> None:
    copied = replace(ADAPTER, trained=1_000_000_000)
    # Frozen in 2 bytes and no copies of autocast; trained in fp32 with gradient and two moments.
    assert memory_need(copied, states=2, ranks=8).ddp == 2 * QWEN_7B.all + 16 * 1_000_000_000
