from __future__ import annotations

from pathlib import Path

import pytest

from ascendtune.core.errors import InputError, RecipeError
from ascendtune.core.rundir import RunDir
from ascendtune.recipe.changes import ResumeOptions, require_known, require_same_data, require_same_recipe
from ascendtune.recipe.recipe import Recipe


def _recipe(train: object, **others: object) -> Recipe:
    return Recipe.check({"model": {"path": "m"}, "data": {"train": train}, **others})


@pytest.mark.parametrize(
    ("train", "said"),
    [
        ("b.jsonl", "data.train[0].path: a.jsonl -> b.jsonl"),
        ([{"path": "a.jsonl", "weight": 2}], "data.train[0].weight: 1.0 -> 2.0"),
        (["a.jsonl", "b.jsonl"], 'data.train: ["a.jsonl"] -> ["a.jsonl", "b.jsonl"]'),
    ],
)
def test_changed_data_is_summarised(tmp_path: Path, train: object, said: str) -> None:
    run = RunDir(tmp_path)
    run.create(_recipe("a.jsonl").to_yaml(), {}, {})
    with pytest.raises(RecipeError) as raised:
        require_same_recipe(run, _recipe(train, deterministic=True), ResumeOptions())
    assert raised.value.what == f"this run was trained with another recipe: {said}; deterministic: false -> true"
    assert "--allow-change data.train --allow-change deterministic" in raised.value.remedy


@pytest.mark.parametrize(
    ("changes", "allowed"),
    [
        ({"batch": {"per_device": 4}, "track": {"every_steps": 5}, "on_hang": "stop"}, []),
        ({"optim": {"learning_rate": 1e-3}}, ["optim"]),
        ({"optim": {"learning_rate": 1e-3}}, ["optim.learning_rate"]),
        ({"optim": {"learning_rate": 1e-3}, "seed": 1}, ["seed", "optim"]),
    ],
)
def test_free_and_allowed_keys_may_change(tmp_path: Path, changes: dict[str, object], allowed: list[str]) -> None:
    run = RunDir(tmp_path)
    run.create(_recipe("a.jsonl").to_yaml(), {}, {})
    require_same_recipe(run, _recipe("a.jsonl", **changes), ResumeOptions(allowed))


def test_allowing_one_key_allows_no_other(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.create(_recipe("a.jsonl").to_yaml(), {}, {})
    changed = _recipe("a.jsonl", optim={"learning_rate": 1e-3, "beta1": 0.5})
    for allowed in (["seed"], ["optim.beta1"], ["opti"]):
        with pytest.raises(RecipeError, match=r"optim\.learning_rate: null -> 0\.001"):
            require_same_recipe(run, changed, ResumeOptions(allowed))


@pytest.mark.parametrize("key", ["method.tuner", "optim.optimizer", "model.init"])
def test_keys_that_decide_checkpoint_content_cannot_change(tmp_path: Path, key: str) -> None:
    run = RunDir(tmp_path)
    run.create(_recipe("a.jsonl").to_yaml(), {}, {})
    section, _, name = key.partition(".")
    value = {"method.tuner": "freeze", "optim.optimizer": "sgd", "model.init": "random"}[key]
    changed = _recipe("a.jsonl", **{section: {name: value, **({"path": "m"} if section == "model" else {})}})
    with pytest.raises(RecipeError) as caught:
        require_same_recipe(run, changed, ResumeOptions([key, section]))
    assert caught.value.code == "recipe-changed"


def test_model_may_be_written_otherwise_and_moved_with_consent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunDir(tmp_path / "run")
    run.create(_recipe("a.jsonl").to_yaml(), {}, {"model_directory": str(tmp_path / "m")})
    require_same_recipe(run, _recipe("a.jsonl", model={"path": str(tmp_path / "m")}), ResumeOptions())
    moved = _recipe("a.jsonl", model={"path": "moved"})
    with pytest.raises(RecipeError, match=r"model\.path: m -> moved") as caught:
        require_same_recipe(run, moved, ResumeOptions())
    assert "--allow-change model.path" in caught.value.remedy
    require_same_recipe(run, moved, ResumeOptions(["model.path"]))


@pytest.mark.parametrize("allowed", [["data"], ["data.train"], ["seed", "data.max_length"]])
def test_other_tokens_may_come_where_a_key_of_the_data_may_change(tmp_path: Path, allowed: list[str]) -> None:
    require_same_data(RunDir(tmp_path), {"data_hash": "before"}, "after", ResumeOptions(allowed))


@pytest.mark.parametrize("allowed", [[], ["seed"], ["optim.beta1", "batch"]])
def test_other_tokens_are_refused_whatever_else_may_change(tmp_path: Path, allowed: list[str]) -> None:
    record = {"data_hash": "before"}
    require_same_data(RunDir(tmp_path), record, "before", ResumeOptions(allowed))
    with pytest.raises(InputError) as caught:
        require_same_data(RunDir(tmp_path), record, "after", ResumeOptions(allowed))
    assert caught.value.code == "data-changed"


def test_remedy_for_python_names_the_argument_with_what_it_allows_already(tmp_path: Path) -> None:
    run, asked = RunDir(tmp_path), _recipe("b.jsonl", seed=1, deterministic=True)
    run.create(_recipe("a.jsonl").to_yaml(), {}, {})
    resume_options = ResumeOptions(["seed"], in_python=True)
    with pytest.raises(RecipeError) as raised:
        require_same_recipe(run, asked, resume_options)
    assert "allow_change=['seed', 'data.train', 'deterministic']" in raised.value.remedy
    require_same_recipe(run, asked, ResumeOptions(["seed", "data.train", "deterministic"]))
    with pytest.raises(InputError) as caught:
        require_same_data(run, {"data_hash": "before"}, "after", resume_options)
    assert "allow_change=['seed', 'data']" in caught.value.remedy
    for misspelt, said in (
        (ResumeOptions(["sed"], in_python=True), "allow_change=['sed']"),
        (ResumeOptions(["sed"]), "--allow"),
    ):
        with pytest.raises(RecipeError) as caught_word:
            require_known(misspelt, asked)
        assert caught_word.value.what.startswith(said)
