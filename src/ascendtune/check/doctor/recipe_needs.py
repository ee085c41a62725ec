"""Checks whether this machine meets the needs of a recipe: `ascendtune doctor recipe.yaml`."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.needs import Needs
from ascendtune.check.doctor.system import System, existing_parent
from ascendtune.check.explain.package.distributions import named_for_pip
from ascendtune.check.finding import Finding, failure, ok, unknown, warning
from ascendtune.core.errors import AscendtuneError, MachineError
from ascendtune.core.files import require_writable
from ascendtune.core.units import format_bytes
from ascendtune.hub.download import find_local, offline_variable, split_hub
from ascendtune.machine.npu.chip_family import family_of

RECIPE = "recipe"


def _look(system: System) -> Iterator[Finding]:
    needs = system.needs
    if needs is None:
        return
    found = [
        *_packages(system, needs),
        *_imports_of_model_code(system, needs),
        *_input(system, needs.model, "model"),
        *(finding for each in dict.fromkeys(needs.data) for finding in _input(system, each, "dataset")),
        *_run_directory(system, needs),
        *_precision(system, needs),
    ]
    yield from found
    if not found:
        yield ok(RECIPE, say("{recipe}: packages, model, data and run directory are there", recipe=needs.recipe))


def _packages(system: System, needs: Needs) -> Iterator[Finding]:
    missing = {name: key for name, key in needs.packages.items() if system.package(name) is None}
    if missing:
        names = ", ".join(f"{name} ({key})" for name, key in missing.items())
        extras = {"deepspeed": "deepspeed", "modelscope-hub": "modelscope", "torch-npu": "npu"}
        extras |= {"wandb": "wandb", "swanlab": "swanlab", "mlflow-skinny": "mlflow", "trackio": "trackio"}
        missing_extras = ",".join(sorted({extras.get(name, "train") for name in missing}))
        yield failure(
            RECIPE,
            say("the recipe needs packages that are not installed: {names}", names=names),
            remedy=f"pip install 'ascendtune[{missing_extras}]'",
        )


def _imports_of_model_code(system: System, needs: Needs) -> Iterator[Finding]:
    """Packages that code in the model's directory imports, which transformers requires before it runs the code."""
    if not needs.runs_model_code:
        return
    try:
        directory = find_local(needs.model, "model")
    except (AscendtuneError, PermissionError):
        return  # told by `_input`
    missing: dict[str, str] = {}
    for file in sorted(directory.glob("*.py")) if directory else ():
        for module in _imported(file):
            if system.package_directory(module) is None:
                missing.setdefault(module, file.name)
    if missing:
        names = ", ".join(f"{module} ({file})" for module, file in missing.items())
        yield failure(
            RECIPE,
            say("the model's code imports packages that are not installed: {names}", names=names),
            remedy=named_for_pip(f"pip install {' '.join(missing)}"),
        )


def _imported(file: Path) -> Iterator[str]:
    """Packages that a file imports; in `try`, and in `if is_…_available()`, they may be missing."""
    try:
        waiting: list[ast.AST] = [ast.parse(file.read_bytes())]
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    while waiting:
        match waiting.pop(0):
            case ast.Import(names):
                yield from (each.name.partition(".")[0] for each in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]
            case ast.Try():
                pass
            case ast.If(test=test) if "available" in ast.unparse(test):
                pass
            case node:
                waiting += ast.iter_child_nodes(node)


def _input(system: System, text: str, kind: str) -> Iterator[Finding]:
    try:
        path = find_local(text, "model" if kind == "model" else "dataset")
    except AscendtuneError as error:
        yield failure(RECIPE, f"{error.what}: {text}", remedy=error.remedy)
        return
    except PermissionError:
        yield _closed(text)
        return
    if path is None:
        yield from _hub_id(system, text, kind)
    elif not os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0)):
        yield _closed(str(path))


def _closed(path: str) -> Finding:
    return failure(
        RECIPE,
        say("{path} may not be read by this user", path=path),
        remedy=say("chmod -R a+rX {path}, as its owner", path=path),
    )


def _hub_id(system: System, text: str, kind: str) -> Iterator[Finding]:
    hub, name = split_hub(text)
    folder = f"{kind}s--{name.replace('/', '--')}"
    if hub != "modelscope" and (variable := offline_variable(system.env)):
        cache = system.hub_cache
        if cache is None or not (cache / folder).is_dir():
            yield failure(
                RECIPE,
                say("{variable} is set, and {name} is not in the download directory", variable=variable, name=text),
                expected=str(cache / folder) if cache else None,
                remedy=say(
                    "download it where the hub can be reached: ascendtune fetch {kind} {name}", kind=kind, name=name
                ),
            )


def _run_directory(system: System, needs: Needs) -> Iterator[Finding]:
    path = system.cwd / needs.run_dir
    existing = existing_parent(path)
    if existing == path and not path.is_dir():
        existing = path.parent  # the name exists: the run gets another one beside it
    try:
        require_writable(existing)
    except MachineError as error:
        yield failure(
            RECIPE,
            say(
                "the run directory {path} cannot be created: {there}: {why}",
                path=needs.run_dir,
                there=existing,
                why=say(error.what),
            ),
            remedy=say("set run_dir in the recipe to a directory that can be written"),
        )
        return
    weights = _weights_bytes(needs.model)
    if weights is None:
        return
    needed_bytes = int(weights * (needs.checkpoints * needs.checkpoint_factor + needs.export_factor))
    free, _ = system.space(existing)
    if free < needed_bytes:
        yield warning(
            RECIPE,
            say(
                "the run directory's disk has {free} free; {count} {count:checkpoint|checkpoints} and the final "
                "weights take about {wanted}",
                free=format_bytes(free),
                count=needs.checkpoints,
                wanted=format_bytes(needed_bytes),
            ),
            expected=say("{wanted} or more in {there}", wanted=format_bytes(needed_bytes), there=existing),
            remedy=say("set run_dir to another disk, or checkpoint.keep: 1"),
        )


def _weights_bytes(model: str) -> int | None:
    """Bytes of the weights of a model on disk; None for a hub id."""
    try:
        # A hub id is not a directory, so no files are found.
        return sum(path.stat().st_size for path in Path(model).expanduser().glob("*.safetensors")) or None
    except OSError:
        return None


def _precision(system: System, needs: Needs) -> Iterator[Finding]:
    if needs.precision != "bf16":
        return
    names = {device.name for device in system.npu_smi[0].devices if device.name}
    without = sorted(name for name in names if (family := family_of(name)) and not family.has_bf16)
    if without:
        yield failure(
            RECIPE,
            say("precision: bf16, but {names} {count:has|have} no bf16", count=len(without), names=", ".join(without)),
            expected="precision: fp16",
            remedy=say("set precision: auto in the recipe"),
        )
    elif system.has_npus and not names:
        yield unknown(RECIPE, say("precision: bf16, and npu-smi does not say which chips are here"))


RECIPE_CHECK = Check(
    RECIPE,
    what="With `ascendtune doctor RECIPE`: checks that the packages (also those that the model's own code imports), "
    "the model and the data sets which the recipe names are there and readable, that its run directory can be written "
    "and has room for its checkpoints, and that the chips support its precision.",
    why="A job on eight cards that lacks a package or a file fails after minutes of loading, and one whose disk is too "
    "small fails at a checkpoint, after hours.",
    fix="Install the extra in the remedy; correct the path in the recipe; choose a larger disk with run_dir. The room "
    "for checkpoints is an estimate: six times the bf16 weights for a full checkpoint with AdamW, a fifth for LoRA.",
    look=_look,
)
