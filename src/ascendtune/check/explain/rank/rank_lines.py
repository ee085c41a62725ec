"""Attributes lines to ranks by labels of launchers and names of files, whose meaning the logs themselves show.

`[default3]:` is a local rank, `3:` may be a node: lines that have such a label and name their rank as well show the
meaning of the label's number, and so the ranks of the other lines with that label.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property

from ascendtune.check.explain.event.event import Event
from ascendtune.check.explain.event.scan import Scan
from ascendtune.check.explain.log import line as lines_of
from ascendtune.check.explain.log.line import Line
from ascendtune.check.explain.rank.rank_phase import SETTING_UP, phase_of

_ENDED = re.compile(r"SIGTERM|SignalException|Traceback \(most|closing signal")
_OF_TORCH = re.compile(r"(?:^| )a (\d+)(?= |$)")
"""In a speaker: the rank that torch, or the program, writes before a line."""
_LABEL = re.compile(r"(?:^| )(?P<kind>[bcde]|container|host) (?P<name>\S*?)(?P<number>\d+)(?= |$)")
"""In a speaker: the label of a launcher."""
_NAMES_RANKS = ("b", "c", "d", "e")
_LOCAL = "b"
_UNKNOWN_LABEL = re.compile(
    r"[\[(<]?[A-Za-z][A-Za-z_.-]{0,24}[ =:_-]?(\d{1,5})[\])>]? ?[:|]? |[\[(<](\d{1,5})[\])>]:? "
)
"""Beginning of a line that may be the label of an unknown launcher."""
_NUMBER = re.compile(r"\d+")
_COMMAND = re.compile(r"\+{1,2} ")
_MOSTLY = 0.8
_AGREEING = 2
"""Fewest numbers of an unknown label, or of files, that must agree with ranks before they are believed."""


class _Label:
    """One kind of label in one log.

    Args:
        names_ranks: whether its numbers are ranks, unless a line contradicts that.
    """

    def __init__(self, *, names_ranks: bool) -> None:
        self.names_ranks = names_ranks
        self.pairs: dict[int, Counter[int]] = defaultdict(Counter)
        """Number -> ranks in the lines with it."""

    @cached_property
    def _known(self) -> dict[int, int] | None:
        """Number -> rank; None if the numbers do not identify ranks."""
        by_number = {}
        for number, ranks in self.pairs.items():
            rank, count = ranks.most_common(1)[0]
            if count < _MOSTLY * sum(ranks.values()):
                return None
            by_number[number] = rank
        is_believed = self.names_ranks or len(by_number) >= _AGREEING
        return by_number if is_believed and len(set(by_number.values())) == len(by_number) else None

    @cached_property
    def offset(self) -> int | None:
        """Difference between ranks and numbers; None if it is unknown, or not constant."""
        offsets = {rank - number for number, rank in (self._known or {}).items()}
        if self._known == {}:
            return 0 if self.names_ranks else None
        return offsets.pop() if len(offsets) == 1 else None

    def rank_of(self, number: int) -> int | None:
        known = self._known or {}
        return known.get(number, None if self.offset is None else number + self.offset)


class _Log:
    """Lines of a log of several ranks, as far as its scan keeps them."""

    def __init__(self, scan: Scan) -> None:
        self.scan = scan
        self.labels: dict[str, _Label] = {}
        for text, line, _ in self._lines:
            rank = _named(text, line)
            for shape, kind, number in _labels(text, line):
                known = self.labels.setdefault(shape, _Label(names_ranks=kind in _NAMES_RANKS))
                if rank is not None:
                    known.pairs[number][rank] += 1

    @cached_property
    def _lines(self) -> list[tuple[str, Line, int]]:
        """(text, parsed line, line number)."""
        last = self.scan.last_lines
        numbered = [*enumerate(self.scan.head.split("\n")[: last[0][0] - 1], 1), *last]
        # The progress bar of one rank does not end its line: text of another rank follows it.
        parts = ((each, number) for number, text in numbered for each in (lines_of.bar_in(text), text) if each)
        return [(text, lines_of.read(text), number) for text, number in parts]

    @cached_property
    def by_rank(self) -> dict[int, list[tuple[str, int]]]:
        """Lines of each rank without labels, with their numbers."""
        lines: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for text, line, number in self._lines:
            if (rank := self.rank_of(text, line)) is not None:
                label = None if line.speaker else _UNKNOWN_LABEL.match(text)
                message = text[label.end() :] if label is not None and self._is_label(text, line) else line.message
                lines[rank].append((message.strip(), number))
        return lines

    @cached_property
    def has_loose_lines(self) -> bool:
        """Whether lines with the phase of a process lack its rank."""
        loose = (text for text, line, _ in self._lines if self.rank_of(text, line) is None)
        return any(_tells_a_phase(text) for text in loose if not _COMMAND.match(text))

    def rank_of(self, text: str, line: Line) -> int | None:
        if (own := _OF_TORCH.search(line.speaker)) is not None:
            return int(own[1])
        labels = _labels(text, line)
        for shape, _, number in labels:
            if shape in self.labels and (rank := self.labels[shape].rank_of(number)) is not None:
                return rank
        # If the label counts nodes, the line may name its rank.
        return _named(text, line) if any(kind in _NAMES_RANKS for _, kind, _ in labels) else line.rank

    def _is_label(self, text: str, line: Line) -> bool:
        return any(self.labels[shape].rank_of(number) is not None for shape, _, number in _labels(text, line))


class Ranks:
    """Ranks of the lines in a job's logs. Assigns ranks to logs and events whose rank follows only from other lines."""

    def __init__(self, scans: Sequence[Scan]) -> None:
        self.scans = scans
        self._logs: dict[str, _Log] = {}
        if len(scans) > 1 and any(event.entry.waits for scan in scans for event in scan.events):
            self._name_logs()
        for scan in scans:
            labelled = [event for event in scan.events if _is_labelled(event)]
            if scan.rank is None and any(_OF_TORCH.search(event.speaker) is None for event in labelled):
                for event in labelled:
                    _rename(event, self._log(scan))

    def seen(self) -> set[int]:
        """Ranks with at least one line."""
        own = {scan.rank for scan in self.scans if scan.rank is not None}
        return own.union(*(log.by_rank for log in self._shared))

    def last_line(self, rank: int) -> tuple[str, int | None, str]:
        """(log, line number, text) of the last line of a rank before it was ended; ("", None, "") if there is none."""
        for scan in self.scans:
            if scan.rank == rank:
                lines = [(lines_of.read(text).message.strip(), number) for number, text in scan.last_lines]
                if last := _last(lines):
                    return scan.name, last[1], last[0]
        for log in self._shared:
            if last := _last(log.by_rank.get(rank, [])):
                return log.scan.name, last[1], last[0]
        return "", None, ""

    def is_given(self, rank: int) -> bool:
        """Whether the logs cover the whole job, or one of them is the log of `rank`."""
        own = [{scan.rank} for scan in self.scans if scan.rank is not None]
        own += [set(log.by_rank) for log in self._shared]
        several = [ranks for ranks in own if len(ranks) > 1]
        if len(several) > 1 and sum(map(len, several)) == len(set().union(*several)):
            # Each is the log of a node.
            return any(min(ranks) <= rank <= max(ranks) for ranks in several)
        of_one = [ranks for ranks in own if len(ranks) == 1]
        is_by_rank = len(of_one) > 1 or any(scan.rank is not None for scan in self.scans)
        return not is_by_rank or {rank} in of_one or bool(several)

    def are_lines_told_apart(self, rank: int, others: Sequence[int]) -> bool:
        """Whether lines of `rank` would be attributed to it: those of most `others` are, or each line has a rank."""
        if any(scan.rank == rank for scan in self.scans) or not any(log.has_loose_lines for log in self._shared):
            return True
        known = [other for other in others if any(self._has_told_a_phase(log, other) for log in self._shared)]
        return 2 * len(known) >= len(others)

    @staticmethod
    def _has_told_a_phase(log: _Log, rank: int) -> bool:
        return any(_tells_a_phase(message) for message, _ in log.by_rank.get(rank, []))

    @cached_property
    def _shared(self) -> list[_Log]:
        """Logs of several ranks."""
        return [self._log(scan) for scan in self.scans if scan.rank is None]

    def _log(self, scan: Scan) -> _Log:
        if not self._logs:
            self._logs = {each.name: _Log(each) for each in self.scans if each.rank is None}
            _name_nodes(list(self._logs.values()))
        return self._logs[scan.name]

    def _name_logs(self) -> None:
        """Assign a rank to logs with similar names, if each of them names one rank, and each another one."""
        alike: dict[str, list[_Log]] = defaultdict(list)
        for scan in self.scans:
            if scan.rank is None:
                alike[_NUMBER.sub("#", scan.name)].append(self._log(scan))
        for logs in alike.values():
            named = {log.scan.name: _ranks_in(log) for log in logs}
            single = {name: min(ranks) for name, ranks in named.items() if len(ranks) == 1}
            are_apart = len(set(single.values())) == len(single) >= _AGREEING
            if (
                not are_apart
                or any(len(ranks) > 1 for ranks in named.values())
                or max(single.values()) >= 2 * len(logs)
            ):
                # In logs of nodes that each name only one rank, the ranks are far apart.
                continue
            by_name = _by_numbers([log.scan.name for log in logs], single)
            for log in logs:
                rank = single.get(log.scan.name, by_name.get(log.scan.name))
                if rank is not None:
                    log.scan.rank = rank
                    for event in log.scan.events:
                        _give(event, rank)


