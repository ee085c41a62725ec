"""Finds mixtures of experts in a model, with their experts and routers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Mixture:
    """A mixture of experts. Names are full names in the model."""

    count: int
    """Number of experts."""
    parameters: tuple[str, ...]
    """Parameters with the matrices of all experts: (experts, ., .)."""
    modules: tuple[str, ...]
    """Experts that are separate modules."""
    routers: tuple[str, ...]
    """Modules that weigh the experts for a token, and gates of an expert that processes every token."""

    def is_expert(self, name: str) -> bool:
        return any(f"{name}.".startswith(f"{each}.") for each in self.modules)

    def is_router(self, name: str) -> bool:
        return any(f"{name}.".startswith(f"{each}.") for each in self.routers)


def find_mixtures(model: Any) -> list[Mixture]:
    """All mixtures of `model`, in the order of its modules.

    Experts are matrices in one parameter, or modules in one list. They count as experts only inside of a decoder block,
    and beside a router.
    """
    lists = tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, nn.ModuleList))
    mixtures = []
    for name, block in model.named_modules():
        if not name.startswith(lists):
            continue
        children = dict(block.named_children())
        for count, experts in _candidates(children):
            others = {key: child for key, child in children.items() if key not in experts}
            hidden = model.get_input_embeddings().weight.shape[1]
            routers = [key for key, child in others.items() if _is_router(child, count, hidden)]
            if not routers:
                continue
            routers += [key for key, child in others.items() if _output_widths(child) == {1}]
            mixtures.append(_mixture(name, block, count, experts, routers))
            break
    return mixtures


def listed_experts(model: Any) -> list[nn.Module]:
    """Experts that are modules in a list: a model calls only those that get tokens, so ranks may use different ones."""
    return [model.get_submodule(name) for mixture in find_mixtures(model) for name in mixture.modules]


def bypassed_experts(model: Any) -> list[nn.Module]:
    """Modules with experts in one parameter that tokens may bypass: their router can select no expert (LongCat's)."""
    experts = []
    for mixture in find_mixtures(model):
        outputs = max(width for each in mixture.routers for width in _output_widths(model.get_submodule(each)))
        # One of LongCat's parameters has unused rows for the outputs that belong to no expert.
        if any(model.get_parameter(name).shape[0] < outputs for name in mixture.parameters):
            experts += [model.get_submodule(name.rpartition(".")[0]) for name in mixture.parameters]
    return list(dict.fromkeys(experts))


def _candidates(children: dict[str, nn.Module]) -> Iterator[tuple[int, list[str]]]:
    """(number of experts, names of the children that contain them)."""
    stacks: dict[int, list[str]] = {}
    for name, child in children.items():
        if holds_stacks(child):
            count = max(each.shape[0] for each in child.parameters(recurse=False) if each.ndim == 3)
            stacks.setdefault(count, []).append(name)
        if isinstance(child, nn.ModuleList) and len(child) > 1 and len({type(each) for each in child}) == 1:
            stacks.setdefault(len(child), []).append(name)
    yield from stacks.items()


def holds_stacks(module: nn.Module) -> bool:
    """Whether a module has three-dimensional parameters other than kernels of a convolution."""
    return not isinstance(module, nn.Conv1d) and any(each.ndim == 3 for each in module.parameters(recurse=False))


def _is_router(module: nn.Module, count: int, hidden: int) -> bool:
    """Whether a module computes a number for each of `count` experts.

    Some routers have more outputs: for shared experts, or for no expert. A module that outputs a hidden state is an
    expert itself.
    """
    heights = _output_widths(module)
    return hidden not in heights - {count} and any(count <= height <= 1.5 * count for height in heights)


def _output_widths(module: nn.Module) -> set[int]:
    return {each.shape[0] for each in module.parameters() if each.ndim == 2}


def _mixture(name: str, block: nn.Module, count: int, experts: list[str], routers: list[str]) -> Mixture:
    prefix = f"{name}." if name else ""
    parameters, modules = [], []
    for key in experts:
        holder = block.get_submodule(key)
        if isinstance(holder, nn.ModuleList):
            modules += [f"{prefix}{key}.{number}" for number in range(count)]
        parameters += [
            f"{prefix}{key}.{each}" for each, parameter in holder.named_parameters(recurse=False) if parameter.ndim == 3
        ]
    return Mixture(count, tuple(parameters), tuple(modules), tuple(prefix + each for each in routers))
