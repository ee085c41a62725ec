"""Dumped tensors as HTML: the first that differs on top, then all in the order of execution, coloured by difference."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from ascendtune.check.align.dump import TensorKey, TensorStatistics
from ascendtune.check.align.dump_comparison import DumpComparison, FirstDifference
from ascendtune.check.align.histogram import Histogram
from ascendtune.check.align.language import say
from ascendtune.check.align.tensor_row import TensorRow
from ascendtune.core import language

_MOST_ROWS = 4000
_WIDTH, _HEIGHT = 420, 90
_STRIP = 12
"""Height of the marks for the samples of one side."""
_FEW = 4
"""Number of samples below which the table of numbers is sufficient."""
_PHASES = {
    "parameter_before": ("parameter before the step", "更新前的参数"),
    "forward": ("forward", "前向"),
    "loss": ("loss", "损失"),
    "backward": ("backward", "反向"),
    "gradient": ("gradient", "梯度"),
    "parameter_after": ("update", "参数更新"),
}
_ORDER = list(_PHASES)


def both(english: str, chinese: str) -> str:
    """Text in both languages; the page shows one of them. `english` and `chinese` are HTML."""
    return f'<span class="en">{english}</span><span class="zh">{chinese}</span>'


def in_both_languages(sentence: Callable[[], object]) -> str:
    """HTML of a sentence in both languages; `sentence` returns it in the current language."""
    texts = language.in_each_language(lambda: html.escape(str(sentence())))
    return both(texts["en"], texts["zh"])


def tensors_as_html(dumps: DumpComparison, histograms: Mapping[TensorKey, Histogram]) -> str:
    """The section of the report; empty if no tensors were compared.

    Args:
        histograms: of the tensors that were dumped whole; samples are drawn for the others.
    """
    if not dumps.rows:
        return ""
    step, rank = dumps.rows[0].step, dumps.rows[0].rank
    heading = both(
        f"Tensors of step {step}, rank {rank}, in the order of execution",
        f"第 {step} 步、进程 {rank} 的张量（按执行顺序）",
    )
    parts = [f"<h2>{heading}</h2>"]
    if dumps.place is not None:
        # The histogram compares two sides; the place `ranks` is a difference between two ranks of one side.
        is_between_sides = dumps.place.stage != "ranks"
        parts.append(_first(dumps.place, histograms.get(dumps.place.row.key) if is_between_sides else None))
    if dumps.obstacle:
        parts.append(
            f"<p>{in_both_languages(partial(say, 'modules were not compared: {why}', why=dumps.obstacle))}</p>"
        )
    rows = sorted(dumps.rows, key=lambda row: (row.key.micro_batch or 0, _ORDER.index(row.key.phase)))
    if len(rows) > _MOST_ROWS:
        kept = set(map(id, sorted(rows, key=lambda row: -row.excess)[:_MOST_ROWS]))
        rows = [row for row in rows if id(row) in kept]
        note = both(
            f"{len(dumps.rows) - _MOST_ROWS:,} tensors that agree best are left out.",
            f"省略了最一致的 {len(dumps.rows) - _MOST_ROWS:,} 个张量。",
        )
        parts.append(f"<p><small>{note}</small></p>")
    parts.append(_legend())
    for phase, (english, chinese) in _PHASES.items():
        of_phase = [row for row in rows if row.key.phase == phase]
        if not of_phase:
            continue
        beyond_limit = sum(row.exceeds_limit for row in of_phase)
        count = both(
            f"{len(of_phase):,} tensors, {beyond_limit:,} beyond the limit",
            f"{len(of_phase):,} 个张量，{beyond_limit:,} 个超出容差",
        )
        opened = " open" if beyond_limit or phase == "forward" else ""
        body = "".join(_row(row, histograms.get(row.key)) for row in of_phase)
        parts.append(
            f'<details class="phase"{opened}><summary>{both(english, chinese)} <small class="inline">{count}</small>'
            f'</summary><div class="tensors">{body}</div></details>'
        )
    return "\n".join(parts)


def _first(place: FirstDifference, histogram: Histogram | None) -> str:
    row = place.row
    words = both("first difference", "最先出现差异处")
    ranks = ", ".join(map(str, place.ranks))
    name = html.escape(place.module or row.key.phase)
    slot = html.escape(row.key.slot if place.module == row.key.name else f"{row.key.name} {row.key.slot}")
    where = both(f"step {place.step}, ranks {ranks}", f"第 {place.step} 步，进程 {ranks}")
    agreeing = ""
    if place.agreeing:
        last = html.escape(place.agreeing)
        agreeing = f"<p>{both(f'agrees until {last}', f'在此之前一致：{last}')}</p>"
    return (
        f'<section class="first"><small>{words}</small><h3>{name} <small class="inline">{slot}, '
        f"{both(*_PHASES[row.key.phase])}, {where}</small></h3>{agreeing}{_details(row, histogram)}</section>"
    )


def _row(row: TensorRow, histogram: Histogram | None) -> str:
    """One line; a click shows the chart and the numbers."""
    number = "NaN" if math.isinf(row.difference) else f"{row.difference:.1e}" if row.difference else "0"
    name = html.escape(row.key.name or row.key.phase)
    batch = f" #{row.key.micro_batch}" if row.key.micro_batch else ""
    return (
        f'<details><summary><span class="heat heat{_heat(row)}"></span><span class="name">{name}'
        f' <small class="inline">{html.escape(row.key.slot)}{batch}</small></span>'
        f'<span class="number">{number}</span></summary>{_details(row, histogram)}</details>'
    )


def _heat(row: TensorRow) -> int:
    """0: equal; 1 and 2: within the limit; 3 to 5: beyond it, by up to 10, by up to 1000, and by more."""
    if row.excess == 0:
        return 0
    if not math.isfinite(row.excess):
        return 5
    return (
        int(np.clip(math.ceil(math.log10(row.excess) / 2) + 3, 1, 5)) if row.exceeds_limit else 1 + (row.excess > 0.1)
    )


def _details(row: TensorRow, histogram: Histogram | None) -> str:
    limit = f"{row.limit:.2g}"
    facts = both(
        f"relative difference {row.difference:.3g}, limit {limit}", f"相对差异 {row.difference:.3g}，容差 {limit}"
    )
    names = ("", "dtype", "shape", "L2", "mean", "min", "max", "NaN", "inf")
    head = "".join(f"<th>{name}" for name in names)
    sides = (("reference", "参考", row.reference), ("candidate", "候选", row.candidate))
    body = "".join(
        f'<tr><td class="key-{side}">{both(side, chinese)}{_numbers(tensor)}' for side, chinese, tensor in sides
    )
    drawn = _strip(row) if histogram is None else _histogram(histogram)
    return f'<div class="facts"><p>{facts}</p>{drawn}<table><tr>{head}{body}</table>{_samples(row)}</div>'


def _numbers(tensor: TensorStatistics) -> str:
    shape = "×".join(map(str, tensor.shape)) or "–"
    numbers = (f"{each:.7g}" for each in (tensor.l2, tensor.mean, tensor.lowest, tensor.highest))
    return "".join(f"<td>{html.escape(str(each))}" for each in (tensor.dtype, shape, *numbers, tensor.nan, tensor.inf))


def _samples(row: TensorRow) -> str:
    pairs = list(zip(row.reference.samples, row.candidate.samples, strict=False))
    if not pairs:
        return ""
    cells = [("".join(f"<td>{pair[side]:.6g}" for pair in pairs)) for side in (0, 1)]
    return (
        f'<div class="samples"><table><tr><td class="key-reference">●{cells[0]}'
        f'<tr><td class="key-candidate">●{cells[1]}</table></div>'
    )


def _histogram(histogram: Histogram) -> str:
    """The values of both sides as an SVG step chart."""
    largest = max(int(histogram.reference.max()), int(histogram.candidate.max()), 1)
    wide = _WIDTH / len(histogram.reference)
    paths = []
    for side, counts in (("reference", histogram.reference), ("candidate", histogram.candidate)):
        tops = _HEIGHT * (1 - counts / largest)
        line = " ".join(f"L{at * wide:.1f},{y:.1f} L{(at + 1) * wide:.1f},{y:.1f}" for at, y in enumerate(tops))
        paths.append(f'<path class="curve {side}" d="M0,{_HEIGHT} {line}"/>')
    return _drawing("".join(paths), _HEIGHT, float(histogram.edges[0]), float(histogram.edges[-1]))


def _strip(row: TensorRow) -> str:
    """The samples of both sides between the smallest and the largest value, as an SVG of marks."""
    sides = (("reference", row.reference), ("candidate", row.candidate))
    numbers = [each for _, tensor in sides for each in (tensor.lowest, tensor.highest, *tensor.samples)]
    finite = [each for each in numbers if math.isfinite(each)]
    if len(row.reference.samples) < _FEW or not finite or min(finite) == max(finite):
        return ""
    low, high = min(finite), max(finite)
    parts = []
    for at, (side, tensor) in enumerate(sides):
        top = at * (_STRIP + 2) + 1
        across = [(each - low) / (high - low) * _WIDTH for each in tensor.samples if math.isfinite(each)]
        line = "".join(f"M{x:.1f},{top}v{_STRIP}" for x in across)
        parts.append(f'<path class="curve {side}" d="{line}"/>')
    base = 2 * (_STRIP + 2)
    parts.append(f'<line class="grid" x1="0" x2="{_WIDTH}" y1="{base}" y2="{base}"/>')
    return _drawing("".join(parts), base, low, high)


def _drawing(parts: str, height: int, low: float, high: float) -> str:
    """An SVG of `parts` with the limits of its axis below."""
    labels = (
        f'<text x="0" y="{height + 14}">{low:.3g}</text>'
        f'<text x="{_WIDTH}" y="{height + 14}" text-anchor="end">{high:.3g}</text>'
    )
    return f'<svg class="histogram" viewBox="0 0 {_WIDTH} {height + 18}" role="img">{parts}{labels}</svg>'


def _legend() -> str:
    words = (
        (0, "equal", "相同"),
        (1, "far below the limit", "远小于容差"),
        (2, "below the limit", "小于容差"),
        (3, "beyond", "超出"),
        (4, "beyond by 10", "超出 10 倍"),
        (5, "beyond by 1000, or NaN", "超出 1000 倍或 NaN"),
    )
    parts = (f'<span class="heat heat{level}"></span> {both(english, chinese)}' for level, english, chinese in words)
    pictures = both(
        "A click shows the histogram of a tensor that was dumped whole, else its samples between minimum and maximum.",
        "点击可查看：转储了完整张量时为直方图，否则为采样值在最小值与最大值之间的位置。",
    )
    return f'<p class="legend"><small>{" · ".join(parts)}</small><small>{pictures}</small></p>'
