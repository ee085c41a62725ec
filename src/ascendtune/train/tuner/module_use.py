"""Modules on which an adapter would have no effect: the model reads their weight itself, or they get no gradient."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import torch
from torch import nn

# Attributes of a weight that code reads without multiplying with it.
_FACTS = ("dtype", "device", "shape")
# From this number of tokens on, code that selects keys or merges tokens has an effect.
_TOKENS = 256


def attributes_read(model: nn.Module, name: str) -> frozenset[str]:
    """Attributes of the module `name` that its parent's code reads instead of calling the module."""
    parent, _, child = name.rpartition(".")
    kind: Any = type(model.get_submodule(parent))
    return _reads(kind).get(child, frozenset())


def without_gradient(model: Any, names: Iterable[str]) -> set[str]:
    """Those of `names` whose output does not contribute to the logits' gradient, as in code that only selects tokens.

    Determined by a forward pass; empty if this model cannot run one on plain tokens.
    """
    probes: dict[str, torch.Tensor] = {}
    modules = {name: model.get_submodule(name) for name in names}
    if not modules:
        return set()

    def make_hook(name: str) -> Any:
        def add_probe(module: nn.Module, arguments: Any, output: torch.Tensor) -> torch.Tensor:
            probe = probes.setdefault(name, output.new_zeros((), requires_grad=True))
            return output + probe

        return add_probe

    table = model.get_input_embeddings().weight
    ids = torch.arange(_TOKENS, device=table.device)[None] % table.shape[0]
    trained = [each for each in model.parameters() if each.requires_grad]
    hooks = [module.register_forward_hook(make_hook(name)) for name, module in modules.items()]
    model.requires_grad_(False)
    try:
        with torch.random.fork_rng(devices=[]):
            output = model(input_ids=ids, use_cache=False)[0]
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
        return set()
    finally:
        for each in hooks:
            each.remove()
        for parameter in trained:
            parameter.requires_grad_(True)
    leaves = _leaves(output.grad_fn)
    return {name for name in modules if name not in probes or id(probes[name]) not in leaves}


def _leaves(function: Any) -> set[int]:
    visited, pending, leaves = set(), [function], set()
    while pending:
        node = pending.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if hasattr(node, "variable"):
            leaves.add(id(node.variable))
        pending += [each for each, _ in node.next_functions]
    return leaves


@cache
def _reads(kind: Any) -> dict[str, frozenset[str]]:
    """Child -> attributes, from the source of a module's class and its base classes."""
    names_read: dict[str, set[str]] = {}
    for each in kind.__mro__:
        if each.__module__.startswith("torch.") or each is object:
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(each)))
        except (OSError, TypeError, SyntaxError):
            continue
        nodes = list(_outside_of_initialisation(tree))
        facts = {id(node.value) for node in nodes if isinstance(node, ast.Attribute) and node.attr in _FACTS}
        for node in nodes:
            if id(node) not in facts and (child := _child_name(node)) is not None:
                assert isinstance(node, ast.Attribute)
                names_read.setdefault(child, set()).add(node.attr)
    return {child: frozenset(attributes) for child, attributes in names_read.items()}


def _outside_of_initialisation(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.FunctionDef) and ("init" in node.name or "reset" in node.name):
        return
    yield node
    for each in ast.iter_child_nodes(node):
        yield from _outside_of_initialisation(each)


def _child_name(node: ast.AST) -> str | None:
    """`out_proj` for the expression `self.out_proj.weight`."""
    match node:
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id="self"), attr=child), ctx=ast.Load()):
            return child
    return None
