"""Every recipe of `recipes/` as it stands: checked by the command, and trained with its model and data made small."""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from ascendtune.cli.recipe import check
from ascendtune.core.errors import RecipeError
from ascendtune.recipe.recipe import Recipe
from matrix.cells import attempt

RECIPES = Path(__file__).parents[2] / "recipes"
FILES = sorted(RECIPES.glob("*.yaml"))
WITH_DEEPSPEED = [file for file in FILES if Recipe.load(file).parallel.strategy == "deepspeed"]
"""tests/integration/test_deepspeed_recipes.py trains them."""
WITHOUT_DEEPSPEED = [file for file in FILES if file not in WITH_DEEPSPEED]
STEPS = 2

_QWEN15 = ("Qwen2Config", {"num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": False})
_QWEN25 = ("Qwen2Config", {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False})
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen/Qwen1.5-7B-Chat": _QWEN15,
    "Qwen/Qwen1.5-14B-Chat": _QWEN15,
    "Qwen/Qwen2.5-7B": _QWEN25,
    "Qwen/Qwen2.5-7B-Instruct": _QWEN25,
    "quickstart/base-model": _QWEN25,
}
"""The architecture behind each name, with what its config.json has of its own."""


def _said(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


ROWS: dict[str, list[dict[str, Any]]] = {
    "tatsu-lab/alpaca": [
        {"instruction": f"Add {n}.", "input": "2" * (n % 2), "output": f"{n + 2}", "text": "…"} for n in range(12)
    ],
    "trl-lib/ultrafeedback_binarized": [
        {"chosen": _said("Tips?", f"Sleep {n}."), "rejected": _said("Tips?", "No."), "score_chosen": 8.0}
        for n in range(12)
    ],
    "trl-lib/kto-mix-14k": [
        {"prompt": [_said("Tips?", "")[0]], "completion": [_said("", f"Eat {n}.")[1]], "label": n % 3 > 0}
        for n in range(12)
    ],
    "Salesforce/wikitext": [{"text": text} for n in range(6) for text in ("", f" = Atom {n} = \n", "It is small. \n")],
    "quickstart/train.jsonl": [{"messages": _said(f"Sort the letters: b{n}a", f"ab{n}")} for n in range(12)],
}  # fmt: skip
"""Some rows for each data set, with its columns."""


@pytest.fixture(scope="module", autouse=True)
def _imported_once() -> Iterator[None]:
    """Before processes are forked."""
    import peft  # noqa: F401
    import tensorboard.summary.writer.record_writer  # noqa: F401
    import transformers  # noqa: F401

    yield


def _small_model(name: str, tiny_model: Path, directory: Path) -> Path:
    import transformers

    kind, changes = MODELS[name]
    shape = {"vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3}
    ids = {"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}
    config = getattr(transformers, kind)(**shape, **ids, **changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model / file, directory)
    return directory


def _write_rows(name: str, directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS[name]))
    return file


def _in_small(file: Path, tiny_model: Path, place: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The recipe with its model, data, length and places swapped. A CPU has no fp16; all else stays as it is."""
    values = Recipe.load(file, overrides).model_dump(mode="json")
    values["model"]["path"] = str(_small_model(values["model"]["path"], tiny_model, place / "model"))
    for each in values["data"]["train"]:
        # What is read from the hub by split and subset is a single file here.
        each |= {"path": str(_write_rows(each["path"], place)), "subset": None}
    values["optim"] |= {"epochs": None, "max_steps": STEPS}
    values["run_dir"] = str(place / "runs" / "{name}")
    if values["precision"] == "fp16":
        values["precision"] = "fp32"
    return values


@pytest.mark.parametrize("file", WITHOUT_DEEPSPEED, ids=lambda file: str(file.stem))
def test_every_recipe_of_the_repository_trains_in_small(file: Path, tiny_model: Path, tmp_path: Path) -> None:
    assert_trains_in_small(file, tiny_model, tmp_path)


def assert_trains_in_small(file: Path, tiny_model: Path, place: Path, overrides: Sequence[str] = ()) -> None:
    values = _in_small(file, tiny_model, place, overrides)
    ranks = 2 if values["parallel"]["strategy"] in ("fsdp", "deepspeed") else 1
    outcome = attempt(values, ranks)
    assert outcome.curve is not None, outcome.failed or outcome.refused
    assert len(outcome.curve) == 2 * STEPS and all(map(math.isfinite, outcome.curve))


@pytest.mark.parametrize("file", WITHOUT_DEEPSPEED, ids=lambda file: str(file.stem))
def test_every_recipe_of_the_repository_passes_recipe_check(
    file: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if file.stem == "quickstart":
        shutil.copytree(tiny_model, tmp_path / "quickstart" / "base-model")
        _write_rows("quickstart/train.jsonl", tmp_path / "quickstart")
    monkeypatch.chdir(tmp_path)
    assert_passes_check(file, capsys)


def assert_passes_check(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check(file, [])
    said = capsys.readouterr()
    assert f"{file.name}: valid" in said.out
    assert not said.err, "every key has an effect, nothing is to be warned of"


def _commands(file: Path) -> list[list[str]]:
    """The words of every `ascendtune train recipes/…` in a recipe's comments or on a page."""
    found = re.findall(r"ascendtune train (recipes/[^`#|\n]*)", file.read_text(encoding="utf-8"))
    return [shlex.split(words) for words in found]


@pytest.mark.parametrize(
    "file", [*FILES, RECIPES / "README.md", RECIPES / "README.zh-CN.md"], ids=lambda file: str(file.name)
)
def test_commands_that_are_shown_work(file: Path) -> None:
    for recipe, *words in _commands(file):
        assert (RECIPES.parent / recipe).is_file(), recipe
        try:
            Recipe.load(RECIPES.parent / recipe, [word for word in words if "=" in word])
        except RecipeError as error:
            assert error.what == "DeepSpeed is not in this version"


def test_both_pages_show_the_same_commands_for_all_recipes() -> None:
    english, chinese = (_commands(RECIPES / name) for name in ("README.md", "README.zh-CN.md"))
    assert english == chinese
    assert {Path(recipe).name for recipe, *_ in english} | {"quickstart.yaml"} == {file.name for file in FILES}


def test_baichuan_comes_as_far_as_its_own_code(tiny_model: Path, tmp_path: Path) -> None:
    """Its architecture is no part of transformers: everything is made ready, then the missing code is named."""
    values = _in_small(RECIPES / "alpaca-fsdp.yaml", tiny_model, tmp_path)
    model = Path(values["model"]["path"])
    config = json.loads((model / "config.json").read_text())
    code = {"AutoConfig": "configuration_baichuan.BaichuanConfig", "AutoModelForCausalLM": "modeling_baichuan.Model"}
    config |= {"model_type": "baichuan", "architectures": ["BaichuanForCausalLM"], "auto_map": code}
    (model / "config.json").write_text(json.dumps(config))
    for trusted, remedy in ((False, "set model.trust_remote_code: true"), (True, "configuration_baichuan.py")):
        values["model"]["trust_remote_code"] = trusted
        failed = attempt({**values, "name": f"trusted-{trusted}"}, ranks=1).failed
        assert "the model cannot be read" in failed and remedy in failed
    assert len(list((tmp_path / "runs").glob("*/data.json"))) == 2
