"""Summary of a run: its losses, its results, the next commands. Uses only the run directory."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from ascendtune.core.attempt_time import seconds_of_attempts
from ascendtune.core.rundir import RunDir
from ascendtune.core.units import count_of, format_bytes, format_count, format_duration
from ascendtune.hub.model_directories import is_reward_model

SHOWN_EXTRAS = ("perplexity", "accuracy", "margin", "kl")
"""The most informative metrics beside the loss: of evaluations of language models, and of preference learning."""


def summary_lines(run: RunDir) -> list[tuple[str, str]]:
    """Names and values, the most important first; unknown ones are left out."""
    records = list(run.read_metrics())
    if not records:
        return [("steps", "none"), *_locations(run)]
    facts = run.read()
    return [
        *_steps(records, facts),
        *_losses(records, run.comparable_evaluations()),
        *_cost(records, facts),
        *_locations(run),
        *_next(run),
    ]


def _steps(records: list[dict[str, Any]], facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    attempts, epochs = len(facts.get("attempts") or []), f"{records[-1]['epoch']:.3g}"
    times = f" in {attempts} attempts" if attempts > 1 else ""
    yield "steps", f"{records[-1]['step']:,} ({epochs} epoch{'' if epochs == '1' else 's'}){times}"
    if (reason := facts.get("ended_because")) and reason != "all steps done":
        yield "ended", reason


def _losses(records: list[dict[str, Any]], evaluations: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    first, last = records[0], records[-1]
    if len(records) == 1:
        yield "loss", f"{_loss(last)}, recorded once, at step {last['step']:,}"
    else:
        yield "loss", f"{_loss(first)} -> {_loss(last)}"
    for name in SHOWN_EXTRAS:
        if first.get(name) is not None and last.get(name) is not None:
            yield name, f"{last[name]:.4g}" if len(records) == 1 else f"{first[name]:.4g} -> {last[name]:.4g}"
    # A loss is null if it was not a number.
    evaluations = [each for each in evaluations if each["loss"] is not None]
    if evaluations:
        best = min(evaluations, key=lambda each: each["loss"])
        extras = "".join(f", {name} {best[name]:.4g}" for name in SHOWN_EXTRAS if best.get(name) is not None)
        yield "best evaluation", f"loss {best['loss']:.4g}{extras} at step {best['step']:,}"
        for name, values in shown_datasets(best):
            yield "", f"{name}: {values}"
    if skipped := last.get("skipped_steps"):
        yield "skipped", count_of(skipped, "step") + " with a loss or gradient that was not a number"


def shown_datasets(evaluation: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The name of each data set of a mixture, and its loss and other values."""
    for name, values in (evaluation.get("datasets") or {}).items():
        extras = "".join(f", {extra} {values[extra]:.4g}" for extra in SHOWN_EXTRAS if values.get(extra) is not None)
        yield name, f"loss {_loss(values)}{extras}"


def _cost(records: list[dict[str, Any]], facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Tokens, time and memory."""
    seconds = sum(record["seconds"]["step"] for record in records)
    speed = f", {sum(record['tokens'] for record in records) / seconds:,.0f} tokens/s" if seconds else ""
    yield "tokens", f"{format_count(records[-1]['tokens_seen'])}{speed}"
    # An attempt that was killed has recorded its steps, but not its duration.
    took = seconds_of_attempts(facts.get("attempts") or [])
    in_steps = f"{format_duration(seconds)} in steps"
    yield "time", in_steps if took is None else f"{format_duration(took)} ({in_steps})"
    if peak := max(record.get("memory_peak_bytes") or 0 for record in records):
        planned = (facts.get("plan") or {}).get("expected_bytes")
        expected = f", {format_bytes(planned)} expected" if planned else ""
        yield "peak memory", f"{format_bytes(peak)} per device{expected}"


def _loss(record: dict[str, Any]) -> str:
    return "not a number" if record["loss"] is None else f"{record['loss']:.4g}"


def _locations(run: RunDir) -> Iterator[tuple[str, str]]:
    yield "run", str(run)
    if run.model.is_dir():
        kind = "adapter" if (run.model / "adapter_config.json").is_file() else "Hugging Face format"
        scores = "a reward model, " if is_reward_model(run.model) else ""
        yield "model", f"{run.model} ({scores}{kind})"
    if (picture := run.path / "loss.png").is_file():
        yield "picture", str(picture)
    if steps := run.checkpoint_steps():
        yield "checkpoints", f"{run.checkpoints} (step {', '.join(map(str, steps))})"


def _next(run: RunDir) -> Iterator[tuple[str, str]]:
    name = shlex.quote(str(run))
    commands = [f"ascendtune runs show {name}"]
    if run.model.is_dir() and not is_reward_model(run.model):
        commands.insert(0, f"ascendtune chat {name}")
    if (run.model / "adapter_config.json").is_file():
        commands.insert(-1, f"ascendtune merge {name} --to {shlex.quote(run.path.name + '-merged')}")
    if (events := run.path / "tensorboard").is_dir():
        commands.append(f"tensorboard --logdir {shlex.quote(str(events))}")
    for number, command in enumerate(commands):
        yield ("" if number else "next"), command
