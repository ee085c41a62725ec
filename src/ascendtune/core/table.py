"""Explicit tables `name -> "module:function"`: what exists can be read in one place, and is imported when used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any


def load(table: Mapping[str, str], name: str) -> Any:
    """The object that `table[name]` points to, as "package.module:attribute".

    Raises:
        KeyError: `name` is not in the table. The recipe's schema lists the same names, so this is a bug of ours.
    """
    module, _, attribute = table[name].partition(":")
    return getattr(import_module(module), attribute)
