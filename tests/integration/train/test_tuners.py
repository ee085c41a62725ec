"""Each tuner changes only its weights, exports them, and continues bit by bit."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.integration.train.pairs import write_pairs

from ascendtune.core.errors import RecipeError
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.checkpoint_weights import checkpoint_weights
from ascendtune.train.model import apply_tuner
from ascendtune.train.tuner import frozen_adapters

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train, Trained

STEPS = {"max_steps": 3, "learning_rate": 0.01}
STILL = {"max_steps": 1, "warmup_steps": 1}
"""One step, with a learning rate of zero."""
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
WEIGHTS = "adapter_model.safetensors"
IDS = torch.arange(5, 45)[None]


def lora(**keys: Any) -> dict[str, Any]:
    return {"tuner": "lora", "lora": {"rank": 4, **keys}}


def load(directory: Path, *, scores: bool = False) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    if scores:
        return AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32, num_labels=1).eval()
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


@torch.no_grad()
def logits_of_the_export(base: Path, trained: Trained) -> torch.Tensor:
    """As anybody would load it: by plain PEFT, on the base as it is on disk."""
    from peft import PeftModel

    scores = any(name.endswith("score.weight") for name in trained.weights())
    tuned = PeftModel.from_pretrained(load(base, scores=scores), trained.run.model)
    logits: torch.Tensor = tuned.eval()(input_ids=IDS).logits
    return logits


@torch.no_grad()
def logits_in_memory(exported: list[Any]) -> torch.Tensor:
    logits: torch.Tensor = exported[-1].eval()(input_ids=IDS).logits
    return logits


def of_the_base(tuned: Any) -> dict[str, torch.Tensor]:
    """The weights of the base under their own names, as they are after training."""
    named = ((name, weight) for name, weight in tuned.get_base_model().named_parameters() if ".lora_" not in name)
    copies = ((name, weight) for name, weight in named if ".modules_to_save." not in name)
    return {name.replace(".base_layer", "").replace(".original_module", ""): weight for name, weight in copies}


@pytest.mark.parametrize(
    ("freeze", "trains"),
    [
        pytest.param({"last_layers": 1}, ("model.layers.1.",), id="last"),
        pytest.param({"first_layers": 1}, ("model.layers.0.",), id="first"),
        pytest.param(
            {"last_layers": 1, "modules": ["mlp", "self_attn.q_proj"]},
            ("model.layers.1.mlp.", "model.layers.1.self_attn.q_proj."),
            id="parts",
        ),
        pytest.param({"extra": ["norm"]}, ("model.norm.",), id="extra"),
        pytest.param(
            {"last_layers": 1, "modules": ["mlp"], "extra": ["lm_head"]},
            ("model.layers.1.mlp.", "model.embed_tokens."),
            id="a head that is the embeddings",
        ),
        pytest.param({}, ("model.layers.",), id="two layers"),
    ],
)
def test_freeze_changes_exactly_what_it_names(
    train: Train, tiny_model: Path, freeze: dict[str, Any], trains: tuple[str, ...]
) -> None:
    trained = train(method={"tuner": "freeze", "freeze": freeze}, optim=STEPS)
    before, after = load_file(tiny_model / "model.safetensors"), trained.weights()
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if name.startswith(trains)}
    assert trained.run.read()["resolved"]["trainable"] == sum(before[name].numel() for name in changed)


@pytest.mark.parametrize(
    ("freeze", "words"),
    [
        ({"last_layers": 3}, ["asks for 3 layers, the model has 2"]),
        ({"last_layers": 1, "modules": ["mpl"]}, ["method.freeze.modules", "'mpl'", "did you mean 'mlp'?"]),
        ({"extra": ["embed_token"]}, ["method.freeze.extra", "did you mean 'embed_tokens'?"]),
        ({"extra": ["mlp"]}, ["method.freeze.extra", "'mlp'"]),
    ],
)
def test_freeze_refuses_what_is_not_there(
    recipe: Callable[..., Recipe], tiny_model: Path, freeze: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(RecipeError) as refused:
        apply_tuner(load(tiny_model), recipe(method={"tuner": "freeze", "freeze": freeze}).method)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param({}, id="plain"),
        pytest.param({"dora": True}, id="dora"),
        pytest.param({"init": "pissa"}, id="pissa"),
        pytest.param({"target": ["q_proj"], "modules_to_save": ["lm_head"]}, id="modules_to_save"),
    ],
)
def test_lora_changes_the_adapter_alone(
    train: Train, tiny_model: Path, exported: list[Any], keys: dict[str, Any]
) -> None:
    trained = train(method=lora(**keys), optim=STEPS)
    base = of_the_base(exported[0])
    for name, weight in load_file(tiny_model / "model.safetensors").items():
        assert torch.equal(base[name], weight), name
    layers = {name.rpartition(".lora_")[0].rpartition(".")[2] for name in trained.weights() if ".lora_A." in name}
    assert layers == set(keys.get("target", LINEAR))
    assert any(name.endswith("lm_head.weight") for name in trained.weights()) == ("modules_to_save" in keys)
    torch.testing.assert_close(
        logits_of_the_export(tiny_model, trained), logits_in_memory(exported), rtol=1e-5, atol=1e-5
    )


def test_all_embeddings_are_the_table_and_the_head(train: Train, tiny_model: Path, exported: list[Any]) -> None:
    trained = train(method=lora(target=["q_proj"], modules_to_save="all-embeddings"), optim=STEPS)
    base, after = load_file(tiny_model / "model.safetensors")["model.embed_tokens.weight"], trained.weights()
    for name in ("base_model.model.model.embed_tokens.weight", "base_model.model.lm_head.weight"):
        assert not torch.equal(after[name], base), name
    torch.testing.assert_close(
        logits_of_the_export(tiny_model, trained), logits_in_memory(exported), rtol=1e-5, atol=1e-5
    )


def test_pissa_trains_the_principal_part(train: Train, tiny_model: Path, exported: list[Any]) -> None:
    """It begins as the base; the adapter is the one of PEFT, which takes it out of the base instead."""
    from peft import LoraConfig, get_peft_model

    pissa, zero = train(method=lora(init="pissa"), optim=STILL), train(method=lora(), optim=STILL)
    assert pissa.losses() == pytest.approx(zero.losses(), rel=1e-6)
    config = LoraConfig(target_modules="all-linear", r=4, lora_alpha=8, init_lora_weights="pissa")
    theirs = dict(get_peft_model(load(tiny_model), config).named_modules())
    for name in (f"base_model.model.model.layers.1.{each}" for each in ("self_attn.k_proj", "mlp.down_proj")):
        layers = exported[0].get_submodule(name), theirs[name]
        products = [each.lora_B["default"].weight @ each.lora_A["default"].weight for each in layers]
        torch.testing.assert_close(*products, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_pissa_of_the_main_rank_is_what_all_train(
    train: Train, train_on_ranks: Train, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """Another processor may choose other signs: with parts of both, a weight's adapter would be none of the two."""
    alone = train(method=lora(init="pissa"), optim=STEPS)
    compute = frozen_adapters.principal_part

    def only_on_main(*arguments: Any) -> Any:
        assert os.environ["RANK"] == "0"
        return compute(*arguments)

    monkeypatch.setattr(frozen_adapters, "principal_part", only_on_main)
    parallel = {"batch": {"per_device": 2}, "parallel": {"strategy": strategy}}
    together = train_on_ranks(2, method=lora(init="pissa"), optim=STEPS, **parallel)
    assert together.losses() == pytest.approx(alone.losses(), rel=1e-5)
    assert together.curve("grad_norm") == pytest.approx(alone.curve("grad_norm"), rel=1e-4)


