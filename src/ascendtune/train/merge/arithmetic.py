"""W + scaling · B @ A in the order and the types in which PEFT computes it: in fp32 the results are the same bits."""

from __future__ import annotations

from typing import IO, Any

import torch

from ascendtune.core.errors import InputError
from ascendtune.train.merge.adapter import Adapter, LowRank
from ascendtune.train.merge.plan import Output
from ascendtune.train.merge.tensor_file import TensorFile

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def require_finite(adapters: list[Adapter]) -> None:
    """One number that is none would spoil a whole row.

    Raises:
        InputError: naming the tensor.
    """
    for adapter in adapters:
        with adapter.file.path.open("rb") as file:
            for name in adapter.file.tensors:
                if not torch.isfinite(_read(file, adapter.file, name)).all():
                    raise InputError(
                        f"the adapter is broken: {name} holds numbers that are not finite",
                        remedy="take an earlier checkpoint, and train with on_nan: stop",
                        where=adapter.file.path,
                    )


def compute(output: Output) -> torch.Tensor:
    """The merged tensor, in the type that it is written in; only its own parts are read."""
    file, name = output.source
    weight = read(file, name).to(DTYPES[output.dtype])
    if len(output.additions) > 1:
        # Several changes are summed in fp32 and rounded once.
        weight = weight.to(torch.promote_types(weight.dtype, torch.float32))
    for adapter, low_rank in output.additions:
        weight = _add(weight, adapter, low_rank)
    for adapter, low_rank in output.biases:
        assert low_rank.bias is not None
        weight += _read_fp32(adapter, low_rank.bias) * low_rank.scaling
    return weight.to(DTYPES[output.dtype])


def read(file: TensorFile, name: str) -> torch.Tensor:
    """One tensor, read into memory of its own: a mapped file would count as ours page by page."""
    with file.path.open("rb") as opened:
        return _read(opened, file, name)


def as_bytes(tensor: torch.Tensor) -> Any:
    """What stands in a file, without a copy where the tensor is contiguous."""
    return tensor.contiguous().flatten().view(torch.uint8).numpy()


def _add(weight: torch.Tensor, adapter: Adapter, low_rank: LowRank) -> torch.Tensor:
    # peft.tuners.lora.layer: adapters in half precision become fp32 when they are loaded.
    delta = _read_fp32(adapter, low_rank.b) @ _read_fp32(adapter, low_rank.a)
    across = low_rank.is_embedding or _is_transposed(weight, adapter, low_rank)
    if across:
        delta = delta.T
    delta *= low_rank.scaling
    if low_rank.magnitude is None:
        weight += delta
        return weight
    # peft.tuners.lora.variants: the norm is that of the sum, along what is the input of a matrix.
    total = weight.T + delta.T if across else weight + delta
    norm: torch.Tensor = torch.linalg.norm(total, dim=1).to(total.dtype)
    factor = (_read_fp32(adapter, low_rank.magnitude).flatten() / norm).view(-1, 1)
    merged: torch.Tensor = factor.T * (weight + delta) if across else factor * (weight + delta)
    return merged.to(weight.dtype)


def _is_transposed(weight: torch.Tensor, adapter: Adapter, low_rank: LowRank) -> bool:
    """Modules such as GPT-2's Conv1D keep (in, out); a square one cannot be told by its shape."""
    rows, columns = low_rank.shape
    return bool(adapter.config.get("fan_in_fan_out")) if rows == columns else tuple(weight.shape) != low_rank.shape


def _read_fp32(adapter: Adapter, name: str) -> torch.Tensor:
    tensor = read(adapter.file, name)
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _read(opened: IO[bytes], file: TensorFile, name: str) -> torch.Tensor:
    tensor = file.tensors[name]
    loaded = torch.empty(tensor.shape, dtype=DTYPES[tensor.dtype])
    opened.seek(tensor.begin)
    if opened.readinto(as_bytes(loaded)) != tensor.size:  # type: ignore[attr-defined]
        raise InputError("the weight file became shorter", remedy="copy it again", where=file.path)
    return loaded
