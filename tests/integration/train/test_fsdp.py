"""FSDP: weights really are divided, and nothing else differs from one device."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.integration.train.test_equivalence import SHORT, assert_same
from torch.distributed.tensor import DTensor

from ascendtune.core.errors import RecipeError
from ascendtune.core.rundir import RunDir
from ascendtune.data.prepare import PreparedData
from ascendtune.machine.torch_backend.find import find_device
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.phases import Phases
from ascendtune.train.prepare import prepare_run
from ascendtune.train.setup import set_up
from ascendtune.train.strategy import fsdp
from ascendtune.train.strategy.expert_use import give_zeros_to_unused
from ascendtune.train.strategy.fsdp import FsdpStrategy, blocks_of
from families.measure import write_model

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train, Trained

FSDP: dict[str, Any] = {"strategy": "fsdp"}
PACKED: dict[str, Any] = {"data": {"packing": True}, "memory": {"gradient_checkpointing": True}}
LORA: dict[str, Any] = {"method": {"tuner": "lora"}}
WHOLE_MODULES = {"method": {"tuner": "lora", "lora": {"modules_to_save": ["embed_tokens", "norm"]}}}
EXACT = ("step", "loss", "grad_norm", "learning_rate", "batch_hash", "tokens_seen")


@pytest.mark.parametrize(
    ("section", "changes"),
    [
        ({}, {}),
        ({"offload": True}, PACKED),
        ({"reshard": False}, WHOLE_MODULES),
        ({"offload": True}, {**LORA, **PACKED}),
    ],
    ids=["full", "full-packed-recomputed-offloaded", "lora-kept", "lora-packed-recomputed-offloaded"],
)
def test_two_ranks_are_one(train: Train, train_on_ranks: Train, section: Any, changes: dict[str, Any]) -> None:
    batch = {"per_device": 1, "accumulate": 2}
    together = train_on_ranks(2, optim=SHORT, batch=batch, parallel={**FSDP, "fsdp": section}, **changes)
    assert together.run.read()["resolved"]["strategy"] == {"name": "fsdp", "reason": "as asked"}
    assert_same(together, train(optim=SHORT, batch={"per_device": 4}, **changes))


def test_devices_with_unequal_memory_reduce_gradients_as_often(
    train: Train, train_on_ranks: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fsdp, "reduces_once", lambda *_, **__: os.environ.get("RANK") == "0")
    together = train_on_ranks(2, optim=SHORT, batch={"per_device": 1, "accumulate": 2}, parallel=FSDP)
    assert_same(together, train(optim=SHORT, batch={"per_device": 4}))


def test_fsdp_on_one_rank_gives_the_curve_of_one_device(train: Train, train_on_ranks: Train) -> None:
    assert_same(train_on_ranks(1, optim=SHORT, parallel=FSDP), train(optim=SHORT))


def test_ranks_without_work_evaluate_and_train_along(train: Train, train_on_ranks: Train, other_rows: Path) -> None:
    """78 rows in batches of 12, ten for evaluation: of three ranks some have nothing to do at the end of either."""
    changes: dict[str, Any] = {
        "data": {"eval": str(other_rows)},
        "eval": {"every_steps": 4},
        "checkpoint": {"best": True},
        "optim": {**SHORT, "max_steps": 8},
    }
    together = train_on_ranks(3, parallel=FSDP, **changes)
    alone = train(batch={"per_device": 12}, **changes)
    assert_same(together, alone)
    ours, theirs = ([each["loss"] for each in trained.evaluations()] for trained in (together, alone))
    assert len(ours) == 2 and ours == pytest.approx(theirs, rel=1e-5)


# As models with code of their own have them: an expert is called if a token goes to it.
LISTED_EXPERTS = """
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaMLP

class ListedConfig(LlamaConfig):
    model_type = "listed"

