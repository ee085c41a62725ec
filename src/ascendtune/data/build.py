"""Builds one cache entry: from files to tokens and reports."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ascendtune.core.errors import DataError
from ascendtune.core.foreign_json import read_json_object, value_at
from ascendtune.core.units import count_of
from ascendtune.data.fingerprint import TokenInputs
from ascendtune.data.load import LoadedRows, load_rows
from ascendtune.data.report import EXAMPLES_KEPT, DataReport, DatasetReport
from ascendtune.data.row_file import Numbers, RowPlaces, Rows
from ascendtune.data.shards import (
    INDIVISIBLE,
    NO_ANSWER_LEFT,
    NO_ANSWER_SPAN,
    NOTHING_TO_LEARN,
    REFUSED,
    TOO_LONG,
    TokenizeResult,
)
from ascendtune.data.spec import DataSection
from ascendtune.data.store import TokenDataset
from ascendtune.data.template import ChatTemplate, TemplateTooCostly
from ascendtune.data.tokenize import groups_of, tokenize
from ascendtune.data.tokenize_texts import tokenize_texts
from ascendtune.data.tokenizer import Tokenizer

_HISTOGRAM_BINS = 16
_EQUALS_HELD_OUT = "equal to a row that is held out"

Progress = Callable[[str, int, int], None]


def build(directory: Path, inputs: TokenInputs, progress: Progress | None) -> dict[str, Any]:
    """Write `train/`, and `eval/` if the section has evaluation data, into `directory`; returns the facts for the
    record."""
    section, task, seed = inputs.section, inputs.task, inputs.seed
    tokenizer = Tokenizer.load(inputs.model_directory, inputs.new_tokens)
    # For preference data only answers are trained on.
    loss_on = section.loss_on if task == "conversations" else "assistant"
    template = None if task == "text" else ChatTemplate.load(section.template, tokenizer, loss_on=loss_on)
    load = partial(
        load_rows, task=task, seed=seed, on_bad_row=section.on_bad_row, resolve=inputs.location_of, directory=directory
    )
    with ExitStack() as opened:
        loaded = opened.enter_context(closing(load(section.train)))
        report, eval_report, held_out = DataReport.of(loaded.datasets), None, None
        if section.eval:
            held_out = opened.enter_context(closing(load(section.eval)))
            eval_report = DataReport.of(held_out.datasets)
        elif section.eval_fraction or section.eval_rows:
            distinct = len(loaded.rows) - report.rows_by_weight
            loaded, held_out, duplicates = _hold_out(loaded, section, seed)
            report.rows_held_out = len(held_out.rows)
            for place in duplicates:
                report.drop(_EQUALS_HELD_OUT, place)
            # Copies of a held-out row are held out with it.
            report.rows_by_weight = len(loaded.rows) + len(duplicates) + report.rows_held_out - distinct
            eval_report = DataReport.of(held_out.datasets)
        warnings = _warning_of_shared_rows(loaded.rows, held_out.rows) if held_out is not None else []
        write = partial(_write, inputs=inputs, tokenizer=tokenizer, template=template, progress=progress)
        try:
            write(directory / "train", "training", loaded, report)
            if held_out is not None and eval_report is not None:
                write(directory / "eval", "evaluation", held_out, eval_report)
        except NoRowLeft as error:
            error.report = report
            raise
    warnings += _warning_of_joined_rows(report)
    facts = _facts_without_template(tokenizer) if template is None else _facts_of(template)
    return {
        "report": report.to_json(),
        "eval_report": eval_report.to_json() if eval_report else None,
        "vocab_size": tokenizer.vocab_size,
        "added_ids": sorted(tokenizer.backend.get_added_tokens_decoder()),
        "eos_id": tokenizer.eos_id,
        "pad_id": tokenizer.pad_id,
        **facts,
        "warnings": [*facts["warnings"], *warnings],
    }


def places_of(inputs: TokenInputs, rows: Sequence[int], rows_kept: int) -> list[str]:
    """`file:line` of rows of the training tokens; their numbers if tokenisation has dropped or divided rows.

    Args:
        rows: numbers of the rows of `train/`; a pair is one.
        rows_kept: from the data report.

    Raises:
        DataError: the files no longer exist, or have changed.
    """
    section = inputs.section
    load = partial(load_rows, section.train, inputs.task, seed=inputs.seed, on_bad_row=section.on_bad_row)
    with closing(load(resolve=inputs.location_of)) as loaded:
        if not section.eval and (section.eval_fraction or section.eval_rows):
            loaded, _, _ = _hold_out(loaded, section, inputs.seed)
        if len(loaded.rows) != rows_kept or any(not 0 <= row < rows_kept for row in rows):
            return [f"row {row} of the tokens" for row in rows]
        return [loaded.places[row] for row in rows]


def _facts_of(template: ChatTemplate) -> dict[str, Any]:
    return {"stop_ids": template.stop_ids, "chat_template": template.source, "warnings": template.warnings}


def _facts_without_template(tokenizer: Tokenizer) -> dict[str, Any]:
    warning = "the tokenizer has no EOS token: texts would have no end, and the model could not learn to end them"
    return {
        "stop_ids": tokenizer.eos_ids,
        "chat_template": tokenizer.chat_templates.get("default", ""),
        "warnings": [warning] if tokenizer.eos_id is None else [],
    }


def _warning_of_joined_rows(report: DataReport) -> list[str]:
    """Two line breaks are often one token: one of ChatML's prompt and one of the answer, or, in Qwen3.5's thinking
    models, those of an empty thought, of which the prompt has the first."""
    if not report.rows_joined_to_prompt:
        return []
    return [
        f"in {count_of(report.rows_joined_to_prompt, 'row')} an answer and the end of its prompt share a token, which "
        "they do not at inference: remove white space at the beginning of answers; where prompts end with <think>, "
        'give the rows thoughts, or chat_template_kwargs {"enable_thinking": false}; or choose another data.template'
    ]


def _warning_of_shared_rows(train: Rows, evaluation: Rows) -> list[str]:
    trained_on = train.digests()[train.numbers]
    shared = int(np.isin(evaluation.digests()[evaluation.numbers], trained_on).sum())
    if not shared:
        return []
    return [
        f"{shared:,} of {count_of(len(evaluation), 'evaluation row')} equal rows that are trained on: "
        "the evaluation loss does not show how the model answers other rows"
    ]


def _hold_out(loaded: LoadedRows, section: DataSection, seed: int) -> tuple[LoadedRows, LoadedRows, list[str]]:
    """Divide the rows into training and evaluation.

    A row that is repeated by its weight goes to one side with all its copies. Other rows that equal a held-out one are
    left out, unless no row would be left: the evaluation loss would be that of rows that were trained on.

    Returns:
        Training rows, evaluation rows, and the places of those left out (of the first ones, the others are "").
    """
    numbers, first_of = loaded.rows.numbers, loaded.rows.without_copies()
    if len(first_of) < 2:
        raise DataError(
            "a single row cannot be divided into training and evaluation",
            code="too-few-rows",
            remedy="give more rows, or remove data.eval_fraction and data.eval_rows",
        )
    count = section.eval_rows or min(max(round(section.eval_fraction * len(first_of)), 1), len(first_of) - 1)
    if count >= len(first_of):
        raise DataError(
            f"data.eval_rows ({count:,}) leaves no row to train on out of {len(first_of):,}",
            code="too-few-rows",
            remedy="hold out fewer rows",
        )
    chosen = sorted(random.Random(f"{seed}/eval").sample(range(len(first_of)), count))
    in_eval = first_of[chosen]
    digests = loaded.rows.digests()
    is_held = np.zeros(len(digests), bool)
    is_held[numbers[in_eval]] = True
    equals_held = np.isin(digests, digests[is_held])
    if equals_held[numbers].all():
        equals_held = is_held
    kept = np.flatnonzero(~equals_held[numbers]).astype(np.int32)
    left_out = first_of[(equals_held & ~is_held)[numbers[first_of]]].tolist()
    places = [loaded.places[index] if at < EXAMPLES_KEPT else "" for at, index in enumerate(left_out)]
    sizes_kept, sizes_held = (_sizes(loaded, each) for each in (kept, in_eval))
    held_reports = [
        DatasetReport(path=each.path, format=each.format, rows_read=size, rows_kept=size, rows_used=size)
        for each, size in zip(loaded.datasets, sizes_held, strict=True)
    ]
    train = LoadedRows(loaded.rows.taken(kept), loaded.datasets, sizes_kept)
    return train, LoadedRows(loaded.rows.taken(in_eval), held_reports, sizes_held), places


def _sizes(loaded: LoadedRows, indices: Numbers) -> list[int]:
    """Of the rows at `indices`, (rows,) integers, how many are of each data set."""
    of_row = np.searchsorted(np.cumsum(loaded.sizes), indices, side="right")
    counts: list[int] = np.bincount(of_row, minlength=len(loaded.sizes)).tolist()
    return counts


def _write(
    directory: Path,
    what: str,
    loaded: LoadedRows,
    report: DataReport,
    *,
    inputs: TokenInputs,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    progress: Progress | None,
) -> None:
    directory.mkdir()
    section = inputs.section
    options: dict[str, Any] = {
        "max_length": section.max_length,
        "on_long_row": section.on_long_row,
        "sizes": loaded.sizes,
        "processes": section.processes,
        "progress": partial(progress, f"tokenising {what} data") if progress else None,
    }
    if template is None:
        outcome = tokenize_texts(loaded.rows, tokenizer, directory, **options)
    else:
        try:
            outcome = tokenize(groups_of(loaded.rows, inputs.task), template, directory, **options)
        except TemplateTooCostly as error:
            if error.row is not None:
                error.where = loaded.places[error.row]
            raise
    _refuse(outcome, loaded.places, section)
    for number, reason, detail in outcome.dropped:
        dropped = report.dropped.get(reason)
        # A place is costly to find, and only examples show it.
        shown = dropped is None or len(dropped.examples) < EXAMPLES_KEPT
        report.drop(reason, loaded.places[number] if shown else "", detail)
    report.rows_kept = outcome.rows
    report.add_counts(outcome)
    for each, counts in zip(report.datasets, outcome.by_dataset, strict=True):
        each.add_counts(counts)
        each.rows_trained = counts.rows
    report.unlabelled_rows = sum(
        reason in (NO_ANSWER_LEFT, NO_ANSWER_SPAN, NOTHING_TO_LEARN) for _, reason, _ in outcome.dropped
    )
    _require_rows(outcome, inputs, "row" if what == "training" else f"row of the {what} data")
    report.length_histogram = _histogram(TokenDataset.open(directory))


def _refuse(outcome: TokenizeResult, places: RowPlaces, section: DataSection) -> None:
    """Raise if rows were dropped for a reason that the recipe does not permit."""
    may_skip = section.on_bad_row == "skip" and outcome.rows
    refused, indivisible, too_long = (_dropped(outcome, reason) for reason in (REFUSED, INDIVISIBLE, TOO_LONG))
    if refused and not may_skip:
        raise DataError(
            _listed(f"the chat template refuses {count_of(len(refused), 'row')}", refused, places),
            code="template-refuses-row",
            remedy="correct these rows, choose another data.template, or leave them out with data.on_bad_row: skip",
        )
    if indivisible and not may_skip:
        rows = count_of(len(indivisible), "row")
        raise DataError(
            _listed(f"one word of millions of characters fills {rows}", indivisible, places),
            code="text-indivisible",
            remedy="divide these texts, or leave them out with data.on_bad_row: skip",
        )
    if too_long and section.on_long_row == "fail":
        what = f"{count_of(len(too_long), 'row')} longer than data.max_length ({section.max_length:,})"
        remedy = "data.on_long_row to truncate or drop"
        raise DataError(
            _listed(what, too_long, places),
            code="row-too-long",
            remedy=f"set {remedy}"
            if outcome.uncounted_rows
            else f"set data.max_length: {outcome.longest}, or {remedy}",
        )


def _dropped(outcome: TokenizeResult, bad: str) -> list[tuple[int, str]]:
    return [(number, detail) for number, reason, detail in outcome.dropped if reason == bad]


class NoRowLeft(DataError):
    """No row has a token to train on."""

    report: DataReport
    """The report on the training rows."""


def _require_rows(outcome: TokenizeResult, inputs: TokenInputs, row: str) -> None:
    if outcome.rows:
        return
    reasons = {reason for _, reason, _ in outcome.dropped}
    if reasons & {NO_ANSWER_LEFT, TOO_LONG}:
        least = "more than " if outcome.uncounted_rows else ""
        raise NoRowLeft(
            f"data.max_length ({inputs.section.max_length:,}) leaves no {row} with an answer: "
            f"the shortest has {count_of(outcome.shortest or 0, 'token')}, the longest {least}{outcome.longest:,}",
            code="no-answer-left",
            remedy=_remedy_for_length(f"{least}{outcome.longest}", outcome, inputs),
        )
    if NO_ANSWER_SPAN in reasons:
        raise NoRowLeft(
            f"the chat template writes no answer span: no {row} has a token to train on",
            code="template-without-answer",
            remedy="choose another data.template, or correct it: it must write what assistant messages contain",
        )
    raise NoRowLeft(
        f"no {row} has a token to train on",
        code="no-answer-left",
        remedy="check `train: false` and the roles in the data",
    )


def _remedy_for_length(length: str, outcome: TokenizeResult, inputs: TokenInputs) -> str:
    positions = _positions_of(inputs.model_directory)
    if positions is None or outcome.longest <= positions:
        return f"set data.max_length to {length}, or as high as memory allows"
    fits = inputs.section.on_long_row == "truncate" or (outcome.shortest is not None and outcome.shortest <= positions)
    if inputs.section.max_length < positions and fits:
        return f"set data.max_length to {positions}, the positions that the model was made for, or shorten the rows"
    return f"choose a model for longer texts, or shorten the rows: this one was made for {positions:,} positions"


def _positions_of(model_directory: Path) -> int | None:
    """The longest row that the model was made for; None if config.json does not contain it."""
    path = model_directory / "config.json"
    config = read_json_object(path) if path.is_file() else {}
    most = value_at(config, "text_config", "max_position_embeddings") or value_at(config, "max_position_embeddings")
    return most if isinstance(most, int) else None


def _listed(what: str, rows: list[tuple[int, str]], places: RowPlaces) -> str:
    shown = [f"  {places[number]}: {detail}" for number, detail in rows[:EXAMPLES_KEPT]]
    more = [f"  and {len(rows) - EXAMPLES_KEPT:,} more"] if len(rows) > EXAMPLES_KEPT else []
    return "\n".join([what, *shown, *more])


def _histogram(dataset: TokenDataset) -> list[tuple[int, int]]:
    rows = dataset.rows_by_length()
    width = -(-max(rows) // _HISTOGRAM_BINS)
    counts = [0] * (-(-max(rows) // width))
    for length, count in rows.items():
        counts[(length - 1) // width] += count
    return [((number + 1) * width, count) for number, count in enumerate(counts)]
