"""`ascendtune merge`"""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ascendtune.cli.messages import suggest_next, warn
from ascendtune.cli.options import AsJson, Quiet
from ascendtune.cli.run_names import complete_weights, refuse_recipe, weights_named
from ascendtune.cli.terminal import print_json
from ascendtune.core.errors import InputError
from ascendtune.core.units import count_of, format_bytes, format_duration

if TYPE_CHECKING:
    from ascendtune.merge.merge import MergeResult


def merge(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_ADAPTER",
            help="A run, a checkpoint (run@120, run@best), a PEFT adapter or its hub id.",
            show_default=False,
            autocompletion=complete_weights,
        ),
    ],
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory of the merged model; must not exist.  [required]"),
    ] = None,
    onto: Annotated[
        str | None,
        typer.Option(metavar="BASE", help="Another base model than the adapter's own: a directory or a hub id."),
    ] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH=WEIGHT", help="A further adapter and its weight; repeatable."),
    ] = None,
    no_verify: Annotated[
        bool,
        typer.Option("--no-verify", help="Skip the comparison with base and adapter."),
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Merge an adapter (LoRA, OFT) into its base model.

    \b
    ascendtune merge runs/alpaca-qwen --to merged
    ascendtune merge runs/a=0.7 --adapter runs/b=0.3 --to merged

    Dtypes and file names are those of the base, tokenizer and chat template those of training. Tensors are merged one
    by one, and compared layer by layer, so a model of any size needs little memory. DIR is created last.
    """
    from ascendtune.core import log
    from ascendtune.core.progress_bar import ProgressBar
    from ascendtune.merge.merge import merge as merge_adapters

    refuse_recipe(source)
    if to is None:
        name = Path(source.partition("=")[0].partition("@")[0]).name
        remedy = f"ascendtune merge {shlex.quote(source)} --to {shlex.quote(f'{name}-merged')}"
        raise InputError("--to is missing", code="option-missing", remedy=remedy)
    log.set_up(quiet=quiet)
    with ProgressBar(sys.stderr) as progress:
        sources = [_named(each) for each in (source, *(adapter or []))]
        merged = merge_adapters(sources, to, onto=onto, verify=not no_verify, progress=progress.show)
    for note in merged.notes:
        warn(note)
    print_json(_as_json(merged)) if as_json else print(_as_text(merged))
    suggest_next(f"ascendtune chat {shlex.quote(str(merged.directory))}")


def _named(source: str) -> str:
    """A run by its name, followed by the weight."""
    name, equals, weight = source.partition("=")
    return f"{weights_named(name)}{equals}{weight}"


def _as_text(merged: MergeResult) -> str:
    lines = [
        f"{merged.directory}: {count_of(merged.files, 'file')}, {format_bytes(merged.size_bytes)}, "
        f"{merged.changed:,} of {count_of(merged.tensors, 'tensor')} changed; base {merged.base}"
    ]
    if (verified := merged.verification) is not None:
        lines.append(
            f"verified on {verified.tokens} tokens in {format_duration(verified.seconds)}: logits differ from base and "
            f"adapter by {verified.error:.1e} of their size before rounding and {verified.difference:.1e} after it, "
            f"from the base alone by {verified.effect:.1e}"
        )
    return "\n".join(lines)


def _as_json(merged: MergeResult) -> dict[str, Any]:
    verified = merged.verification
    return {
        "directory": str(merged.directory),
        "base": str(merged.base),
        "adapters": [{"directory": str(path), "weight": weight} for path, weight in merged.adapters],
        "files": merged.files,
        "size_bytes": merged.size_bytes,
        "tensors": merged.tensors,
        "changed": merged.changed,
        "notes": merged.notes,
        "verification": asdict(verified) if verified else None,
    }
