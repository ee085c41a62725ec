"""Gradients summed over ranks, held against the same step of one process in fp64."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ascendtune.core.errors import RecipeError
from ascendtune.train.strategy import gradient_buckets
from ascendtune.train.strategy.gradient_buckets import GradientBuckets

RANKS = 3
SIZES = (7, 300, 5, 211, 1)


class Model(nn.Module):
    """Weights of several sizes; each input names those that it uses, in the order of their use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(size)) for size in SIZES)

    def forward(self, used: tuple[int, ...], factor: float) -> torch.Tensor:
        total = torch.zeros(())
        for index in used:
            # Nothing that saturates: a gradient of zero is the same however it is summed.
            total = (total + self.weights[index].square().mean() * factor).sin()
        return total


ALL = tuple(range(len(SIZES)))


def _steps(rank: int) -> list[list[tuple[tuple[int, ...], float]]]:
    """Of each step the micro-batches: orders differ between ranks, weight 4 is never used, weight 1 by rank 2 alone."""
    used = ALL[:4] if rank == 2 else (0, 2, 3)
    return [
        [(used, 0.1 + rank), (tuple(reversed(used)), 0.3)],
        [(used[:2] if rank == 0 else used, 0.2), (used[::-1], 0.5 * rank)],
        [(ALL, 0.1 * (rank + 1)), (ALL[::-1], 0.7)],
        [(used[::-1], 0.2 * (rank + 1))],
        [((0, 1), 0.2), ((1, 2, 3) if rank else (3, 2), 0.3)],
    ]


def _be_rank(rank: int, directory: Path, send_dtype: torch.dtype | None) -> None:
    # A fork makes torch's thread pool unusable.
    torch.set_num_threads(1)
    gradient_buckets.BUCKET_BYTES, gradient_buckets._FIRST_BYTES = 1000, 100
    store = dist.FileStore(str(directory / f"store {send_dtype}"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    model, found = Model(), []
    buckets = GradientBuckets(model.parameters(), send_dtype)
    for micro_batches in _steps(rank):
        for index, (used, factor) in enumerate(micro_batches):
            buckets.sums = index == len(micro_batches) - 1
            model(used, factor).backward()
        buckets.finish()
        found.append([None if each.grad is None else each.grad.clone() for each in model.parameters()])
        model.zero_grad()
    torch.save(found, directory / f"{send_dtype} {rank}.pt")
    dist.destroy_process_group()


def _be_all_ranks(directory: Path) -> None:
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=_be_rank, args=(rank, directory, send_dtype), daemon=True)
        for send_dtype in (None, torch.bfloat16)
        for rank in range(RANKS)
    ]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(timeout=60)
    sys.exit(any(each.exitcode != 0 for each in ranks))


@pytest.fixture(scope="module")
def gradients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of gradients: of each step those of each weight, or None."""
    directory = tmp_path_factory.mktemp("gradients")
    # A process of its own: one that has had a process group must not fork.
    subprocess.run([sys.executable, __file__, directory], check=True, timeout=120)
    return directory


def _alone(step: int) -> list[torch.Tensor | None]:
    """The mean of all ranks' gradients, by one process."""
    model = Model().double()
    for rank in range(RANKS):
        for used, factor in _steps(rank)[step]:
            (model(used, factor) / RANKS).backward()
    return [None if each.grad is None else each.grad for each in model.parameters()]


@pytest.mark.long
@pytest.mark.parametrize(("send_dtype", "tolerance"), [(None, 1e-6), (torch.bfloat16, 2e-2)])
def test_every_rank_has_the_mean_of_all_gradients(
    gradients: Path, send_dtype: torch.dtype | None, tolerance: float
) -> None:
    found = [torch.load(gradients / f"{send_dtype} {rank}.pt") for rank in range(RANKS)]
    for step in range(5):
        expected = _alone(step)
        assert [each is None for each in expected] == [False] * 4 + [step != 2]
        for of_ranks, mean in zip(zip(*(each[step] for each in found), strict=True), expected, strict=True):
            if mean is None:
                assert of_ranks == (None,) * RANKS
                continue
            torch.testing.assert_close(of_ranks[0].double(), mean, rtol=tolerance, atol=tolerance * 0.1)
            assert all(torch.equal(each, of_ranks[0]) for each in of_ranks)
            assert mean.count_nonzero() == mean.numel()
            is_rounded = torch.equal(of_ranks[0], of_ranks[0].bfloat16().float())
            assert is_rounded is (send_dtype is torch.bfloat16)


