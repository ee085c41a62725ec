"""W + scaling · B @ A in the types in which PEFT computes it: in fp32 the results are equal up to rounding.

They are bitwise equal if the processor's library of products sums blocks of rows like the whole.

Rotated inputs, W·R, are computed block by block: PEFT multiplies by a matrix of the blocks and zeros, which differs in
the order of additions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from ascendtune.core.errors import InputError
from ascendtune.hub.peft_adapter import Adapter
from ascendtune.hub.safetensors_header import SafetensorsHeader
from ascendtune.merge.merge_plan import Addition, ExpertAddition, InputRotation, Output

if TYPE_CHECKING:
    from ascendtune.merge.layout import Layout

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_BLOCK = 1 << 18
"""Numbers that are added at a time: as many as fit into a core's cache."""
_ONE_PASS = 256
"""With a rank up to this a product is summed in one pass, in the same order whether it is added to a matrix or not
(MKL: 384)."""


def require_finite(adapters: list[Adapter]) -> None:
    """A single NaN would propagate to a whole row.

    Raises:
        InputError: naming the tensor.
    """
    for adapter in adapters:
        scratch = Scratch()
        for name in adapter.file.tensors:
            if not is_finite(_read(adapter.file, name, scratch)):
                raise InputError(
                    f"the adapter is damaged: {name} has numbers that are not finite",
                    code="weights-not-finite",
                    remedy="use an earlier checkpoint, and train with on_nan: stop",
                    where=adapter.file.path,
                )


def is_finite(tensor: torch.Tensor) -> bool:
    """Whether `tensor`, any shape and floating-point dtype, has neither NaN nor infinity."""
    # The extremes of a tensor with NaN are NaN. They need no memory, and a tenth of the time of isfinite.
    return tensor.numel() == 0 or all(bool(each.isfinite()) for each in tensor.aminmax())


class Scratch:
    """Reused memory: a new allocation takes longer than the arithmetic."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor, (*shape,) in `dtype`; it overwrites the previous one."""
        needed = math.prod(shape) * dtype.itemsize
        if self._bytes.numel() < needed:
            # Freed first: otherwise both together would be the peak of memory.
            self._bytes = torch.empty(0, dtype=torch.uint8)
            self._bytes = torch.empty(needed, dtype=torch.uint8)
        return self._bytes[:needed].view(dtype).view(shape)


class Merger:
    """Computes tensors one at a time; each result is valid until the next."""

    def __init__(self, layout: Layout | None = None) -> None:
        self._weights, self._converted, self._deltas = Scratch(), Scratch(), Scratch()
        self._layout = layout

    def compute(self, output: Output, weight: torch.Tensor | None = None) -> torch.Tensor:
        """The merged tensor, in the type that it is written in; only its own parts are read.

        Args:
            weight: the base's tensor, if it need not be read, in the output's shape and type; it is overwritten,
                usually by the result.

        Returns:
            Any shape: that of the tensor in the base's file.
        """
        if weight is None:
            file, name = output.source
            weight = _read(file, name, self._weights)
            # The result is rounded to a narrower type once, at the end.
            wide = torch.promote_types(weight.dtype, DTYPES[output.dtype])
            if weight.dtype != wide:
                weight = self._converted.take(weight.shape, wide).copy_(weight)
        return _compute(output, weight, self._deltas, self._layout)


def _compute(output: Output, weight: torch.Tensor, deltas: Scratch, layout: Layout | None) -> torch.Tensor:
    if weight.numel() == 0:
        return weight.to(DTYPES[output.dtype])
    if len(output.additions) + len(output.experts) + len(output.biases) > 1:
        # Several changes are summed in fp32 and rounded once.
        weight = weight.to(torch.promote_types(weight.dtype, torch.float32))
    for addition in output.additions:
        if addition.rows is None:
            weight = _add(weight, addition, deltas)
        else:
            part = weight[slice(*addition.rows)]
            part.copy_(_add(part, addition, deltas))
    for change in output.rotations:
        _rotate(weight if change.rows is None else weight[slice(*change.rows)], change)
    for expert_addition in output.experts:
        assert layout is not None
        delta = _change_of_experts(expert_addition, layout)
        _accumulate(weight.view(-1, weight.shape[-1]), delta.reshape(-1, weight.shape[-1]))
    for adapter, low_rank in output.biases:
        assert low_rank.bias is not None
        weight += _read_fp32(adapter, low_rank.bias) * low_rank.scaling
    return weight.to(DTYPES[output.dtype])


