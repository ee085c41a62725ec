"""Gradients as parts of flat buffers that are all-reduced while the backward pass goes on (Li et al. 2020, PyTorch
Distributed, arXiv 2006.15704, section 3.2).

Buckets never change, so each number has the same place in every step and is summed in the same order, also after a
resume: docs/decisions/0024.
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
"""Size of a bucket: large enough to use the network well, small enough that the first is sent early."""
_SMALL_BYTES = 1 << 20
"""Gradients below this size are copied into their bucket by one operator, as one each costs more than the copy."""
_FIRST_BYTES = 1 << 20
"""Size of the first bucket, whose gradients are computed first: it is sent while most others are pending."""


@dataclass(eq=False)
class _Bucket:
    parameters: list[nn.Parameter]
    buffer: torch.Tensor
    """(numbers + parameters,): the gradients, and for each parameter 1 if this rank has a gradient, else 0."""
    gradients: list[torch.Tensor]
    """Views of `buffer`, each in its parameter's shape."""
    pending: set[int] = field(default_factory=set)
    """Indices of gradients that the backward pass has not computed yet."""
    averaged: set[int] = field(default_factory=set)
    """Indices of gradients that are already divided by the number of ranks."""
    uncopied: set[int] = field(default_factory=set)
    """Indices of small gradients that are not copied to `buffer` yet."""
    sent: torch.Tensor | None = None
    """The tensor that is all-reduced: `buffer`, or a copy of it in another dtype."""
    work: Any = None

    @property
    def has_gradient(self) -> torch.Tensor:
        """(parameters,): for each parameter whether ranks have a gradient."""
        return self.buffer[-len(self.parameters) :]


class GradientBuckets:
    """Averages gradients over all ranks; the averages are complete after `finish`.

    A parameter that this rank has not used counts as zero; if no rank has used it, it has no gradient, as on one
    device.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], send_dtype: torch.dtype | None = None) -> None:
        """
        Args:
            parameters: the trained ones, on their device, in the order of the forward pass.
            send_dtype: dtype to which gradients are rounded before they are sent; None: not rounded.
        """
        self.sums = True
        """Whether the next backward pass is the last one of its step: its gradients are summed over ranks."""
        self._send_dtype = send_dtype
        self._share = 1 / dist.get_world_size()
        # The backward pass computes gradients in about the reverse order.
        self._buckets = [_make_bucket(each) for each in _grouped(reversed(list(parameters)))]
        self._launched = 0
        for bucket in self._buckets:
            for index, parameter in enumerate(bucket.parameters):
                bucket.pending.add(index)
                parameter.register_post_accumulate_grad_hook(self._make_hook(bucket, index))

    def _make_hook(self, bucket: _Bucket, index: int) -> Any:
        def hook(parameter: torch.Tensor) -> None:
            gradient = bucket.gradients[index]
            assert parameter.grad is not None
            if self.sums and index not in bucket.pending:
                raise _second_gradient(tuple(parameter.shape))
            if parameter.grad.data_ptr() != gradient.data_ptr():
                # The first micro-batch of this step; later ones add to the gradient in place.
                if gradient.nbytes < _SMALL_BYTES and parameter.grad.dtype == gradient.dtype:
                    bucket.uncopied.add(index)
                elif self.sums:
                    torch.mul(parameter.grad, self._share, out=gradient)
                    bucket.averaged.add(index)
                else:
                    gradient.copy_(parameter.grad)
                if index not in bucket.uncopied:
                    parameter.grad = gradient
            if self.sums:
                bucket.pending.discard(index)
                self._launch_complete()

        return hook

    def _launch_complete(self) -> None:
        # In the same order on every rank: backward passes may compute gradients in different orders.
        while self._launched < len(self._buckets) and not self._buckets[self._launched].pending:
            self._launch(self._buckets[self._launched])

    def collect(self) -> None:
        """Copy small gradients into their buckets, after a backward pass whose gradients are not summed over ranks."""
        for bucket in self._buckets:
            _collect(bucket)

    def _launch(self, bucket: _Bucket) -> None:
        self._launched += 1
        _collect(bucket)
        if not bucket.averaged:
            bucket.buffer.mul_(self._share)
        elif len(bucket.averaged) < len(bucket.parameters):
            others = sorted(set(range(len(bucket.parameters))) - bucket.averaged)
            torch._foreach_mul_([bucket.gradients[index] for index in others], self._share)
        bucket.averaged.clear()
        bucket.has_gradient.fill_(1)
        for index, parameter in enumerate(bucket.parameters):
            if parameter.grad is None:
                bucket.gradients[index].zero_()
                bucket.has_gradient[index] = 0
        bucket.sent = bucket.buffer if self._send_dtype is None else bucket.buffer.to(self._send_dtype)
        bucket.work = dist.all_reduce(bucket.sent, async_op=True)

    def finish(self) -> None:
        """Send the remaining buckets, and wait for all sums. Every rank must call this, once a step."""
        for bucket in self._buckets[self._launched :]:
            self._launch(bucket)
        for bucket in self._buckets:
            bucket.work.wait()
            if bucket.sent is not bucket.buffer:
                assert bucket.sent is not None
                bucket.buffer.copy_(bucket.sent)
            bucket.sent = bucket.work = None
            self._set_unused(bucket)
            bucket.pending = set(range(len(bucket.parameters)))
        self._launched = 0

    @staticmethod
    def _set_unused(bucket: _Bucket) -> None:
        """Set gradients of parameters that only other ranks have used."""
        unused = [index for index, parameter in enumerate(bucket.parameters) if parameter.grad is None]
        # The host waits for the device here only.
        is_used = bucket.has_gradient.tolist() if unused else []
        for index in unused:
            if is_used[index]:
                bucket.parameters[index].grad = bucket.gradients[index]


def _collect(bucket: _Bucket) -> None:
    """Copy small gradients of `bucket` into its buffer, with one operator for all of them."""
    uncopied = [(bucket.parameters[index], bucket.gradients[index]) for index in sorted(bucket.uncopied)]
    outside = [parameter.grad for parameter, _ in uncopied if parameter.grad is not None]
    if uncopied:
        torch._foreach_copy_([inside for _, inside in uncopied], outside)
        for parameter, inside in uncopied:
            parameter.grad = inside
        bucket.uncopied.clear()


def _second_gradient(shape: tuple[int, ...]) -> RecipeError:
    # Its bucket may be in the all-reduce: the second gradient would be lost, or summed in part.
    return RecipeError(
        f"a weight of shape {list(shape)} got two gradients in one backward pass, which ddp cannot sum",
        code="gradient-twice",
        remedy="use parallel.strategy: fsdp; such models call torch's reentrant checkpointing in their own code",
    )


def _grouped(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """The parameters of each bucket: neighbours of one dtype, up to a bucket's size, or a single larger one."""
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