def test_the_adapter_that_subtracts_the_pissa_start_has_no_dropout(
    recipe: Callable[..., Recipe], tiny_model: Path
) -> None:
    tuned = apply_tuner(load(tiny_model), recipe(method=lora(init="pissa", dropout=0.5)).method)
    layer = tuned.get_submodule("base_model.model.model.layers.0.mlp.up_proj")
    assert layer.lora_dropout["default"].p == 0.5
    assert isinstance(layer.lora_dropout["start"], torch.nn.Identity)
    with pytest.raises(RecipeError, match="to 32 or less"):
        apply_tuner(load(tiny_model), recipe(method=lora(init="pissa", rank=33)).method)


def test_pissa_leaves_a_change_that_survives_bf16(train: Train, tiny_model: Path) -> None:
    trained = train(method=lora(init="pissa"), optim=STEPS, precision="bf16")
    exact = logits_of_the_export(tiny_model, trained)
    with torch.no_grad():
        change = (exact - load(tiny_model)(input_ids=IDS).logits).abs().max()
    assert change > 0.01
    rounded = {name: weight.bfloat16().float() for name, weight in trained.weights().items()}
    save_file(rounded, trained.run.model / WEIGHTS)
    assert (logits_of_the_export(tiny_model, trained) - exact).abs().max() < 0.02 * change


