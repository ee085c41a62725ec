"""OFT: rotations as in PEFT, an unchanged base, files that PEFT loads, runs that continue bit by bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tests.integration.train.pairs import write_pairs
from tests.integration.train.test_tuners import IDS, LINEAR, STEPS, STILL, load, logits_in_memory, logits_of_the_export

from ascendtune.core.errors import RecipeError
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.model import apply_tuner, trainable_share
from ascendtune.train.tuner.targets import adapter_size
from families.configs import tiny_config

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train

FORMS = [
    pytest.param({}, id="plain"),
    pytest.param({"rank": 4}, id="rank"),
    pytest.param({"block_share": True, "block_size": 8}, id="shared"),
    pytest.param({"cayley_neumann": False, "block_size": 4}, id="solved"),
    pytest.param({"cayley_neumann_terms": 9, "block_size": 16}, id="nine terms"),
    pytest.param({"coft": True, "eps": 0.05}, id="constrained"),
    pytest.param({"target": ["q_proj"], "modules_to_save": ["lm_head"]}, id="modules_to_save"),
]


def oft(**keys: Any) -> dict[str, Any]:
    return {"tuner": "oft", "oft": keys}


def of_the_base(tuned: Any) -> dict[str, torch.Tensor]:
    named = ((name, weight) for name, weight in tuned.get_base_model().named_parameters() if ".oft_" not in name)
    copies = ((name, weight) for name, weight in named if ".modules_to_save." not in name)
    return {name.replace(".base_layer", "").replace(".original_module", ""): weight for name, weight in copies}


@pytest.mark.parametrize("keys", FORMS)
def test_oft_changes_the_adapter_alone_and_peft_loads_it(
    train: Train, tiny_model: Path, exported: list[Any], keys: dict[str, Any]
) -> None:
    trained = train(method=oft(**keys), optim=STEPS)
    base = of_the_base(exported[0])
    for name, weight in load_file(tiny_model / "model.safetensors").items():
        assert torch.equal(base[name], weight), name
    names = {name.rpartition(".oft_R.")[0].rpartition(".")[2] for name in trained.weights() if ".oft_R." in name}
    assert names == set(keys.get("target", LINEAR))
    assert any(name.endswith("lm_head.weight") for name in trained.weights()) == ("modules_to_save" in keys)
    assert trained.run.read()["resolved"]["trainable"] == sum(each.numel() for each in trained.weights().values())
    expected = logits_in_memory(exported)
    torch.testing.assert_close(logits_of_the_export(tiny_model, trained), expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(load(tiny_model)(input_ids=IDS).logits, expected, atol=1e-2)


@pytest.mark.parametrize("keys", FORMS)
def test_first_step_is_that_of_peft(
    train: Train, recipe: Callable[..., Recipe], tiny_model: Path, keys: dict[str, Any]
) -> None:
    """The same gradients from PEFT's own model of the same config: a step of plain SGD writes them into the weights."""
    from peft import OFTConfig, get_peft_model

    method = recipe(method=oft(**keys)).method
    ours = apply_tuner(load(tiny_model), method)
    size = (
        {"r": keys["rank"], "oft_block_size": 0} if "rank" in keys else {"oft_block_size": keys.get("block_size", 32)}
    )
    config = OFTConfig(
        **size, target_modules=keys.get("target", "all-linear"), block_share=keys.get("block_share", False),
        use_cayley_neumann=keys.get("cayley_neumann", True), coft=keys.get("coft", False), eps=keys.get("eps", 6e-5),
        num_cayley_neumann_terms=keys.get("cayley_neumann_terms", 5), modules_to_save=keys.get("modules_to_save"),
        task_type="CAUSAL_LM",
    )  # fmt: skip
    theirs = get_peft_model(load(tiny_model), config)
    assert trainable_share(ours)[0] == trainable_share(theirs)[0]
    if not method.oft.modules_to_save:
        assert trainable_share(ours)[0] == adapter_size(load(tiny_model), method.oft)
    generator = torch.Generator().manual_seed(3)
    pairs = [
        (one, other)
        for (_, one), (_, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True)
        if one.requires_grad
    ]
    assert pairs
    for one, other in pairs:
        one.data.add_(0.05 * torch.randn(one.shape, generator=generator))
        other.data.copy_(one.data)
    for tuned in (ours, theirs):
        tuned(input_ids=IDS, labels=IDS).loss.backward()
    for one, other in pairs:
        assert one.grad is not None
        assert one.grad.abs().max() > 0
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-6, atol=1e-9)
        assert torch.equal(one, other)