def _last(lines: Sequence[tuple[str, int]]) -> tuple[str, int] | None:
    end = next((index for index, (message, _) in enumerate(lines) if _ENDED.search(message)), len(lines))
    return next(((message, number) for message, number in reversed(lines[:end]) if message), None)


def _tells_a_phase(text: str) -> bool:
    return phase_of(text) not in (None, SETTING_UP)


def _labels(text: str, line: Line) -> list[tuple[str, str, int]]:
    """(shape, kind, number) of the labels at the beginning of a line, the innermost first; the kind of an unknown
    label is empty."""
    labels: list[tuple[str, str, int]] = []
    # Text after a progress bar has the label of another process: the last one of a kind counts.
    last = {known["kind"]: known for known in _LABEL.finditer(line.speaker)}
    for kind, known in last.items():
        outer = re.sub(rf"(?:^| ){kind} \S+", "", line.speaker[: known.start()])
        labels.append((f"{outer} {kind} {known['name']}#", kind, int(known["number"])))
    if not labels and (unknown := _UNKNOWN_LABEL.match(text)) is not None:
        labels = [(_NUMBER.sub("#", unknown[0]), "", int(unknown[1] or unknown[2]))]
    return labels[::-1]


def _named(text: str, line: Line) -> int | None:
    """Rank that a line names in addition to its label."""
    own = _OF_TORCH.search(line.speaker)
    return int(own[1]) if own is not None else lines_of.rank_in(text)


