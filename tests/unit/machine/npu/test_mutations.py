"""Damaged transcripts: cut, wrapped, indented, interleaved, re-encoded, re-ordered.

Two promises. What does not touch the table leaves the result as it is. What does may make values None; it never moves
one to another field or device.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from ascendtune.machine.npu import hccn
from ascendtune.machine.npu.info import read_info
from ascendtune.machine.npu.key_values import read_facts, read_processes
from ascendtune.machine.npu.smi import read_mapping
from ascendtune.machine.npu.topology import read_topology
from ascendtune.machine.npu.versions import read_values

_TESTS = Path(__file__).parents[3]
NAMES = sorted(path.stem for path in (_TESTS / "golden" / "devices").glob("*.json"))
Mutation = Callable[[str, random.Random], str]

NOISE = [
    "[ 1234.567890] hisi_sas_v3_hw 0000:b4:02.0: phyup: phy0 link_rate=11",
    "Nov 20 11:22:33 node7 sshd[4711]: Accepted publickey for root from 10.0.0.7 port 50022",
    "INFO 11-20 11:22:33 worker.py:17] step 12 | loss 1.25 | 8 / 16",
    "  % Total    % Received % Xferd  Average Speed   Time    Time     Time  Current",
    "昇腾 NPU 状态 | 正常 | 42",
    "| 10 | 20 |",
    "\x1b[32mok\x1b[0m",
    "",
    "|",
    "NPU ID                         : 5",
]


def _on_lines(change: Callable[[str], str]) -> Mutation:
    return lambda text, _: "\n".join(change(line) for line in text.splitlines()) + "\n"


def _indented(text: str, dice: random.Random) -> str:
    before = dice.choice(["    ", "\t", "> ", "node7: ", "[stdout] ", "12:30:01.123 "])
    return _on_lines(lambda line: before + line)(text, dice)


def _with_noise(text: str, dice: random.Random) -> str:
    lines = []
    for line in text.splitlines():
        lines += dice.choices(NOISE, k=dice.choice([0, 0, 1]))
        lines.append(line)
    return "\n".join(lines)


def _with_spaces_of_another_kind(text: str, dice: random.Random) -> str:
    return re.sub("  ", lambda _: dice.choice([" \u00a0", "  ", "\u3000 "]), text)


def _squeezed(text: str, _: random.Random) -> str:
    """One blank where there were several, as in a paste through a chat; header names lose their distance too."""
    return re.sub("(?<=[^ \n]) {2,}(?=[^ \n])", lambda blanks: "  " if len(blanks[0]) > 2 else " ", text)


HARMLESS: dict[str, Mutation] = {
    "CRLF": _on_lines(lambda line: line + "\r"),
    "trailing blanks": _on_lines(lambda line: line + "   "),
    "indented": _indented,
    "noise": _with_noise,
    "blanks": _with_spaces_of_another_kind,
    "colours": _on_lines(lambda line: f"\x1b[1;31m{line}\x1b[0m"),
    "drawn borders": lambda text, _: text.replace("|", "│"),
    "twice": lambda text, _: text + text,
    "without borders": lambda text, _: "\n".join(
        line for line in text.splitlines() if not re.match(r"\s*\+[-=]", line)
    ),
}


def _cut_at_end(text: str, dice: random.Random) -> str:
    return text[: dice.randrange(len(text))]


def _cut_at_start(text: str, dice: random.Random) -> str:
    return text[dice.randrange(len(text)) :]


def _cut_at_the_right(text: str, dice: random.Random) -> str:
    width = dice.randrange(5, 110)
    return _on_lines(lambda line: line[:width])(text, dice)


def _cut_at_the_left(text: str, dice: random.Random) -> str:
    width = dice.randrange(1, 90)
    return _on_lines(lambda line: line[width:])(text, dice)


def _wrapped(text: str, dice: random.Random) -> str:
    width = dice.randrange(5, 110)
    return "\n".join(line[at : at + width] for line in text.splitlines() for at in range(0, len(line) or 1, width))


def _without_a_line(text: str, dice: random.Random) -> str:
    lines = text.splitlines()
    del lines[dice.randrange(len(lines))]
    return "\n".join(lines)


def _broken_characters(text: str, dice: random.Random) -> str:
    for _ in range(dice.randrange(1, 12)):
        at = dice.randrange(len(text))
        text = text[:at] + "\ufffd" + text[at + 1 :]
    return text


def _headless(text: str, _: random.Random) -> str:
    return "\n".join(line for line in text.splitlines() if not re.search(r"Name  |Bus-Id|Process id", line))


def _shuffled(text: str, dice: random.Random) -> str:
    """The cells of both tables in another order, headers with them."""
    orders: dict[int, list[int]] = {}
    lines = []
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) > 4:
            order = orders.setdefault(len(parts), dice.sample(range(1, len(parts) - 1), len(parts) - 2))
            parts[1:-1] = [parts[place] for place in order]
        lines.append("|".join(parts))
    return "\n".join(lines)


def _shuffled_within_cells(text: str, dice: random.Random) -> str:
    """Power, temperature and huge pages in another order within their cell; likewise the columns of the line below."""
    orders: dict[bool, list[int]] = {}
    lines = []
    for line in text.splitlines():
        cells = line.split("|")
        if "Process id" in line:
            orders = {}
        if len(cells) > 4:
            names = re.findall(r"(?:NPU )?[A-Za-z-]+\([^)]*\)", cells[-2])
            values = re.findall(r"[^\s/|]+\s*/\s*[^\s/|]+|[^\s/|]+", cells[-2])
            is_lower = "Bus-Id" in line or re.search(r"[0-9A-F]:00\.0", line) is not None or cells[-3].strip() == "NA"
            if names and "Process id" not in line:
                orders[is_lower] = dice.sample(range(len(names)), len(names))
            if order := orders.get(is_lower):
                cells[-2] = "   ".join((names or values)[place] for place in order)
        lines.append("|".join(cells))
    return "\n".join(lines)


HARMFUL: dict[str, Mutation] = {
    "cut at the end": _cut_at_end,
    "cut at the start": _cut_at_start,
    "cut at the right": _cut_at_the_right,
    "cut at the left": _cut_at_the_left,
    "wrapped": _wrapped,
    "a line missing": _without_a_line,
    "broken characters": _broken_characters,
    "headless": _headless,
    "headless and shuffled": lambda text, dice: _shuffled(_headless(text, dice), dice),
    "squeezed": _squeezed,
    "decimal comma": lambda text, _: re.sub(r"(?<=[0-9])\.(?=[0-9] +[0-9]+ )", ",", text),
}
SHUFFLES: dict[str, Mutation] = {"cells": _shuffled, "columns": _shuffled_within_cells}


def _load(name: str) -> tuple[str, list[dict[str, Any]]]:
    text = (_TESTS / "fixtures" / "ascend" / f"{name}.txt").read_bytes().decode().replace("\r\n", "\n")
    devices = json.loads((_TESTS / "golden" / "devices" / f"{name}.json").read_text())["devices"]
    return text, [{key: value for key, value in device.items() if key != "lines"} for device in devices]


ALL = {name: _load(name) for name in NAMES}


def _devices(text: str) -> list[dict[str, Any]]:
    return json.loads(json.dumps([device.as_json() for device in read_info(text).devices]))


def _says_no_more(part: dict[str, Any], whole: dict[str, Any]) -> bool:
    """Every value of `part` is None or the one that `whole` has under the same name."""
    return all(
        all(any(_says_no_more(mine, theirs) for theirs in whole["processes"]) for mine in value)
        if name == "processes"
        else value is None or value == whole[name]
        for name, value in part.items()
    )


def _check(name: str, kind: str, mutation: Mutation, dice: random.Random) -> None:
    text, expected = ALL[name]
    changed = mutation(text, dice)
    found = _devices(changed)
    for device in found:
        fitting = [other for other in expected if _says_no_more(device, other)]
        assert fitting, f"{kind}: {device} is none of those in\n{changed}"
    if kind in HARMLESS or kind in SHUFFLES:
        assert found == expected, f"{kind}:\n{changed}"


def _every_mutation(names: Iterable[str], seeds: range) -> int:
    count = 0
    for name in names:
        for kind, mutation in {**HARMLESS, **HARMFUL}.items():
            for seed in seeds:
                _check(name, kind, mutation, random.Random(f"{name} {kind} {seed}"))
                count += 1
    return count


@pytest.mark.parametrize("name", NAMES)
def test_mutated_transcript_yields_true_values_or_none(name: str) -> None:
    assert _every_mutation([name], range(2)) >= 30


@pytest.mark.parametrize("kind", SHUFFLES)
@pytest.mark.parametrize("name", [name for name in NAMES if "headless" not in name])
def test_shuffled_columns_are_read_by_name(name: str, kind: str) -> None:
    for seed in range(3):
        _check(name, kind, SHUFFLES[kind], random.Random(f"{name} {seed}"))


@pytest.mark.parametrize("name", NAMES)
def test_two_mutations_at_once_invent_no_device(name: str) -> None:
    for seed in range(10):
        dice = random.Random(f"{name} {seed}")
        first, second = dice.sample([*HARMLESS.values(), *HARMFUL.values()], 2)
        _check(name, "both", lambda text, dice, a=first, b=second: b(a(text, dice), dice), dice)  # type: ignore[misc]


def test_without_headers_unnamed_numbers_are_unknown() -> None:
    text, expected = ALL["info_a3_24.1.rc3.3_two_dies"]
    found = _devices(_headless(text, random.Random(0)))
    assert [device["bus_id"] for device in found] == [device["bus_id"] for device in expected]
    known = {name for device in found for name, value in device.items() if value not in (None, [])}
    assert known == {"kind", "npu_id", "name", "health", "bus_id"}


@pytest.mark.soak
def test_ten_thousand_mutations_yield_true_values_or_none() -> None:
    assert _every_mutation(NAMES, range(30)) >= 10_000


READERS: list[Callable[[str], object]] = [
    read_facts,
    read_processes,
    read_mapping,
    read_topology,
    read_values,
    hccn.read_link,
    hccn.read_health,
    hccn.read_address,
    hccn.read_gateway,
    hccn.read_tls,
    hccn.read_link_history,
]


@pytest.mark.parametrize("path", sorted((_TESTS / "fixtures" / "ascend").glob("*.txt")), ids=lambda path: path.stem)
def test_no_reader_fails_on_anything(path: Path) -> None:
    text = path.read_bytes().decode()
    for kind, mutation in {**HARMLESS, **HARMFUL}.items():
        changed = mutation(text, random.Random(f"{path.stem} {kind}"))
        for reader in [read_info, *READERS]:
            reader(changed)
