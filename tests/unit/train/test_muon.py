"""optim.optimizer: muon: the papers' formula for matrices, AdamW for the rest, one state."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from ascendtune.core.errors import MachineError, RecipeError
from ascendtune.recipe.recipe import Recipe
from ascendtune.recipe.sections import OptimSection
from ascendtune.train.optimizer import make_optimizer, tables_of

RATE = 0.1
SECTION = OptimSection(optimizer="muon", weight_decay=0.01, muon_momentum=0.9, beta2=0.95)


class Model(nn.Module):
    """A table, a matrix with a bias and a head of 11 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.linear = nn.Linear(6, 4)
        self.head = nn.Linear(4, 11, bias=False)

    def get_output_embeddings(self) -> nn.Module:
        return self.head


def model() -> Model:
    torch.manual_seed(0)
    return Model()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return make_optimizer(SECTION, model.named_parameters(), RATE, fused=False, tables=tables_of(model))


def give_gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def orthogonalised(update: NDArray[np.float64]) -> NDArray[np.float64]:
    """Five quintic Newton-Schulz iterations on a matrix of norm 1, in fp64 (Jordan et al. 2024)."""
    found = update / np.linalg.norm(update)
    for _ in range(5):
        gram = found @ found.T
        found = 3.4445 * found + (-4.7750 * gram + 2.0315 * gram @ gram) @ found
    return found


def test_a_matrix_moves_as_the_formula_says() -> None:
    trained = model()
    weight = trained.linear.weight
    expected, mean = weight.detach().double().numpy().copy(), np.zeros(weight.shape)
    optimizer = optimizer_of(trained)
    for seed in range(3):
        give_gradients(trained, seed)
        assert weight.grad is not None
        gradient = weight.grad.double().numpy()
        mean = 0.9 * mean + 0.1 * gradient
        update = orthogonalised(0.1 * gradient + 0.9 * mean)
        expected = expected * (1 - RATE * 0.01) - RATE * 0.2 * math.sqrt(6) * update
        optimizer.step()
    # torch iterates in bf16, which has three digits.
    moved = np.abs(expected - model().linear.weight.detach().numpy()).max()
    assert np.abs(weight.detach().numpy() - expected).max() < 0.02 * moved


def test_tables_head_and_biases_take_adamw() -> None:
    trained, plain = model(), model()
    ours = optimizer_of(trained)
    others = [plain.table.weight, plain.head.weight, plain.linear.bias]
    decays = (0.01, 0.01, 0.0)
    adamw = torch.optim.AdamW(
        [{"params": [each], "weight_decay": decay} for each, decay in zip(others, decays, strict=True)],
        lr=RATE, betas=(0.9, 0.95),
    )  # fmt: skip
    muon = torch.optim.Muon([plain.linear.weight], RATE, 0.01, momentum=0.9, adjust_lr_fn="match_rms_adamw")
    for seed in range(3):
        for each in (trained, plain):
            give_gradients(each, seed)
        for optimizer in (ours, adamw, muon):
            optimizer.step()
    for (name, found), expected in zip(trained.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(found, expected), name


def test_a_score_and_biases_of_stacked_experts_take_adamw() -> None:
    class RewardModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down_proj_bias = nn.Parameter(torch.zeros(4, 6))
            self.linear = nn.Linear(6, 6, bias=False)
            self.score = nn.Linear(6, 1, bias=False)

        def get_output_embeddings(self) -> None:
            return None

    trained = RewardModel()
    of_muon = [each for group in optimizer_of(trained).param_groups if group["is_muon"] for each in group["params"]]
    assert len(of_muon) == 1 and of_muon[0] is trained.linear.weight


def test_a_loaded_state_continues_alike() -> None:
    whole, resumed = model(), model()
    optimizer, first = optimizer_of(whole), optimizer_of(resumed)
    for seed in range(2):
        for each, its in ((whole, optimizer), (resumed, first)):
            give_gradients(each, seed)
            its.step()
    second = optimizer_of(resumed)
    second.load_state_dict(first.state_dict())
    for each, its in ((whole, optimizer), (resumed, second)):
        # As the loop sets the rate of each step.
        for group in its.param_groups:
            group["lr"] = RATE / 2
        give_gradients(each, 2)
        its.step()
    assert all(torch.equal(one, other) for one, other in zip(whole.parameters(), resumed.parameters(), strict=True))


def test_a_torch_without_muon_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(MachineError) as caught:
        optimizer_of(model())
    assert caught.value.code == "package-too-old"


def recipe(**sections: Any) -> Recipe:
    return Recipe.check({"model": {"path": "m"}, "data": {"train": "d"}, "optim": {"optimizer": "muon"}, **sections})


@pytest.mark.parametrize(
    "sections",
    [
        {"parallel": {"strategy": "fsdp"}},
        {"parallel": {"strategy": "deepspeed"}},
        {"method": {"tuner": "lora"}},
    ],
)
def test_a_combination_that_cannot_work_is_refused(sections: dict[str, Any]) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe(**sections)
    assert caught.value.code == "refused-combination"


def test_ddp_and_freeze_are_allowed() -> None:
    assert recipe(parallel={"strategy": "ddp"}, method={"tuner": "freeze"}).optim.optimizer == "muon"
