"""The trials that are made, the ingredients that they name, and the recipe of each."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from ascendtune.check.align.bisect import (
    INGREDIENTS,
    SwapTrial,
    TrainedRecipe,
    find_culprits,
    findings_of,
    most_trials,
    swaps_between,
    trial_recipe,
    verdict,
)
from ascendtune.core.errors import RecipeError
from ascendtune.recipe.recipe import Recipe

Agrees = Callable[[tuple[str, ...]], bool | None]


def trials_of(agrees: Agrees) -> tuple[Agrees, list[str]]:
    made: list[str] = []

    def note(swapped: tuple[str, ...]) -> bool | None:
        made.append("".join(swapped))
        return agrees(swapped)

    return note, made


def needs(*sets: str) -> Agrees:
    return lambda swapped: any(set(each) <= set(swapped) for each in sets)


def of(**changes: Any) -> TrainedRecipe:
    ranks, kernels = changes.pop("ranks", 1), changes.pop("kernels", {})
    asked = Recipe.check({"model": {"path": "m"}, "data": {"train": "rows.jsonl"}, **changes}).model_dump(mode="json")
    return TrainedRecipe(deepcopy(asked), asked, kernels, ranks)


@pytest.mark.parametrize(
    ("sets", "guilty", "made"),
    [
        (("a",), ["a"], ["a", "b", "c"]),
        (("a", "c"), ["a", "c"], ["a", "b", "c"]),
        (("bc",), ["bc"], ["a", "b", "c", "abc", "ab", "ac", "bc"]),
        (("abc",), ["abc"], ["a", "b", "c", "abc", "ab", "ac", "bc"]),
        ((), [], ["a", "b", "c", "abc"]),
    ],
    ids=["one", "each of two", "a pair", "all three", "none"],
)
def test_smallest_sets_that_agree_are_named(sets: tuple[str, ...], guilty: list[str], made: list[str]) -> None:
    agrees, seen = trials_of(needs(*sets))
    assert ["".join(each) for each in find_culprits("abc", agrees)] == guilty
    assert seen == made and len(seen) <= most_trials(3)


def test_two_ingredients_are_one_pair() -> None:
    agrees, seen = trials_of(needs("ab"))
    assert find_culprits("ab", agrees) == [("a", "b")] and seen == ["a", "b", "ab"] and most_trials(2) == 3


def test_one_ingredient_has_no_pair() -> None:
    agrees, seen = trials_of(needs())
    assert find_culprits("a", agrees) == [] and seen == ["a"] and most_trials(1) == 1


def test_ingredient_that_cannot_be_trained_is_in_no_later_trial() -> None:
    agrees, seen = trials_of(lambda swapped: None if "b" in swapped else {"a", "c"} <= set(swapped))
    assert find_culprits("abc", agrees) == [("a", "c")] and seen == ["a", "b", "c", "ac"]


def test_verdict_tells_one_from_either_and_from_both() -> None:
    assert verdict([("dtype",)], 2) == "dtype explains why the runs diverge at step 2"
    assert verdict([("dtype",), ("optimizer",)], 2).startswith("dtype or optimizer: each alone explains")
    assert verdict([("dtype", "optimizer")], 2).startswith("dtype and optimizer, only together, explain ")
    assert verdict([], 2) == "no ingredient explains why the runs diverge at step 2"


def test_every_ingredient_that_differs_is_swapped_with_its_keys() -> None:
    reference = of(precision="fp32", optim={"epsilon": 1e-8, "max_steps": 4}, batch={"per_device": 4})
    candidate = of(precision="bf16", optim={"epsilon": 0.1, "epochs": 2}, batch={"per_device": 2, "accumulate": 2})
    found = {each.name: each for each in swaps_between(reference, candidate, INGREDIENTS)}
    assert list(found) == list(INGREDIENTS)
    assert found["dtype"].text == "precision: bf16 -> fp32"
    assert found["optimizer"].changes == {
        "optim.epsilon": (0.1, 1e-8),
        "optim.epochs": (2.0, None),
        "optim.max_steps": (None, 4),
    }
    assert "optim.epochs=null" in found["optimizer"].overrides
    assert not found["accumulate"].obstacle
    assert found["attention"].obstacle == found["kernels"].obstacle == "the same on both sides"


def test_batch_is_not_swapped_between_different_numbers_of_ranks() -> None:
    reference, candidate = of(batch={"accumulate": 2}, ranks=2), of(batch={"accumulate": 4}, ranks=1)
    (found,) = swaps_between(reference, candidate, ["accumulate"])
    assert found.changes and "2 and 1 ranks" in found.obstacle


def test_other_operators_behind_the_same_recipe_cannot_be_swapped() -> None:
    (found,) = swaps_between(of(kernels={"rms_norm": "npu"}), of(kernels={"rms_norm": "liger"}), ["kernels"])
    assert not found.changes and "kernel: off" in found.obstacle


def test_trial_has_the_swapped_ingredients_and_nothing_else_of_the_reference(tmp_path: Path) -> None:
    reference = of(
        seed=1, precision="fp32", kernel="off", optim={"epsilon": 0.1, "max_steps": 9}, align={"level": "op"}
    )
    candidate = of(
        seed=2,
        kernel={"rotary": False},
        optim={"beta1": 0.5},
        checkpoint={"best": True},
        eval={"every_steps": 5, "early_stop": {}},
        data={"train": "rows.jsonl", "eval_rows": 3},
        track={"send_to": ["wandb"], "host": "http://localhost"},
        on_nan="dump",
    )
    recipe = trial_recipe(
        reference, candidate, ("kernels", "optimizer"), last_step=3, dump_steps=[1, 3], run_dir=tmp_path / "x"
    )
    assert (recipe.seed, recipe.precision, recipe.kernel, recipe.on_nan) == (2, "auto", "off", "stop")
    assert recipe.optim.model_dump() == reference.values_with_auto["optim"]
    assert recipe.run_directory() == tmp_path / "x" and recipe.checkpoint.resume == "never"
    assert recipe.eval.early_stop is None and not recipe.checkpoint.best and not recipe.track.send_to
    assert (recipe.align.stop_after, recipe.align.dump_steps, recipe.align.level) == (3, "1,3", "op")


def test_ingredients_that_do_not_go_together_are_a_recipe_error(tmp_path: Path) -> None:
    reference, candidate = of(optim={"optimizer": "adafactor"}), of(run_dir="runs/{name}")
    with pytest.raises(RecipeError) as caught:
        trial_recipe(reference, candidate, (), last_step=1, dump_steps=[], run_dir=tmp_path / "{other}")
    assert caught.value.code == "invalid-value"


def test_findings_say_which_trial_explains_and_what_was_not_swapped() -> None:
    reference, candidate = of(precision="fp32", optim={"epsilon": 0.1}), of(precision="bf16")
    swaps = swaps_between(reference, candidate, ["dtype", "optimizer", "kernels"])
    trials = [SwapTrial(("dtype",), None, "no such device"), SwapTrial(("optimizer",), True, "equal")]
    found = {each.code: each for each in findings_of(trials, swaps, [("optimizer",)])}
    assert {code: each.status for code, each in found.items()} == {
        "dtype": "unknown",
        "optimizer": "failure",
        "kernels": "unknown",
    }
    assert found["optimizer"].remedy == "train the candidate with optim.epsilon=0.1"
