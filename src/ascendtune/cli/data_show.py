"""`ascendtune data show`"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ascendtune.cli.messages import warn
from ascendtune.cli.options import AsJson, Overrides, RecipeFile
from ascendtune.cli.side_by_side import beside, fits_beside
from ascendtune.cli.terminal import PLAIN_COLUMNS, paint, print_json, width
from ascendtune.core.errors import AscendtuneError, InputError
from ascendtune.core.units import count_of

if TYPE_CHECKING:
    from ascendtune.core.errors import InputError
    from ascendtune.data.inspect import InspectedRow, Inspection, Segment, TokenSequence
    from ascendtune.data.inspect_packed import InspectedPack
    from ascendtune.data.prepare import PreparedData
    from ascendtune.recipe.recipe import Recipe

_LONGEST_VALUE = 1000
_MOST_SHORTENED = 500
"""Characters that are shown of what data.max_length cuts off, and of the second row of a text that is split."""
_ROWS_TO_FIND_A_SAMPLE = 20
_SAMPLE_CHARACTERS = 160


def show(
    recipe: RecipeFile,
    overrides: Overrides = None,
    count: Annotated[
        int | None, typer.Option("-n", min=1, max=1000, help="Number of rows (default: 3; with --stats none).")
    ] = None,
    row: Annotated[
        int | None, typer.Option(metavar="K", min=1, help="The first row to show, counted from 1 (default: 1).")
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="List every token with its id.")] = False,
    stats: Annotated[
        bool, typer.Option("--stats", help="Read all rows: lengths, cut and dropped rows, duplicates.")
    ] = False,
    packed: Annotated[bool, typer.Option("--packed", help="Show rows by packed sequence; K counts sequences.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show rows as they are trained on: as read, as rendered by the chat template, and their tokens with labels.

    \b
    ascendtune data show recipe.yaml
    ascendtune data show recipe.yaml --row 17 -n 1 --tokens
    ascendtune data show recipe.yaml --stats data.max_length=1024
    ascendtune data show recipe.yaml --packed

    Text that is trained on is green, or between « and » without colours. Nothing is started.
    """
    from ascendtune.core import log
    from ascendtune.recipe.recipe import Recipe

    log.set_up()
    checked = Recipe.load(recipe, overrides or [])
    inspection = inspection_of(checked)
    rows: list[InspectedRow] | list[InspectedPack] = []
    if not stats or packed or tokens or count or row:
        first, most = row or 1, count or 3
        rows = _packs(checked, inspection, first, most) if packed else inspection.rows(first, most)
        if not rows:
            raise _no_such_number(first, packed, inspection)
    facts = _stats(checked, inspection) if stats else None
    if as_json:
        print_json(_as_json(rows, facts, checked.data.max_length))
    else:
        for line in (*_lines(rows, tokens), *(_stats_lines(facts) if facts else ())):
            print(line)


def sample_lines(recipe: Recipe, path: Path, *, whole: bool) -> list[str]:
    """The first row that is trained on, for the start of a training: one line per answer or text of it.

    Args:
        path: path of the recipe, for the command that shows more.
        whole: whether it is not shortened.
    """
    try:
        row = inspection_of(recipe).first_trained_on(_ROWS_TO_FIND_A_SAMPLE)
    except (AscendtuneError, OSError):
        return []  # A resumed run needs its tokens, not the files that they were made from.
    if row is None:
        return []
    more = f"ascendtune data show {shlex.quote(str(path))}"
    lines = [f"row {row.number} as it is trained on, labels in «»; `{more}` shows more"]
    for sequence in row.sequences:
        text = "".join(map(_labelled, sequence.segments)).replace("\n", "⏎")
        if not whole:
            text = _around_the_labels(text, (width(sys.stderr) or _SAMPLE_CHARACTERS) - 4)
        lines.append(f"  {sequence.name}: {text}" if sequence.name else f"  {text}")
    return lines


def _labelled(segment: Segment) -> str:
    if segment.is_cut:
        return ""
    return f"«{segment.text}»" if segment.is_trained else segment.text


