"""The comparison as one self-contained HTML page: no script, no external resources."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

import numpy as np
from numpy.typing import NDArray

from ascendtune.check.align.curve import Floats
from ascendtune.check.align.histogram import histograms_of
from ascendtune.check.align.language import say
from ascendtune.check.align.stages import TrainingComparison, compare_trainings
from ascendtune.check.align.tensor_table import both, in_both_languages, tensors_as_html
from ascendtune.check.align.training_record import TrainingRecord
from ascendtune.check.align.verdict import verdict
from ascendtune.check.finding import Finding
from ascendtune.core import language
from ascendtune.core.files import write_atomically

_WIDTH, _HEIGHT = 960, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 8, 28
_MOST_POINTS = 2000
_CHINESE = {
    "question": "配置是否相同",
    "data": "数据是否相同",
    "start": "初始权重是否相同",
    "forward": "第 1 步的损失",
    "backward": "第 1 步的梯度",
    "update": "最初的参数更新",
    "later": "整条曲线",
    "ranks": "进程数",
}
_RESULTS = {"ok": "一致", "failure": "出现差异", "warning": "有差异，但不影响结果", "unknown": "无法比较"}


def write_report(
    path: Path, comparison: TrainingComparison, reference: TrainingRecord, candidate: TrainingRecord
) -> None:
    """Write the page to `path`.

    Raises:
        MachineError: the file cannot be written, or a dumped tensor cannot be read.
        DataError, RecipeError: a file of dumped tensors is damaged.
    """
    template = Template((files("ascendtune.check.align") / "report.html").read_text(encoding="utf-8"))
    # Tensors are not compared again: only the language of the findings changes.
    compared = language.in_each_language(
        lambda: compare_trainings(reference, candidate, comparison.noise, comparison.dumps)
    )
    pair = comparison.pair
    limit = comparison.noise.band(pair.steps)
    # The band has the unit of PairedLosses.difference: absolute below a loss of 1, relative above.
    scale = np.maximum(np.abs(pair.reference), 1.0)
    page = template.substitute(
        title=html.escape(f"align: {candidate.name}, {reference.name}"),
        english="checked" if language.current() == "en" else "",
        chinese="checked" if language.current() == "zh" else "",
        outcome="parted" if comparison.divergence else "aligned",
        verdict=in_both_languages(lambda: verdict(compared[language.current()], reference, candidate)),
        reference=html.escape(f"{reference.path} ({reference.kind})"),
        candidate=html.escape(f"{candidate.path} ({candidate.kind})"),
        curves="" if len(pair.steps) else "hidden",
        losses=_chart(
            pair.steps,
            {"reference": pair.reference, "candidate": pair.candidate},
            band=(pair.reference - limit * scale, pair.reference + limit * scale),
            at=comparison.step,
        ),
        differences=_chart(
            pair.steps, {"difference": pair.difference}, band=(0 * limit, limit), log=True, at=comparison.step
        ),
        stages="\n".join(map(_row, compared["en"].findings, compared["zh"].findings)),
        tensors=tensors_as_html(comparison.dumps, histograms_of(comparison.dumps, reference.dump, candidate.dump)),
        basis=in_both_languages(lambda: say("Limits: {basis}.", basis=comparison.noise.basis)),
    )
    write_atomically(path, page.encode())


def _row(english: Finding, chinese: Finding) -> str:
    """One stage, in both languages."""
    stage = both(english.code, _CHINESE[english.code])
    result = both(english.status, _RESULTS[english.status])
    words = both(
        _words(english, "expected: {expected}", "do: {remedy}"), _words(chinese, "应为：{expected}", "建议：{remedy}")
    )
    return f'<tr><td>{stage}<td class="{english.status}">{result}<td>{words}'


def _words(finding: Finding, expected: str, remedy: str) -> str:
    notes = [
        *([expected.format(expected=finding.expected)] if finding.expected else []),
        *([remedy.format(remedy=finding.remedy)] if finding.remedy and finding.status != "ok" else []),
        *finding.evidence,
    ]
    return html.escape(finding.measured) + "".join(f"<small>{html.escape(note)}</small>" for note in notes)


def _chart(
    steps: NDArray[np.int64],
    curves: dict[str, Floats],
    *,
    band: tuple[Floats, Floats],
    log: bool = False,
    at: int | None,
) -> str:
    """An SVG of curves over steps.

    Args:
        curves: CSS class -> (records,) values; the line is interrupted at values that are not numbers.
        band: (records,) lower and upper values of the shaded area.
        log: whether the axis of values is logarithmic; 0 is drawn at its lower end.
        at: step that is marked.
    """
    if not len(steps):
        return ""
    shown = _spread(len(steps))
    x = _scaled(steps[shown].astype(np.float64), _LEFT, _WIDTH - _RIGHT)
    drawn = {name: _on_axis(values[shown], log) for name, values in curves.items()}
    shade = [_on_axis(each[shown], log) for each in band]
    low, high = _range([*drawn.values(), *(shade if log else ())])
    if not log:
        # A band may be many times as wide as the curve.
        least, most = _range([*drawn.values(), *shade])
        margin = (high - low) / 2
        low, high = max(least, low - margin), min(most, high + margin)

    def y(values: Floats) -> Floats:
        return _HEIGHT - _BOTTOM - (values - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [_area(x, *(y(np.clip(each, low, high)) for each in shade))]
    for value, label in _ticks(low, high, log):
        height = float(y(np.array([value]))[0])
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{height:.1f}" y2="{height:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{height + 4:.1f}" text-anchor="end">{label}</text>')
    parts += [f'<path class="curve {name}" d="{_path(x, y(values))}"/>' for name, values in drawn.items()]
    for position, step in ((x[0], steps[0]), (x[-1], steps[-1])):
        anchor = "start" if position == x[0] else "end"
        parts.append(f'<text x="{position:.1f}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{int(step):,}</text>')
    if at is not None and len(steps) > 1:
        here = float(np.interp(at, steps[shown], x))
        parts.append(f'<line class="mark" x1="{here:.1f}" x2="{here:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(parts)}</svg>'


def _range(curves: Sequence[Floats]) -> tuple[float, float]:
    """The smallest and the largest number of `curves`, (records,) each; never equal."""
    numbers = np.concatenate([each[np.isfinite(each)] for each in curves])
    low, high = (float(numbers.min()), float(numbers.max())) if len(numbers) else (0.0, 1.0)
    return low, high if high > low else low + max(1.0, abs(low))


def _ticks(low: float, high: float, log: bool) -> list[tuple[float, str]]:
    """Round numbers from `low` to `high`, at most six, with their labels; powers of ten on a logarithmic axis."""
    size = 10.0 ** math.floor(math.log10((high - low) / 5))
    size = next(each for each in (size, 2 * size, 5 * size, 10 * size) if (high - low) / each <= 5)
    if log:
        size = max(1.0, math.ceil(size))
    places = max(0, -math.floor(math.log10(size) + 1e-9))
    values = [number * size for number in range(math.ceil(low / size), math.floor(high / size) + 1)]
    return [(each, f"1e{each:+03.0f}" if log else f"{each:.{places}f}") for each in values]


def _area(x: Floats, lower: Floats, upper: Floats) -> str:
    """The area between two curves, (records,) each, where both are numbers."""
    known = np.isfinite(lower) & np.isfinite(upper)
    if not known.any():
        return ""
    there = [f"{a:.1f},{b:.1f}" for a, b in zip(x[known], upper[known], strict=True)]
    back = [f"{a:.1f},{b:.1f}" for a, b in zip(x[known][::-1], lower[known][::-1], strict=True)]
    return f'<polygon class="area" points="{" ".join((*there, *back))}"/>'


def _spread(count: int) -> NDArray[np.int64]:
    """At most `_MOST_POINTS` of `count` positions, evenly spaced, including the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(count, _MOST_POINTS)).round().astype(np.int64))


def _scaled(values: Floats, low: float, high: float) -> Floats:
    span = float(values[-1] - values[0]) or 1.0
    return np.asarray(low + (values - values[0]) / span * (high - low), dtype=np.float64)


def _on_axis(values: Floats, log: bool) -> Floats:
    # Differences below fp32's last digit are drawn as equal.
    return np.log10(np.maximum(values, 1e-8)) if log else values


def _path(x: Floats, y: Floats) -> str:
    parts, pen_is_down = [], False
    for across, up in zip(x, y, strict=True):
        if not math.isfinite(up):
            pen_is_down = False
            continue
        parts.append(f"{'L' if pen_is_down else 'M'}{across:.1f},{up:.1f}")
        pen_is_down = True
    return " ".join(parts)