def test_a_second_gradient_in_one_backward_pass_is_an_error() -> None:
    """As torch's reentrant checkpointing brings it: the bucket may have been sent before."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        weight = nn.Parameter(torch.ones(3))
        GradientBuckets([weight])
        with pytest.raises(RecipeError) as caught:
            for _ in range(2):
                (weight.sum() * 2).backward()
        assert caught.value.code == "gradient-twice"
    finally:
        dist.destroy_process_group()


def test_a_bucket_is_sent_as_soon_as_it_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_buckets, "_FIRST_BYTES", 1)
    monkeypatch.setattr(gradient_buckets, "BUCKET_BYTES", 1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        first, last = (nn.Parameter(torch.ones(3)) for _ in range(2))
        buckets = GradientBuckets([first, last])
        sent: list[torch.Tensor] = []
        all_reduce = dist.all_reduce
        monkeypatch.setattr(dist, "all_reduce", lambda tensor, **how: sent.append(tensor) or all_reduce(tensor, **how))
        sent_before: list[int] = []
        middle = first * 2
        middle.register_hook(lambda _: sent_before.append(len(sent)))
        (middle * last).sum().backward()
        assert (sent_before, len(sent)) == ([1], 2)
        buckets.finish()
        assert len(sent) == 2
    finally:
        dist.destroy_process_group()


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count[function._schema.name.removeprefix("aten::")] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("with_large", [False, True])
def test_small_gradients_of_a_bucket_are_taken_by_one_operator(
    micro_batches: int, with_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradient_buckets, "_FIRST_BYTES", gradient_buckets.BUCKET_BYTES)
    sizes = [3] * 40 + [300_000] * with_large
    generator = torch.Generator().manual_seed(0)
    weights = [nn.Parameter(torch.randn(size, generator=generator)) for size in sizes]
    expected = [float(micro_batches) * each.detach() for each in weights]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        buckets = GradientBuckets(weights)
        (bucket,) = buckets._buckets
        with Operations() as operations:
            for number in range(1, micro_batches + 1):
                buckets.sums = number == micro_batches
                torch.stack([each.square().sum() / 2 for each in weights]).sum().backward()
                buckets.finish() if buckets.sums else buckets.collect()
                assert all(each.grad is not None and each.grad._base is bucket.buffer for each in weights)
    finally:
        dist.destroy_process_group()
    assert all(
        torch.equal(each.grad, value) for each, value in zip(weights, expected, strict=True) if each.grad is not None
    )
    assert operations.count["_foreach_copy_"] == 1 and operations.count["copy_"] <= 1
    # One for each weight in the backward pass; then the bucket's, or of a large gradient and of all small ones.
    assert operations.count["mul_"] + operations.count["_foreach_mul_"] <= 2


def test_buckets_begin_at_the_end_of_the_model_and_hold_one_type() -> None:
    weights = [nn.Parameter(torch.zeros(size)) for size in (2 << 20, 3 << 20, 2 << 20, 10, 300_000, 5, 7)]
    weights.insert(5, nn.Parameter(torch.zeros(4, dtype=torch.bfloat16)))
    groups = list(gradient_buckets._grouped(reversed(weights)))
    assert [[each.numel() for each in group] for group in groups] == [
        [7, 5],
        [4],
        [300_000, 10, 2 << 20, 3 << 20],
        [2 << 20],
    ]


if __name__ == "__main__":
    _be_all_ranks(Path(sys.argv[1]))
