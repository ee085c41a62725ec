from __future__ import annotations

import json

from ascendtune.data.report import DataReport, DatasetReport, lines


def _full_report() -> DataReport:
    datasets = []
    for number in range(5):
        each = DatasetReport(
            path=f"data/set-{number}.jsonl",
            format="alpaca",
            weight=2,
            rows_read=100,
            rows_kept=90,
            rows_used=180,
            rows_trained=170,
            tokens=250_000,
        )
        for row in range(10):
            each.drop(f"reason {row % 4}", f"data/set-{number}.jsonl:{row + 1}", "a long explanation " * 5)
        datasets.append(each)
    report = DataReport.of(datasets)
    report.drop("longer than max_length", "data/set-0.jsonl:50")
    report.truncated_rows, report.truncated_tokens, report.unlabelled_rows = 7, 12_345, 2
    report.tokens, report.labelled_tokens, report.longest = 1_250_000, 400_000, 3_000
    report.rows_left_out_text = 3
    report.length_histogram = [(128, 600), (256, 0), (512, 1), (1024, 299)]
    report.padding_ratio = 0.0123
    return report


def test_the_whole_is_the_sum_of_the_data_sets() -> None:
    report = _full_report()
    assert (report.rows_read, report.rows_kept, report.rows_dropped) == (500, 900, 51)
    assert {reason: rows.count for reason, rows in report.dropped.items()} == {
        "reason 0": 15,
        "reason 1": 15,
        "reason 2": 10,
        "reason 3": 10,
        "longer than max_length": 1,
    }
    assert [len(rows.examples) for rows in report.dropped.values()] == [5, 5, 5, 5, 1]


def test_json_keeps_everything() -> None:
    report = _full_report()
    assert DataReport.from_json(json.loads(json.dumps(report.to_json()))) == report


def test_the_short_form_fits_thirteen_lines_of_sixty() -> None:
    printed = lines(_full_report())
    assert len(printed) <= 13
    assert max(map(len, printed)) <= 60
    assert not [line for line in printed if "without a label" in line]  # They are among the dropped.
    text = "\n".join(printed)
    assert printed[0] == "data: 500 rows read, 900 used, 51 dropped, +450 by weight"
    assert "  dropped 15: reason 0 (data/set-0.jsonl:1: a long" in text
    assert "tokens: 1.25M, 32% labelled, longest row 3,000" in text
    assert "truncated: 7 rows, 12,345 tokens lost" in text
    assert "left out by the template: text beside calls, 3 rows" in text
    assert "lengths: 0 █ ▁▄ 1,024 tokens" in text


def test_rows_add_up() -> None:
    report = _full_report()
    assert report.rows_read + report.rows_by_weight - 50 - report.rows_held_out == report.rows_kept
    report.rows_held_out = 10
    assert lines(report)[0] == "data: 500 rows read, 900 used, 51 dropped, 10 held out, +450 by weight"[:58] + " …"


def test_a_clean_small_data_set_takes_one_line() -> None:
    report = DataReport.of([DatasetReport(path="x.jsonl", format="alpaca", rows_read=1, rows_kept=1, rows_used=1)])
    assert lines(report) == ["data: 1 row read, 1 used"]


def test_each_of_two_data_sets_has_its_line() -> None:
    sets = [
        DatasetReport(
            path="a/x.jsonl", format="alpaca", rows_read=4, rows_kept=4, rows_used=4, rows_trained=4, tokens=60
        ),
        DatasetReport(
            path="b/y.jsonl",
            format="alpaca",
            weight=0.5,
            rows_read=6,
            rows_kept=6,
            rows_used=3,
            rows_trained=2,
            tokens=20,
        ),
    ]
    report = DataReport.of(sets)
    assert lines(report)[1:3] == ["  x.jsonl: 4 of 4", "  y.jsonl: 2 of 6 (weight 0.5)"]
    report.tokens = 80
    assert lines(report)[1:3] == [
        "  x.jsonl: 4 of 4, 60 tokens (75%)",
        "  y.jsonl: 2 of 6 (weight 0.5), 20 tokens (25%)",
    ]


def test_many_data_sets_take_four_lines() -> None:
    report = _full_report()
    printed = lines(report)
    each = [f"  set-{number}.jsonl: 170 of 100 (weight 2), 250k tokens (20%)" for number in range(5)]
    assert printed[1:5] == [*each[:3], "  and 2 data sets more: 340"]
    report.datasets.pop()
    assert lines(report)[1:5] == each[:4]