def _around_the_labels(text: str, most: int) -> str:
    """At most `most` characters of `text`, with the beginning of the first labels in the middle."""
    begin = max(0, min(text.find("«") - most // 2, len(text) - most))
    shown = text[begin : begin + most]
    return ("…" if begin else "") + shown[bool(begin) :] + ("…" if begin + most < len(text) else "")


def inspection_of(recipe: Recipe) -> Inspection:
    """The inspection of a recipe's rows, as they are trained on.

    Data sets and models that are hub ids are downloaded; of the model everything but the weights.
    """
    from ascendtune.data.inspect import Inspection
    from ascendtune.data.template import ChatTemplate
    from ascendtune.data.tokenizer import Tokenizer
    from ascendtune.hub.download import fetch_dataset, fetch_model, require_local_paths

    require_local_paths(source for source in recipe.sources if source[0] == recipe.model.path or source[1] == "dataset")
    directory = fetch_model(recipe.model.path, recipe.model.revision, weights_needed=False)
    tokenizer = Tokenizer.load(directory, recipe.model.new_tokens)
    task, section = recipe.method.task, recipe.data
    loss_on = section.loss_on if task == "conversations" else "assistant"
    return Inspection(
        section,
        task,
        tokenizer,
        None if task == "text" else ChatTemplate.load(section.template, tokenizer, loss_on=loss_on),
        lambda spec: fetch_dataset(spec.path, spec.revision, split=spec.split, subset=spec.subset),
    )


def prepared_data(recipe: Recipe) -> PreparedData:
    """The rows of a recipe as tokens, stored in the cache where `ascendtune train` finds them."""
    from ascendtune.core.progress_bar import ProgressBar
    from ascendtune.hub.download import fetch_model
    from ascendtune.train.prepare import prepare_data

    model = fetch_model(recipe.model.path, recipe.model.revision, weights_needed=False).resolve()
    with ProgressBar(sys.stderr) as progress:
        return prepare_data(recipe, model, progress.show)


def _packs(recipe: Recipe, inspection: Inspection, first: int, count: int) -> list[InspectedPack]:
    from ascendtune.core.log import say
    from ascendtune.data.inspect_packed import packs
    from ascendtune.data.store import TokenDataset

    packing = recipe.data.packing
    if not recipe.may_pack:
        why = "data.packing is false" if packing is False else f"rows of stage {recipe.method.stage} do not share one"
        raise InputError(
            f"no sequence has several rows: {why}", code="not-packed", remedy="leave out --packed to see the rows"
        )
    if packing == "auto":
        say("data.packing: auto: if the model does not keep packed rows apart, training pads them instead")
    dataset = TokenDataset.open(prepared_data(recipe).train)
    return packs(
        dataset, inspection.tokenizer, capacity=recipe.data.max_length, seed=recipe.seed, first=first, count=count
    )


def _no_such_number(number: int, packed: bool, inspection: Inspection) -> InputError:
    if packed:
        return InputError(f"there is no packed sequence {number:,}", code="row-missing", remedy="give a smaller --row")
    rows = inspection.number_of_rows()
    return InputError(
        f"there is no row {number:,}: the data has {count_of(rows, 'row')}",
        code="row-missing",
        remedy=f"give --row from 1 to {rows}",
    )


def _stats(recipe: Recipe, inspection: Inspection) -> dict[str, Any]:
    from ascendtune.data.build import NoRowLeft

    try:
        report = prepared_data(recipe).report
    except NoRowLeft as error:
        warn(f"{error.what}; {error.remedy}")
        report = error.report
    rows, duplicates = inspection.count_duplicates()
    return {"rows": rows, "duplicates": duplicates, "report": report.to_json()}


def _lines(rows: list[InspectedRow] | list[InspectedPack], with_tokens: bool) -> Iterator[str]:
    for each in rows:
        yield each.title
        for name, value in each.values.items():
            yield f"  {name}: {_short(value)}"
        if each.problem:
            yield f"  not trained on: {each.problem}"
        columns = width(sys.stdout)
        if columns is not None and fits_beside(columns) and _is_pair(each.sequences) and not with_tokens:
            left, right = ((f"{one.name}: {_summary(one)}", _shown(one)) for one in each.sequences)
            yield from beside(left, right, columns, _marked, _visible)
        else:
            for sequence in each.sequences:
                yield from _sequence_lines(sequence, with_tokens)
        yield ""


def _sequence_lines(sequence: TokenSequence, with_tokens: bool) -> Iterator[str]:
    yield f"  {sequence.name or 'as the model reads it'}: {_summary(sequence)}"
    between = "\n✂" if sequence.is_split else ""
    yield from ("    " + line for line in between.join(map(_marked, _shown(sequence))).split("\n"))
    if with_tokens:
        yield from _token_lines(sequence)


def _shown(sequence: TokenSequence) -> list[Segment]:
    """The segments to print: a text that is split up to its second row, and the beginning of what is not all shown."""
    segments = sequence.segments[:2] if sequence.is_split else sequence.segments
    return [
        replace(each, text=each.text[:_MOST_SHORTENED] + "…")
        if (each.is_cut or (sequence.is_split and at == 1)) and len(each.text) > _MOST_SHORTENED
        else each
        for at, each in enumerate(segments)
    ]


def _summary(sequence: TokenSequence) -> str:
    length, kept = len(sequence.token_ids), sequence.kept
    more = " or more" if sequence.is_beginning else ""
    if sequence.is_split:
        rows = sum(not each.is_cut for each in sequence.segments)
        return f"{length:,} tokens{more}, all trained on, as {rows:,} rows of up to {sequence.segments[0].tokens:,}"
    trained = sum(sequence.trained[:kept])
    cut = f"; cut at max_length {kept:,}, {count_of(length - kept, 'token')} lost" if kept < length else ""
    return f"{count_of(length, 'token')}{more}, {trained:,} trained on{cut}"


def _is_pair(sequences: list[TokenSequence]) -> bool:
    return [each.name for each in sequences] == ["chosen", "rejected"] and all(each.segments for each in sequences)


def _marked(segment: Segment) -> str:
    colour = "dim" if segment.is_cut else "green" if segment.is_trained else None
    if colour is None or not _has_colours():
        return _visible(segment)
    # A colour ends with the line, so that a pager shows each line alike.
    return "\n".join(paint(part, colour) for part in segment.text.split("\n"))


def _visible(segment: Segment) -> str:
    """The segment as it appears on the terminal, without the codes of its colour."""
    if _has_colours():
        return segment.text
    if segment.is_cut:
        return f"✂{segment.text}"
    return "\n".join(f"«{part}»" for part in segment.text.split("\n")) if segment.is_trained else segment.text


def _has_colours() -> bool:
    return paint("x", "green") != "x"


def _token_lines(sequence: TokenSequence) -> Iterator[str]:
    kept = sequence.kept
    for at, (number, text, trained) in enumerate(
        zip(sequence.token_ids, sequence.token_texts, sequence.trained, strict=True)
    ):
        state = "cut" if at >= kept else "trained" if trained else "-"
        yield f"    {at:>6}  {number:>7}  {state:<7}  {json.dumps(text, ensure_ascii=False)}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = text.replace("\n", "⏎")
    limit = max(40, (width(sys.stdout) or _LONGEST_VALUE) - 20)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _stats_lines(facts: dict[str, Any]) -> Iterator[str]:
    from ascendtune.data.report import DataReport, lines

    yield from lines(DataReport.from_json(facts["report"]), width(sys.stdout) or PLAIN_COLUMNS)
    histogram = facts["report"]["length_histogram"]
    highest = max((count for _, count in histogram), default=0)
    for bound, count in histogram:
        yield f"  up to {bound:>8,} tokens  {count:>9,}  {'█' * round(30 * count / highest)}".rstrip()
    yield f"duplicates: {facts['duplicates']:,} of {count_of(facts['rows'], 'row')} equal an earlier one"


def _as_json(rows: list[InspectedRow] | list[InspectedPack], facts: dict[str, Any] | None, most: int) -> dict[str, Any]:
    return {"max_length": most, "rows": [asdict(each) for each in rows], "stats": facts}
