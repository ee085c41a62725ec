"""Imports without garbage collection."""

from __future__ import annotations

import gc

import pytest

from ascendtune.core.imports import uncollected_imports


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
