"""Converts a recipe and the options of `ascendtune submit` to the engine's file and the paths for a container."""

from __future__ import annotations

import math
import os
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ascendtune.core.directories import cache_directory
from ascendtune.core.errors import InputError, RecipeError
from ascendtune.core.files import expanded
from ascendtune.core.log import warn
from ascendtune.hub.download import find_local, is_of_modelscope
from ascendtune.job.backend import compose, docker, kubernetes, slurm
from ascendtune.job.backend.engine import ENGINES
from ascendtune.job.backend.submission import ContainerMount, Submission, job_name
from ascendtune.machine.vendor.find import ACCELERATORS, CPU, vendor_of
from ascendtune.machine.visible import Kind, attached

if TYPE_CHECKING:
    from ascendtune.recipe.recipe import Recipe


_USUAL_COUNT = 8
"""Assumed number of devices of a server if this machine has none."""

_PASSED_ON = (
    *("HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"),
    *("USE_MODELSCOPE_HUB", "MODELSCOPE_API_TOKEN", "MODELSCOPE_ENDPOINT", "MODELSCOPE_DOMAIN"),
    *("WANDB_API_KEY", "SWANLAB_API_KEY"),
)
"""Variables that training reads; passed on if set."""

_FEWEST_HOURS = 0.1

_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_KUBERNETES_NAMES = {"namespace": _LABEL, "secret": rf"{_LABEL}(\.{_LABEL})*"}
"""RFC 1123: valid names of a namespace, and of a secret or a claim."""

_FORMS = {
    "--image": (r"[A-Za-z0-9][A-Za-z0-9._:/@-]*", "the name of an image", "write it as registry/name:tag"),
    "--partition": (r"\w[\w.,-]*", "a valid name of a partition", "`sinfo --summarize` lists the partitions"),
    "--sbatch": (
        r"--?[a-zA-Z][^\n\r]*",
        "an option of sbatch",
        "repeat --sbatch for each option, such as --sbatch=--qos=high",
    ),
}
"""Option -> pattern of valid values, their description, and the remedy for others."""

_CONTAINERS = ("docker", "compose", "kubernetes")
_ONLY_FOR = {
    "image": ("--image", _CONTAINERS),
    "env": ("--env", _CONTAINERS),
    "hours": ("--hours", ("slurm", "kubernetes")),
    "partition": ("--partition", ("slurm",)),
    "sbatch": ("--sbatch", ("slurm",)),
    "kind": ("--kind", ("kubernetes",)),
    "namespace": ("--namespace", ("kubernetes",)),
    "volumes": ("--volume", ("kubernetes",)),
    "secret": ("--secret", ("kubernetes",)),
}


@dataclass(frozen=True)
class SubmitOptions:
    """The options as given."""

    to: str
    devices: int | None = None
    nodes: int = 1
    accelerator: Kind | None = None
    image: str | None = None
    env: tuple[str, ...] = ()
    hours: float | None = None
    partition: str | None = None
    sbatch: tuple[str, ...] = ()
    kind: str | None = None
    namespace: str | None = None
    volumes: tuple[str, ...] = ()
    secret: str | None = None


def submission_for(recipe_file: Path, overrides: Sequence[str], options: SubmitOptions) -> tuple[Submission, str]:
    """The submission for the engine, and the text of its file.

    Raises:
        InputError: conflicting or invalid options, an invalid recipe, or a missing file.
    """
    from ascendtune.recipe.recipe import Recipe

    _check(options)
    recipe = Recipe.load(recipe_file, overrides)
    if recipe.notes and options.to in _CONTAINERS:
        raise RecipeError(
            "a LLaMA-Factory recipe needs dataset_info.json, which the container does not have",
            code="recipe-needs-conversion",
            remedy=f"`ascendtune recipe convert {shlex.quote(str(recipe_file))} -o recipe.yaml`, then submit that",
            where=recipe_file,
        )
    accelerator = options.accelerator or _local_kind()
    ids = _ids(options, accelerator)
    command = (sys.executable, "-P", "-m", "ascendtune") if options.to == "slurm" else ("ascendtune",)
    submission = Submission(
        name=job_name(recipe.name),
        argv=(*command, "train", str(recipe_file.absolute()), *overrides, "--devices", str(len(ids))),
        directory=Path.cwd(),
        kind=accelerator,
        device_ids=ids,
        nodes=options.nodes,
        hours=options.hours,
    )
    if options.to == "slurm":
        mounts_on_this_host(recipe_file, recipe)  # only for its errors: Slurm's nodes have the same files
        submission = replace(submission, partition=options.partition, sbatch=options.sbatch)
        return submission, slurm.write(submission)
    submission = replace(submission, image=_image(options, accelerator), inherited=_inherited(options))
    if options.to == "kubernetes":
        submission = replace(
            submission,
            mounts=mounts_elsewhere(recipe),
            variables=_home(recipe),
            namespace=options.namespace,
            secret=options.secret or "ascendtune",
            volumes=dict(map(_volume, options.volumes)),
            recipe=recipe_file.absolute(),
        )
        kind = options.kind or ("volcano" if submission.needs.labels else "job")
        return submission, kubernetes.write(submission, kind, recipe_file.read_text(encoding="utf-8"))
    mounts, variables = mounts_on_this_host(recipe_file, recipe)
    submission = replace(submission, mounts=mounts, variables={**variables, **_home(recipe)})
    return submission, (docker if options.to == "docker" else compose).write(submission)


