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


@pytest.mark.parametrize(
    ("template", "known", "shown"),
    [
        ("no bus ({socket}: {reason}): it fails", {"socket": "/x"}, "no bus (/x): it fails"),
        ("no bus ({socket}: {reason}): it fails", {"reason": "moon"}, "no bus (moon): it fails"),
        ("too old ({gpu}, of 20{year})", {"gpu": "G7"}, "too old (G7, of 20)"),
        ("one tensor ({one}, {other}), which is shared", {"one": "a"}, "one tensor (a), which is shared"),
        ("没有总线（{socket}：{reason}）", {"reason": "月"}, "没有总线（月）"),
        ("a fault in the pass, {name}: it ends", {}, "a fault in the pass: it ends"),
    ],
)
def test_brackets_and_commas_stay_whole_without_one_of_several_names(
    template: str, known: dict[str, str], shown: str
) -> None:
    assert filled(template, known) == shown