def is_transpose(linear: Addition, embedding: Addition) -> bool:
    """Whether a LoRA of the head adds the same to its weight, (tokens, in), as one of the embeddings to theirs."""
    one, other = linear.low_rank, embedding.low_rank
    if one.magnitude or other.magnitude or one.scaling != other.scaling or one.shape != other.shape[::-1]:
        return False
    b, a = _read(linear.adapter.file, one.b), _read(linear.adapter.file, one.a)
    return torch.equal(b, _read(embedding.adapter.file, other.a).T) and torch.equal(
        a, _read(embedding.adapter.file, other.b).T
    )


def is_equal(one: tuple[SafetensorsHeader, str], other: tuple[SafetensorsHeader, str]) -> bool:
    """Whether two tensors of one shape, each a file and a name in it, have equal numbers, in any dtypes."""
    first, second = _read(*one), _read(*other)
    wide = torch.promote_types(first.dtype, second.dtype)
    return torch.equal(first.to(wide), second.to(wide))


def as_bytes(tensor: torch.Tensor) -> Any:
    """(bytes,) uint8 array of the tensor's contents; no copy if the tensor is contiguous."""
    return tensor.contiguous().flatten().view(torch.uint8).numpy()


def _add(weight: torch.Tensor, addition: Addition, deltas: Scratch) -> torch.Tensor:
    adapter, low_rank, across = addition.adapter, addition.low_rank, addition.is_transposed
    # peft.tuners.lora.layer: adapters in half precision are converted to fp32 when they are loaded.
    b, a = _read_fp32(adapter, low_rank.b), _read_fp32(adapter, low_rank.a)
    if low_rank.magnitude is None and not across:
        _accumulate_product(weight, b, a, low_rank.scaling)
        return weight
    delta = torch.mm(b, a, out=deltas.take(low_rank.shape, b.dtype))
    if across:
        delta = delta.T
    if low_rank.magnitude is None:
        _accumulate(weight, delta, low_rank.scaling)
        return weight
    delta *= low_rank.scaling
    # peft.tuners.lora.variants: the norm is that of the sum, along the inputs of a matrix.
    total = weight.T + delta.T if across else weight + delta
    norm: torch.Tensor = torch.linalg.norm(total, dim=1).to(total.dtype)
    factor = (_read_fp32(adapter, low_rank.magnitude).flatten() / norm).view(-1, 1)
    merged: torch.Tensor = factor.T * (weight + delta) if across else factor * (weight + delta)
    return merged.to(weight.dtype)