class Mixture(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate = nn.Linear(config.hidden_size, 16, bias=False)
        self.experts = nn.ModuleList(LlamaMLP(config) for _ in range(16))

    def forward(self, states):
        rows = states.flatten(0, -2)
        weights, chosen = self.gate(rows).softmax(-1).max(-1)
        found = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            (at,) = torch.where(chosen == number)
            if len(at):
                found = found.index_add(0, at, expert(rows[at]) * weights[at, None])
        return found.view_as(states)

class ListedForCausalLM(LlamaForCausalLM):
    config_class = ListedConfig

    def __init__(self, config):
        super().__init__(config)
        for layer in self.model.layers:
            layer.mlp = Mixture(config)
"""


@pytest.fixture
def listed_experts(tiny_model: Path, tmp_path: Path) -> dict[str, Any]:
    """`model` of a recipe: one whose ranks use different experts in most steps."""
    directory = tmp_path / "listed"
    directory.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model / name, directory)
    (directory / "listed.py").write_text(LISTED_EXPERTS)
    config = {
        "model_type": "listed", "architectures": ["ListedForCausalLM"], "vocab_size": 512, "hidden_size": 32,
        "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "initializer_range": 0.2,
        "auto_map": {"AutoConfig": "listed.ListedConfig", "AutoModelForCausalLM": "listed.ListedForCausalLM"},
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    return {"path": str(directory), "trust_remote_code": True, "init": "random"}


@pytest.mark.parametrize("sync_each_batch", [True, False])
def test_ranks_may_use_different_experts_of_a_list(
    train: Train, train_on_ranks: Train, listed_experts: dict[str, Any], sync_each_batch: bool
) -> None:
    """An expert that no token goes to stays as it is: weight decay and momentum would show."""
    optim = {**SHORT, "max_steps": 6, "learning_rate": 0.01, "weight_decay": 0.5}
    changes: dict[str, Any] = {"model": listed_experts, "optim": optim}
    parallel = {**FSDP, "fsdp": {"sync_each_batch": sync_each_batch}}
    together = train_on_ranks(2, batch={"per_device": 1, "accumulate": 2}, parallel=parallel, **changes)
    assert_same(together, train(batch={"per_device": 4}, **changes))


def past_the_experts(tiny_model: Path, tmp_path: Path) -> dict[str, Any]:
    """Keys of a recipe: LongCat, whose router may choose no expert, and rows so short that some use none."""
    rows = tmp_path / "short.jsonl"
    rows.write_text("".join(json.dumps({"prompt": word, "completion": "tips"}) + "\n" for word in ("a", "atom") * 4))
    return {
        "model": {"path": str(write_model("longcat_flash", tmp_path / "longcat", tiny_model))},
        "data": {"train": str(rows), "packing": False},
        "optim": {**SHORT, "max_steps": 2, "optimizer": "sgd"},
    }


def test_ranks_whose_tokens_all_go_past_the_experts_train_along(
    train: Train, train_on_ranks: Train, tiny_model: Path, tmp_path: Path
) -> None:
    changes = past_the_experts(tiny_model, tmp_path)
    together = train_on_ranks(4, batch={"per_device": 1}, parallel=FSDP, **changes)
    assert_same(together, train(batch={"per_device": 4}, **changes))


def test_a_torch_that_cannot_sum_different_experts_is_refused() -> None:
    with pytest.raises(RecipeError) as caught:
        give_zeros_to_unused(object(), is_needed=True)  # As before torch 2.13: without the method.
    assert caught.value.code == "experts-not-divisible"


def test_bf16_with_frozen_bf16_weights_follows_one_device(train: Train, train_on_ranks: Train) -> None:
    """Adapters are fp32, the base is bf16, in one group; nothing is rounded more often than under autocast alone."""
    changes: dict[str, Any] = {**LORA, "precision": "bf16", "optim": {**SHORT, "max_steps": 10, "learning_rate": 0.01}}
    together = train_on_ranks(2, batch={"per_device": 2}, parallel=FSDP, **changes)
    alone = train(**changes)
    assert together.losses() == pytest.approx(alone.losses(), rel=1e-3)
    assert together.curve("grad_norm") == pytest.approx(alone.curve("grad_norm"), rel=2e-2)
    assert together.losses()[-1] < together.losses()[0] - 0.1


@pytest.mark.parametrize("family", ["llama", "falcon_mamba", "gemma3n_text"])
def test_bf16_rounds_no_more_than_on_one_device(
    train: Train, train_on_ranks: Train, tiny_model: Path, tmp_path: Path, family: str
) -> None:
    """Norms are not rounded to bf16: autocast does not, and an error of their weights is the same for all tokens.

    Nor are vectors that modules with others below them hold themselves: FalconMamba's decays, and what Gemma 3n's AltUp
    has, of which methods are called, never the module.
    """
    model = write_model(family, tmp_path / family, tiny_model)
    # Later steps enlarge the rounding of sums in another order.
    few = {"max_steps": 2, "warmup_steps": 0}
    changes: dict[str, Any] = {"model": {"path": str(model)}, "optim": few, "precision": "bf16"}
    recomputed: dict[str, Any] = {"memory": {"gradient_checkpointing": True}}
    found = train_on_ranks(1, parallel=FSDP, **recomputed, **changes)
    expected = train(**changes)
    assert found.losses() == pytest.approx(expected.losses(), rel=1e-6)
    assert found.curve("grad_norm") == pytest.approx(expected.curve("grad_norm"), rel=1e-6)


@pytest.mark.parametrize(
    "changes",
    [{"parallel": FSDP}, {"method": {"tuner": "lora", "lora": {"modules_to_save": "all-embeddings"}}}],
    ids=["gathered", "frozen"],
)
def test_layer_norms_in_bf16_take_an_fp32_stream(
    train: Train, train_on_ranks: Train, variant: Callable[..., Path], changes: dict[str, Any]
) -> None:
    """On CPU torch's layer normalisation refuses inputs that are wider than its weights."""
    from transformers import GPT2Config

    model = variant(GPT2Config(vocab_size=512, n_embd=32, n_layer=2, n_head=4, n_positions=128))
    bf16: dict[str, Any] = {"model": {"path": str(model)}, "optim": SHORT, "batch": {"per_device": 4}}
    found = train_on_ranks(1, **bf16, precision="bf16", **changes)
    expected = train(**bf16, method=changes.get("method", {}))
    assert found.losses() == pytest.approx(expected.losses(), rel=5e-3)


def go_on(trained: Trained, start: Callable[[], Trained]) -> None:
    """End the run anew from the checkpoint of step 2, and hold what was recorded against what it was."""
    run = trained.run
    shutil.rmtree(run.model)
    run.remove_checkpoints_after(2)
    run.update(state="running")
    assert start().run.path == run.path


@pytest.mark.parametrize(("ranks", "parallel"), [(2, FSDP), (4, {"strategy": "ddp"})], ids=["fsdp", "ddp"])
def test_a_run_continues_bit_by_bit(train_on_ranks: Train, ranks: int, parallel: dict[str, Any]) -> None:
    """Of `ddp` on four ranks: where more than two add, the place of a number decides in which order."""
    changes: dict[str, Any] = {
        "optim": {"max_steps": 5, "learning_rate": 0.01},
        "batch": {"per_device": 4 // ranks},
        "checkpoint": {"every_steps": 2, "keep": 9, "resume": "auto"},
        "parallel": parallel,
    }
    trained = train_on_ranks(ranks, **changes)
    shards = [file.name for file in trained.run.checkpoint(2).glob("tensors_rank_*.safetensors")]
    assert sorted(shards) == [f"tensors_rank_{rank}.safetensors" for rank in range(ranks)]
    before, weights = list(trained.run.read_metrics()), trained.weights()
    go_on(trained, partial(train_on_ranks, ranks, **changes))
    after = list(trained.run.read_metrics())
    assert [[each[key] for key in EXACT] for each in after] == [[each[key] for key in EXACT] for each in before]
    assert all(torch.equal(weight, weights[name]) for name, weight in trained.weights().items())


@pytest.mark.parametrize(("ranks", "then", "strategy"), [(2, 1, "fsdp"), (1, 2, "fsdp"), (2, 2, "ddp")])
def test_run_resumes_on_another_number_of_ranks(train_on_ranks: Train, ranks: int, then: int, strategy: str) -> None:
    """On another number of ranks, or with every weight on every rank: checkpoints are divided anew."""
    changes: dict[str, Any] = {
        "optim": {"max_steps": 5, "learning_rate": 0.01},
        "batch": {"per_device": 4 // ranks},
        "checkpoint": {"every_steps": 2, "keep": 9, "resume": "auto"},
        **LORA,
    }

    def start(count: int, name: str) -> Trained:
        return train_on_ranks(count, **changes, parallel={"strategy": name})

    trained = start(ranks, "fsdp")
    losses, weights = trained.losses(), trained.weights()
    go_on(trained, partial(start, then, strategy))
    assert trained.losses() == pytest.approx(losses, rel=1e-5)
    for name, weight in trained.weights().items():
        torch.testing.assert_close(weight, weights[name], rtol=1e-4, atol=1e-5)


def test_each_rank_holds_its_share_of_the_weights(
    on_ranks: Callable[..., None], recipe: Callable[..., Recipe], tmp_path: Path
) -> None:
    start = prepare_run(recipe(optim={"max_steps": 1}, parallel=FSDP, batch={"per_device": 2}), {})
    assert start.run is not None
    on_ranks(2, partial(_measure, start.run, start.prepared, tmp_path))
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found["parts"] and all(2 * part == whole for part, whole in found["parts"])
        assert found["optimizer"] == found["held"] == found["whole"] / 2
        # While a block is computed: it, what lies outside the blocks, and half of the other block.
        assert found["peak"] == found["outside"] + 1.5 * found["block"] < found["whole"]


def _measure(run: RunDir, prepared: PreparedData, directory: Path) -> None:
    """Elements of parameters on this rank: at rest, at the most in a forward pass, and in the optimizer's memory."""
    asked = Recipe.load(run.recipe)
    strategy = FsdpStrategy(find_device(), asked)
    loop = set_up(run, run.read(), asked, strategy, prepared, Phases(None), ExitStack())
    loop.recorder.callbacks.clear()
    parameters = list(loop.objective.parameters())
    blocks = blocks_of(loop.objective)
    outside = loop.objective.get_parameter("model.model.norm.weight").numel()
    outside += loop.objective.get_parameter("model.lm_head.weight").numel()
    seen: list[int] = []
    for block in blocks:
        block.register_forward_pre_hook(
            lambda *_: seen.append(sum(_local(each) for each in loop.objective.parameters()))
        )
    found = {
        "parts": [(_local(each), each.numel()) for each in parameters],
        "whole": sum(each.numel() for each in parameters),
        "held": sum(map(_local, parameters)),
        "block": sum(each.numel() for each in blocks[0].parameters()),
        "outside": outside,
    }
    loop.run()
    moments = [state["exp_avg"] for state in loop.optimizer.state.values()]
    found |= {"peak": max(seen), "optimizer": sum(map(_local, moments))}
    (directory / f"{strategy.rank}.json").write_text(json.dumps(found))
    strategy.close()


def _local(tensor: torch.Tensor) -> int:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).numel()