def test_start_from_one_adapter_trains_it_further(train: Train, tiny_model: Path, exported: list[Any]) -> None:
    first = train(method=lora(alpha=4, target=["q_proj", "v_proj"]), optim=STEPS)
    second = train(name="second", method=lora(start_from=[str(first.run)], rank=8), optim=STEPS)
    torch.testing.assert_close(
        logits_of_the_export(tiny_model, second), logits_in_memory(exported), rtol=1e-5, atol=1e-5
    )
    before, after = first.weights(), second.weights()
    assert {name: each.shape for name, each in before.items()} == {name: each.shape for name, each in after.items()}
    assert not any(torch.equal(before[name], after[name]) for name in before)
    unmoved = train(name="unmoved", method=lora(start_from=[str(first.run.model)]), optim=STILL)
    assert all(torch.equal(weight, before[name]) for name, weight in unmoved.weights().items())


def test_several_adapters_leave_as_one(train: Train, tiny_model: Path, exported: list[Any]) -> None:
    """Of different rank, scale and target; the export alone, on the base on disk, is the model."""
    one = train(name="one", method=lora(rank=2, alpha=3, rslora=True, target=["q_proj", "down_proj"]), optim=STEPS)
    two = train(name="two", method=lora(target=["q_proj", "v_proj"]), optim=STEPS)
    both = train(name="both", method=lora(start_from=[str(each.run.model) for each in (one, two)]), optim=STEPS)
    torch.testing.assert_close(logits_of_the_export(tiny_model, both), logits_in_memory(exported), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(logits_of_the_export(tiny_model, two), logits_in_memory(exported), atol=1e-2)

    summed, first = change_of(both, scale=1), change_of(one, scale=3 / 2**0.5)
    assert summed.keys() == first.keys() | change_of(two, scale=2).keys()
    # Only the first adapter has it, and the first one stays as it was.
    name = "base_model.model.model.layers.0.mlp.down_proj"
    torch.testing.assert_close(summed[name], first[name], rtol=1e-5, atol=1e-7)


def change_of(trained: Trained, scale: float) -> dict[str, torch.Tensor]:
    adapter = trained.weights()
    layers = {name.removesuffix(".lora_A.weight") for name in adapter if name.endswith(".lora_A.weight")}
    return {each: scale * adapter[f"{each}.lora_B.weight"] @ adapter[f"{each}.lora_A.weight"] for each in layers}


def test_adapter_of_another_model_is_refused(train: Train, variant: Callable[..., Path]) -> None:
    from transformers import Qwen2Config

    first = train(method=lora(), optim={"max_steps": 1})
    config = Qwen2Config(
        vocab_size=512, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    with pytest.raises(RecipeError, match="does not fit this model"):
        train(name="second", model={"path": str(variant(config))}, method=lora(start_from=[str(first.run)]))


def test_adapter_without_one_of_its_matrices_is_refused(train: Train) -> None:
    first = train(method=lora(), optim={"max_steps": 1})
    weights = first.weights()
    lost = next(name for name in weights if ".lora_B." in name)
    save_file({name: each for name, each in weights.items() if name != lost}, first.run.model / WEIGHTS)
    with pytest.raises(RecipeError, match=f"its file has no {lost}"):
        train(name="second", method=lora(start_from=[str(first.run)]))


def test_lora_plus_ratio_scales_the_rate_of_b_matrices(train: Train) -> None:
    """A first step of plain SGD is learning rate × gradient, and B alone has one: A's is multiplied with B = 0."""
    optim = {"max_steps": 1, "learning_rate": 0.01, "optimizer": "sgd", "max_grad_norm": None}
    plain, plus = (train(method=lora(**keys), optim=optim).weights() for keys in ({}, {"plus_ratio": 16}))
    for name, weight in plain.items():
        torch.testing.assert_close(plus[name], weight * 16 if "lora_B" in name else weight, rtol=1e-6, atol=0)


@pytest.mark.parametrize("per_device", [1, 4])
def test_adapters_learn_in_bf16(train: Train, per_device: int) -> None:
    trained = train(method=lora(), precision="bf16", batch={"per_device": per_device}, optim={**STEPS, "max_steps": 20})
    adapter = trained.weights()
    assert all(weight.dtype == torch.float32 for weight in adapter.values())
    assert all(weight.abs().max() > 1e-3 for name, weight in adapter.items() if "lora_B" in name)
    losses = trained.losses()
    assert sum(losses[-5:]) < sum(losses[:5]) - 0.5


@pytest.mark.parametrize(
    "method",
    [
        pytest.param({"tuner": "freeze", "freeze": {"last_layers": 1}}, id="freeze"),
        pytest.param(lora(init="pissa", dropout=0.2, plus_ratio=4), id="pissa"),
        pytest.param(lora(dora=True, modules_to_save=["embed_tokens"], target=["q_proj"]), id="dora"),
        pytest.param(None, id="several"),
    ],
)
def test_a_run_continues_bit_by_bit(train: Train, method: Any) -> None:
    if method is None:
        earlier = [train(name=name, method=lora(), optim={"max_steps": 1}) for name in ("one", "two")]
        method = lora(start_from=[str(each.run.model) for each in earlier], dropout=0.2)
    changes = {"name": "whole", "method": method, "optim": {**STEPS, "max_steps": 4}}
    whole = train(**changes, checkpoint={"every_steps": 2})
    losses, weights = whole.losses(), whole.weights()
    again = train(**changes, checkpoint={"every_steps": 2, "resume": str(whole.run.checkpoint(2))})
    assert again.curve("attempt") == [1, 1, 2, 2]
    assert again.losses() == losses
    for name, weight in again.weights().items():
        assert torch.equal(weight, weights[name]), name


def test_a_run_does_not_continue_with_another_adapter(train: Train) -> None:
    first = train(method=lora(), optim={"max_steps": 1})
    changes = {"name": "second", "method": lora(start_from=[str(first.run.model)]), "optim": {"max_steps": 2}}
    second = train(**changes, checkpoint={"every_steps": 1})
    weights = first.run.model / WEIGHTS
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(RecipeError, check=lambda error: error.code == "adapter-changed"):
        train(**changes, checkpoint={"every_steps": 1, "resume": str(second.run.checkpoint(1))})
    with pytest.raises(RecipeError, check=lambda error: error.code == "adapter-changed"):
        checkpoint_weights(second.run, second.run.checkpoint(1))


def test_a_run_does_not_go_on_with_another_config(train: Train, tiny_model: Path, tmp_path: Path) -> None:
    """All weights are those of the checkpoint, and the model is another one."""
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    changes = {"model": {"path": str(model)}, "optim": {"max_steps": 2}}
    first = train(**changes, checkpoint={"every_steps": 1})
    config = model / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "rms_norm_eps": 0.1}))
    with pytest.raises(RecipeError, check=lambda error: error.code == "base-model-changed"):
        train(**changes, checkpoint={"every_steps": 1, "resume": str(first.run.checkpoint(1))})
    with pytest.raises(RecipeError, check=lambda error: error.code == "base-model-changed"):
        checkpoint_weights(first.run, first.run.checkpoint(1))


