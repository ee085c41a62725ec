"""Imports without garbage collection."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from ascendtune.core.imports import uncollected_imports

_STRUCTURE_OF_TRANSFORMERS = """
import hashlib, pathlib, transformers, transformers.models
from transformers.utils import import_utils as module
for models in (transformers, transformers.models):
    found = {name: str(models._class_to_module[name]) for name in sorted(models._class_to_module)}
    print(len(found), hashlib.sha256(repr(found).encode()).hexdigest())
    missing = {name: sorted(needed) for name, needed in sorted(models._object_missing_backend.items())}
    print(hashlib.sha256(repr(missing).encode()).hexdigest())
print(module.create_import_structure_from_path.cache_info().misses)
"""


def test_collector_is_off_within_and_on_after_an_error() -> None:
    with pytest.raises(ImportError), uncollected_imports():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()


def test_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with uncollected_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_imported_objects_are_not_traversed_again() -> None:
    gc.unfreeze()
    with uncollected_imports():
        kept = [[number] for number in range(100)]
    assert gc.get_freeze_count() >= len(kept)


def test_transformers_finds_the_same_models_with_one_scan() -> None:
    plain, once = (_printed(before + _STRUCTURE_OF_TRANSFORMERS) for before in ("", _ONCE))
    assert once[:-1] == plain[:-1]
    # A miss for each directory, and one more: the directory of all models is asked for as a path and as a text.
    assert int(once[-1]) <= int(plain[-1]) // 2 + 1


_ONCE = "from ascendtune.core.imports import scan_models_once; scan_models_once(); scan_models_once()"


def _printed(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return done.stdout.split("\n")[:-1]
