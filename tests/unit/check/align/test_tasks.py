"""Scores of two models: intervals against closed forms, and the files of lm-eval."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from ascendtune.check.align.tasks import bootstrap_interval, compare_tasks, findings_of, read_scores
from ascendtune.core.errors import DataError, NoVerdict


def written(place: Path, content: Any) -> Path:
    place.write_text(json.dumps(content))
    return place


def test_paired_interval_is_that_of_the_discordant_items() -> None:
    # Of n items b are won and c are lost: the variance of the mean is ((b + c) - (b - c)² / n) / n².
    size, won, lost = 2000, 130, 90
    differences = np.concatenate([np.ones(won), -np.ones(lost), np.zeros(size - won - lost)])
    mean = (won - lost) / size
    half = NormalDist().inv_cdf(0.975) * math.sqrt((won + lost) - (won - lost) ** 2 / size) / size
    low, high = bootstrap_interval(differences, 0.05)
    assert low == pytest.approx(mean - half, abs=0.05 * half) and high == pytest.approx(mean + half, abs=0.05 * half)


def test_interval_of_scores_with_many_values_is_that_of_their_mean() -> None:
    differences = np.random.default_rng(3).normal(0.1, 1, 900)
    half = NormalDist().inv_cdf(0.995) * differences.std() / 30
    low, high = bootstrap_interval(differences, 0.01)
    assert (low, high) == pytest.approx((differences.mean() - half, differences.mean() + half), abs=0.1 * half)


def test_interval_covers_the_truth_as_often_as_it_says() -> None:
    draw = np.random.default_rng(5)
    covered = 0
    for _ in range(200):
        low, high = bootstrap_interval(draw.choice([-1.0, 0.0, 1.0], size=400, p=[0.05, 0.85, 0.1]), 0.05)
        covered += low <= 0.05 <= high
    # 190 are expected; four standard deviations of a binomial are 12.
    assert 178 <= covered <= 200


def test_totals_alone_give_the_normal_interval_of_two_shares(tmp_path: Path) -> None:
    def results(share: float) -> dict[str, Any]:
        return {"results": {"gsm8k": {"acc,none": share}}, "n-samples": {"gsm8k": {"effective": 400}}}

    sides = [read_scores(written(tmp_path / f"{share}.json", results(share))) for share in (0.5, 0.6)]
    (found,) = compare_tasks(sides[0], sides[1])
    half = NormalDist().inv_cdf(0.975) * math.sqrt(0.25 / 400 + 0.24 / 400)
    assert (found.low, found.high) == pytest.approx((0.1 - half, 0.1 + half))
    assert found.paired == 0 and not found.is_equal
    assert "not paired" in findings_of([found])[0].measured


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


def test_tasks_without_items_and_errors_are_no_verdict(tmp_path: Path) -> None:
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
