"""The reference gives the same answers at any time: without dropout, whatever state the policy is in."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from ascendtune.core.errors import RecipeError
from ascendtune.machine.torch_backend.find import find_device
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.batch import AnswerGroups, DeviceBatch
from ascendtune.train.model import ModelToLoad, load_model, read_config
from ascendtune.train.objective.base import make_objective
from ascendtune.train.objective.preference import PreferenceObjective
from ascendtune.train.precision import Precision
from ascendtune.train.reference_log_probs import LogProbs, attention_of_reference, reference_model
from ascendtune.train.strategy.base import RootModule, Strategy


@pytest.fixture(scope="module")
def with_dropout(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, whose configuration asks for dropout in its attention."""
    directory = tmp_path_factory.mktemp("models") / "with-dropout"
    shutil.copytree(tiny_model, directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"attention_dropout": 0.5}))
    return directory


@pytest.fixture
def policy(with_dropout: Path) -> tuple[Recipe, PreferenceObjective]:
    recipe = Recipe.check(
        {
            "model": {"path": str(with_dropout)},
            "data": {"train": "none", "packing": False},
            "method": {"stage": "preference", "preference": {"loss": "sigmoid"}},
            "precision": "fp32",
        }
    )
    with torch.random.fork_rng(devices=[]):
        config = read_config(recipe.model, with_dropout)
        model = load_model(ModelToLoad(recipe.model, "preference", with_dropout, config, FP32, "eager", 0, seed=0))
    objective = make_objective(model, recipe, head_form=None, mean_over_ranks=Strategy(find_device()).mean)
    assert isinstance(objective, PreferenceObjective)
    return recipe, objective


FP32 = Precision("fp32", "fp32", "asked for", "cpu")


def one_pair() -> DeviceBatch:
    """Two documents of thirty tokens; the last nine of each are labelled."""
    ids = torch.arange(10, 70).view(2, 30)
    index = torch.cat([torch.arange(20, 29), torch.arange(50, 59)])
    groups = AnswerGroups(
        documents=2,
        target_slot=torch.arange(18),
        most_labels=9,
        label_counts=torch.tensor([9.0, 9.0]),
        last_index=torch.tensor([29, 59]),
        values=torch.zeros(1),
    )
    return DeviceBatch(ids, None, None, None, index, ids.flatten()[index + 1], groups)


@torch.no_grad()
def asked_twice(ask: LogProbs) -> torch.Tensor:
    first, second = ask(one_pair()).value, ask(one_pair()).value
    assert torch.equal(first, second)
    return first


def expected(directory: Path) -> torch.Tensor:
    """The same by transformers alone."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    ids = one_pair().input_ids
    with torch.no_grad():
        log_probs = model(input_ids=ids).logits.log_softmax(-1)
    return log_probs[:, 20:29].gather(-1, ids[:, 21:30, None]).sum((1, 2))


def test_the_policy_before_its_first_step_answers_without_dropout(
    policy: tuple[Recipe, PreferenceObjective], with_dropout: Path
) -> None:
    recipe, objective = policy
    objective.train()
    with torch.no_grad():
        first, second = (objective.log_probs(one_pair()).value for _ in range(2))
        assert not torch.equal(first, second), "no dropout to test"
    with reference_model(
        recipe, None, None, objective, RootModule(objective.model), Strategy(find_device()), FP32, 512
    )() as ask:
        torch.testing.assert_close(asked_twice(ask), expected(with_dropout), rtol=1e-5, atol=1e-4)
    assert all(module.training for module in objective.modules()), "training goes on with dropout"


def test_another_model_answers_without_dropout(policy: tuple[Recipe, PreferenceObjective], with_dropout: Path) -> None:
    recipe, objective = policy
    directory, strategy = str(with_dropout), Strategy(find_device())
    attention = attention_of_reference(recipe, directory, strategy.device)
    with reference_model(
        recipe, directory, attention, objective, RootModule(objective.model), strategy, FP32, 512
    )() as ask:
        torch.testing.assert_close(asked_twice(ask), expected(with_dropout), rtol=1e-5, atol=1e-4)


def test_a_reference_with_a_smaller_vocabulary_is_refused(
    policy: tuple[Recipe, PreferenceObjective], with_dropout: Path
) -> None:
    recipe, objective = policy
    directory, strategy = str(with_dropout), Strategy(find_device())
    attention = attention_of_reference(recipe, directory, strategy.device)
    ready = reference_model(recipe, directory, attention, objective, RootModule(objective.model), strategy, FP32, 513)
    with pytest.raises(RecipeError, match="512 tokens"), ready():
        pass
