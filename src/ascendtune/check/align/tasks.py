"""Whether benchmark scores of two models are equal within sampling error, paired by item if items are available.

With items: the intervals of `score_intervals`. With totals only: the normal interval of the difference of two
independent means, with the recorded standard errors or, for a share p of n items, at least those after one right and
one wrong item were added (Agresti and Caffo, 2000, The American Statistician 54, 280-288): a share of 0 or 1 has an
error, too. It is wider, because it ignores that both models answered the same questions. With m tasks each interval has
the level 1 - 0.05 / m (Bonferroni).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from ascendtune.check.align.language import say
from ascendtune.check.align.score_intervals import paired_interval
from ascendtune.check.finding import Finding, failure, ok, unknown
from ascendtune.core.errors import DataError, NoVerdict
from ascendtune.core.foreign_json import parsed_json, read_json_object, read_regular_file, value_at

_MOST_BYTES = 1 << 30
_MOST_ITEMS = 1 << 53
_LEVEL = 0.05
_RESULTS = re.compile(r"results_(?P<when>.+)\.json")
# Metrics of lm-eval in the order in which they are chosen: those of leaderboards first.
_METRICS = ("exact_match", "acc_norm", "acc", "pass@1", "f1", "mc2", "score", "correct")


@dataclass(frozen=True)
class Scores:
    """The score of one model in one task.

    Attributes:
        metric: name of the score.
        mean: over the items.
        count: number of items; None if the file does not contain it.
        error: standard error of the mean as recorded; None if it was not.
        items: score by item; empty if only totals are known.
    """

    metric: str
    mean: float
    count: int | None = None
    error: float | None = None
    items: Mapping[str, float] = field(default_factory=dict)

    def standard_error(self) -> float | None:
        """As recorded, else that of a share; None if neither is known. An error of 0 is replaced by that of a share."""
        if self.error:
            return self.error
        if not self.count or not 0 <= self.mean <= 1:
            return self.error
        share = (self.mean * self.count + 1) / (self.count + 2)
        return math.sqrt(share * (1 - share) / (self.count + 2))


@dataclass(frozen=True)
class TaskComparison:
    """Comparison of one task.

    Attributes:
        difference: candidate minus reference.
        low, high: interval of the difference; NaN if no error is known.
        paired: number of items that both models answered; 0 for totals only.
        unpaired: number of items that only one model answered, if items are paired.
    """

    task: str
    metric: str
    reference: float
    candidate: float
    low: float
    high: float
    paired: int
    unpaired: int = 0

    @property
    def difference(self) -> float:
        return self.candidate - self.reference

    @property
    def is_equal(self) -> bool:
        return self.low <= 0 <= self.high


def compare_tasks(
    reference: Mapping[str, Mapping[str, Scores]], candidate: Mapping[str, Mapping[str, Scores]]
) -> list[TaskComparison]:
    """Compare the tasks that both sides have, each by the first metric that both have.

    Args:
        reference, candidate: task -> metric -> scores, as `read_scores` returns them.

    Raises:
        NoVerdict: the sides have no task and metric in common, or the error of no score is known.
    """
    pairs = []
    for task in reference:
        metrics = [name for name in _ordered(reference[task]) if name in candidate.get(task, {})]
        pairs += [(task, reference[task][name], candidate[task][name]) for name in metrics[:1]]
    level = _LEVEL / max(1, len(pairs))
    comparisons = [_compared(task, one, other, level) for task, one, other in pairs]
    if not any(math.isfinite(each.low) for each in comparisons):
        raise NoVerdict(
            "no task was scored on both sides with a number of items or a standard error",
            code="no-common-tasks",
            remedy="give results of the same tasks; lm_eval --log_samples writes the items that a paired test needs",
        )
    return comparisons


def _ordered(scores: Mapping[str, Scores]) -> list[str]:
    def rank(name: str) -> tuple[int, str]:
        plain = name.partition(",")[0]
        return (_METRICS.index(plain) if plain in _METRICS else len(_METRICS), name)

    return sorted(scores, key=rank)


def _compared(task: str, one: Scores, other: Scores, level: float) -> TaskComparison:
    common = [item for item in one.items if item in other.items]
    if common:
        scores, other_scores = (np.array([side.items[item] for item in common]) for side in (one, other))
        low, high = paired_interval(scores, other_scores, level)
        unpaired = len(one.items) + len(other.items) - 2 * len(common)
        means = float(scores.mean()), float(other_scores.mean())
        return TaskComparison(task, one.metric, *means, low, high, len(common), unpaired)
    low = high = math.nan
    errors = one.standard_error(), other.standard_error()
    if errors[0] is not None and errors[1] is not None:
        half = NormalDist().inv_cdf(1 - level / 2) * math.hypot(errors[0], errors[1])
        low, high = other.mean - one.mean - half, other.mean - one.mean + half
    return TaskComparison(task, one.metric, one.mean, other.mean, low, high, 0)


def read_scores(path: Path) -> dict[str, dict[str, Scores]]:
    """Scores of one model: task -> metric -> scores.

    Reads lm-eval's results_*.json with the samples_*.jsonl beside it, one samples file, or `{"task": [0, 1, …]}`.

    Raises:
        DataError: the file has no scores.
        RecipeError: it is not JSON, too large, or not a regular file.
        MachineError: it cannot be read.
    """
    if path.suffix == ".jsonl":
        by_task = {_task_of(path): _samples(path)}
    else:
        content = read_json_object(path, _MOST_BYTES)
        results = content.get("results")
        by_task = _aggregates(content, results, path) if isinstance(results, dict) else _lists(content)
    by_task = {task: scores for task, scores in by_task.items() if scores}
    if not by_task:
        raise DataError(
            "no scores were found",
            code="no-scores",
            remedy='give results_*.json or samples_*.jsonl of lm-eval, or {"task": [1, 0, …]} with a score per item',
            where=path,
        )
    return by_task


def _task_of(path: Path) -> str:
    return re.sub(r"_\d{4}-\d\d-\d\dT[\d.:-]+$", "", path.stem.removeprefix("samples_"))


def _aggregates(content: Mapping[str, Any], results: Mapping[str, Any], path: Path) -> dict[str, dict[str, Scores]]:
    when = _RESULTS.fullmatch(path.name)
    by_task: dict[str, dict[str, Scores]] = {}
    for task, scores in results.items():
        if not isinstance(scores, dict):
            continue
        count = value_at(content, "n-samples", task, "effective")
        by_task[task] = {
            name: Scores(name, float(value), count if _is_count(count) else None, _error_of(scores, name))
            for name, value in scores.items()
            if _is_score(value) and "_stderr" not in name
        }
        samples = path.with_name(f"samples_{Path(task).name}_{when['when']}.jsonl") if when else None
        if samples is not None and samples.is_file():
            # Scores of items replace totals, because they can be paired.
            by_task[task] |= _samples(samples)
    return by_task


def _error_of(scores: Mapping[str, Any], name: str) -> float | None:
    metric, comma, filtered = name.partition(",")
    error = scores.get(f"{metric}_stderr{comma}{filtered}")
    return float(error) if error is not None and _is_score(error) and error >= 0 else None


def _samples(path: Path) -> dict[str, Scores]:
    """Scores from lm-eval's samples: one item per line, with its scores under the names in `metrics`."""
    by_metric: dict[str, dict[str, float]] = {}
    for number, line in enumerate(read_regular_file(path, _MOST_BYTES).splitlines(), 1):
        record = parsed_json(line, path) if line.strip() else None
        if not isinstance(record, dict):
            continue
        listed = record.get("metrics")
        names = listed if isinstance(listed, list) else [name for name in _METRICS if name in record]
        item = f"{record['doc_id']} {record.get('doc_hash', '')}" if "doc_id" in record else f"line {number}"
        for name in names:
            value = record.get(name) if isinstance(name, str) else None
            if _is_score(value):
                by_metric.setdefault(f"{name},{record.get('filter', 'none')}", {})[item] = float(value)  # type: ignore[arg-type]
    return {name: _of_items(name, items) for name, items in by_metric.items()}


