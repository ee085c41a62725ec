"""Imports of large packages, such as torch and transformers, and other things that are made once and stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected_imports() -> Iterator[None]:
    """Import in here without garbage collection.

    Imports make hundreds of thousands of objects and hardly any garbage; to traverse them again and again takes a fifth
    of their time. These objects live until the end: the collector never traverses them again.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
    gc.freeze()