def _rotate(weight: torch.Tensor, change: InputRotation) -> None:
    """Multiply `weight`, (out, in), by the rotation of its inputs."""
    blocks = _rotation_blocks(change, weight.shape[1])
    rows = max(1, _BLOCK // weight.shape[1])
    for part in weight.split(rows):
        # peft.tuners.oft.layer.Linear.merge: (R @ W.T).T, where R is zero outside its blocks.
        wide = part.to(torch.promote_types(part.dtype, blocks.dtype)).view(len(part), *blocks.shape[:2])
        part.copy_(torch.einsum("orc,rkc->ork", wide, blocks).reshape(part.shape))


def _rotation_blocks(change: InputRotation, inputs: int) -> torch.Tensor:
    """(blocks, size, size) fp32: the results of PEFT's own module for the rows of unit matrices."""
    from peft.tuners.oft.layer import OFTRotationModule

    config, rotation = change.adapter.config, change.rotation
    weight = _read_fp32(change.adapter, rotation.weight)
    module = OFTRotationModule(
        rotation.blocks, weight.shape[1], rotation.size, inputs,
        coft=bool(config.get("coft")), eps=float(config.get("eps") or 6e-5),
        block_share=bool(config.get("block_share")), use_cayley_neumann=bool(config.get("use_cayley_neumann", True)),
        num_cayley_neumann_terms=int(config.get("num_cayley_neumann_terms") or 5),
    )  # fmt: skip
    module.weight.data = weight
    with torch.no_grad():
        rotated: torch.Tensor = module(torch.eye(rotation.size, dtype=weight.dtype).repeat(1, inputs // rotation.size))
    return rotated.view(rotation.size, -1, rotation.size).transpose(0, 1).contiguous()


def _change_of_experts(change: ExpertAddition, layout: Layout) -> torch.Tensor:
    """The change of one tensor of the files: of one expert, or of all."""
    # peft.tuners.lora.layer.ParamWrapper: experts are the slow dimension of A's rows and the fast one of B's columns.
    a = _read_fp32(change.adapter, change.expert_lora.a)
    b = _read_fp32(change.adapter, change.expert_lora.b)
    a = a.view(-1, change.rank, a.shape[1])
    b = b.view(b.shape[0], change.rank, -1)
    if change.piece.expert is not None:
        a, b = (part.narrow(dim, change.piece.expert, 1) for part, dim in ((a, 0), (b, 2)))
    order = "o r e, e r i -> e o i" if change.swapped else "o r e, e r i -> e i o"
    delta = torch.einsum(order, b, a) * change.scaling
    if change.piece.key == change.piece.parameter:
        return delta
    return layout.take_apart({change.piece.parameter: delta})[change.piece.key]


def _accumulate_product(weight: torch.Tensor, b: torch.Tensor, a: torch.Tensor, scaling: float) -> None:
    """`weight += scaling * b @ a`, rounded as `_accumulate` rounds it; the product is never in memory as a whole.

    Args:
        weight: (out, in).
        b: (out, rank).
        a: (rank, in).
    """
    wide = torch.promote_types(weight.dtype, b.dtype)
    # A product with a power of two is exact: product and sum can be one operation. Products of single rows and of rank
    # 1 are other routines, which round differently.
    is_one_operation = wide == b.dtype and abs(math.frexp(scaling)[0]) == 0.5 and 1 < len(a) <= _ONE_PASS and len(b) > 1
    blocks = max(1, len(weight) // max(2, _BLOCK // weight.shape[1]))
    for part, factor in zip(weight.tensor_split(blocks), b.tensor_split(blocks), strict=True):
        total = part.to(wide)
        if is_one_operation:
            total.addmm_(factor, a, alpha=scaling)
        else:
            total += (factor @ a).mul_(scaling)
        if total is not part:
            part.copy_(total)


def _accumulate(weight: torch.Tensor, delta: torch.Tensor, scaling: float = 1.0) -> None:
    """`weight += scaling * delta`, the product rounded as by PEFT, the sum once; `delta` is overwritten.

    Block by block: numbers in a core's cache are scaled, added and rounded in the time of one pass.
    """
    rows = max(1, _BLOCK // weight.shape[1])
    for part, change in zip(weight.split(rows), delta.split(rows), strict=True):
        if scaling != 1:
            change *= scaling
        if part.dtype == change.dtype:
            part += change
        else:
            part.copy_(part.to(torch.promote_types(part.dtype, change.dtype)).add_(change))


def _read_fp32(adapter: Adapter, name: str) -> torch.Tensor:
    tensor = _read(adapter.file, name)
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _read(file: SafetensorsHeader, name: str, scratch: Scratch | None = None) -> torch.Tensor:
    """Read, not mapped: mapped pages would count as memory of this process."""
    tensor = file.tensors[name]
    dtype = DTYPES[tensor.dtype]
    loaded = (scratch or Scratch()).take(tensor.shape, dtype)
    with file.path.open("rb") as opened:
        opened.seek(tensor.begin)
        if opened.readinto(as_bytes(loaded)) != tensor.size:
            raise InputError(
                "the weight file became shorter while it was read",
                code="weight-file-damaged",
                remedy="copy it again",
                where=file.path,
            )
    return loaded
