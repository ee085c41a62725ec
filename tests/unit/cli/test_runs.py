from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ascendtune.cli.runs import find_runs, list_runs, state_of
from ascendtune.core.errors import InputError
from ascendtune.core.rundir import RunDir
from bad_files import BAD_FILES


@pytest.fixture
def ascendtune(in_process: Any) -> Any:
    return in_process


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """a: finished after 30 steps. b: other learning rate, other data from step 5; says running, and is dead."""
    for name, rate, steps in (("a", 1e-4, 30), ("b", 2e-4, 20)):
        run = RunDir(tmp_path / "runs" / name)
        run.create(f"name: {name}\noptim:\n  learning_rate: {rate}\n", {}, {"data_hash": name})
        run.begin_attempt({})
        with run.metrics.open("w") as file:
            for step in range(1, steps + 1):
                batch = "same" if step < 5 else name
                record = {"step": step, "loss": 3 / step, "tokens_per_second": 1234.5, "batch_hash": batch}
                file.write(json.dumps(record) + "\n")
            file.write('{"step": 99, "lo')
        run.checkpoint(10).mkdir()
    RunDir(tmp_path / "runs" / "a").end_attempt("finished")
    gone = subprocess.Popen(["true"])
    gone.wait()
    dead = RunDir(tmp_path / "runs" / "b")
    began = {"started": time.time() - 100, "monotonic": time.monotonic() - 100, "pid": gone.pid}
    dead.update(attempts=[{**dead.read()["attempts"][-1], **began}])
    return tmp_path / "runs"


def test_list_is_a_table_for_people_and_json_for_programs(ascendtune: Any, runs: Path) -> None:
    lines = ascendtune("runs", "list").stdout.splitlines()
    assert lines[0].split() == ["name", "state", "step", "loss", "tokens/s", "age"]
    assert lines[1].split()[:5] == ["a", "finished", "30", "0.1000", "1.23k"]
    assert lines[2].split()[:5] == ["b", "lost", "20", "0.1500", "1.23k"]
    first, second = json.loads(ascendtune("runs", "list", runs, "--json").stdout)
    assert (first["name"], first["step"], first["loss"]) == ("a", 30, 0.1)
    assert 99 < second["age_seconds"] < 200


def test_age_is_right_and_never_negative_after_the_clock_was_set_back(ascendtune: Any, runs: Path) -> None:
    run = RunDir(runs / "b")
    newest = run.read()["attempts"][-1]
    run.update(attempts=[{**newest, "started": time.time() + 7200}])
    assert 99 < json.loads(ascendtune("runs", "list", runs, "--json").stdout)[1]["age_seconds"] < 200
    # After a restart of the machine only the clock tells.
    run.update(attempts=[{**newest, "started": time.time() + 7200, "boot_id": "another"}])
    assert json.loads(ascendtune("runs", "list", runs, "--json").stdout)[1]["age_seconds"] is None
    run.update(attempts=[{**newest, "started": time.time() - 300 * 86400, "boot_id": "another"}])
    assert "  300 d 0:00:0" in ascendtune("runs", "list", runs).stdout


def test_speed_is_not_that_of_a_last_step_with_few_tokens(ascendtune: Any, runs: Path) -> None:
    metrics = RunDir(runs / "a").metrics
    whole = metrics.read_text().rpartition("\n")[0]
    metrics.write_text(f'{whole}\n{{"step": 31, "loss": 0.09, "tokens_per_second": 40}}\n')
    assert ascendtune("runs", "list").stdout.splitlines()[1].split()[2:5] == ["31", "0.0900", "1.23k"]


def test_a_killed_run_that_its_parent_has_not_waited_for_is_lost(ascendtune: Any, runs: Path) -> None:
    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        newest = RunDir(runs / "b").read()["attempts"][-1]
        RunDir(runs / "b").update(attempts=[{**newest, "pid": child.pid}])
        assert "b     lost" in ascendtune("runs", "list").stdout