def _is_labelled(event: Event) -> bool:
    return any(kind in _NAMES_RANKS for _, kind, _ in _labels("", Line(event.speaker, "")))


def _rename(event: Event, log: _Log) -> None:
    texts = list(event.text_by_rank.values()) or [event.text]
    ranks = [log.rank_of(text, Line(event.speaker, text, event.rank)) for text in texts]
    event.rank = ranks[0]
    event.text_by_rank = {rank: text for rank, text in zip(ranks, texts, strict=True) if rank is not None}


def _give(event: Event, rank: int) -> None:
    if event.rank is None:
        event.rank = rank
        event.text_by_rank.setdefault(rank, event.text)


def _ranks_in(log: _Log) -> set[int]:
    return set(log.by_rank).union(*(event.text_by_rank for event in log.scan.events))


def _by_numbers(names: Sequence[str], known: dict[str, int]) -> dict[str, int]:
    """Ranks by name, if a number in the names of the `known` ones is their rank minus a constant offset."""
    for numbers in zip(*([int(number) for number in _NUMBER.findall(name)] for name in names), strict=True):
        by_name = dict(zip(names, numbers, strict=True))
        offsets = {rank - by_name[name] for name, rank in known.items()}
        if len(offsets) == 1 and len(set(numbers)) == len(numbers):
            offset = offsets.pop()
            return {name: number + offset for name, number in by_name.items() if number + offset >= 0}
    return {}


def _name_nodes(logs: Sequence[_Log]) -> None:
    """Set the offsets of labels without ranks in their lines, from the same labels in other logs or of other nodes.

    For local ranks the offset is the node's first rank, which follows from the name of the log or node.
    """
    labels = {(f"{log.scan.name} {shape}", shape): label for log in logs for shape, label in log.labels.items()}
    known = {key: label.offset for key, label in labels.items() if label.pairs and label.offset is not None}
    firsts = {name: offset for (name, shape), offset in known.items() if shape.endswith(f"{_LOCAL} #")}
    for (name, shape), label in labels.items():
        if label.pairs:
            continue
        if shape.endswith(f"{_LOCAL} #"):
            label.offset = _first_rank(name, firsts) if firsts else label.offset
        elif len(offsets := {offset for (_, other), offset in known.items() if other == shape}) == 1:
            label.offset = offsets.pop()


def _first_rank(name: str, firsts: dict[str, int]) -> int | None:
    """First rank of a node by the number in its name or its log's name, if the others grow linearly with theirs."""
    shape = _NUMBER.sub("#", name)
    alike = {other: first for other, first in firsts.items() if _NUMBER.sub("#", other) == shape}
    for index, number in enumerate(map(int, _NUMBER.findall(name))):
        points = sorted((int(_NUMBER.findall(other)[index]), first) for other, first in alike.items())
        if len(points) < _AGREEING or points[0][0] == points[-1][0]:
            continue
        (low, base), (high, top) = points[0], points[-1]
        each, rest = divmod(top - base, high - low)
        is_even = not rest and all(first == base + each * (at - low) for at, first in points)
        if is_even and each and (rank := base + each * (number - low)) >= 0:
            return rank
    return None
