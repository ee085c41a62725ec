"""Triton's interpreter (`TRITON_INTERPRET=1`) on tensors of the simulated device, with bf16 as a GPU computes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime import interpreter

from simulated_cuda.tensors import inner_of


def install() -> None:
    """Mend the interpreter, for good."""
    original = interpreter._convert_float

    def convert(values: NDArray[Any], source: Any, target: Any, rounding: Any) -> NDArray[Any]:
        # Its own cuts off, and without a carry where it should round (3.2 to 3.9).
        if (source, target) == (tl.float32, tl.bfloat16):
            flat = torch.from_numpy(np.ascontiguousarray(values).view(np.float32).flatten())
            return flat.to(torch.bfloat16).view(torch.uint16).numpy().reshape(values.shape)
        if (source, target) == (tl.bfloat16, tl.float32):
            return np.ascontiguousarray(values).view(np.uint16).astype(np.uint32) << 16
        return original(values, source, target, rounding)  # type: ignore[no-any-return]

    interpreter._convert_float = convert
    interpreter._unwrap_tensor = inner_of
    interpreter._rewrap_tensor = lambda tensor, original_tensor: tensor
