"""Functions of transformers' models that packages for GPUs compute where they are installed.

Recurrent layers (gated delta rule, Mamba, short convolutions) are written in plain torch. When such a model is imported
and flash-linear-attention, mamba-ssm or causal-conv1d is installed, transformers calls the package's function in its
place, on whatever device (`use_kernel_func_from_hub_with_fallback`, integrations/hub_kernels.py of 5.23). Their kernels
refuse host memory.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CellType
from typing import Any

_MADE_IN = "transformers.integrations.hub_kernels"
_DISTRIBUTIONS = {"fla": "flash-linear-attention", "mamba_ssm": "mamba-ssm", "causal_conv1d": "causal-conv1d"}
"""Packages by their names in imports."""


@contextmanager
def plain_functions(model: Any) -> Iterator[None]:
    """Context of `use_plain_functions`."""
    before = use_plain_functions(model)
    try:
        yield
    finally:
        for cell, value in before:
            cell.cell_contents = value


def use_plain_functions(model: Any) -> list[tuple[CellType, Any]]:
    """Make all models of this class compute in plain torch, as if no such package were installed.

    Then packed documents are refused, too: by themselves the plain functions cannot keep them apart.

    Args:
        model: a module whose submodules' classes are defined beside the functions.

    Returns:
        The variables that were set, and their values before.
    """
    before = []
    for cells in function_choices(model):
        plain = cells["torch_function"].cell_contents
        chosen = {
            "implementation": plain,
            "is_new_implementation": False,
            "applicable_params": tuple(inspect.signature(plain).parameters),
        }
        for name, value in chosen.items():
            before.append((cells[name], cells[name].cell_contents))
            cells[name].cell_contents = value
    return before


def missing_packages(model: Any) -> list[str]:
    """Packages, as pip names them, that would compute functions of this model but are not installed."""
    plain = [cells for cells in function_choices(model) if not cells["is_new_implementation"].cell_contents]
    return sorted({_DISTRIBUTIONS.get(name, name) for name in (each["package"].cell_contents for each in plain)})


def function_choices(model: Any) -> list[dict[str, CellType]]:
    """Variables of each such function in the files of `model`, by name; none for another form of transformers."""
    files = [sys.modules[name] for name in sorted({type(each).__module__ for each in model.modules()})]
    functions = {id(each): each for file in files for each in vars(file).values() if callable(each)}
    found = [_variables(each) for each in functions.values()]
    wanted = {
        *("func_name", "package", "torch_function"),
        *("implementation", "is_new_implementation", "applicable_params"),
    }
    return [cells for cells in found if wanted <= cells.keys()]


def _variables(function: Callable[..., Any]) -> dict[str, CellType]:
    """Variables that a function made by transformers' decorator keeps; empty for others."""
    # Further decorators may be around it.
    while getattr(function, "__globals__", {}).get("__name__") != _MADE_IN:
        wrapped = inspect.getattr_static(function, "__wrapped__", None)
        if wrapped is None:
            return {}
        function = wrapped
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    return dict(zip(code.co_freevars, cells or (), strict=False)) if code is not None else {}
