"""`ascendtune push`"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ascendtune.cli.options import AsJson, Quiet, Yes
from ascendtune.cli.run_names import complete_weights, run_named, weights_named
from ascendtune.cli.terminal import print_json, table
from ascendtune.core.errors import InputError
from ascendtune.core.units import count_of, format_bytes

if TYPE_CHECKING:
    from ascendtune.core.rundir import RunDir
    from ascendtune.hub.upload import Repository
    from ascendtune.hub.upload_files import UploadFile


def push(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="A run directory or its name, or a checkpoint (run@120, run@best).",
            show_default=False,
            autocompletion=complete_weights,
        ),
    ],
    repository: Annotated[
        str, typer.Argument(metavar="[HUB:]OWNER/NAME", help="Repository; HUB: hf, modelscope.", show_default=False)
    ],
    base: Annotated[
        str | None, typer.Option(metavar="OWNER/NAME", help="Base model on the hub (default: as the recipe names it).")
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Let everybody see the repository.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the files and the model card.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Upload a run's final weights to Hugging Face or ModelScope, with a model card written from the run.

    \b
    ascendtune push runs/alpaca-qwen me/alpaca-qwen --dry-run
    ascendtune push runs/alpaca-qwen me/alpaca-qwen
    ascendtune push llama-lora me/llama-lora --base meta-llama/Llama-3.1-8B --public
    ascendtune push runs/alpaca-qwen@best modelscope:me/alpaca-qwen

    It lists the files and asks. A new repository is private without --public. Files that the hub has are not sent
    again. A README.md of yours in RUN/model is the card. The hub's own log-in is used: HF_TOKEN or `hf auth login`;
    MODELSCOPE_API_TOKEN or `modelscope login`.
    """
    from ascendtune.cli.messages import confirm
    from ascendtune.core import log
    from ascendtune.core.checkpoint_names import split_checkpoint_name
    from ascendtune.core.rundir import RunDir
    from ascendtune.hub import modelscope, upload, upload_modelscope
    from ascendtune.hub.download import split_hub

    log.set_up(quiet=quiet)
    name, which = split_checkpoint_name(str(run))
    directory = RunDir.open(run_named(name))
    default = "modelscope" if modelscope.is_wanted(os.environ) else "hf"
    hub, repository = split_hub(repository)[0] or default, _hub_id(repository)
    _require_owner(repository)
    client = upload_modelscope if hub == "modelscope" else upload
    files, left_out = _files(directory, which, f"{hub}:{repository}", _hub_id(base) if base else None)
    target = client.new_repository(repository) if dry_run else client.find_repository(repository)
    _require_visibility(target, public=public)
    out = sys.stderr if as_json else sys.stdout
    print("\n".join(_listing(files, left_out, target, public=public)), file=out)
    if dry_run and not as_json:
        print(f"\nREADME.md:\n\n{_card_text(files)}")
    commit = None
    if not dry_run:
        if not confirm(f"upload {count_of(len(files), 'file')} to {target.url}?", yes=yes):
            print("nothing was uploaded", file=out)
            return
        message = f"Upload {directory.path.resolve().name} with ascendtune"
        commit = client.upload(target, files, public=public, message=message)
    if as_json:
        print_json({
            "run": str(directory), "repository": target.url, "private": not public if target.is_private is None
            else target.is_private, "files": [{"name": each.name, "bytes": each.size_bytes} for each in files],
            "left_out": left_out, "readme": _card_text(files), "commit": commit,
        })  # fmt: skip
    elif not dry_run:
        print(f"uploaded: {target.url}" if commit else f"nothing new: {target.url} has these files")


def _files(run: RunDir, which: str | None, repository: str, base: str | None) -> tuple[list[UploadFile], list[str]]:
    """The files to upload, and the names of the others.

    Args:
        which: a checkpoint, as after the `@` of `run@120`; None: the final weights.
    """
    from ascendtune.core.checkpoint_names import named_weights
    from ascendtune.hub.model_directories import weights_of_run
    from ascendtune.hub.upload_files import CARD, PICTURE, UploadFile, files_of_model
    from ascendtune.train.report.model_card import base_on_hub, model_card, revision_of_base, written_by_user

    step = None
    if which is None or (checkpoint := named_weights(run, which)) == run.model:
        weights = weights_of_run(run)
    else:
        weights = Path(weights_named(f"{run.path}@{which}"))
        step = next(each for each in run.checkpoint_steps() if run.checkpoint(each) == checkpoint)
    own = base_on_hub(run)
    # The recipe's revision belongs to its own base.
    revision = revision_of_base(run) if own is not None and base in (None, own) else None
    base = base or own
    files, left_out = files_of_model(weights, base, revision)
    picture = run.path / PICTURE
    if with_picture := picture.is_file() and not picture.is_symlink():
        files.append(UploadFile(PICTURE, picture))
    if written_by_user(weights):
        card = UploadFile(CARD, weights / CARD)
    else:
        text = model_card(run, repository, base, with_picture=with_picture, weights=weights, step=step)
        card = UploadFile(CARD, text.encode())
    return [card, *files], left_out


def _hub_id(name: str) -> str:
    from ascendtune.hub.download import split_hub
    from ascendtune.hub.snapshot.fetch_list import checked_id

    try:
        return checked_id(split_hub(name)[1])
    except ValueError as error:
        raise InputError(f"not a valid hub id: {name}", code="invalid-hub-id", remedy=str(error)) from error


def _require_owner(repository: str) -> None:
    # The hub would create NAME in the user's own account, and then not find a NAME without an owner.
    if "/" not in repository:
        raise InputError(
            f"{repository} has no owner",
            code="invalid-hub-id",
            remedy=f"name the repository OWNER/{repository}: OWNER is your account or an organization",
        )


def _require_visibility(found: Repository, *, public: bool) -> None:
    if found.is_private is False and not public:
        raise InputError(
            "this repository is public: everybody would see the model",
            code="repository-public",
            remedy="add --public if that is what you want, or name another repository",
            where=found.url,
        )
    if found.is_private and public:
        raise InputError(
            "this repository is private, and --public does not change that",
            code="repository-private",
            remedy="leave out --public, or make the repository public in its settings on the hub first",
            where=found.url,
        )


def _listing(files: list[UploadFile], left_out: list[str], found: Repository, *, public: bool) -> list[str]:
    rows = [[each.name, format_bytes(each.size_bytes)] for each in files]
    seen_by = "public" if public else "private"
    state = f"a new {seen_by} repository" if found.is_private is None else f"a {seen_by} repository that exists"
    lines = [table(["file", "size"], rows, right=["size"])]
    if left_out:
        lines.append(f"stays here: {', '.join(left_out)}")
    total = format_bytes(sum(each.size_bytes for each in files))
    return [*lines, f"{count_of(len(files), 'file')}, {total}, to {found.url}, {state}"]


def _card_text(files: list[UploadFile]) -> str:
    source = files[0].source
    return (source if isinstance(source, bytes) else source.read_bytes()).decode(errors="replace")