def test_rotations_keep_lengths(recipe: Callable[..., Recipe], tiny_model: Path) -> None:
    """R·Rᵀ = I: the outputs of a layer are those of a turned input, as long as before."""
    layers = {}
    for name, keys in {"solved": {"cayley_neumann": False}, "series": {}}.items():
        tuned = apply_tuner(load(tiny_model), recipe(method=oft(block_size=8, **keys)).method)
        layer = tuned.get_submodule("base_model.model.model.layers.0.mlp.down_proj")
        torch.nn.init.normal_(layer.oft_R["default"].weight, std=0.01, generator=torch.Generator().manual_seed(0))
        layers[name] = layer.get_delta_weight("default").detach().double()
    identity = torch.eye(len(layers["solved"]), dtype=torch.float64)
    assert (layers["solved"] @ layers["solved"].T - identity).abs().max() < 1e-6
    assert (layers["series"] @ layers["series"].T - identity).abs().max() < 1e-4
    # PEFT's two forms turn in opposite directions.
    torch.testing.assert_close(layers["series"], layers["solved"].T, rtol=0, atol=1e-4)


def test_a_size_that_does_not_divide_becomes_the_nearest(
    recipe: Callable[..., Recipe], tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    tuned = apply_tuner(load(tiny_model), recipe(method=oft(block_size=10)).method)
    layer = tuned.get_submodule("base_model.model.model.layers.0.self_attn.q_proj")
    assert layer.oft_block_size["default"] == 8
    assert "method.oft.block_size: 10 does not divide 64 inputs: blocks of 8 are used there" in caplog.text


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({"target": ["embed_tokens"]}, "oft-target-not-linear"),
        ({"target": ["lm_head"]}, "oft-target-not-linear"),
        ({"target": ["q_porj"]}, "unknown-module"),
        ({"rank": 64}, "oft-block-too-small"),
        ({"modules_to_save": ["lm_haed"]}, "unknown-module"),
    ],
)
def test_targets_that_oft_cannot_rotate_are_refused(
    recipe: Callable[..., Recipe], tiny_model: Path, keys: dict[str, Any], code: str
) -> None:
    with pytest.raises(RecipeError) as refused:
        apply_tuner(load(tiny_model), recipe(method=oft(**keys)).method)
    assert refused.value.code == code
    assert "method.oft." in refused.value.what


def test_dropped_blocks_turn_nothing_in_training(recipe: Callable[..., Recipe], tiny_model: Path) -> None:
    """Half of the blocks, others each time; all of them turn once training has ended."""
    tuned = apply_tuner(load(tiny_model), recipe(method=oft(block_size=4, module_dropout=0.5)).method)
    layer = tuned.get_submodule("base_model.model.model.layers.0.mlp.up_proj")
    torch.nn.init.normal_(layer.oft_R["default"].weight, std=0.1)
    inputs = torch.randn(3, 64)
    layer.base_layer.weight.data = torch.eye(64)
    kept = []
    for _ in range(8):
        turned = (layer(inputs) - inputs).abs().view(3, 16, 4).amax(dim=(0, 2)) > 1e-6
        assert turned.sum() == 8
        kept.append(tuple(turned.tolist()))
    assert len(set(kept)) > 1
    whole = layer.eval()(inputs)
    assert ((whole - inputs).abs().view(3, 16, 4).amax(dim=(0, 2)) > 1e-6).all()
    torch.testing.assert_close(whole, inputs @ layer.get_delta_weight("default"))


