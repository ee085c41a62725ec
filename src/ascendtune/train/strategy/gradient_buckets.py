"""Gradients as parts of flat buffers, each summed over ranks while the backward pass goes on (Li et al. 2020, PyTorch
Distributed, arXiv 2006.15704, section 3.2).

Buckets never change, so a number is at the same place in every step, and is summed in the same order whenever the run
began: docs/decisions/0024.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ascendtune.core.errors import RecipeError

BUCKET_BYTES = 25 << 20
"""Of a bucket: enough for the network to be used well, little enough that the first is sent early."""
_SMALL_BYTES = 1 << 20
"""Of a gradient, for which an operator of its own costs more than its memory: those of a bucket are taken together."""
_FIRST_BYTES = 1 << 20
"""Of the first bucket, whose gradients are there first: it is sent while most are still to be computed."""


@dataclass(eq=False)
class _Bucket:
    parameters: list[nn.Parameter]
    buffer: torch.Tensor
    """(numbers + parameters,): the gradients, and for each of them 1 where this rank has one, else 0."""
    gradients: list[torch.Tensor]
    """Views of `buffer`, each of its parameter's shape."""
    waiting: set[int] = field(default_factory=set)
    """Gradients, by their index, that the backward pass has yet to bring."""
    shares: set[int] = field(default_factory=set)
    """Those that are divided by the number of ranks already."""
    outside: set[int] = field(default_factory=set)
    """Small ones that are still where the backward pass has put them."""
    sent: torch.Tensor | None = None
    """The tensor that the all-reduce works on: `buffer`, or a copy of it in another type."""
    work: Any = None

    @property
    def has_gradient(self) -> torch.Tensor:
        """(parameters,) where ranks have one."""
        return self.buffer[-len(self.parameters) :]


class GradientBuckets:
    """After `finish` every rank has the mean of all ranks' gradients.

    A parameter that this rank has not used counts as zero; where no rank has used it, it has no gradient, as on one
    device.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], send_dtype: torch.dtype | None = None) -> None:
        """
        Args:
            parameters: those that are trained, on their device, in the order of the forward pass.
            send_dtype: what gradients are rounded to before they are sent; None: not at all.
        """
        self.sums = True
        """Whether the next backward pass is the last one of its step: its gradients are summed over ranks."""
        self._send_dtype = send_dtype
        self._share = 1 / dist.get_world_size()
        # The backward pass has them in about the reverse order.
        self._buckets = [_make_bucket(each) for each in _grouped(reversed(list(parameters)))]
        self._launched = 0
        for bucket in self._buckets:
            for index, parameter in enumerate(bucket.parameters):
                bucket.waiting.add(index)
                parameter.register_post_accumulate_grad_hook(self._taker(bucket, index))

    def _taker(self, bucket: _Bucket, index: int) -> Any:
        def take(parameter: torch.Tensor) -> None:
            gradient = bucket.gradients[index]
            assert parameter.grad is not None
            if self.sums and index not in bucket.waiting:
                raise _came_twice(tuple(parameter.shape))
            if parameter.grad.data_ptr() != gradient.data_ptr():
                # The first of this step; later micro-batches add to it where it is.
                if gradient.nbytes < _SMALL_BYTES and parameter.grad.dtype == gradient.dtype:
                    bucket.outside.add(index)
                elif self.sums:
                    torch.mul(parameter.grad, self._share, out=gradient)
                    bucket.shares.add(index)
                else:
                    gradient.copy_(parameter.grad)
                if index not in bucket.outside:
                    parameter.grad = gradient
            if self.sums:
                bucket.waiting.discard(index)
                self._launch_complete()

        return take

    def _launch_complete(self) -> None:
        # In one order on every rank: the backward passes of ranks may bring gradients in different ones.
        while self._launched < len(self._buckets) and not self._buckets[self._launched].waiting:
            self._launch(self._buckets[self._launched])

    def collect(self) -> None:
        """Put into their buckets what the backward pass has left outside, after one whose gradients are not summed."""
        for bucket in self._buckets:
            _collect(bucket)

    def _launch(self, bucket: _Bucket) -> None:
        self._launched += 1
        _collect(bucket)
        if not bucket.shares:
            bucket.buffer.mul_(self._share)
        elif len(bucket.shares) < len(bucket.parameters):
            others = sorted(set(range(len(bucket.parameters))) - bucket.shares)
            torch._foreach_mul_([bucket.gradients[index] for index in others], self._share)
        bucket.shares.clear()
        bucket.has_gradient.fill_(1)
        for index, parameter in enumerate(bucket.parameters):
            if parameter.grad is None:
                bucket.gradients[index].zero_()
                bucket.has_gradient[index] = 0
        bucket.sent = bucket.buffer if self._send_dtype is None else bucket.buffer.to(self._send_dtype)
        bucket.work = dist.all_reduce(bucket.sent, async_op=True)

    def finish(self) -> None:
        """Send what the backward pass has left, and wait for all sums. Every rank must call it, once a step."""
        for bucket in self._buckets[self._launched :]:
            self._launch(bucket)
        for bucket in self._buckets:
            bucket.work.wait()
            if bucket.sent is not bucket.buffer:
                assert bucket.sent is not None
                bucket.buffer.copy_(bucket.sent)
            bucket.sent = bucket.work = None
            self._give_unused(bucket)
            bucket.waiting = set(range(len(bucket.parameters)))
        self._launched = 0

    @staticmethod
    def _give_unused(bucket: _Bucket) -> None:
        """Give parameters that this rank has not used the gradient of those ranks that have."""
        unused = [index for index, parameter in enumerate(bucket.parameters) if parameter.grad is None]
        # Only here the host waits for the device.
        is_used = bucket.has_gradient.tolist() if unused else []
        for index in unused:
            if is_used[index]:
                bucket.parameters[index].grad = bucket.gradients[index]


def _collect(bucket: _Bucket) -> None:
    """Copy the small gradients that are outside of `bucket` into it, with one operator for all of them."""
    found = [(bucket.parameters[index], bucket.gradients[index]) for index in sorted(bucket.outside)]
    outside = [parameter.grad for parameter, _ in found if parameter.grad is not None]
    if found:
        torch._foreach_copy_([inside for _, inside in found], outside)
        for parameter, inside in found:
            parameter.grad = inside
        bucket.outside.clear()


def _came_twice(shape: tuple[int, ...]) -> RecipeError:
    # Its bucket may be on its way: what is added now would be lost, or summed in part.
    return RecipeError(
        f"a weight of shape {list(shape)} got two gradients in one backward pass, which ddp cannot sum",
        code="gradient-twice",
        remedy="use parallel.strategy: fsdp; such models call torch's reentrant checkpointing in their own code",
    )


def _grouped(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """The parameters of each bucket: neighbours of one type, together as large as a bucket or larger than it alone."""
    group: list[nn.Parameter] = []
    size, limit = 0, _FIRST_BYTES
    for parameter in parameters:
        if group and (size + parameter.nbytes > limit or parameter.dtype != group[0].dtype):
            yield group
            group, size, limit = [], 0, BUCKET_BYTES
        group.append(parameter)
        size += parameter.nbytes
    if group:
        yield group


def _make_bucket(parameters: list[nn.Parameter]) -> _Bucket:
    sizes = [each.numel() for each in parameters]
    buffer = parameters[0].new_zeros(sum(sizes) + len(sizes))
    parts = buffer.split([*sizes, len(sizes)])
    views = [part.view(each.shape) for part, each in zip(parts, parameters, strict=False)]
    return _Bucket(parameters, buffer, views)