def test_a_killed_run_whose_pid_another_process_has_is_lost(ascendtune: Any, runs: Path) -> None:
    run = RunDir(runs / "b")
    run.begin_attempt({})
    assert "b     running" in ascendtune("runs", "list").stdout
    newest = run.read()["attempts"][-1]
    run.update(attempts=[{**newest, "start_ticks": newest["start_ticks"] - 1}])
    assert "b     lost" in ascendtune("runs", "list").stdout


def test_a_killed_run_is_lost_after_its_host_got_another_name(runs: Path) -> None:
    dead, alive = RunDir(runs / "b").read(), RunDir(runs / "a")
    alive.begin_attempt({"host": "earlier"})
    dead["attempts"][-1]["host"] = "earlier"
    assert (state_of(dead), state_of(alive.read())) == ("lost", "running")


def test_list_without_runs_says_so(ascendtune: Any, tmp_path: Path) -> None:
    result = ascendtune("runs", "list")
    assert result.returncode == 2 and "code: path-missing" in result.stderr
    (tmp_path / "runs").mkdir()
    assert ascendtune("runs", "list").stdout == "no runs in runs\n"


def test_list_prints_the_newest_50_runs_and_names_the_option_for_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ascendtune.cli.runs._changed", lambda run: float(run.path.name))
    for number in range(53):
        (tmp_path / f"{number:02}").mkdir()
        (tmp_path / f"{number:02}" / "run.json").write_text('{"state": "finished"}')
    list_runs(tmp_path)
    _, *shown, last = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown] == [f"{number:02}" for number in range(3, 53)]
    assert last == f"3 older: ascendtune runs list {tmp_path} --all"
    list_runs(tmp_path, everything=True)
    assert len(capsys.readouterr().out.splitlines()) == 54
    list_runs(tmp_path, as_json=True)
    assert len(json.loads(capsys.readouterr().out)) == 53


def test_runs_show_prints_state_and_last_metrics(ascendtune: Any, runs: Path) -> None:
    shown = ascendtune("runs", "show", "runs/a").stdout
    assert shown.startswith("runs/a: finished, 1 attempt\n") and "step_10" in shown
    facts = json.loads(ascendtune("runs", "show", "runs/a", "--json").stdout)
    assert facts["last_metrics"]["step"] == 30 and facts["data_report"] is None


@pytest.mark.parametrize(
    "report", ['{"rows_read": 5}', '{"train": {"datasets": 5}}', '{"train": []}', '{"train": "x"}']
)
def test_show_names_a_data_report_of_another_form_and_shows_the_rest(ascendtune: Any, runs: Path, report: str) -> None:
    run = RunDir(runs / "a")
    run.data_report.write_text(report)
    run.update(exit_cause={"rank": 1}, attempts=[{"hosts": [1, "b"]}])
    shown = ascendtune("runs", "show", "runs/a")
    assert shown.returncode == 0 and "step_10" in shown.stdout and "no cause was recorded" in shown.stdout
    assert "data.json is damaged: runs/a/data.json" in shown.stderr


def test_show_of_something_else_is_refused(ascendtune: Any, runs: Path) -> None:
    result = ascendtune("runs", "show", "runs")
    assert result.returncode == 2 and "not a run directory" in result.stderr