@pytest.mark.parametrize("keys", FORMS)
def test_start_from_trains_rotations_further(
    train: Train, tiny_model: Path, exported: list[Any], keys: dict[str, Any]
) -> None:
    """The file decides the form; the first loss is that of the model where training left it."""
    first = train(method=oft(**keys), optim=STEPS)
    constrained = {"coft": True} if "coft" in keys else {}
    second = train(name="second", method=oft(start_from=[str(first.run)], **constrained), optim=STEPS)
    torch.testing.assert_close(
        logits_of_the_export(tiny_model, second), logits_in_memory(exported), rtol=1e-5, atol=1e-5
    )
    before, after = first.weights(), second.weights()
    assert {name: each.shape for name, each in before.items()} == {name: each.shape for name, each in after.items()}
    assert not any(torch.equal(before[name], after[name]) for name in before)
    configs = [json.loads((each.run.model / "adapter_config.json").read_text()) for each in (first, second)]
    assert configs[0] == configs[1]
    # Equal runs leave equal files: a set would be in another order in each process.
    assert configs[0]["target_modules"] == sorted(configs[0]["target_modules"])
    unmoved = train(name="unmoved", method=oft(start_from=[str(first.run.model)], **constrained), optim=STILL)
    changed = [name for name, weight in unmoved.weights().items() if not torch.equal(weight, before[name])]
    # What is further out than it may be is pulled back in the first forward pass.
    assert changed == [] or "coft" in keys
    torch.testing.assert_close(
        logits_of_the_export(tiny_model, unmoved), logits_of_the_export(tiny_model, first), rtol=1e-5, atol=1e-5
    )


def test_a_continued_run_goes_on_bit_by_bit_and_knows_its_adapter(train: Train) -> None:
    first = train(method=oft(block_size=8), optim={"max_steps": 2})
    method = oft(start_from=[str(first.run.model)], module_dropout=0.5)
    changes = {"name": "whole", "method": method, "optim": {**STEPS, "max_steps": 4}}
    whole = train(**changes, checkpoint={"every_steps": 2})
    losses, weights = whole.losses(), whole.weights()
    again = train(**changes, checkpoint={"every_steps": 2, "resume": str(whole.run.checkpoint(2))})
    assert again.losses() == losses
    for name, weight in again.weights().items():
        assert torch.equal(weight, weights[name]), name
    file = first.run.model / "adapter_model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(RecipeError, check=lambda error: error.code == "adapter-changed"):
        train(**changes, checkpoint={"every_steps": 2, "resume": str(whole.run.checkpoint(2))})


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_rotations_are_trained_further_on_two_ranks_as_on_one(
    train: Train, train_on_ranks: Train, strategy: str
) -> None:
    first = train(method=oft(block_size=8), optim=STEPS)
    changes = {"method": oft(start_from=[str(first.run)]), "optim": STEPS}
    alone = train(name="alone", **changes, batch={"per_device": 2})
    both = train_on_ranks(2, name="both", **changes, batch={"per_device": 1}, parallel={"strategy": strategy})
    anew = train(name="anew", method=oft(block_size=8), optim=STEPS, batch={"per_device": 2})
    assert alone.losses()[0] != pytest.approx(anew.losses()[0], rel=1e-3)
    assert both.losses() == pytest.approx(alone.losses(), rel=1e-5)


@pytest.mark.parametrize("order", [("sft", "reward"), ("reward", "reward"), ("reward", "sft")], ids="-".join)
def test_rotations_of_another_stage_are_trained_further(
    order: tuple[str, str], train: Train, tiny_model: Path, tmp_path: Path, exported: list[Any]
) -> None:
    pairs = {"data": {"train": str(write_pairs(tmp_path / "pairs.jsonl", 8))}}
    first, second = (
        train(
            name=str(number), method={"stage": stage, **oft(start_from=[str(tmp_path / "runs/0")] if number else [])},
            optim=STEPS, **(pairs if stage == "reward" else {}),
        )
        for number, stage in enumerate(order)
    )  # fmt: skip
    turned = {name for name in second.weights() if ".oft_R." in name}
    assert turned == {name for name in first.weights() if ".oft_R." in name}
    assert any(name.endswith("score.weight") for name in second.weights()) == (order[1] == "reward")
    expected = logits_in_memory(exported)
    torch.testing.assert_close(logits_of_the_export(tiny_model, second), expected, rtol=1e-5, atol=1e-5)