def test_dropout_of_an_earlier_training_does_not_act_on_a_frozen_adapter(train: Train) -> None:
    one, two = (train(name=name, method=lora(), optim=STEPS) for name in ("one", "two"))
    method, losses = lora(start_from=[str(each.run.model) for each in (one, two)]), []
    config = one.run.model / "adapter_config.json"
    for dropout in (0.0, 0.9):
        config.write_text(json.dumps({**json.loads(config.read_text()), "lora_dropout": dropout}))
        losses.append(train(name=f"both-{dropout}", method=method, optim=STEPS).losses())
    assert losses[0] == losses[1]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_frozen_adapters_on_two_ranks_train_as_on_one(train: Train, train_on_ranks: Train, strategy: str) -> None:
    """What stands beside the trained adapter is divided like everything else, and leaves whole."""
    earlier = [train(name=name, method=lora(target=["q_proj"]), optim=STEPS) for name in ("one", "two")]
    for name, keys in (
        ("pissa", {"init": "pissa", "plus_ratio": 4}),
        ("several", {"start_from": [str(each.run.model) for each in earlier]}),
    ):
        changes = {"method": lora(**keys), "optim": STEPS, "batch": {"per_device": 2}}
        alone = train(name=name, **changes)
        both = train_on_ranks(
            2, name=f"{name}-both", **{**changes, "batch": {"per_device": 1}}, parallel={"strategy": strategy}
        )
        assert both.losses() == pytest.approx(alone.losses(), rel=1e-5)
        ours, theirs = change_of(both, scale=1), change_of(alone, scale=1)
        assert ours.keys() == theirs.keys()
        for layer, change in ours.items():
            # As a whole: where a gradient is next to nothing, Adam makes a step of its rounding.
            assert (change - theirs[layer]).norm() < 1e-3 * theirs[layer].norm(), layer