def _lists(content: Mapping[str, Any]) -> dict[str, dict[str, Scores]]:
    """Scores from `{"task": [1, 0, …]}` or `{"task": {"item": 1, …}}`."""
    by_task = {}
    for task, values in content.items():
        by_item = dict(enumerate(values)) if isinstance(values, list) else values
        if isinstance(by_item, dict) and by_item and all(map(_is_score, by_item.values())):
            by_task[task] = {"score": _of_items("score", {str(key): float(each) for key, each in by_item.items()})}
    return by_task


def _of_items(name: str, items: Mapping[str, float]) -> Scores:
    return Scores(name, sum(items.values()) / len(items), len(items), items=items)


def _is_score(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:
        # An integer beyond the range of floats.
        return False


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value <= _MOST_ITEMS


def findings_of(
    compared: list[TaskComparison], reference: Collection[str] = (), candidate: Collection[str] = ()
) -> list[Finding]:
    """One finding per task: `failure` if the interval does not contain 0.

    Args:
        reference, candidate: the tasks of each side; those that were not compared are `unknown`.
    """
    compared_tasks = {each.task for each in compared}
    findings = [_finding(each) for each in compared]
    for task in dict.fromkeys((*reference, *candidate)):
        if task in reference and task in candidate and task not in compared_tasks:
            findings.append(unknown(task, say("the two sides have different scores of this task")))
        elif task not in compared_tasks:
            only = say("only the reference has this task" if task in reference else "only the candidate has this task")
            findings.append(unknown(task, only))
    return findings


def verdict(findings: Sequence[Finding]) -> str:
    """The verdict in one sentence."""
    unequal = [each.code for each in findings if each.status == "failure"]
    count = sum(each.status != "unknown" for each in findings)
    if not unequal:
        return say("tasks: {count}; scores are equal within sampling error", count=count)
    return say(
        "scores differ beyond sampling error in {unequal} of {count} tasks: {first}",
        unequal=len(unequal),
        count=count,
        first=unequal[0],
    )


def _finding(comparison: TaskComparison) -> Finding:
    how = say(
        "paired by {count:,} {count:item|items}" if comparison.paired else "from totals alone, not paired",
        count=comparison.paired,
    )
    if comparison.unpaired:
        how = say("{how}; {count:,} without a counterpart", how=how, count=comparison.unpaired)
    scores: dict[str, object] = {
        "metric": comparison.metric,
        "one": comparison.reference,
        "other": comparison.candidate,
    }
    if not math.isfinite(comparison.low):
        return Finding(
            comparison.task,
            "unknown",
            say("{metric}: {one:.4f} and {other:.4f}; neither items nor errors are known", **scores),
            remedy=say("score with lm_eval --log_samples"),
        )
    measured = say(
        "{metric}: {one:.4f} and {other:.4f}, difference {difference:+.4f} ({low:+.4f} to {high:+.4f}, {how})",
        difference=comparison.difference,
        low=comparison.low,
        high=comparison.high,
        how=how,
        **scores,
    )
    if comparison.is_equal:
        return ok(comparison.task, measured)
    return failure(
        comparison.task,
        measured,
        expected=say("an interval that contains 0"),
        remedy=say("compare the trainings with `ascendtune align`, and how both were scored: prompts, shots, template"),
    )
