"""Products in chunks: those of the whole matrix, on any number of threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn import functional

from ascendtune.merge.chunked_linear import ChunkedLinear


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("threads", [1, 3, 4])
def test_threads_share_the_rows_of_a_matrix(threads: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    inputs, weight, bias = torch.randn(2, 3, 700), torch.randn(3001, 700).to(dtype), torch.randn(3001)
    with ThreadPoolExecutor(threads) as pool:
        result = ChunkedLinear(pool.map, threads).linear(inputs, weight, bias)
    assert torch.allclose(result, functional.linear(inputs, weight.float(), bias), rtol=1e-5, atol=1e-4)
