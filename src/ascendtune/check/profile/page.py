"""A profile as one self-contained HTML page: no script, nothing loaded from elsewhere."""

from __future__ import annotations

import html
from importlib.resources import files
from pathlib import Path
from string import Template

from ascendtune.check.profile.advice import Advice
from ascendtune.check.profile.profile import RankProfile
from ascendtune.check.profile.show import milliseconds, parts_of
from ascendtune.core import language
from ascendtune.core.files import write_atomically
from ascendtune.core.terminal_text import safe

_WIDTH, _ROW, _LABELS = 960, 26, 90
_MOST_OPERATORS = 60
_MOST_RANKS = 64
_CHINESE = {
    "compute": "计算",
    "exposed communication": "未被遮住的通信",
    "copies": "拷贝",
    "idle": "空闲",
    "evaluation, checkpoints": "评估、检查点",
    "host-sync": "主机等待设备",
    "slow-data": "数据准备慢",
    "slow-rank": "有一个 rank 慢",
    "copies-found": "拷贝多",
    "small-buckets": "通信桶太小",
    "unfused-norm": "归一化未融合",
    "exposed-communication": "通信未被遮住",
    "recomputation": "重计算",
    "launch-bound": "下发慢",
    "metrics-sync": "读取指标",
}


def write_page(path: Path, ranks: list[RankProfile], advice: list[Advice]) -> None:
    """Write the page to `path`.

    Raises:
        MachineError: the file cannot be written.
    """
    first = ranks[0]
    template = Template((files("ascendtune.check.profile") / "report.html").read_text(encoding="utf-8"))
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
        advice="\n".join(_advice_row(number, each, first) for number, each in enumerate(advice, 1)),
        none="" if not advice else "hidden",
        operators="\n".join(_operator_rows(first)),
    )  # fmt: skip
    write_atomically(path, page.encode())


def _text(words: str) -> str:
    """Text of a trace, which others may have written: no control characters, no markup."""
    return html.escape(safe(words))


def _both(english: str) -> str:
    chinese = _CHINESE.get(english, english)
    return f'<span class="en">{_text(english)}</span><span class="zh">{_text(chinese)}</span>'


def _bar(rank: RankProfile, top: float, longest: float) -> str:
    """One rank's mean step as a bar: its parts side by side, to the scale of the longest step."""
    scale = (_WIDTH - _LABELS) / longest if longest else 0.0
    left = float(_LABELS)
    shapes = [f'<text x="0" y="{top + 17:.1f}">rank {rank.rank}</text>']
    for number, (title, seconds, _) in enumerate(parts_of(rank.split)):
        width = seconds / rank.split.steps * scale
        shapes.append(
            f'<rect class="part{number}" x="{left:.2f}" y="{top + 3:.1f}" width="{width:.2f}" height="{_ROW - 6}">'
            f"<title>{_text(title)}: {_text(milliseconds(seconds / rank.split.steps))}</title></rect>"
        )
        left += width
    return "".join(shapes)


def _part_rows(rank: RankProfile) -> list[str]:
    split = rank.split
    return [
        f'<tr><td><i class="part{number}"></i> {_both(title)}<td class="number">'
        f'{1e3 * seconds / split.steps:,.2f}<td class="number">{100 * seconds / split.total:.1f} %<td>{_text(detail)}'
        for number, (title, seconds, detail) in enumerate(parts_of(split))
        if split.total
    ]


def _advice_row(number: int, advice: Advice, rank: RankProfile) -> str:
    name = "copies-found" if advice.code == "copies" else advice.code
    chinese = _CHINESE.get(name, advice.code)
    title = f'<span class="en">{_text(advice.code)}</span><span class="zh">{_text(chinese)}</span>'
    gain = f"{100 * advice.gain / rank.step_seconds:.1f} %" if rank.step_seconds else ""
    words = f"{_text(advice.what)}<small>{_text(advice.remedy)}</small>"
    return f'<tr><td class="number">{number}<td>{title}<td class="number">{gain}<td>{words}'


def _operator_rows(rank: RankProfile) -> list[str]:
    split = rank.split
    rows = sorted(split.operators.items(), key=lambda item: -item[1].seconds)[:_MOST_OPERATORS]
    return [
        f'<tr><td class="number">{1e3 * each.seconds / split.steps:,.3f}<td class="number">'
        f'{100 * each.seconds / split.total if split.total else 0:.1f} %<td class="number">'
        f'{each.calls / split.steps:,.0f}<td>{_text(kind)}<td class="name">{_text(name)}'
        for (name, kind), each in rows
    ]
