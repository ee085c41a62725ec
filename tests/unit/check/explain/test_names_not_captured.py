"""Sentences of entries whose names the log does not tell."""

from __future__ import annotations

import pytest

from ascendtune.check.explain.knowledge.matcher import filled


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("the GPU at {bus} has a memory error", "the GPU at … has a memory error"),
        ("this torch has no code for the GPU {gpu}", "this torch has no code for the GPU"),
        ("the port {port} of {host}:{port} is taken", "the port of … is taken"),
        ("a package ({importer}) was written for an older Triton", "a package was written for an older Triton"),
        ("{host} does not answer", "something does not answer"),
    ],
)
def test_sentence_stays_whole_without_a_name(template: str, shown: str) -> None:
    assert filled(template, {}) == shown
