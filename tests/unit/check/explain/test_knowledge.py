"""The knowledge itself: well formed, and every entry finds its own line before any other does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.doctor import CHECKS
from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.knowledge.entries import (
    EXPRESSION,
    IMPORTER,
    KINDS,
    MISMATCH,
    OWNER,
    PLACE,
    SINCE,
    TABLE,
    KnownFailure,
    entries,
    raised_entries,
)
from ascendtune.check.explain.knowledge.matcher import ASCEND, Matcher, filled
from ascendtune.check.explain.package.origin import NAMES, ORIGINS
from ascendtune.cli.commands import COMMANDS

_LONGEST_ANCHOR = 75
_ALL = (*entries(), *raised_entries())


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return Matcher(entries())


def _found(matcher: Matcher, text: str, known: KnownFailure | None = None) -> list[str]:
    """Ids in the order of preference; entries with conditions beyond the line count only if they are `known`."""
    worth = matcher.worth_a_look(text.encode(), frozenset())
    return [
        hit.entry.id
        for line, look in zip(text.split("\n"), worth, strict=True)
        if look
        for hit in matcher.hits(line)
        if hit.entry is known
        or (
            not (hit.entry.frame or hit.entry.origin or hit.entry.is_conditional or hit.entry.below)
            and not _is_of_launcher(known)
        )
    ]


def _is_of_launcher(known: KnownFailure | None) -> bool:
    """Frames of a launcher go before all words of its exception."""
    return known is not None and known.kind == "consequence" and bool(known.frame)


def test_ids_are_unique() -> None:
    ids = [entry.id for entry in _ALL]

    assert sorted(set(ids)) == sorted(ids)


# A test of its own for each entry would be 2,500 tests: every test process spends seconds on collecting them.
def test_every_entry_is_whole() -> None:
    for entry in _ALL:
        assert entry.kind in KINDS, entry.id
        assert entry.origin in ORIGINS, entry.id
        assert entry.what, entry.id
        assert entry.remedies, entry.id
        assert entry.source, entry.id
        assert not entry.pattern or not entry.pattern.search(""), f"{entry.id}: a pattern that matches nothing"
        said = " ".join((entry.what, *entry.causes, *entry.remedies))
        assert set(re.findall(r"{(\w+)}", said)) <= entry.captured, entry.id
        for anchor in entry.anchors:
            assert all("compiler_depend" not in part for part in anchor), entry.id
            assert max(map(len, anchor)) <= _LONGEST_ANCHOR, f"{entry.id}: an anchor is a few words, not a sentence"


def test_every_entry_finds_its_own_line_first(matcher: Matcher) -> None:
    first = {entry.id: _found(matcher, entry.test.strip(), entry)[:1] for entry in entries()}

    assert {known: found for known, found in first.items() if found != [known]} == {}


def test_messages_of_packages_match_only_raised_exceptions(
    explained: Callable[..., Explanation],
) -> None:
    line = "'moonlet' is already used by a Transformers config, pick another name."

    assert entry_of(explained(f"ValueError: {line}\n")) == "config-name-taken"
    assert explained(f"WARNING {line}\nstep 7 loss 1.5\n").is_healthy


def test_every_entry_captures_what_it_speaks_of(matcher: Matcher) -> None:
    of_raised = Matcher(raised_entries())
    for entry in _ALL:
        if "{" not in entry.what:
            continue
        matcher = of_raised if entry.family.startswith("raised/") else matcher
        hits = {hit.entry.id: hit for line in entry.test.strip().split("\n") for hit in matcher.hits(line)}
        assert "{" not in filled(entry.what, hits[entry.id].names), entry.id
        patterns = (*entry.requires.values(), *filter(None, (entry.beside,)))
        of_facts = {name for pattern in patterns for name in pattern.names}
        of_origin = NAMES if entry.origin else ()
        known = {
            *hits[entry.id].names,
            *of_facts,
            *of_origin,
            EXPRESSION,
            IMPORTER,
            MISMATCH,
            OWNER,
            PLACE,
            SINCE,
            TABLE,
        }
        assert set(re.findall(r"{(\w+)}", entry.what)) <= known, entry.id


def test_every_entry_has_what_must_stand_beside_it_in_its_test() -> None:
    assert [entry.id for entry in entries() if entry.beside and not entry.beside.search(entry.test)] == []


def test_echoes_name_entries_that_exist() -> None:
    ids = {entry.id for entry in entries()}

    assert {name for entry in _ALL for name in entry.echo_of} <= ids


def test_checks_are_those_of_the_doctor() -> None:
    assert {name for entry in _ALL for name in entry.checks} <= CHECKS.keys()


def test_signatures_collected_elsewhere_are_known(matcher: Matcher, shared: Path) -> None:
    """Collected before these patterns; a few are only parts of a message that is known by its other parts."""
    records = [json.loads(line) for line in (shared / "knowledge" / "ascend-errors.jsonl").read_text().splitlines()]
    records = [record for record in records if record["tier"] in ("curated", "acl-code")]

    unknown = [
        record["id"]
        for record in records
        if not any(
            _found(matcher, text) for text in record.get("all_signatures", [record["signature"]]) if text.strip()
        )
    ]

    assert len(records) > 200
    assert unknown == []


def test_commands_of_remedies_exist() -> None:
    named = {
        name
        for entry in _ALL
        for remedy in entry.remedies
        for name in re.findall(r"`ascendtune ([a-z-]+(?: [a-z-]+)?)", remedy)
    }

    assert named
    assert sorted(name for name in named if name not in COMMANDS and name.split()[0] not in COMMANDS) == []


_CHANGES = re.compile(
    r"(?:(?:python -m )?pip install|rm|remove|delete|re-?install|install|upgrade|downgrade|"
    r"reboot|reset|restart|kill|stop)\b"
)


def test_first_remedy_of_a_general_entry_is_a_check_and_no_change() -> None:
    general = [entry for entry in entries() if not entry.specific and entry.kind != "notice"]

    assert [entry.id for entry in general if entry.remedies and _CHANGES.match(entry.remedies[0])] == []


def test_lines_with_words_but_no_piece_of_an_anchor_are_passed_over(matcher: Matcher) -> None:
    lines = b"a forward\nthere is an aivector error\nnull\nan error of memory and a failure"

    assert matcher.worth_a_look(lines, frozenset()) == [False, True, False, False]


def test_an_anchor_begins_and_ends_within_names_that_run_together(matcher: Matcher) -> None:
    """Its longest word is a part of one of the line."""
    lines = ["LinearOperation setup failed!", "RuntimeError: MoonOperation setup failed!Tide"]

    assert all("atb-setup" in [hit.entry.id for hit in matcher.hits(line)] for line in lines)
    assert matcher.worth_a_look("\n".join(lines).encode(), frozenset()) == [True, True]


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("the moon sets over port 7", True),
        ("moon: reporting; another port", True),
        ("moon: OldPort is lost", True),
        ("moon: reporting", False),
    ],
)
def test_an_anchor_does_not_begin_within_a_word(line: str, is_found: bool) -> None:
    known = replace(entries()[0], anchors=(("moon", "port"),), pattern=None)
    assert bool(Matcher([known]).hits(line)) is is_found


@pytest.mark.parametrize(
    "line",
    [
        "call aclnnAdd failed, detail 100099, nothing else",  # of another number the shape would be the same
        "[rank3]: \x1b[31mout of\x1b[0m memory",
        "\x1b[31merrcode=100000\x1b[0m",
        "moon.OddError: no memory of it",
        "[E419 10:42:29.003292273 ProcessGroupNCCL.cpp:1834] Timeout at NCCL work: 4486",
    ],
)
def test_lines_that_may_matter_are_worth_a_look(matcher: Matcher, line: str) -> None:
    assert matcher.worth_a_look(line.encode(), frozenset()) == [True]


def test_lines_with_a_word_that_is_asked_for_are_worth_a_look(matcher: Matcher) -> None:
    assert matcher.worth_a_look(b"an npu\na cpu", ASCEND) == [True, False]


_DESTROYS = re.compile(
    r"(?<!-)\brm -|\breboot\b|\breset the (?:card|device)|\bset -t reset|\bsystemctl restart|\bpip uninstall|"
    r"--force-reinstall|\buninstall\b|\bchmod\b|\bchown\b|\bdocker rm|\bsudo rm|\bkill -"
)
_CONDITION = re.compile(r"[:;] |\b(?:if|when|where|while|only|unless|until|as the owner|do not|after)\b")


def test_remedy_that_removes_or_resets_something_says_when() -> None:
    def is_unconditional(remedy: str) -> bool:
        change = _DESTROYS.search(remedy)
        return change is not None and _CONDITION.search(remedy) is None

    assert {entry.id: each for entry in _ALL for each in entry.remedies if is_unconditional(each)} == {}