def test_rotations_that_do_not_fit_the_model_are_refused(train: Train, tiny_model: Path) -> None:
    from safetensors.torch import save_file

    first = train(method=oft(block_size=8), optim={"max_steps": 1})
    weights = first.weights()
    lost = next(iter(weights))
    save_file(
        {name: each for name, each in weights.items() if name != lost}, first.run.model / "adapter_model.safetensors"
    )
    with pytest.raises(RecipeError, match="its file has no") as refused:
        train(name="second", method=oft(start_from=[str(first.run)]))
    assert refused.value.code == "adapter-base-mismatch" and "method.oft.start_from" in refused.value.what


@pytest.mark.parametrize("per_device", [1, 4])
def test_rotations_learn_in_bf16(train: Train, per_device: int) -> None:
    trained = train(
        method=oft(block_size=8), precision="bf16", batch={"per_device": per_device}, optim={**STEPS, "max_steps": 20}
    )
    assert all(weight.dtype == torch.float32 for weight in trained.weights().values())
    losses = trained.losses()
    assert sum(losses[-5:]) < sum(losses[:5]) - 0.5


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param({"module_dropout": 0.5, "block_size": 8}, id="dropout"),
        pytest.param({"coft": True, "eps": 1e-3, "block_size": 8}, id="constrained"),
        pytest.param({"modules_to_save": ["embed_tokens"], "target": ["q_proj"]}, id="modules_to_save"),
    ],
)
def test_a_run_continues_bit_by_bit(train: Train, other_rows: Path, keys: dict[str, Any]) -> None:
    changes = {"name": "whole", "method": oft(**keys), "optim": {**STEPS, "max_steps": 4}}
    evaluated = {"data": {"eval": str(other_rows)}, "eval": {"every_steps": 2}}
    whole = train(**changes, **evaluated, checkpoint={"every_steps": 2})
    losses, weights, evaluations = whole.losses(), whole.weights(), whole.evaluations()
    assert len(set(losses)) == 4
    again = train(**changes, **evaluated, checkpoint={"every_steps": 2, "resume": str(whole.run.checkpoint(2))})
    assert again.curve("attempt") == [1, 1, 2, 2]
    assert again.losses() == losses
    assert [each["loss"] for each in again.evaluations()] == [each["loss"] for each in evaluations]
    for name, weight in again.weights().items():
        assert torch.equal(weight, weights[name]), name


def test_recomputed_blocks_drop_the_same_rotations(train: Train) -> None:
    method = oft(block_size=4, module_dropout=0.5)
    plain = train(name="plain", method=method, optim=STEPS)
    again = train(name="again", method=method, optim=STEPS, memory={"gradient_checkpointing": True})
    assert again.losses() == pytest.approx(plain.losses(), rel=1e-6)
    assert again.curve("grad_norm") == pytest.approx(plain.curve("grad_norm"), rel=1e-5)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_train_as_one(train: Train, train_on_ranks: Train, strategy: str) -> None:
    forms = [{"block_size": 8}, {"block_share": True}, {"target": ["q_proj"], "modules_to_save": ["lm_head"]}]
    # No shard of a weight can be constrained.
    forms += [{"coft": True, "eps": 1e-3}] if strategy == "ddp" else []
    for number, keys in enumerate(forms):
        changes = {"method": oft(**keys), "optim": STEPS}
        alone = train(name=f"alone{number}", **changes, batch={"per_device": 2})
        both = train_on_ranks(
            2, name=f"both{number}", **changes, batch={"per_device": 1}, parallel={"strategy": strategy}
        )
        assert both.losses() == pytest.approx(alone.losses(), rel=1e-5)
        ours, theirs = both.weights(), alone.weights()
        for name, weight in ours.items():
            # As a whole: where a gradient is next to nothing, Adam makes a step of its rounding.
            assert (weight - theirs[name]).norm() < 1e-3 * theirs[name].norm(), name


