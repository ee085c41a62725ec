"""The storage of a model's parameters in its files, where names or shapes differ, as for experts.

transformers stacks the experts of a file into one parameter when it loads a model, and splits them when it saves one.
Here it splits tensors of the adapter's change, so that each piece is added to the file's tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from ascendtune.core.errors import InputError
from ascendtune.merge.source import Base


@dataclass(frozen=True)
class Piece:
    """A tensor of the files that contains a whole parameter, or a part of it."""

    name: str
    """Name in the files."""
    parameter: str
    expert: int | None
    """Index of its expert in the stack; None: all of them."""
    key: str
    """transformers' name of it if the parameter has only this expert."""


class Layout:
    """The base model on the meta device, without weights."""

    def __init__(self, base: Base, *, is_classifier: bool) -> None:
        self._base = base
        self._model = _skeleton(base, is_classifier=is_classifier)
        self._shapes = {name: tuple(each.shape) for name, each in self._model.named_parameters()}

    def parameters_of(self, module: str, targets: Sequence[str]) -> list[str]:
        """The parameters of `module` that match `targets`, in the order in which PEFT wraps them, innermost first."""
        names = [f"{module}.{name}" for name, _ in self._submodule(module).named_parameters(recurse=False)]
        return [name for name in names if any(f".{name}".endswith(f".{target}") for target in targets)]

    def shape(self, parameter: str) -> tuple[int, ...]:
        return self._shapes[parameter]

    def is_transposed(self, parameter: str) -> bool:
        """Whether PEFT interprets a stack as (experts, in, out): transformers marks the module."""
        return bool(getattr(self._submodule(parameter.rpartition(".")[0]), "is_transposed", False))

    def is_conv1d(self, module: str) -> bool:
        """Whether the weight of `module` is (in, out)."""
        return isinstance(self._submodule(module), Conv1D)

    def name_of(self, parameter: str) -> str | None:
        """The name in the files of a parameter that is stored unchanged; None if there is none."""
        if parameter not in self._shapes:
            return None
        found = self._base.find(parameter)
        if found is not None:
            return found
        parts = self.take_apart({parameter: torch.empty(self._shapes[parameter], device="meta")})
        if len(parts) != 1:
            return None
        (name,) = parts
        return self._base.find(name)

    def rows_of(self, parameter: str) -> tuple[int, int] | None:
        """First and last row + 1 of a parameter that the files store joined with others, in one tensor.

        None if it has its own tensor, or is stored in the shared one in another way than row by row.
        """
        found = self.name_of(parameter)
        if found is None or (joined := self._shape_in_files(found)) == self._shapes[parameter]:
            return None
        mark = {parameter: torch.ones(self._shapes[parameter])}
        # Parameters that are joined with it are near it in the model.
        near = parameter.rpartition(".")[0].rpartition(".")[0]
        others = {name: torch.zeros(shape) for name, shape in self._shapes.items() if name.startswith(f"{near}.")}
        for name, tensor in self.take_apart({**others, **mark}).items():
            if self._base.find(name) == found and tensor.shape == joined and tensor.any():
                marked = tensor.reshape(len(tensor), -1).all(dim=1).nonzero().flatten().tolist()
                rows, *others_of_a_row = self._shapes[parameter]
                is_block = len(marked) == rows and marked[-1] - marked[0] == rows - 1
                return (marked[0], marked[0] + rows) if is_block and tuple(others_of_a_row) == joined[1:] else None
        return None

    def shared_with(self, parameter: str) -> tuple[str, list[str]] | None:
        """For a parameter that is shared: its name in the files, and all its names in the model.

        None if it is not shared, or the files do not contain it under a name of the model's.
        """
        every = dict(self._model.named_parameters(remove_duplicate=False))
        names = [name for name, each in every.items() if each is every.get(parameter)]
        found = next((name for name in names if name in self._base.where), None)
        return (found, names) if found is not None and len(names) > 1 else None

    def pieces(self, parameter: str) -> list[Piece]:
        """The tensors of the files that a stack consists of.

        Raises:
            InputError: they are not in the files, or stored there in an unknown way.
        """
        shape = self._shapes[parameter]
        if (found := self._base.find(parameter)) is not None and self._base.tensor(found).shape == shape:
            return [Piece(found, parameter, None, parameter)]
        whole = self.take_apart({parameter: torch.empty(shape, device="meta")})
        single = self.take_apart({parameter: torch.empty((1, *shape[1:]), device="meta")})
        if len(whole) == len(single):
            pieces = [Piece(name, parameter, None, name) for name in whole]
        else:
            pieces = [
                Piece(name, parameter, expert, key)
                for key in single
                for expert, name in enumerate(_siblings(key, whole))
            ]
        for piece in pieces:
            expected = tuple(whole[piece.name].shape)
            if len(pieces) != len(whole) or self._shape_in_files(piece.name) != expected:
                raise InputError(
                    f"the base's files lack {parameter} as transformers writes it: {piece.name} is missing or "
                    "of another shape",
                    code="adapter-base-mismatch",
                    remedy="with --onto, give the base that the adapter was trained on",
                    where=self._base.directory,
                )
        return [Piece(str(self._base.find(each.name)), each.parameter, each.expert, each.key) for each in pieces]

    def take_apart(self, parameters: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The tensors that a file would contain for parameters with these values: name -> tensor.

        Args:
            parameters: by name, any shape and dtype; stacked experts have shape (experts, …).

        Returns:
            Tensors of any shape, as transformers writes them: joined with others, one for each expert, or one for all.
        """
        from transformers.core_model_loading import revert_weight_conversion

        return dict(revert_weight_conversion(self._model, parameters))

    def positions(self, piece: Piece) -> torch.Tensor:
        """Positions of the numbers of `piece` in one expert: flat int64 indices; any shape, that of the piece."""
        shape = (1, *self._shapes[piece.parameter][1:])
        numbers = torch.arange(torch.Size(shape).numel()).view(shape)
        if piece.key == piece.parameter:
            return numbers
        return self.take_apart({piece.parameter: numbers})[piece.key]

    def _submodule(self, name: str) -> nn.Module:
        try:
            module: nn.Module = self._model.get_submodule(name)
        except AttributeError as error:
            raise InputError(
                f"the adapter changes {name}, which the base does not have",
                code="adapter-base-mismatch",
                remedy="with --onto, give the base that the adapter was trained on",
                where=self._base.directory,
            ) from error
        return module

    def _shape_in_files(self, name: str) -> tuple[int, ...] | None:
        found = self._base.find(name)
        return None if found is None else self._base.tensor(found).shape


def _skeleton(base: Base, *, is_classifier: bool) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    kind = AutoModelForSequenceClassification if is_classifier else AutoModelForCausalLM
    try:
        with torch.device("meta"):
            return kind.from_config(AutoConfig.from_pretrained(base.directory))
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise InputError(
            f"the layout of this model's experts in its files is not known: {str(error).strip().splitlines()[0]}",
            code="model-layout-unknown",
            remedy="merge it with PEFT: load it, then call merge_and_unload()",
            where=base.directory,
        ) from error


def _siblings(key: str, names: dict[str, torch.Tensor]) -> list[str]:
    """The names of all experts' pieces, if `key` is that of a single expert."""
    parts = key.split(".")
    for at, part in enumerate(parts):
        numbered = [".".join([*parts[:at], str(number), *parts[at + 1 :]]) for number in range(len(names))]
        found = [name for name in numbered if name in names]
        if part == "0" and len(found) > 1:
            return found
    return []
