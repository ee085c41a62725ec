"""`ascendtune submit`: train a recipe with Docker, Compose, Slurm or Kubernetes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from ascendtune.cli.messages import confirm, warn
from ascendtune.cli.options import Overrides, Yes
from ascendtune.core.errors import InputError, translated_disk_errors


def submit(
    recipe: Annotated[Path, typer.Argument(help="The recipe.", show_default=False)],
    to: Annotated[Literal["docker", "compose", "slurm", "kubernetes"], typer.Option(help="The engine.")],
    overrides: Overrides = None,
    devices: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Devices per node (default: those of this machine, else 8; CPU 1)."),
    ] = None,
    nodes: Annotated[int, typer.Option(metavar="N", min=1, help="Number of nodes.")] = 1,
    accelerator: Annotated[
        Literal["npu", "cuda", "cpu"] | None, typer.Option(help="Kind of devices (default: as on this machine).")
    ] = None,
    image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="Containers: the image (default for NPU: ascendtune:ascend).")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Containers: pass this variable on, by name; repeatable."),
    ] = None,
    hours: Annotated[float | None, typer.Option(metavar="N", help="Slurm, Kubernetes: the time limit.")] = None,
    partition: Annotated[str | None, typer.Option(metavar="NAME", help="Slurm: the partition.")] = None,
    sbatch: Annotated[
        list[str] | None, typer.Option(metavar="OPTION", help="Slurm: a further #SBATCH option; repeatable.")
    ] = None,
    kind: Annotated[
        Literal["job", "volcano", "pytorchjob", "trainjob"] | None,
        typer.Option(help="Kubernetes: the kind of job (default: volcano for NPU, else job)."),
    ] = None,
    namespace: Annotated[str | None, typer.Option(metavar="NAME", help="Kubernetes: the namespace.")] = None,
    volume: Annotated[
        list[str] | None,
        typer.Option(metavar="CLAIM:PATH", help="Kubernetes: a volume claim and its mount path; repeatable."),
    ] = None,
    secret: Annotated[
        str | None, typer.Option(metavar="NAME", help="Kubernetes: the secret with the variables (ascendtune).")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Also submit it.")] = False,
    yes: Yes = False,
) -> None:
    """Write the job file of a recipe for Docker, Compose, Slurm or Kubernetes; with --apply, submit it.

    \b
    ascendtune submit recipe.yaml --to docker --devices 8 --apply
    ascendtune submit recipe.yaml --to slurm --nodes 2 --hours 24 -o train.sbatch
    ascendtune submit recipe.yaml --to kubernetes --nodes 2 --volume data:/data

    The job runs `ascendtune train` with the same recipe, once on each node. Without --output and --apply the file is
    printed. When the engine stops the job, it writes a checkpoint; submitted again, it resumes.
    """
    from ascendtune.cli.submission import SubmitOptions, advice, submission_for
    from ascendtune.core import log
    from ascendtune.job.backend.engine import ENGINES

    log.set_up()
    options = SubmitOptions(
        to=to,
        devices=devices,
        nodes=nodes,
        accelerator=accelerator,
        image=image,
        env=tuple(env or ()),
        hours=hours,
        partition=partition,
        sbatch=tuple(sbatch or ()),
        kind=kind,
        namespace=namespace,
        volumes=tuple(volume or ()),
        secret=secret,
    )
    submission, text = submission_for(recipe, overrides or [], options)
    engine = ENGINES[to]
    if apply:
        engine.require(submission)
    for sentence in advice(submission, options):
        warn(sentence)
    print(f"{submission.name}: {submission.places}", file=sys.stderr)
    print(f"  each node runs: {' '.join(submission.argv)}", file=sys.stderr)
    for mount in submission.mounts:
        print(f"  {'written' if mount.writable else 'read'}: {mount.path}", file=sys.stderr)
    if output is None and not apply:
        print(text, end="")
        return
    file = output or Path(f"{submission.name}.{engine.suffix}")
    _save(file, text)
    print(f"wrote {file}")
    if apply and confirm(f"Submit {submission.name} to {to}?", yes=yes):
        print(engine.hand_over(file))


def _save(file: Path, text: str) -> None:
    """Write `text`; only files written by this command are overwritten."""
    from ascendtune.core.directories import require_own_output
    from ascendtune.core.files import write_atomically

    if file.exists() and not file.is_file():
        what = "--output names a directory" if file.is_dir() else "--output names a device or a pipe"
        raise InputError(what, code="not-a-file", remedy="give the name of a file; without it the text is printed")
    with translated_disk_errors(file, "writing the file"):
        require_own_output(file)
        file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, text)
