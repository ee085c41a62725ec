"""Modules on which an adapter would do nothing: the model reads their weight itself, or no gradient comes to them."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import torch
from torch import nn

# What code asks of a weight that it does not multiply with.
_FACTS = ("dtype", "device", "shape")
# An index is chosen, or tokens are put together, from a number of tokens on.
_TOKENS = 256


def attributes_read(model: nn.Module, name: str) -> frozenset[str]:
    """Attributes of the module `name` that the code of its parent uses instead of calling the module."""
    parent, _, child = name.rpartition(".")
    kind: Any = type(model.get_submodule(parent))
    return _reads(kind).get(child, frozenset())


def without_gradient(model: Any, names: Iterable[str]) -> set[str]:
    """Those of `names` whose output has no part in the gradient of the logits, as in code that only selects tokens.

    Found by a forward pass; empty where this model cannot make one of plain tokens.
    """
    probes: dict[str, torch.Tensor] = {}
    watched = {name: model.get_submodule(name) for name in names}
    if not watched:
        return set()

    def watch(name: str) -> Any:
        def add_probe(module: nn.Module, arguments: Any, output: torch.Tensor) -> torch.Tensor:
            probe = probes.setdefault(name, output.new_zeros((), requires_grad=True))
            return output + probe

        return add_probe

    table = model.get_input_embeddings().weight
    ids = torch.arange(_TOKENS, device=table.device)[None] % table.shape[0]
    trained = [each for each in model.parameters() if each.requires_grad]
    hooks = [module.register_forward_hook(watch(name)) for name, module in watched.items()]
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
    return {name for name in watched if name not in probes or id(probes[name]) not in leaves}


def _leaves(function: Any) -> set[int]:
    seen, waiting, leaves = set(), [function], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.add(id(node.variable))
        waiting += [each for each, _ in node.next_functions]
    return leaves


@cache
def _reads(kind: Any) -> dict[str, frozenset[str]]:
    """Child -> attributes, from the source of a module's class and those it is derived from."""
    found: dict[str, set[str]] = {}
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
            if id(node) not in facts and (child := _child(node)) is not None:
                assert isinstance(node, ast.Attribute)
                found.setdefault(child, set()).add(node.attr)
    return {child: frozenset(attributes) for child, attributes in found.items()}


def _outside_of_initialisation(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.FunctionDef) and ("init" in node.name or "reset" in node.name):
        return
    yield node
    for each in ast.iter_child_nodes(node):
        yield from _outside_of_initialisation(each)


def _child(node: ast.AST) -> str | None:
    """`out_proj` of the expression `self.out_proj.weight`."""
    match node:
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id="self"), attr=child), ctx=ast.Load()):
            return child
    return None