def advice(submission: Submission, options: SubmitOptions) -> list[str]:
    """Warnings for the user that a file cannot contain."""
    sentences = []
    if options.to == "kubernetes" and (nodes_own := kubernetes.from_nodes(submission)):
        paths = ", ".join(str(mount.path) for mount in nodes_own)
        shared = ", on storage shared by all of them" if submission.nodes > 1 else ""
        sentences.append(f"not in a --volume, so mounted from the nodes' own file systems{shared}: {paths}")
    if options.to == "slurm" and not submission.needs.slurm_limits_devices:
        sentences.append("Slurm does not set the NPUs of a job: whole nodes are requested (--exclusive)")
    if ENGINES[options.to].is_this_machine and submission.vendor.is_accelerator:
        available = len(attached(submission.vendor))
        if available < submission.devices:
            sentences.append(f"this machine has {available} {submission.vendor.noun}; the file is for one with more")
    if ENGINES[options.to].is_this_machine and submission.nodes > 1:
        sentences.append("start it on every node, with NODE_RANK and MASTER_ADDR in the environment")
    return sentences


def _check(options: SubmitOptions) -> None:
    given = {field.name for field in fields(SubmitOptions) if getattr(options, field.name) not in (None, ())}
    for name, (option, engines) in _ONLY_FOR.items():
        if name in given and options.to not in engines:
            raise InputError(
                f"{option} has no effect with --to {options.to}",
                code="option-not-applicable",
                remedy=f"leave it out; it is for --to {', '.join(engines)}",
            )
    for name, pattern in _KUBERNETES_NAMES.items():
        _require_name(f"--{name}", getattr(options, name), pattern)
    if options.hours is not None and not _FEWEST_HOURS <= options.hours < math.inf:
        raise InputError(
            f"--hours {options.hours:g} is not a duration of at least {_FEWEST_HOURS:g} hours",
            code="invalid-option-value",
            remedy="allow time to start, train and write a checkpoint; without --hours the engine's limit applies",
        )
    further = [("--sbatch", each) for each in options.sbatch]
    for option, text in (("--image", options.image), ("--partition", options.partition), *further):
        pattern, what, remedy = _FORMS[option]
        if text is not None and not re.fullmatch(pattern, text):
            raise InputError(f"{option} {text!r} is not {what}", code="invalid-option-value", remedy=remedy)
    for name in options.env:
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise InputError(
                "--env takes the name of a variable, not its value: secrets must not be written to files",
                code="secret-in-file",
                remedy=f"export the variable, and use --env {name.partition('=')[0] or 'NAME'}",
            )


def _require_name(option: str, name: str | None, pattern: str) -> None:
    if name is not None and not re.fullmatch(pattern, name):
        raise InputError(
            f"{option}: {name!r} is not a valid Kubernetes name (lower-case letters, digits and '-')",
            code="invalid-kubernetes-name",
            remedy="use lower-case letters, digits and '-', such as my-team",
        )


def _local_kind() -> Kind:
    return next((vendor.kind for vendor in ACCELERATORS if attached(vendor)), CPU.kind)


def _ids(options: SubmitOptions, kind: Kind) -> tuple[str, ...]:
    vendor = vendor_of(kind)
    available, most = attached(vendor), vendor.container.most_in_a_node
    count = options.devices or len(available) or (_USUAL_COUNT if vendor.is_accelerator else 1)
    if most and count > most:
        raise InputError(
            f"--devices {count}: no server has more than {most} {vendor.noun}",
            code="too-many-devices",
            remedy="--devices counts those of one node; use --nodes for more",
        )
    return available[:count] if len(available) >= count else tuple(map(str, range(count)))


def _image(options: SubmitOptions, kind: Kind) -> str:
    if image := options.image or vendor_of(kind).container.image:
        return image
    raise InputError(
        f"--to {options.to} needs an image",
        code="option-missing",
        remedy="set --image to an image that contains ascendtune[train] and bash",
    )


