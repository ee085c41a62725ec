"""A profile as one self-contained HTML page: without scripts, and without loading other files."""

from __future__ import annotations

import html
from functools import partial
from importlib.resources import files
from pathlib import Path
from string import Template

from ascendtune.check.profile.advice import advice_for
from ascendtune.check.profile.advice_entry import milliseconds
from ascendtune.check.profile.language import in_both_languages, say
from ascendtune.check.profile.page_memory import memory_as_html
from ascendtune.check.profile.profile import RankProfile
from ascendtune.check.profile.show import parts_of
from ascendtune.core import language
from ascendtune.core.files import write_atomically
from ascendtune.core.terminal_text import safe

_WIDTH, _ROW, _LABELS = 960, 26, 90
_MOST_OPERATORS = 60
_MOST_RANKS = 64


def write_page(path: Path, ranks: list[RankProfile]) -> None:
    """Write the page to `path`. It contains both languages and shows the current one first.

    Raises:
        MachineError: the file cannot be written.
    """
    first = ranks[0]
    template = Template((files("ascendtune.check.profile") / "report.html").read_text(encoding="utf-8"))
    advice = _advice_rows(ranks)
    page = template.substitute(
        title=_text(f"profile: {first.path.parent.parent.name or first.path.name}"),
        english="checked" if language.current() == "en" else "",
        chinese="checked" if language.current() == "zh" else "",
        step=_text(milliseconds(first.step_seconds)),
        steps=str(first.split.steps),
        rank=str(first.rank),
        source=_text(str(first.path)),
        bars="\n".join(_bar(each, at * _ROW, max(rank.step_seconds for rank in ranks))
                       for at, each in enumerate(ranks[:_MOST_RANKS])),
        height=str(min(len(ranks), _MOST_RANKS) * _ROW),
        parts="\n".join(_part_rows(first)),
        advice="\n".join(advice),
        none="hidden" if advice else "",
        memory="" if first.memory is None else memory_as_html(first.memory, first.facts.get("first_step")),
        operators="\n".join(_operator_rows(first)),
    )  # fmt: skip
    write_atomically(path, page.encode())


def _text(text: str) -> str:
    """Text of a trace, which may be from another user, without control characters and markup."""
    return html.escape(safe(text))


def _bar(rank: RankProfile, top: float, longest: float) -> str:
    """A rank's mean step as a bar of its parts, to the scale of the longest step."""
    scale = (_WIDTH - _LABELS) / longest if longest else 0.0
    left = float(_LABELS)
    shapes = [f'<text x="0" y="{top + 17:.1f}">rank {rank.rank}</text>']
    for number, (title, seconds, _) in enumerate(parts_of(rank.split)):
        width = seconds / rank.split.steps * scale
        shapes.append(
            f'<rect class="part{number}" x="{left:.2f}" y="{top + 3:.1f}" width="{width:.2f}" height="{_ROW - 6}">'
            f"<title>{_text(say(title))}: {_text(milliseconds(seconds / rank.split.steps))}</title></rect>"
        )
        left += width
    return "".join(shapes)


def _part_rows(rank: RankProfile) -> list[str]:
    split = rank.split
    rows = []
    for number, (title, seconds, _) in enumerate(parts_of(split)):
        if split.total:
            contents = in_both_languages(lambda number=number: parts_of(split)[number][2])  # type: ignore[misc]
            rows.append(
                f'<tr><td><i class="part{number}"></i> {in_both_languages(partial(say, title))}<td class="number">'
                f'{1e3 * seconds / split.steps:,.2f}<td class="number">{100 * seconds / split.total:.1f} %'
                f"<td>{contents}"
            )
    return rows


def _advice_rows(ranks: list[RankProfile]) -> list[str]:
    advice = language.in_each_language(lambda: advice_for(ranks))
    seconds, rows = ranks[0].step_seconds, []
    for number, one in enumerate(advice["en"]):

        def words(attribute: str, number: int = number) -> str:
            return in_both_languages(lambda: str(getattr(advice[language.current()][number], attribute)))

        gain = f"{100 * one.gain / seconds:.1f} %" if seconds else ""
        rows.append(
            f'<tr><td class="number">{number + 1}<td class="name">{_text(one.code)}<td class="number">{gain}'
            f"<td>{words('what')}<small>{words('remedy')}</small>"
        )
    return rows


def _operator_rows(rank: RankProfile) -> list[str]:
    split = rank.split
    rows = sorted(split.operators.items(), key=lambda item: -item[1].seconds)[:_MOST_OPERATORS]
    return [
        f'<tr><td class="number">{1e3 * each.seconds / split.steps:,.3f}<td class="number">'
        f'{100 * each.seconds / split.total if split.total else 0:.1f} %<td class="number">'
        f'{each.calls / split.steps:,.0f}<td>{in_both_languages(partial(say, kind))}<td class="name">{_text(name)}'
        for (name, kind), each in rows
    ]
