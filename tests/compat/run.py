"""Take LLaMA-Factory's own examples: each must run, or be refused by name. `python tests/compat/run.py --help`."""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from templates import compare

from ascendtune.core.config import validate
from ascendtune.core.directories import cache_directory
from ascendtune.core.document import Document, read_document
from ascendtune.core.errors import AscendtuneError, RecipeError
from ascendtune.recipe.llamafactory.llamafactory_recipe import KEYS
from ascendtune.recipe.recipe import Recipe
from preloaded import Preloaded

ROOT = Path(__file__).resolve().parents[2]
RELEASE = "0.9.5"
STEPS = 2
# Data sets that are only on a hub are swapped for one of the same form that comes with the examples.
STAND_IN = "data/alpaca_en_demo.json"
# Keys that only say how to evaluate on benchmarks, or are set by their program itself.
NOT_FOR_TRAINING = {"task", "task_dir", "batch_size", "lang", "n_shot", "save_dir", "download_mode"} | {
    "compute_dtype", "device_map", "model_max_length", "block_diag_attn",
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sdist", type=Path, help="their source distribution (default: downloaded with pip)")
    parser.add_argument("--write", action="store_true", help="write docs/compat.md")
    parser.add_argument("--only", default="", help="only files whose path contains this")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        theirs, workshop = _unpacked(asked.sdist or _downloaded(), Path(folder)), Path(folder, "workshop")
        _require_known_keys(theirs)
        (workshop / "tokenizers").mkdir(parents=True)
        compared = list(compare(theirs / "src/llamafactory/data/template.py", workshop / "tokenizers"))
        os.chdir(theirs)
        examples = Examples(workshop)
        files = [path for path in Path("examples").rglob("*") if path.suffix in (".yaml", ".json")]
        # What is merged has to be trained before.
        files.sort(key=lambda path: ("merge" in str(path), path))
        libraries = Preloaded()
        try:
            with libraries.children():
                rows = sorted(examples.judge(path) for path in files if asked.only in str(path))
        finally:
            libraries.end()
    for path, what, _ in rows:
        print(f"{path}: {what}")
    if asked.write:
        generate = runpy.run_path(str(ROOT / "docs" / "generate_compat.py"))
        target = generate["TARGET"]
        if asked.only:
            text = generate["with_examples"](target.read_text(encoding="utf-8"), rows)
        else:
            text = generate["page"](rows, compared, f"LLaMA-Factory {RELEASE}")
        target.write_text(text, encoding="utf-8")
    failed = [path for path, what, _ in rows if what.startswith("FAILED")]
    print(f"{len(rows)} files, {len(failed)} failed")
    return 1 if failed else 0


class Examples:
    """Their examples, one after the other; what a run leaves is what a later one merges."""

    def __init__(self, workshop: Path) -> None:
        self._workshop = workshop
        self._model = _tiny_model(workshop / "model")
        self._runs: dict[str, Path] = {}
        """Their output_dir -> our run."""

    def judge(self, path: Path) -> tuple[str, str, str]:
        """(path, what becomes of it, the keys that were said to be inert)."""
        print(path, file=sys.stderr)
        try:
            document = Recipe.read(path)
            recipe = validate(Recipe, document)
        except RecipeError as refusal:
            if (command := refusal.remedy).startswith("ascendtune merge "):
                return str(path), self._merge(command) or _refused(refusal), ""
            return str(path), _refused(refusal), ""
        if not document.notes:
            return str(path), "FAILED: it is taken for a recipe of ours", ""
        return str(path), self._run(path, recipe), _inert(document)

    def _run(self, path: Path, recipe: Recipe) -> str:
        if recipe.parallel.strategy == "deepspeed" and find_spec("deepspeed") is None:
            return "translated; not run: DeepSpeed is not installed here"
        runs = self._workshop / "runs" / path.parent.name / path.stem
        quantised = re.search(r"-(AWQ|GPTQ|AQLM)\b", recipe.model.path)
        model = self._quantised(quantised[1].lower()) if quantised else self._model
        words = [
            str(path), f"model.path={model}", f"run_dir={runs}/{{name}}", "model.trust_remote_code=false",
            f"optim.max_steps={STEPS}", "data.max_length=256", "data.processes=1",
        ]  # fmt: skip
        if recipe.method.freeze.spread_layers:
            # The stand-in has two layers.
            words.append("method.freeze.spread_layers=2")
        for number, spec in enumerate(recipe.data.train):
            words.append(f"data.train.{number}.limit=24")
            if not Path(spec.path).exists():
                words.append(f"data.train.{number}.path={STAND_IN}")
        ended = self._ascendtune("train", *words, "--devices", "1")
        if quantised and (error := re.search(r"^error: (this model is quantised.+)\n +do: (.+)$", ended.stderr, re.M)):
            return f"refused: {error[1]} (do: {error[2]})"
        if ended.returncode or quantised:
            return f"FAILED: {ended.stderr[-600:]}"
        metrics = [json.loads(line) for line in (runs / recipe.name / "metrics.jsonl").read_text().splitlines()]
        if metrics[-1]["step"] != STEPS:
            return f"FAILED: {metrics[-1]['step']} steps"
        self._runs[str(read_document(path).values["output_dir"])] = runs / recipe.name
        return f"runs; loss {metrics[-1]['loss']:.3f}"

    def _quantised(self, method: str) -> Path:
        """The tiny model, which says of itself that its weights are quantised, as the one does that is asked for."""
        model = self._workshop / method
        if not model.exists():
            shutil.copytree(self._model, model)
            config = json.loads((model / "config.json").read_text())
            (model / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": method}}))
        return model

    def _merge(self, command: str) -> str | None:
        """Run the command that the refusal spells out, on what an earlier example left; None when there is nothing."""
        words = shlex.split(command)
        if words[2] not in self._runs:
            return None
        target = self._workshop / "merged" / Path(words[words.index("--to") + 1]).name
        target.parent.mkdir(exist_ok=True)
        swapped = [str(self._runs[words[2]]), "--onto", str(self._model), "--to", str(target)]
        ended = self._ascendtune("merge", *swapped)
        if ended.returncode or not (target / "model.safetensors").is_file():
            return f"FAILED: {ended.stderr[-600:]}"
        return f"refused with the command that does it, which runs: `{command}`"

    def _ascendtune(self, *words: str) -> subprocess.CompletedProcess[str]:
        places = {"XDG_CACHE_HOME": str(self._workshop / "cache"), "XDG_STATE_HOME": str(self._workshop / "state")}
        return subprocess.run(
            [sys.executable, "-m", "ascendtune", *words],
            env={**os.environ, **places}, capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip


def _refused(refusal: RecipeError) -> str:
    every: Sequence[AscendtuneError] = (refusal, *refusal.further)
    return "refused: " + "; ".join(dict.fromkeys(each.what for each in every)) + f" (do: {refusal.remedy})"


def _inert(document: Document) -> str:
    found = (re.match(r"([\w, ]+): no effect", note) for note in document.notes)
    return ", ".join(match.group(1) for match in found if match)


def _downloaded() -> Path:
    folder = cache_directory() / "compat"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"llamafactory-{RELEASE}.tar.gz"
    if not target.is_file():
        wanted = ["--no-deps", "--no-binary", "llamafactory", f"llamafactory=={RELEASE}", "--dest", str(folder)]
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *wanted], check=True)
    return target


def _unpacked(sdist: Path, folder: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return next(path for path in folder.iterdir() if (path / "examples").is_dir())


def _require_known_keys(theirs: Path) -> None:
    """Every key that their program declares is in our tables, so that none is called unknown."""
    declared = {
        statement.target.id
        for path in (theirs / "src/llamafactory/hparams").glob("*_args.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }
    if missing := sorted(declared - set(KEYS) - NOT_FOR_TRAINING):
        raise SystemExit(f"keys of theirs that are not in our tables: {', '.join(missing)}")


def _tiny_model(directory: Path) -> Path:
    path: Path = runpy.run_path(str(ROOT / "tests" / "tiny_model.py"))["write_tiny_model"](directory)
    return path


if __name__ == "__main__":
    sys.exit(main())