def test_damaged_files_of_a_run_are_named_and_the_rest_is_shown(ascendtune: Any, runs: Path) -> None:
    run = RunDir(runs / "a")
    run.data_report.write_text('{"train": {"rows')
    run.evaluations.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    shown = ascendtune("runs", "show", "runs/a")
    assert shown.returncode == 0 and "step_10" in shown.stdout and "Traceback" not in shown.stderr
    assert "data.json is damaged" in shown.stderr and "runs/a/eval.jsonl:2" in shown.stderr
    run.recipe.write_text("a: [1,\n")
    compared = ascendtune("runs", "compare", "runs/a", "runs/b")
    assert compared.returncode == 0 and "recipe: unknown" in compared.stdout and "recipe.yaml:2" in compared.stderr
    run.recipe.unlink()
    compared = ascendtune("runs", "compare", "runs/b", "runs/a", "--json")
    assert json.loads(compared.stdout)["recipe"] is None and "no such recipe: runs/a/recipe.yaml" in compared.stderr
    for content in ("{}", "[]", '{"state'):
        run.run_json.write_text(content)
        shown = ascendtune("runs", "show", "runs/a")
        assert shown.returncode == 3 and "error: run.json is damaged" in shown.stderr
        listed = ascendtune("runs", "list").stdout.splitlines()
        assert listed[1].split()[:2] == ["a", "damaged"] or listed[2].split()[:2] == ["a", "damaged"]


def test_compare_says_what_differs(ascendtune: Any, runs: Path) -> None:
    shown = ascendtune("runs", "compare", "runs/a", "runs/b").stdout
    assert "optim.learning_rate  0.0001  0.0002" in shown
    assert "data: different; the batches differ from step 5 on" in shown
    *_, common, last, steps = (line.split() for line in shown.splitlines())
    assert common == ["20", "0.150000", "0.150000"]
    assert last == ["last", "0.100000", "0.150000"] and steps == ["at", "step", "30", "20"]
    compared = json.loads(ascendtune("runs", "compare", "runs/a", "runs/b", "--json").stdout)
    assert compared["loss"]["20"] == [0.15, 0.15] and len(compared["loss"]) == 30
    assert compared["recipe"] == {"name": ["a", "b"], "optim.learning_rate": [0.0001, 0.0002]}


