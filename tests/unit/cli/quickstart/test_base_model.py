from __future__ import annotations

from pathlib import Path

import pytest

from ascendtune.cli.quickstart.base_model import make_base_model
from ascendtune.cli.quickstart.command import recipe_text
from ascendtune.core.config import validate
from ascendtune.core.document import parse_document
from ascendtune.data.tokenizer import Tokenizer
from ascendtune.hub.verify import check_model_directory
from ascendtune.recipe.recipe import Recipe

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("base") / "base-model"
    directory.mkdir()
    for name, content in make_base_model().files.items():
        (directory / name).write_bytes(content)
    return directory


def test_transformers_loads_exactly_the_weights_that_were_written(base_model: Path) -> None:
    from transformers import AutoModelForCausalLM

    model, loading = AutoModelForCausalLM.from_pretrained(base_model, output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"] and not loading["mismatched_keys"]
    assert sum(each.numel() for each in model.parameters()) == make_base_model().parameters
    check_model_directory(base_model, weights_needed=True)


def test_letters_are_tokens_of_their_own_for_us_and_for_transformers(base_model: Path) -> None:
    from transformers import AutoTokenizer

    text = "<|im_start|>user\nSort the letters: planet<|im_end|>\n<|im_start|>assistant\naelnpt<|im_end|>\n"
    ours = Tokenizer.load(base_model)
    ids = ours.encode(text)
    assert ids == AutoTokenizer.from_pretrained(base_model)(text)["input_ids"]
    assert ours.decode(ids) == text
    assert [ours.text_of(each) for each in ids][2:11] == ["Sort the letters: ", *"planet", "<|im_end|>", "\n"]


def test_the_same_seed_makes_the_same_model(base_model: Path) -> None:
    assert make_base_model().files == {file.name: file.read_bytes() for file in base_model.iterdir()}


def test_the_recipe_in_the_repository_is_the_one_that_is_trained() -> None:
    assert (ROOT / "recipes" / "quickstart.yaml").read_text().endswith(recipe_text(Path("quickstart")))


@pytest.mark.parametrize("directory", ["quickstart", "/tmp/a b", "- x", "a: b # c", "~", "日本"])
def test_the_recipe_takes_any_directory(directory: str) -> None:
    recipe = validate(Recipe, parse_document(recipe_text(Path(directory)), "recipe"))
    assert recipe.model.path == f"{directory}/base-model"
    assert recipe.data.train[0].path == f"{directory}/train.jsonl"
    assert recipe.run_directory() == Path(directory, "runs", "sort-letters").expanduser()
