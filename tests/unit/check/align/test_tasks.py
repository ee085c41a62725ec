"""Scores of two models: intervals against closed forms, and the files of lm-eval."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest

from ascendtune.check.align.tasks import compare_tasks, findings_of, read_scores, verdict
from ascendtune.core.errors import DataError, NoVerdict


def written(place: Path, content: Any) -> Path:
    place.write_text(json.dumps(content))
    return place


def test_totals_alone_give_the_normal_interval_of_two_shares(tmp_path: Path) -> None:
    def results(share: float) -> dict[str, Any]:
        return {"results": {"gsm8k": {"acc,none": share}}, "n-samples": {"gsm8k": {"effective": 400}}}

    sides = [read_scores(written(tmp_path / f"{share}.json", results(share))) for share in (0.5, 0.6)]
    (found,) = compare_tasks(sides[0], sides[1])
    # One right and one wrong item more on each side: 201 and 241 of 402.
    variances = [share * (1 - share) / 402 for share in (201 / 402, 241 / 402)]
    half = NormalDist().inv_cdf(0.975) * math.sqrt(sum(variances))
    assert (found.low, found.high) == pytest.approx((0.1 - half, 0.1 + half))
    assert found.paired == 0 and not found.is_equal
    assert "not paired" in findings_of([found])[0].measured


@pytest.mark.parametrize("error", [{}, {"acc_stderr,none": 0.0}])
def test_shares_of_one_without_an_error_are_not_certain(tmp_path: Path, error: dict[str, float]) -> None:
    content = {"results": {"t": {"acc,none": 1.0, **error}}, "n-samples": {"t": {"effective": 8}}}
    scores = read_scores(written(tmp_path / "x.json", content))
    (found,) = compare_tasks(scores, scores)
    half = NormalDist().inv_cdf(0.975) * math.sqrt(2 * 0.9 * 0.1 / 10)
    assert (found.low, found.high) == pytest.approx((-half, half))


def test_few_items_that_agree_unanimously_are_not_certain(tmp_path: Path) -> None:
    good = read_scores(written(tmp_path / "a.json", {"t": [1, 1, 1]}))
    bad = read_scores(written(tmp_path / "b.json", {"t": [0, 0, 0]}))
    (found,) = compare_tasks(good, bad)
    assert found.difference == -1 and found.is_equal
    (same,) = compare_tasks(good, good)
    assert same.low < -0.8 and same.high > 0.8


def test_recorded_standard_error_is_preferred_and_tasks_share_the_level(tmp_path: Path) -> None:
    content = {"results": {task: {"acc,none": 0.5, "acc_stderr,none": 0.03} for task in ("a", "b")}}
    scores = read_scores(written(tmp_path / "x.json", content))
    found = compare_tasks(scores, scores)
    assert [each.high for each in found] == pytest.approx([NormalDist().inv_cdf(1 - 0.0125) * 0.03 * math.sqrt(2)] * 2)


def test_samples_beside_the_results_are_paired_by_item(tmp_path: Path) -> None:
    for name, correct in (("gpu", [1, 1, 0, 1]), ("npu", [1, 1, 0, 0])):
        place = tmp_path / name
        place.mkdir()
        written(place / "results_2026-01-01.json", {"results": {"gsm8k": {"exact_match,strict": 0.1}}})
        items = [
            {"doc_id": at, "filter": "strict", "metrics": ["exact_match"], "exact_match": value}
            for at, value in enumerate(correct)
        ]
        (place / "samples_gsm8k_2026-01-01.jsonl").write_text("".join(json.dumps(each) + "\n" for each in items))
    (found,) = compare_tasks(*(read_scores(tmp_path / each / "results_2026-01-01.json") for each in ("gpu", "npu")))
    assert (found.paired, found.reference, found.candidate) == (4, 0.75, 0.5)
    assert found.metric == "exact_match,strict" and found.is_equal


def test_lists_of_items_are_read_and_a_clear_loss_is_a_failure(tmp_path: Path) -> None:
    good = read_scores(written(tmp_path / "a.json", {"math": [1] * 90 + [0] * 10}))
    bad = read_scores(written(tmp_path / "b.json", {"math": [1] * 60 + [0] * 40}))
    (finding,) = findings_of(compare_tasks(good, bad))
    assert finding.status == "failure" and finding.code == "math"


def test_tasks_of_one_side_are_reported(tmp_path: Path) -> None:
    one = read_scores(written(tmp_path / "one.json", {"t": [0, 1] * 200, "u": [0, 1]}))
    other = read_scores(written(tmp_path / "other.json", {"t": [0, 1] * 199, "v": [1, 1]}))
    found = findings_of(compare_tasks(one, other), one, other)
    assert [(each.code, each.status) for each in found] == [("t", "ok"), ("u", "unknown"), ("v", "unknown")]
    assert "paired by 398 items; 2 without a counterpart" in found[0].measured
    assert "only the reference" in found[1].measured and "only the candidate" in found[2].measured
    assert verdict(found).startswith("tasks: 1;")


def test_tasks_without_items_and_errors_give_no_verdict(tmp_path: Path) -> None:
    plain = read_scores(written(tmp_path / "a.json", {"results": {"a": {"acc,none": 0.5}}}))
    other = read_scores(written(tmp_path / "b.json", {"results": {"b": {"acc,none": 0.5}}}))
    for pair in ((plain, plain), (plain, other)):
        with pytest.raises(NoVerdict) as caught:
            compare_tasks(*pair)
        assert caught.value.code == "no-common-tasks"


@pytest.mark.parametrize(
    "content", [{}, {"results": {}}, {"results": {"a": 3}}, {"a": ["x"]}, {"a": []}, {"a": [None]}]
)
def test_file_without_scores_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(DataError) as caught:
        read_scores(written(tmp_path / "a.json", content))
    assert caught.value.code == "no-scores"


HUGE = 10**400
ODD_TOTALS: dict[str, dict[str, Any]] = {
    "score that no float holds": {"results": {"t": {"acc,none": HUGE, "f1,none": 0.5}}},
    "error that no float holds": {"results": {"t": {"f1,none": 0.5, "f1_stderr,none": HUGE}}},
    "negative error": {"results": {"t": {"f1,none": 0.5, "f1_stderr,none": -1.0}}},
    "negative count": {"results": {"t": {"f1,none": 0.5}}, "n-samples": {"t": {"effective": -5}}},
    "count that no float holds": {"results": {"t": {"f1,none": 0.5}}, "n-samples": {"t": {"effective": HUGE}}},
}


@pytest.mark.parametrize("content", ODD_TOTALS.values(), ids=ODD_TOTALS)
def test_totals_whose_numbers_are_impossible_count_as_absent(tmp_path: Path, content: dict[str, Any]) -> None:
    (scores,) = read_scores(written(tmp_path / "a.json", content))["t"].values()
    assert (scores.metric, scores.mean, scores.standard_error()) == ("f1,none", 0.5, None)


def test_items_without_an_id_are_told_apart_by_their_line(tmp_path: Path) -> None:
    (tmp_path / "samples_t.jsonl").write_text('{"acc": 1}\n{"acc": 0}\n{"acc": 1' + "0" * 400 + "}\n")
    scores = read_scores(tmp_path / "samples_t.jsonl")["t"]["acc,none"]
    assert (scores.count, scores.mean) == (2, 0.5)