def test_a_mixture_turns_what_is_not_an_expert(
    train: Train, variant: Callable[..., Path], exported: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    from transformers import Qwen3MoeConfig

    caplog.set_level("INFO")
    config = Qwen3MoeConfig(
        vocab_size=512, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2, pad_token_id=0,
    )  # fmt: skip
    base = variant(config)
    trained = train(model={"path": str(base)}, method=oft(block_size=8), optim=STEPS)
    names = {name.rpartition(".oft_R.")[0].rpartition(".")[2] for name in trained.weights()}
    assert names == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert (
        "method.oft.target: all-linear leaves out the experts and the routers (mlp.gate) of 2 mixtures" in caplog.text
    )
    torch.testing.assert_close(logits_of_the_export(base, trained), logits_in_memory(exported), rtol=1e-5, atol=1e-5)


def test_matrices_of_gpt2_are_refused(recipe: Callable[..., Recipe]) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2))
    with pytest.raises(RecipeError) as refused:
        apply_tuner(model, recipe(method=oft()).method)
    assert refused.value.code == "oft-target-not-linear"


def test_inputs_of_four_dimensions_are_refused_with_the_targets_that_remain(
    train: Train, variant: Callable[..., Path]
) -> None:
    """Bailing's latent attention gives `kv_b_proj` (batch, 1, tokens, rank), and PEFT unfolds that as an image."""
    model = {"path": str(variant(tiny_config("bailing_hybrid")))}
    with pytest.raises(RecipeError) as refused:
        train(model=model, method=oft(block_size=8), optim=STEPS)
    assert refused.value.code == "oft-target-not-linear" and "kv_b_proj" in refused.value.what
    target = yaml.safe_load(refused.value.remedy.partition("method.oft.target: ")[2].partition(";")[0])
    assert "q_proj" in target and "kv_b_proj" not in target
    trained = train(name="others", model=model, method=oft(block_size=8, target=target), optim=STEPS)
    assert len(trained.losses()) == 3


def test_an_adapter_of_inputs_of_four_dimensions_is_not_answered_with_a_target(
    train: Train, variant: Callable[..., Path], tmp_path: Path
) -> None:
    """`start_from` decides the target, and PEFT's may be a pattern."""
    from peft import OFTConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    directory = variant(tiny_config("bailing_hybrid"))
    config = OFTConfig(task_type="CAUSAL_LM", target_modules=r".*\.kv_b_proj", oft_block_size=8)
    get_peft_model(AutoModelForCausalLM.from_pretrained(directory), config).save_pretrained(tmp_path / "elsewhere")
    with pytest.raises(RecipeError) as refused:
        train(model={"path": str(directory)}, method=oft(start_from=[str(tmp_path / "elsewhere")]), optim=STEPS)
    assert refused.value.code == "oft-target-not-linear" and "method.oft.start_from" in refused.value.what
    assert refused.value.remedy == "use method.tuner: lora"


@pytest.mark.parametrize("stage", ["reward", "preference"])
def test_other_stages_turn_too(stage: str, train: Train, tiny_model: Path, tmp_path: Path, exported: list[Any]) -> None:
    data = {"train": str(write_pairs(tmp_path / "pairs.jsonl", 8))}
    trained = train(method={"stage": stage, **oft(block_size=8)}, optim=STEPS, data=data)
    assert any(name.endswith("score.weight") for name in trained.weights()) == (stage == "reward")
    expected = logits_in_memory(exported)
    torch.testing.assert_close(logits_of_the_export(tiny_model, trained), expected, rtol=1e-5, atol=1e-5)
