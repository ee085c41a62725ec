"""Products with weights in half precision: a chunk of a matrix is converted to fp32 in a core's cache and multiplied.

A whole matrix in fp32 would be written to memory and read again, which takes longer than everything else with few
tokens: two to three times the CPU time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch.nn import functional

_CHUNK = 1 << 19
"""Numbers: 2 MiB in fp32."""


class ChunkedLinear:
    """Computes products with as many threads as torch uses, each of which multiplies its rows of the matrix.

    torch's own threads are not used within a chunk: they would wait at a barrier twice for each, and on cores that are
    shared with other programs waiting takes more time than computing.
    """

    def __init__(self, map_on_threads: Callable[..., Iterator[None]], threads: int) -> None:
        """
        Args:
            map_on_threads: like the builtin `map`, on `threads` threads.
        """
        self._map, self._threads = map_on_threads, threads

    def linear(self, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Like torch's `linear`: (..., outputs) fp32. Without a gradient.

        Args:
            inputs: (..., inputs) fp32.
            weight: (outputs, inputs), in its own dtype.
            bias: (outputs,) fp32.
        """
        if weight.numel() <= _CHUNK:
            return functional.linear(inputs, weight.float(), bias)
        results = inputs.new_empty(*inputs.shape[:-1], len(weight))

        def compute(begin: int) -> None:
            _multiply(inputs, weight[begin : begin + share], results[..., begin : begin + share])

        share = -(-len(weight) // self._threads)
        for _ in self._map(compute, range(0, len(weight), share)):
            pass
        return results if bias is None else results.add_(bias)


@contextmanager
def chunked_linear() -> Iterator[ChunkedLinear]:
    """Context with an object that multiplies in chunks; its threads end with the context."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield ChunkedLinear(map, threads)
        return
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            yield ChunkedLinear(pool.map, threads)
        finally:
            # A thread that sets its own number of threads also sets that of future threads. Processes that are forked
            # after such a call may fail in their threads (torch 2.13: "Invalid thread pool"): fork none after a merge.
            torch.set_num_threads(threads)


@torch.no_grad()  # each thread has its own setting
def _multiply(inputs: torch.Tensor, weight: torch.Tensor, results: torch.Tensor) -> None:
    """Write inputs x weight' into `results`.

    Args:
        inputs: (..., inputs) fp32.
        weight: (rows, inputs), in its own dtype.
        results: (..., rows) fp32.
    """
    rows = max(1, _CHUNK // weight.shape[1])
    memory = torch.empty(min(rows, len(weight)), weight.shape[1])
    for begin in range(0, len(weight), rows):
        chunk = weight[begin : begin + rows]
        chunk = chunk if chunk.dtype == torch.float32 else memory[: len(chunk)].copy_(chunk)
        results[..., begin : begin + rows] = functional.linear(inputs, chunk)