def _inherited(options: SubmitOptions) -> tuple[str, ...]:
    usual = [name for name in _PASSED_ON if os.environ.get(name)]
    return tuple(dict.fromkeys([*usual, *options.env]))


def _volume(text: str) -> tuple[Path, str]:
    claim, colon, path = text.partition(":")
    if not colon or not claim or not path.startswith("/"):
        raise InputError(
            f"--volume {text} is not CLAIM:PATH",
            code="invalid-option-value",
            remedy="write it as --volume my-claim:/data",
        )
    _require_name("--volume", claim, _KUBERNETES_NAMES["secret"])
    return Path(path), claim


def run_place(recipe: Recipe) -> Path:
    """The parent of the run directory: if the name exists, a numbered one is created beside it."""
    return recipe.run_directory().absolute().parent


def mounts_on_this_host(recipe_file: Path, recipe: Recipe) -> tuple[tuple[ContainerMount, ...], dict[str, str]]:
    """The mounts, and the variables that name the mounted caches.

    Raises:
        RecipeError, DataError: a path in the recipe does not exist.
    """
    read = {recipe_file.absolute()}
    written = {run_place(recipe), cache_directory()}
    variables = {"XDG_CACHE_HOME": str(cache_directory().parent)}
    for text, kind in recipe.sources:
        if local := find_local(text, kind):
            read |= _with_targets(local.absolute())
        else:
            caches = _hub_caches(text)
            written |= set(map(Path, caches.values()))
            variables |= caches
    for path in _files(recipe):
        if not path.exists():
            raise RecipeError(
                "a file in the recipe does not exist", code="path-missing", remedy="check the path", where=path
            )
        read |= _with_targets(path)
    return _distinct(read, written), variables


def _hub_caches(hub_id: str) -> dict[str, str]:
    """Variable -> directory: where this user's downloads from the hub of `hub_id` are."""
    if is_of_modelscope(hub_id):
        caches = {"MODELSCOPE_CACHE": os.environ.get("MODELSCOPE_CACHE") or "~/.cache/modelscope"}
    else:
        caches = {"HF_HOME": os.environ.get("HF_HOME") or "~/.cache/huggingface"}
        if given := os.environ.get("HF_HUB_CACHE"):
            caches["HF_HUB_CACHE"] = given
    return {name: str(expanded(place).absolute()) for name, place in caches.items()}


def mounts_elsewhere(recipe: Recipe) -> tuple[ContainerMount, ...]:
    """The mounts on other machines; the recipe's paths need not exist on this one."""
    read = set()
    for text, kind in recipe.sources:
        try:
            local = find_local(text, kind)
        except InputError:
            if not Path(text).is_absolute():
                raise
            warn(f"{text} does not exist on this machine; it must exist on the nodes")
            local = Path(text)
        if local is not None:
            read.add(local.absolute())
    return _distinct({*read, *_files(recipe)}, {run_place(recipe)})


def _home(recipe: Recipe) -> dict[str, str]:
    """The home directory, if a path of the recipe begins with it: an image has another one."""
    paths = (recipe.run_dir, *_names_of_files(recipe), *(text for text, _ in recipe.sources))
    return {"HOME": str(Path.home())} if any(text.startswith("~") for text in paths) else {}


def _names_of_files(recipe: Recipe) -> set[str]:
    given = {recipe.data.template, recipe.parallel.deepspeed.config or "", recipe.checkpoint.resume}
    return given - {""}


def _files(recipe: Recipe) -> set[Path]:
    """Files in keys that take a name or a path."""
    paths = ((text, expanded(text)) for text in _names_of_files(recipe))
    return {path.absolute() for text, path in paths if "/" in text or path.is_file()}


def _with_targets(path: Path) -> set[Path]:
    """`path`, and the directories that symbolic links in it point to: a snapshot in a hub's cache consists of links."""
    if not path.is_dir():
        return {path}
    targets = {entry.resolve() for entry in path.iterdir() if entry.is_symlink()}
    return {path, *(target.parent for target in targets if not target.is_relative_to(path))}


def _distinct(read: Iterable[Path], written: Iterable[Path]) -> tuple[ContainerMount, ...]:
    """Sorted, without paths inside other mounted directories."""
    is_writable = dict.fromkeys(read, False) | dict.fromkeys(written, True)
    return tuple(
        ContainerMount(path, writable)
        for path, writable in sorted(is_writable.items())
        if not any(is_writable.get(above, False) or (above in is_writable and not writable) for above in path.parents)
    )