@pytest.mark.parametrize("form", [{}, {"dora": True}, {"target": ["q_proj"]}], ids=["plain", "dora", "several"])
@pytest.mark.parametrize("order", [("sft", "reward"), ("reward", "reward"), ("reward", "sft")], ids="-".join)
def test_adapter_of_another_stage_is_trained_further(
    order: tuple[str, str], form: dict[str, Any], train: Train, tiny_model: Path, tmp_path: Path, exported: list[Any]
) -> None:
    """Scores are learnt on top of an adapter that answers, and answers on top of one that scores."""
    pairs = {"data": {"train": str(write_pairs(tmp_path / "pairs.jsonl", 8))}}

    def run(name: str, stage: str, **keys: Any) -> Trained:
        data = pairs if stage == "reward" else {}
        return train(name=name, method={"stage": stage, **lora(**keys)}, optim=STEPS, **data)

    first = run("first", order[0], **form)
    earlier = [run("earlier", "sft", **form)] if "target" in form else []
    second = run("second", order[1], start_from=[str(each.run) for each in (*earlier, first)])
    layers = {name for name in second.weights() if ".lora_A." in name}
    assert layers == {name for name in first.weights() if ".lora_A." in name}
    assert any(name.endswith("score.weight") for name in second.weights()) == (order[1] == "reward")
    expected = logits_in_memory(exported)
    torch.testing.assert_close(logits_of_the_export(tiny_model, second), expected, rtol=1e-5, atol=1e-5)
