"""The summary at the end of a run, read from its directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ascendtune.core.rundir import RunDir
from ascendtune.train.report.summary import summary_lines


def lines_of(path: Path, name: str, records: list[dict[str, Any]]) -> None:
    (path / name).write_text("".join(json.dumps(record) + "\n" for record in records))


def made(path: Path, steps: int, **others: Any) -> RunDir:
    run = RunDir(path)
    run.create("", {}, {})
    run.update(attempts=[{"seconds": 30.0}, {"seconds": 45.0}])
    records = [
        {
            "step": step,
            "epoch": step / 8,
            "loss": 4.0 / step,
            "tokens": 1000,
            "tokens_seen": 1000 * step,
            "memory_peak_bytes": 2**30 * step,
            "seconds": {"step": 2.0},
            **others,
        }
        for step in range(1, steps + 1)
    ]
    lines_of(path, "metrics.jsonl", records)
    return run


def test_summary_names_steps_losses_and_times(tmp_path: Path) -> None:
    run = made(tmp_path, 20)
    best = {"step": 10, "loss": 0.5, "datasets": {"a.json": {"loss": 0.25, "perplexity": 1.284}, "b": {"loss": None}}}
    lines_of(tmp_path, "eval.jsonl", [best, {"step": 20, "loss": 0.7}])
    found = [*summary_lines(run)]
    of_datasets = [("", "a.json: loss 0.25, perplexity 1.284"), ("", "b: loss not a number")]
    at = found.index(("best evaluation", "loss 0.5 at step 10"))
    assert found[at + 1 : at + 3] == of_datasets
    summary = dict(found)
    assert summary["steps"] == "20 (2.5 epochs) in 2 attempts"
    assert summary["loss"] == "4 -> 0.2"
    assert summary["best evaluation"] == "loss 0.5 at step 10"
    assert summary["tokens"] == "20k, 500 tokens/s"
    assert summary["time"] == "1:15 (40.0 s in steps)"
    assert summary["peak memory"] == "20.0 GiB per device"
    assert "skipped" not in summary


def test_time_of_a_run_with_a_killed_attempt_is_that_of_its_steps(tmp_path: Path) -> None:
    run = made(tmp_path, 20)
    run.update(attempts=[{"started": 100.0}, {"seconds": 5.0}])
    assert dict(summary_lines(run))["time"] == "40.0 s in steps"


def test_summary_shows_the_expected_peak_beside_the_measured_one(tmp_path: Path) -> None:
    run = made(tmp_path, 2)
    run.update(plan={"expected_bytes": 3 * 2**30})
    assert dict(summary_lines(run))["peak memory"] == "2.0 GiB per device, 3.0 GiB expected"


def test_summary_of_one_record_shows_its_loss_alone(tmp_path: Path) -> None:
    summary = dict(summary_lines(made(tmp_path, 1, accuracy=0.5)))
    assert summary["loss"] == "4, recorded once, at step 1" and summary["accuracy"] == "0.5"


def test_the_summary_lists_results_and_next_commands(tmp_path: Path) -> None:
    run = made(tmp_path / "a run", 3, skipped_steps=1)
    assert "ascendtune chat" not in str(summary_lines(run))
    run.model.mkdir()
    (run.model / "adapter_config.json").write_text('{"peft_type": "LORA", "task_type": "CAUSAL_LM"}')
    (run.path / "loss.png").touch()
    (run.path / "tensorboard").mkdir()
    run.checkpoint(2).mkdir()
    lines = summary_lines(run)
    summary = dict(lines)
    assert summary["skipped"].startswith("1 step ")
    assert summary["model"] == f"{run.model} (adapter)"
    assert summary["picture"] == str(run.path / "loss.png")
    assert summary["checkpoints"] == f"{run.checkpoints} (step 2)"
    commands = [value for _, value in lines[[name for name, _ in lines].index("next") :]]
    assert commands == [
        f"ascendtune chat '{run}'",
        f"ascendtune merge '{run}' --to 'a run-merged'",
        f"ascendtune runs show '{run}'",
        f"tensorboard --logdir '{run.path / 'tensorboard'}'",
    ]


def test_the_summary_of_a_reward_model_has_its_accuracy_and_no_chat(tmp_path: Path) -> None:
    run = made(tmp_path / "scores", 2, accuracy=0.75, margin=0.5)
    lines_of(run.path, "eval.jsonl", [{"step": 2, "loss": 0.5, "accuracy": 0.875}])
    run.model.mkdir()
    (run.model / "config.json").write_text(
        '{"model_type": "qwen2", "architectures": ["Qwen2ForSequenceClassification"]}'
    )
    lines = summary_lines(run)
    summary = dict(lines)
    assert summary["accuracy"] == "0.75 -> 0.75" and summary["margin"] == "0.5 -> 0.5"
    assert summary["best evaluation"] == "loss 0.5, accuracy 0.875 at step 2"
    assert summary["model"] == f"{run.model} (a reward model, Hugging Face format)"
    assert "chat" not in str(lines)
    (run.model / "config.json").unlink()
    (run.model / "adapter_config.json").write_text('{"peft_type": "LORA", "task_type": "SEQ_CLS"}')
    lines = summary_lines(run)
    assert "chat" not in str(lines) and f"ascendtune merge {run} --to scores-merged" in dict(lines).values()


def test_summary_of_a_run_without_steps_says_none(tmp_path: Path) -> None:
    assert summary_lines(made(tmp_path, 0))[0] == ("steps", "none")
