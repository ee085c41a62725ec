"""A writer of dumps for tests, independent of the package: torch hooks, statistics by numpy in float64."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

SAMPLES = 16


def statistics(tensor: torch.Tensor) -> dict[str, Any]:
    """Fields of one tensor, as the format has them."""
    plain = tensor.detach().cpu().contiguous()
    raw = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    values = plain.to(torch.float64).reshape(-1).numpy()
    finite = values[np.isfinite(values)]
    count = min(SAMPLES, len(values))
    sampled = [float(values[i * len(values) // count]) for i in range(count)]
    return {
        "shape": list(plain.shape),
        "dtype": str(plain.dtype).removeprefix("torch."),
        "min": float(finite.min()) if len(finite) else None,
        "max": float(finite.max()) if len(finite) else None,
        "mean": float(finite.mean()) if len(finite) else None,
        "l2": float(np.sqrt((finite**2).sum())) if len(finite) else None,
        "nan": int(np.isnan(values).sum()),
        "inf": int(np.isinf(values).sum()),
        "hash": hashlib.blake2b(raw, digest_size=8).hexdigest(),
        "samples": [each if np.isfinite(each) else None for each in sampled],
    }


class DumpWriter:
    """Collects the tensors of one step of one rank; `write` makes the file."""

    def __init__(
        self, model: nn.Module, step: int, *, rank: int = 0, world_size: int = 1, tensors: bool = False
    ) -> None:
        self.model, self.step, self.rank, self.world_size = model, step, rank, world_size
        self.lines: list[dict[str, Any]] = []
        self.kept: dict[str, torch.Tensor] | None = {} if tensors else None
        self.micro_batch: int | None = 0
        self.row_hashes: list[str] = []

    def add(self, phase: str, name: str, slot: str, kind: str, tensor: torch.Tensor) -> None:
        if not tensor.is_floating_point():
            return
        order = len(self.lines)
        of_step = phase in ("gradient", "parameter_before", "parameter_after")
        line = {"order": order, "phase": phase, "micro_batch": None if of_step else self.micro_batch}
        self.lines.append({**line, "name": name, "slot": slot, "kind": kind, **statistics(tensor)})
        if self.kept is not None:
            self.kept[str(order)] = tensor.detach().clone().contiguous()

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Around forward and backward of one micro-batch."""
        handles = []
        for name, module in self.model.named_modules():
            if not any(module.children()):
                handles.append(module.register_forward_pre_hook(self._before(name)))
            handles.append(module.register_forward_hook(self._after(name)))
        try:
            yield
        finally:
            for each in handles:
                each.remove()

    def parameters(self, phase: str) -> None:
        for name, parameter in self.model.named_parameters():
            value = parameter.grad if phase == "gradient" else parameter
            if parameter.requires_grad and value is not None:
                self.add(phase, name, phase.partition("_")[0], "", value)

    def write(self, directory: Path) -> None:
        place = directory / "dump" / f"step-{self.step:07d}"
        place.mkdir(parents=True, exist_ok=True)
        header = {"format": 2, "writer": "test", "step": self.step, "rank": self.rank, "world_size": self.world_size}
        header["row_hashes"] = self.row_hashes
        content = "statistics" if self.kept is None else "tensors"
        lines = [{**header, "level": "module", "content": content, "complete": True}, *self.lines]
        (place / f"rank_{self.rank}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
        if self.kept is not None:
            from safetensors.torch import save_file

            save_file(self.kept, place / f"rank_{self.rank}.safetensors")

    def _before(self, name: str) -> Callable[..., None]:
        def note(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            for number, each in enumerate(inputs):
                if isinstance(module, nn.Embedding):
                    rows = each.tolist()
                    self.row_hashes += [_hash_of_row(row) for row in rows]
                if isinstance(each, torch.Tensor):
                    self.add("forward", name, f"input.{number}", type(module).__name__, each)

        return note

    def _after(self, name: str) -> Callable[..., None]:
        def note(module: nn.Module, inputs: Any, output: Any) -> None:
            for slot, tensor in tensors_of(output, "output"):
                self.add("forward", name, slot, type(module).__name__, tensor)
                if tensor.requires_grad:
                    micro_batch = self.micro_batch
                    tensor.register_hook(self._gradient(name, slot, type(module).__name__, micro_batch))

        return note

    def _gradient(self, name: str, slot: str, kind: str, micro_batch: int | None) -> Callable[[torch.Tensor], None]:
        def note(gradient: torch.Tensor) -> None:
            self.add("backward", name, slot, kind, gradient)

        return note


def tensors_of(output: Any, slot: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors in an output with their slots: `output`, `output.0`, `output.logits`."""
    if isinstance(output, torch.Tensor):
        yield slot, output
    elif isinstance(output, dict):
        for key, value in output.items():
            yield from tensors_of(value, f"{slot}.{key}")
    elif isinstance(output, tuple | list):
        for number, value in enumerate(output):
            yield from tensors_of(value, f"{slot}.{number}")


def _hash_of_row(row: list[int]) -> str:
    """Not of its padding with 0."""
    length = max((at for at, token in enumerate(row, 1) if token), default=0)
    return hashlib.blake2b(str(row[:length]).encode(), digest_size=8).hexdigest()
