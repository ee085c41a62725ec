"""The data report: accounts for every row that was read. Written completely to data.json, printed in short."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ascendtune.core.units import count_of, format_count

EXAMPLES_KEPT = 5


@dataclass
class DroppedRows:
    """Rows that were dropped for one reason."""

    count: int = 0
    examples: list[str] = field(default_factory=list)
    """The first five, as `file:line: detail`."""

    def add(self, place: str, detail: str = "") -> None:
        self.count += 1
        if len(self.examples) < EXAMPLES_KEPT:
            self.examples.append(f"{place}: {detail}" if detail else place)

    def merge(self, other: DroppedRows) -> None:
        self.count += other.count
        self.examples = (self.examples + other.examples)[:EXAMPLES_KEPT]


@dataclass
class TokenCounts:
    """Counts of tokenisation."""

    tokens: int = 0
    labelled_tokens: int = 0
    """Labels that are predicted: all but those on the first token of a row."""
    truncated_rows: int = 0
    truncated_tokens: int = 0
    """Tokens cut off at the end of truncated rows; a lower bound if `uncounted_rows` is not 0."""
    uncounted_rows: int = 0
    """Rows that were tokenised only at their beginning, because of their length."""
    uncounted_characters: int = 0
    """Characters of such rows that were not tokenised."""
    split_rows: int = 0
    """Texts longer than max_length, which became several rows of tokens."""
    pieces: int = 0
    """Rows of tokens that they were split into."""
    rows_joined_to_prompt: int = 0
    """Rows in which a token has the end of a prompt and the beginning of the answer."""
    rows_left_out_text: int = 0
    """Rows with text beside a tool call that the chat template does not write."""
    longest: int = 0
    """Tokens of the longest row, before truncation; a lower bound if `uncounted_rows` is not 0."""

    def add_counts(self, other: TokenCounts) -> None:
        self.tokens += other.tokens
        self.labelled_tokens += other.labelled_tokens
        self.truncated_rows += other.truncated_rows
        self.truncated_tokens += other.truncated_tokens
        self.uncounted_rows += other.uncounted_rows
        self.uncounted_characters += other.uncounted_characters
        self.split_rows += other.split_rows
        self.pieces += other.pieces
        self.rows_joined_to_prompt += other.rows_joined_to_prompt
        self.rows_left_out_text += other.rows_left_out_text
        self.longest = max(self.longest, other.longest)


@dataclass(kw_only=True)
class DatasetReport(TokenCounts):
    """Counts of one data set."""

    path: str
    format: str
    weight: float = 1.0
    rows_read: int = 0
    rows_kept: int = 0
    """Rows that can be trained on."""
    rows_used: int = 0
    """Rows of one epoch: the kept ones, reduced or repeated by the weight."""
    rows_trained: int = 0
    """The used ones without those that are held out, or dropped by tokenisation; 0 before it."""
    dropped: dict[str, DroppedRows] = field(default_factory=dict)
    """Reason -> rows that were dropped before tokenisation."""

    @property
    def groups(self) -> int:
        """Groups of rows of tokens: a pair is one, a split text several."""
        return self.rows_trained - self.split_rows + self.pieces

    def drop(self, reason: str, place: str, detail: str = "") -> None:
        self.dropped.setdefault(reason, DroppedRows()).add(place, detail)


@dataclass
class DataReport(TokenCounts):
    """All data sets together, before and after tokenisation. Token figures count the rows of one epoch; a pair of
    answers is one row."""

    datasets: list[DatasetReport] = field(default_factory=list)
    rows_read: int = 0
    rows_by_weight: int = 0
    """Rows that weights add by repetition (positive) or remove (negative)."""
    rows_held_out: int = 0
    """Rows that `eval_fraction` holds out for the evaluation."""
    rows_kept: int = 0
    """Rows of one epoch that are trained on: read + by weight - dropped - held out."""
    dropped: dict[str, DroppedRows] = field(default_factory=dict)
    """Reason -> rows, over all data sets; tokenisation adds its own reasons."""
    unlabelled_rows: int = 0
    """Rows without a labelled token after truncation; they are dropped."""
    length_histogram: list[tuple[int, int]] = field(default_factory=list)
    """(longest length in tokens of this bin, rows of tokens), ascending; a pair is two, a split text several."""
    padding_ratio: float | None = None
    """Share of positions that are padding; None until batches are planned."""

    @classmethod
    def of(cls, datasets: list[DatasetReport]) -> DataReport:
        """The sums over `datasets`, before tokenisation."""
        report = cls(
            datasets=datasets,
            rows_read=sum(each.rows_read for each in datasets),
            rows_by_weight=sum(each.rows_used - each.rows_kept for each in datasets),
            rows_kept=sum(each.rows_used for each in datasets),
        )
        for each in datasets:
            for reason, rows in each.dropped.items():
                report.dropped.setdefault(reason, DroppedRows()).merge(rows)
        return report

    def drop(self, reason: str, place: str, detail: str = "") -> None:
        """Count a row that tokenisation drops; the caller must reduce `rows_kept`."""
        self.dropped.setdefault(reason, DroppedRows()).add(place, detail)

    @property
    def dataset_groups(self) -> dict[str, int]:
        """Name -> groups of rows of tokens, of each data set in order."""
        return {name: each.groups for name, each in zip(names_of(self.datasets), self.datasets, strict=True)}

    @property
    def rows_dropped(self) -> int:
        return sum(each.count for each in self.dropped.values())

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> DataReport:
        datasets = [
            DatasetReport(**{**each, "dropped": _dropped_from_json(each["dropped"])}) for each in values["datasets"]
        ]
        histogram = [(bound, count) for bound, count in values["length_histogram"]]
        dropped = _dropped_from_json(values["dropped"])
        return cls(**{**values, "datasets": datasets, "dropped": dropped, "length_histogram": histogram})


def _dropped_from_json(values: dict[str, Any]) -> dict[str, DroppedRows]:
    return {reason: DroppedRows(**rows) for reason, rows in values.items()}


def names_of(datasets: Sequence[DatasetReport]) -> list[str]:
    """A name for each data set, which no other has: of its file if possible."""
    names = [Path(each.path).name for each in datasets]
    if len(set(names)) < len(names):
        names = [each.path for each in datasets]
    if len(set(names)) < len(names):
        names = [f"{name} ({number})" for number, name in enumerate(names, 1)]
    return names


def lines(report: DataReport, width: int = 60) -> list[str]:
    """At most 13 lines of at most `width` characters; data.json has the full report."""
    printed = [_rows_line(report), *_dataset_lines(report), *_dropped_lines(report)]
    least = "over " if report.uncounted_rows else ""
    if report.tokens:
        share = report.labelled_tokens / report.tokens
        longest = f"longest row {least}{report.longest:,}"
        printed.append(f"tokens: {format_count(report.tokens)}, {share:.0%} labelled, {longest}")
    if report.padding_ratio is not None:
        printed.append(f"padding: {report.padding_ratio:.1%} of all positions")
    if report.truncated_rows:
        rows = count_of(report.truncated_rows, "row")
        printed.append(f"truncated: {rows}, {least}{count_of(report.truncated_tokens, 'token')} lost")
    if report.rows_left_out_text:
        rows = count_of(report.rows_left_out_text, "row")
        printed.append(f"left out by the template: text beside calls, {rows}")
    if report.split_rows:
        printed.append(f"split: {count_of(report.split_rows, 'text')} into {count_of(report.pieces, 'row')}")
    if report.length_histogram:
        printed.append(f"lengths: {_sparkline(report.length_histogram)}")
    return [line if len(line) <= width else line[: width - 2] + " …" for line in printed]


def _rows_line(report: DataReport) -> str:
    parts = [f"data: {count_of(report.rows_read, 'row')} read", f"{report.rows_kept:,} used"]
    if report.rows_dropped:
        parts.append(f"{report.rows_dropped:,} dropped")
    if report.rows_held_out:
        parts.append(f"{report.rows_held_out:,} held out")
    if report.rows_by_weight:
        parts.append(f"{report.rows_by_weight:+,} by weight")
    return ", ".join(parts)


_MOST_LINES = 3
_MOST_DATASETS = 4


def _dataset_lines(report: DataReport) -> list[str]:
    if len(report.datasets) < 2:
        return []
    shown = report.datasets if len(report.datasets) <= _MOST_DATASETS else report.datasets[: _MOST_DATASETS - 1]
    names = names_of(report.datasets)
    printed = [
        f"  {name}: {each.rows_trained:,} of {each.rows_read:,}"
        + (f" (weight {each.weight:g})" if each.weight != 1 else "")
        + (f", {format_count(each.tokens)} tokens ({each.tokens / report.tokens:.0%})" if report.tokens else "")
        for name, each in zip(names, shown, strict=False)
    ]
    if rest := report.datasets[len(shown) :]:
        printed.append(f"  and {count_of(len(rest), 'data set')} more: {sum(each.rows_trained for each in rest):,}")
    return printed


def _dropped_lines(report: DataReport) -> list[str]:
    by_count = sorted(report.dropped.items(), key=lambda item: -item[1].count)
    shown = by_count if len(by_count) <= _MOST_LINES else by_count[: _MOST_LINES - 1]
    printed = [
        f"  dropped {rows.count:,}: {reason}" + (f" ({rows.examples[0]})" if rows.examples else "")
        for reason, rows in shown
    ]
    if rest := by_count[len(shown) :]:
        printed.append(f"  dropped {sum(rows.count for _, rows in rest):,} for other reasons")
    return printed


def _sparkline(histogram: list[tuple[int, int]]) -> str:
    """`1 ▂▅█▁ 2,048`: one bar per bin; a bin with at least one row is visible."""
    bars, highest = "▁▂▃▄▅▆▇█", max(1, *(count for _, count in histogram))
    drawn = "".join(bars[min(7, count * 8 // highest)] if count else " " for _, count in histogram)
    return f"0 {drawn} {histogram[-1][0]:,} tokens"