def test_compare_shows_steps_whose_loss_is_not_a_number(ascendtune: Any, runs: Path) -> None:
    for name, losses in (("a", [2.0, 1.5, 1.0]), ("b", [2.0, None, None])):
        lines = [json.dumps({"step": step, "loss": loss}) for step, loss in enumerate(losses, 1)]
        (runs / name / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    shown = ascendtune("runs", "compare", "runs/a", "runs/b").stdout
    lines = [line.split() for line in shown.splitlines()]
    assert (
        ["2", "1.500000", "NaN"] in lines
        and ["3", "1.000000", "NaN"] in lines
        and ["last"] not in [line[:1] for line in lines]
    )
    assert "2 steps is not a number, first at step 2" in shown
    compared = json.loads(ascendtune("runs", "compare", "runs/a", "runs/b", "--json").stdout)
    assert compared["loss"]["2"] == [1.5, None] and compared["steps_without_number"] == [[], [2, 3]]


def test_compare_shows_rewards_that_both_have(ascendtune: Any, runs: Path) -> None:
    for name, rewards in (("a", {"accuracy": 0.5, "margin": 0.1}), ("b", {"accuracy": 0.75})):
        records = [{"step": step, "loss": 0.6, **rewards} for step in (1, 2)]
        (runs / name / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    lines = [line.split() for line in ascendtune("runs", "compare", "runs/a", "runs/b").stdout.splitlines()]
    assert lines[lines.index(["accuracy", "a", "b"]) + 2] == ["2", "0.500000", "0.750000"] == lines[-1]
    compared = json.loads(ascendtune("runs", "compare", "runs/a", "runs/b", "--json").stdout)
    assert compared["accuracy"] == {"1": [0.5, 0.75], "2": [0.5, 0.75]} and "margin" not in compared


def test_compare_shows_evaluation_losses_that_both_have(ascendtune: Any, runs: Path) -> None:
    records = '{"step": 10, "loss": 2.5}\n{"step": 20, "loss": 2.25}\n'
    (runs / "a" / "eval.jsonl").write_text(records)
    (runs / "b" / "eval.jsonl").unlink(missing_ok=True)
    assert "evaluation loss" not in ascendtune("runs", "compare", "runs/a", "runs/b").stdout
    (runs / "b" / "eval.jsonl").write_text(records.replace("2.25", "2.125"))
    lines = [line.split() for line in ascendtune("runs", "compare", "runs/a", "runs/b").stdout.splitlines()]
    assert lines[lines.index(["evaluation", "loss", "a", "b"]) + 2] == ["20", "2.250000", "2.125000"] == lines[-1]
    compared = json.loads(ascendtune("runs", "compare", "runs/a", "runs/b", "--json").stdout)
    assert compared["evaluation_loss"] == {"10": [2.5, 2.5], "20": [2.25, 2.125]}


def test_compare_shows_evaluation_losses_that_two_of_three_runs_have(ascendtune: Any, runs: Path) -> None:
    shutil.copytree(runs / "a", runs / "c")
    for name in ("a", "b"):
        (runs / name / "eval.jsonl").write_text('{"step": 10, "loss": 2.5}\n')
    compared = json.loads(ascendtune("runs", "compare", "runs/a", "runs/b", "runs/c", "--json").stdout)
    assert compared["evaluation_loss"] == {"10": [2.5, 2.5, None]}


def test_compare_of_a_run_that_recorded_every_step_with_one_that_recorded_every_third(
    ascendtune: Any, runs: Path
) -> None:
    every = [(1, 6.0, 10), (2, 4.0, 30), (3, 2.0, 60), (4, None, 10), (5, 3.0, 10), (6, 1.0, 30), (7, 0.5, 10)]
    # A checkpoint was written after step 5.
    third = [(3, 3.0, 100), (5, 3.0, 20), (6, 1.0, 30)]
    for name, steps in (("a", every), ("b", third)):
        records = [{"step": step, "loss": loss, "labelled_tokens": tokens} for step, loss, tokens in steps]
        records[0] |= {"tokens": 120, "tokens_seen": 120}
        (runs / name / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    shown = ascendtune("runs", "compare", "runs/a", "runs/b").stdout
    lines = [line.split() for line in shown.splitlines()]
    assert ["3", "3.000000", "3.000000"] in lines and ["5", "3.000000", "3.000000"] in lines
    assert ["last", "0.500000", "1.000000"] in lines and "a value is the mean since the step above it" in shown
    compared = json.loads(ascendtune("runs", "compare", "runs/a", "runs/b", "--json").stdout)
    assert compared["loss"]["3"] == [2.0, 3.0] and compared["mean_loss"]["5"] == [3.0, 3.0]


def test_compare_weighs_steps_of_a_preference_by_their_pairs(ascendtune: Any, runs: Path) -> None:
    for name, steps in (("a", [(1, 0.25, 1), (2, 0.75, 3)]), ("b", [(2, 0.625, 4)])):
        run = RunDir(runs / name)
        run.recipe.write_text("method: {stage: preference}\n")
        records = [{"step": step, "loss": loss, "labelled_tokens": 7, "groups": pairs} for step, loss, pairs in steps]
        run.metrics.write_text("".join(json.dumps(each) + "\n" for each in records))
    compared = json.loads(ascendtune("runs", "compare", "runs/a", "runs/b", "--json").stdout)
    assert compared["mean_loss"] == {"2": [0.625, 0.625]}


@pytest.mark.parametrize(("steps", "is_shown"), [((1, 2), True), ((2,), False)])
def test_compare_averages_no_margin_of_kto(ascendtune: Any, runs: Path, steps: tuple[int, ...], is_shown: bool) -> None:
    for name, recorded in (("a", (1, 2)), ("b", steps)):
        run = RunDir(runs / name)
        run.recipe.write_text("method: {stage: preference, preference: {loss: kto}}\n")
        records = [{"step": step, "loss": 0.5, "margin": 0.1, "groups": 4} for step in recorded]
        run.metrics.write_text("".join(json.dumps(each) + "\n" for each in records))
    shown = ascendtune("runs", "compare", "runs/a", "runs/b").stdout
    assert ("margin" in shown) == is_shown


def test_compare_with_a_run_that_began_at_a_later_step_averages_nothing(ascendtune: Any, runs: Path) -> None:
    for name, begin in (("a", 1), ("b", 4)):
        records = [{"step": step, "loss": 1 / step} for step in range(begin, 7)]
        (runs / name / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    compared = json.loads(ascendtune("runs", "compare", "runs/a", "runs/b", "--json").stdout)
    assert "mean_loss" not in compared and compared["loss"]["4"] == [0.25, 0.25]


def test_compare_says_that_evaluations_are_of_different_rows(ascendtune: Any, runs: Path) -> None:
    for name, rows in (("a", "x"), ("b", "y")):
        (runs / name / "eval.jsonl").write_text(json.dumps({"step": 10, "loss": 2.5, "data_hash": rows}) + "\n")
    assert "different rows, and not comparable" in ascendtune("runs", "compare", "runs/a", "runs/b").stdout
    shutil.copy(runs / "a" / "eval.jsonl", runs / "b")
    assert "different rows" not in ascendtune("runs", "compare", "runs/a", "runs/b").stdout


def test_compare_of_unlike_runs(ascendtune: Any, runs: Path) -> None:
    for name, steps, stage in (("a", (3, 6, 9), "sft"), ("b", (6,), "preference")):
        run = RunDir(runs / name)
        run.recipe.write_text(f"method: {{stage: {stage}}}\ndata: {{packing: {'true' if name == 'a' else 'null'}}}\n")
        records = [{"step": step, "loss": 1 / step, "batch_hash": name} for step in steps]
        run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    shown = ascendtune("runs", "compare", "runs/a", "runs/b").stdout
    assert "the batches differ at step 6, the first that all runs recorded" in shown
    assert "not comparable: a sft; b preference, sigmoid" in shown
    assert ["data.packing", "true", "null"] in [line.split() for line in shown.splitlines()]


def test_show_is_in_words(ascendtune: Any, runs: Path) -> None:
    run = RunDir(runs / "a")
    run.metrics.write_text(json.dumps({"step": 7200, "epoch": 1.76471, "memory_peak_bytes": 539529216}) + "\n")
    own = "the model's own"
    run.update(
        attempts=[],
        resolved={
            "device": {"kind": "cpu", "name": "EPYC", "world_size": 1, "settings": {}},
            "attention": {"name": "sdpa", "reason": "fused"},
            "kernel": {"rms_norm": own, "rotary": own, "experts": "grouped"},
            "packing": True,
        },
    )
    shown = ascendtune("runs", "show", "runs/a").stdout
    assert shown.startswith("runs/a: finished, training has not started\n")
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    for words in ("step 7,200", "epoch 1.76", "memory_peak 514.5 MiB", "device EPYC (cpu × 1)"):
        assert words in lines
    for words in ("attention sdpa (fused)", f"kernel rms_norm, rotary: {own}; experts: grouped", "packing true"):
        assert words in lines


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_bad_run_is_named_and_the_others_are_listed(ascendtune: Any, runs: Path, kind: str) -> None:
    (runs / "bad").mkdir()
    BAD_FILES[kind](runs / "bad" / "run.json")
    began = time.monotonic()
    done = ascendtune("runs", "list")
    assert time.monotonic() - began < 60
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines()[1:]} == {"a", "b", "bad"}
    (warning,) = done.stderr.splitlines()
    assert "run.json" in warning and "bad" in warning


@pytest.mark.parametrize(
    "record",
    [
        {"state": "running", "attempts": 1},
        {"state": "running", "attempts": ["a"]},
        {"state": "running", "attempts": [{"pid": "x", "started": "yesterday"}]},
        {"state": "running", "attempts": [{"started": 1e300}]},
        {"state": ["running"], "created": "x"},
    ],
)
def test_a_run_with_values_of_other_kinds_is_listed(ascendtune: Any, runs: Path, record: dict[str, Any]) -> None:
    RunDir(runs / "odd").path.mkdir()
    (runs / "odd" / "run.json").write_text(json.dumps(record))
    (runs / "odd" / "metrics.jsonl").write_text('{"step": "x", "loss": [1], "tokens_per_second": {}}\n')
    for words in (("runs", "list"), ("runs", "list", "--json")):
        done = ascendtune(*words)
        assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
        assert "odd" in done.stdout and "finished" in done.stdout


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_files_of_a_run_are_never_waited_for(ascendtune: Any, runs: Path, kind: str) -> None:
    for name in ("metrics.jsonl", "eval.jsonl", "data.json"):
        path = runs / "a" / name
        path.unlink(missing_ok=True)
        BAD_FILES[kind](path)
    began = time.monotonic()
    for words in (("runs", "list"), ("runs", "show", runs / "a")):
        done = ascendtune(*words)
        assert "Traceback" not in done.stderr and "bug" not in done.stderr, done.stderr
    assert time.monotonic() - began < 60


def test_list_passes_over_a_directory_that_goes_away_meanwhile(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gone", "odd"):
        (runs / name).mkdir()
    real = os.scandir

    def scan(path: Path) -> Any:
        if path.name == "gone":
            path.rmdir()
        if path.name == "odd":
            raise OSError(errno.EINVAL, "the kernel does not list it")
        return real(path)

    monkeypatch.setattr(os, "scandir", scan)
    assert sorted(run.path.name for run in find_runs(runs)) == ["a", "b"]


def test_a_run_is_known_by_its_name_and_completed(ascendtune: Any, runs: Path) -> None:
    assert ascendtune("runs", "show", "a").stdout == ascendtune("runs", "show", "runs/a").stdout
    assert ascendtune("runs", "compare", "a", "b").stdout == ascendtune("runs", "compare", "runs/a", "runs/b").stdout
    env = {"_ASCENDTUNE_COMPLETE": "complete_bash", "COMP_WORDS": "ascendtune chat ", "COMP_CWORD": "2"}
    assert {"a", "b"} <= set(ascendtune(**env).stdout.split())
    missing = ascendtune("runs", "show", "nowhere")
    assert missing.returncode == 2 and "code: not-a-run-directory" in missing.stderr


def test_directory_without_runs_names_that_of_the_newest_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [RunDir(tmp_path / "my saves" / name) for name in ("first", "first/replay", "gone")]
    for run in runs[:2]:
        run.path.mkdir(parents=True)
        run.run_json.write_text("{}")
    monkeypatch.setattr(
        "ascendtune.job.registry.jobs", lambda: iter(SimpleNamespace(run_dir=each.path) for each in runs)
    )
    with pytest.raises(InputError) as caught:
        find_runs(tmp_path / "runs")
    assert caught.value.code == "path-missing"
    assert caught.value.remedy.endswith(f" is in '{tmp_path}/my saves'")


def test_show_has_the_best_evaluation_beside_the_last(ascendtune: Any, runs: Path) -> None:
    run = RunDir(runs / "a")
    losses = {5: (0.1, "other"), 10: (2.0, "same"), 20: (1.5, "same"), 30: (1.75, "same")}
    lines = ({"step": step, "loss": loss, "data_hash": rows} for step, (loss, rows) in losses.items())
    run.evaluations.write_text("".join(json.dumps(each) + "\n" for each in lines))
    facts = json.loads(ascendtune("runs", "show", run, "--json").stdout)
    assert [facts[name]["step"] for name in ("last_evaluation", "best_evaluation")] == [30, 20]
    text = ascendtune("runs", "show", run).stdout
    assert "1.75" in text.partition("last evaluation")[2].partition("best evaluation")[0]
    assert "1.5" in text.partition("best evaluation")[2]
