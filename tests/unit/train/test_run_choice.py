"""Valid values of `checkpoint.resume`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ascendtune.core.errors import MachineError, RecipeError
from ascendtune.core.rundir import RunDir
from ascendtune.recipe.changes import ResumeOptions
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.run_choice import planned_run, require_checkpoint


def test_checkpoint_that_is_not_there_is_refused_with_an_example(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        require_checkpoint(tmp_path / "step_3")
    assert caught.value.code == "checkpoint-missing"
    assert "runs/NAME/checkpoints/step_100" in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("checkpoint-20", "checkpoint.resume={run}/checkpoints/step_20"),
        ("checkpoints/step_30", "this run has: sft@10, sft@20"),
    ],
)
def test_checkpoint_of_a_run_is_looked_for_under_the_name_that_other_tools_give_it(
    name: str, remedy: str, tmp_path: Path
) -> None:
    run = RunDir(tmp_path / "sft")
    for step in (10, 20):
        run.checkpoint(step).mkdir(parents=True)
    run.run_json.write_text("{}")
    with pytest.raises(RecipeError) as caught:
        require_checkpoint(run.path / name)
    assert caught.value.remedy == remedy.format(run=run.path)


@pytest.mark.parametrize(
    ("file", "remedy"), [("config.json", "'model.path={}'"), ("adapter_config.json", "'method.lora.start_from=[{}]'")]
)
def test_checkpoint_of_transformers_is_answered_with_a_start_from_its_weights(
    tmp_path: Path, file: str, remedy: str
) -> None:
    checkpoint = tmp_path / "checkpoint 5"
    checkpoint.mkdir()
    for name in ("trainer_state.json", file):
        (checkpoint / name).touch()
    with pytest.raises(RecipeError, match="transformers' Trainer") as caught:
        require_checkpoint(checkpoint)
    assert remedy.format(checkpoint) in caught.value.remedy


def test_checkpoint_without_its_parts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.json").touch()
    with pytest.raises(RecipeError) as caught:
        require_checkpoint(tmp_path)
    assert caught.value.code == "checkpoint-incomplete"


@pytest.mark.parametrize(
    ("tuner", "remedy"), [("lora", "method.lora.start_from=[{run}]"), ("full", "model.path={run}/model")]
)
def test_checkpoint_of_a_run_with_another_loss_is_refused(tuner: str, remedy: str, tmp_path: Path) -> None:
    def recipe(**method: str) -> Recipe:
        return Recipe.check({
            "name": "dpo", "run_dir": str(tmp_path / "{name}"), "model": {"path": "m"}, "data": {"train": "d"},
            "method": {"tuner": tuner, **method}, "checkpoint": {"resume": str(run.checkpoint(3))},
        })  # fmt: skip

    run = RunDir(tmp_path / "sft")
    run.create(recipe(stage="sft").to_yaml(), {}, {})
    run.checkpoint(3).mkdir()
    for name in ("state.json", "digests.json"):
        (run.checkpoint(3) / name).touch()
    assert planned_run(recipe(stage="sft"), ResumeOptions()).foreign == run.checkpoint(3)
    with pytest.raises(RecipeError) as caught:
        planned_run(recipe(stage="preference"), ResumeOptions())
    assert caught.value.code == "recipe-changed" and "(sft -> preference, sigmoid)" in caught.value.what
    assert remedy.format(run=run.path) in caught.value.remedy


ADAPTERS = [
    ({"lora": {"rank": 4, "alpha": 4.0}}, {"lora": {"rank": 4, "alpha": 64.0}}, "alpha: 4.0 -> 64.0"),
    ({"lora": {"rank": 4}}, {"lora": {"rank": 4, "alpha": 4.0}}, "alpha: 8.0 -> 4.0"),
    ({"lora": {"rank": 4}}, {"lora": {"rank": 4, "rslora": True}}, "rslora: false -> true"),
    ({"lora": {"rank": 4, "init": "pissa"}}, {"lora": {"rank": 4}}, "init: pissa -> zero"),
    ({"oft": {"block_size": 8}}, {"oft": {"block_size": 8, "cayley_neumann": False}}, "cayley_neumann: true -> false"),
]


@pytest.mark.parametrize(("before", "after", "said"), ADAPTERS)
def test_checkpoint_of_an_adapter_that_would_be_another_change_of_the_model_is_refused(
    before: dict[str, Any], after: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """Its tensors have the same names and shapes, so nothing else tells."""

    def recipe(name: str, method: dict[str, Any], resume: str, **others: Any) -> Recipe:
        return Recipe.check({
            "name": name, "run_dir": str(tmp_path / "{name}"), "model": {"path": "m"}, "data": {"train": "d"},
            "method": {"tuner": next(iter(method)), **method}, "checkpoint": {"resume": resume}, **others,
        })  # fmt: skip

    run = RunDir(tmp_path / "first")
    run.create(recipe("first", before, "auto").to_yaml(), {}, {})
    run.checkpoint(3).mkdir()
    for name in ("state.json", "digests.json"):
        (run.checkpoint(3) / name).touch()
    source = str(run.checkpoint(3))
    assert planned_run(recipe("second", before, source, seed=7), ResumeOptions()).foreign == run.checkpoint(3)
    with pytest.raises(RecipeError) as caught:
        planned_run(recipe("second", after, source), ResumeOptions())
    assert caught.value.code == "recipe-changed" and said in caught.value.what
    assert f"start_from=[{run.path}]" in caught.value.remedy
    with pytest.raises(RecipeError, match="its checkpoints contain other weights") as caught:
        planned_run(recipe("first", after, "auto"), ResumeOptions(["method"]))
    assert caught.value.code == "recipe-changed"


def test_checkpoint_of_an_adapter_continues_where_its_alpha_is_written_out(tmp_path: Path) -> None:
    def recipe(**lora: Any) -> Recipe:
        return Recipe.check({
            "name": "run", "run_dir": str(tmp_path / "{name}"), "model": {"path": "m"}, "data": {"train": "d"},
            "method": {"tuner": "lora", "lora": {"rank": 4, **lora}},
        })  # fmt: skip

    run = RunDir(tmp_path / "run")
    run.create(recipe().to_yaml(), {}, {})
    run.update(state="stopped")
    run.checkpoint(3).mkdir()
    (run.checkpoint(3) / "state.json").touch()
    assert planned_run(recipe(alpha=8.0), ResumeOptions()).resumed == run.checkpoint(3)


def test_checkpoint_in_a_directory_that_others_may_write_is_refused_behind_a_link_too(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    (shared / "step_3").mkdir(parents=True)
    for name in ("state.json", "digests.json"):
        (shared / "step_3" / name).touch()
    shared.chmod(0o777)
    (tmp_path / "link").symlink_to(shared / "step_3")
    recipe = Recipe.check({
        "run_dir": str(tmp_path / "{name}"), "model": {"path": "m"}, "data": {"train": "d"},
        "checkpoint": {"resume": str(tmp_path / "link")},
    })  # fmt: skip
    with pytest.raises(MachineError) as caught:
        planned_run(recipe, ResumeOptions())
    assert caught.value.code == "writable-by-others" and "--trust-checkpoint" in caught.value.remedy
    assert planned_run(recipe, ResumeOptions(trust_checkpoint=True)).foreign == shared / "step_3"


def test_a_run_that_its_user_named_with_a_number_is_another_run(tmp_path: Path) -> None:
    recipe = Recipe.check({
        "name": "sft", "run_dir": str(tmp_path / "{name}"), "model": {"path": "m"}, "data": {"train": "d"},
    })  # fmt: skip

    def make(directory: str, name: str, state: str) -> RunDir:
        run = RunDir(tmp_path / directory)
        run.create(recipe.to_yaml(), {}, {"name": name})
        run.update(state=state)
        run.checkpoint(3).mkdir()
        return run

    stopped, other = make("sft", "sft", "stopped"), make("sft-2", "sft-2", "finished")
    assert planned_run(recipe, ResumeOptions()).resumed == stopped.checkpoint(3)
    section = recipe.checkpoint.model_copy(update={"resume": str(other.checkpoint(3))})
    for name in ("state.json", "digests.json"):
        (other.checkpoint(3) / name).touch()
    started = planned_run(recipe.model_copy(update={"checkpoint": section}), ResumeOptions())
    assert (started.resumed, started.foreign) == (None, other.checkpoint(3))
    # A start made this one, when the first had finished, and beside the other.
    stopped.update(state="finished")
    assert planned_run(recipe, ResumeOptions()).run.path == tmp_path / "sft-3"
    third = make("sft-3", "sft", "stopped")
    assert planned_run(recipe, ResumeOptions()).resumed == third.checkpoint(3)


def test_a_start_after_a_finished_run_tells_of_an_earlier_one_that_was_stopped(tmp_path: Path) -> None:
    values = {"name": "sft", "run_dir": str(tmp_path / "{name}"), "model": {"path": "m"}, "data": {"train": "d"}}
    recipe = Recipe.check(values)
    for directory, state, step in (("sft", "stopped", 18), ("sft-2", "finished", 3)):
        run = RunDir(tmp_path / directory)
        run.create(recipe.to_yaml(), {}, {"name": "sft"})
        run.update(state=state)
        run.checkpoint(step).mkdir()
        for name in ("state.json", "digests.json"):
            (run.checkpoint(step) / name).touch()
    first, second = planned_run(recipe, ResumeOptions()).messages
    assert first == f"starting {tmp_path}/sft-3: {tmp_path}/sft-2 has finished"
    assert second == (
        f"{tmp_path}/sft is not finished, it was stopped (step 18): "
        "to continue it instead, add checkpoint.resume=sft@18"
    )
    resumed = planned_run(Recipe.check({**values, "checkpoint": {"resume": "sft@18"}}), ResumeOptions())
    assert (resumed.run.path, resumed.resumed) == (tmp_path / "sft", tmp_path / "sft/checkpoints/step_18")
    # A start anew that was asked for is not told.
    assert len(planned_run(Recipe.check({**values, "checkpoint": {"resume": "never"}}), ResumeOptions()).messages) == 1
    (tmp_path / "sft/run.json").write_text("{")
    assert len(planned_run(recipe, ResumeOptions()).messages) == 1


@pytest.mark.parametrize(
    ("optim", "options"),
    [
        ({}, None),
        ({"epochs": 2}, "--allow-change optim.epochs"),
        ({"max_steps": 9}, "--allow-change optim.max_steps"),
    ],
)
def test_longer_start_after_a_finished_run_is_told_how_to_train_that_further(
    tmp_path: Path, optim: dict[str, Any], options: str | None
) -> None:
    values = {"name": "sft", "run_dir": str(tmp_path / "{name}"), "model": {"path": "m"}, "data": {"train": "d"}}
    run = RunDir(tmp_path / "sft")
    run.create(Recipe.check(values).to_yaml(), {}, {"name": "sft"})
    run.update(state="finished")
    run.checkpoint(18).mkdir()
    for name in ("state.json", "digests.json"):
        (run.checkpoint(18) / name).touch()
    longer = Recipe.check({**values, "optim": optim})
    messages = planned_run(longer, ResumeOptions()).messages
    expected = [f"to train {run} further instead, add checkpoint.resume=sft@last {options}"] if options else []
    assert messages == [f"starting {tmp_path}/sft-2: {run} has finished", *expected]
    if options:
        words = Recipe.check({**values, "optim": optim, "checkpoint": {"resume": "sft@last"}})
        further = planned_run(words, ResumeOptions(allow_change=options.split()[1:]))
        assert (further.run.path, further.resumed) == (run.path, run.checkpoint(18))
        run.remove_checkpoint(18)
        assert len(planned_run(longer, ResumeOptions()).messages) == 1


def test_start_that_would_remove_the_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    values = {"name": "sft", "run_dir": str(tmp_path / "{name}"), "model": {"path": "m"}, "data": {"train": "d"}}
    run, beside = RunDir(tmp_path / "sft"), RunDir(tmp_path / "beside")
    for each in (run, beside):
        each.create(Recipe.check(values).to_yaml(), {}, {"name": each.path.name})
    for step in (3, 6):
        run.checkpoint(step).mkdir()
        for name in ("state.json", "digests.json"):
            (run.checkpoint(step) / name).touch()
    from_3, from_6 = (Recipe.check({**values, "checkpoint": {"resume": f"sft@{step}"}}) for step in (3, 6))
    assert planned_run(from_3, ResumeOptions()).resumed == run.checkpoint(3)
    beside.update(resume_from=str(run.checkpoint(6)))
    with pytest.raises(RecipeError) as caught:
        planned_run(from_3, ResumeOptions())
    assert caught.value.code == "checkpoint-in-use" and caught.value.where == str(run.checkpoint(6))
    assert planned_run(from_6, ResumeOptions()).resumed == run.checkpoint(6)
    # With a name of its own nothing is removed.
    other = Recipe.check({**values, "name": "other", "checkpoint": {"resume": "sft@3"}})
    assert planned_run(other, ResumeOptions()).foreign == run.checkpoint(3)
