"""Adapters over a quantised base train as LoRA does over the dequantised weights."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.integration.train.pairs import write_pairs
from tests.integration.train.test_tuners import LINEAR, STEPS, load, logits_in_memory, logits_of_the_export

from ascendtune.core.errors import RecipeError
from ascendtune.train.tuner.nf4 import bytes_of, dequantise, quantise
from ascendtune.train.tuner.quantised_linear import Nf4Linear

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train

    from ascendtune.train.loop import Loop

Dense = Callable[..., Path]

MODELS: dict[str, dict[str, Any]] = {"quantised": {"quantization": "nf4"}, "plain": {}}


@pytest.fixture
def dense(tiny_model: Path, tmp_path: Path) -> Dense:
    """The tiny model with the weights that its quantised ones stand for."""

    def make(*, double: bool = False) -> Path:
        directory = tmp_path / "dense"
        load(tiny_model).save_pretrained(directory)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (directory / name).write_bytes((tiny_model / name).read_bytes())
        file = directory / "model.safetensors"
        weights = load_file(file)
        for name, weight in weights.items():
            if any(f".{module}.weight" in name for module in LINEAR):
                weights[name] = dequantise(quantise(weight, double=double), weight.dtype)
        save_file(weights, file, metadata={"format": "pt"})
        return directory

    return make


def nf4(*, double: bool = False, **others: Any) -> dict[str, Any]:
    return {"quantization": "nf4", "double_quantization": double, **others}


def require_same(quantised: Any, plain: Any) -> None:
    assert quantised.losses() == plain.losses()
    theirs = plain.weights()
    for name, weight in quantised.weights().items():
        assert torch.equal(weight, theirs[name]), name


@pytest.mark.parametrize(
    ("changes", "double"),
    [
        pytest.param({"method": {"tuner": "lora"}}, False, id="lora"),
        pytest.param({"method": {"tuner": "lora"}}, True, id="double"),
        pytest.param({"method": {"tuner": "lora", "lora": {"dropout": 0.3, "rslora": True}}}, False, id="dropout"),
        pytest.param({"method": {"tuner": "lora", "lora": {"target": ["q_proj"]}}}, False, id="one target"),
        pytest.param({"method": {"tuner": "lora", "lora": {"modules_to_save": ["lm_head"]}}}, False, id="whole module"),
        pytest.param({"method": {"tuner": "oft", "oft": {"block_size": 8}}}, False, id="oft"),
        pytest.param({"method": {"tuner": "lora"}, "memory": {"gradient_checkpointing": True}}, False, id="recomputed"),
        pytest.param({"method": {"tuner": "lora"}, "data": {"packing": True}}, False, id="packed"),
    ],
)
def test_trains_what_is_trained_over_the_weights_that_the_bytes_stand_for(
    train: Train, dense: Dense, changes: dict[str, Any], double: bool
) -> None:
    quantised = train(model=nf4(double=double), optim=STEPS, **changes)
    plain = train(name="plain", model={"path": str(dense(double=double))}, optim=STEPS, **changes)
    require_same(quantised, plain)


def test_differs_from_lora_over_the_weights_of_the_files(train: Train) -> None:
    quantised = train(model=nf4(), method={"tuner": "lora"}, optim=STEPS)
    plain = train(name="plain", method={"tuner": "lora"}, optim=STEPS)
    assert quantised.losses()[0] != plain.losses()[0]
    assert quantised.losses() == pytest.approx(plain.losses(), rel=0.02)
    resolved, others = (each.run.read()["resolved"] for each in (quantised, plain))
    assert resolved["trainable"] == others["trainable"] and resolved["parameters"] == others["parameters"]


def test_hashes_at_the_start_are_those_of_the_weights_that_the_bytes_stand_for(train: Train, dense: Dense) -> None:
    quantised = train(model=nf4(), method={"tuner": "lora"}, optim={"max_steps": 1})
    plain = train(name="plain", model={"path": str(dense())}, method={"tuner": "lora"}, optim={"max_steps": 1})
    ours, theirs = (json.loads(each.run.start_weights.read_text()) for each in (quantised, plain))
    assert ours == theirs


def test_pissa_takes_back_what_it_starts_with(train: Train, dense: Dense) -> None:
    """The principal part is that of the files' weights; start and base cancel out, so the first loss is the base's."""
    method = {"tuner": "lora", "lora": {"init": "pissa", "rank": 2}}
    quantised = train(model=nf4(), method=method, optim=STEPS)
    plain = train(name="plain", model={"path": str(dense())}, method={"tuner": "lora"}, optim=STEPS)
    assert quantised.losses()[0] == pytest.approx(plain.losses()[0], rel=1e-6)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_two_ranks_train_as_one(train: Train, train_on_ranks: Train, strategy: str, compute: str) -> None:
    changes = {"model": nf4(double=True), "method": {"tuner": "lora"}, "optim": STEPS, "precision": compute}
    alone = train(name="alone", **changes, batch={"per_device": 2})
    both = train_on_ranks(2, name="both", **changes, batch={"per_device": 1}, parallel={"strategy": strategy})
    assert both.losses() == pytest.approx(alone.losses(), rel=1e-5 if compute == "fp32" else 2e-3)


def test_preferences_are_compared_with_the_quantised_base(train: Train, dense: Dense, tmp_path: Path) -> None:
    changes = {
        "data": {"train": str(write_pairs(tmp_path / "pairs.jsonl", 8))},
        "method": {"stage": "preference", "tuner": "lora"},
        "optim": STEPS,
    }
    quantised = train(model=nf4(), **changes)
    plain = train(name="plain", model={"path": str(dense())}, **changes)
    # ln 2: policy and reference are the same model at the first step.
    assert quantised.losses()[0] == pytest.approx(0.693147, rel=1e-6)
    require_same(quantised, plain)


def test_scores_are_trained_over_a_quantised_base(train: Train, dense: Dense, tmp_path: Path) -> None:
    changes = {
        "data": {"train": str(write_pairs(tmp_path / "pairs.jsonl", 8))},
        "method": {"stage": "reward", "tuner": "lora"},
        "optim": STEPS,
    }
    require_same(train(model=nf4(), **changes), train(name="plain", model={"path": str(dense())}, **changes))


def test_a_run_continues_bit_by_bit_with_the_same_bytes_only(train: Train) -> None:
    changes = {"name": "whole", "method": {"tuner": "lora"}, "optim": {**STEPS, "max_steps": 4}}
    whole = train(**changes, model=nf4(), checkpoint={"every_steps": 2})
    losses, weights = whole.losses(), whole.weights()
    resumed = {"every_steps": 2, "resume": str(whole.run.checkpoint(2))}
    again = train(**changes, model=nf4(), checkpoint=resumed)
    assert again.curve("attempt") == [1, 1, 2, 2] and again.losses() == losses
    for name, weight in again.weights().items():
        assert torch.equal(weight, weights[name]), name
    with pytest.raises(RecipeError) as refused:
        train(**changes, model=nf4(double=True), checkpoint=resumed)
    assert "model.double_quantization" in str(refused.value)


def test_exported_adapter_is_peft_s_and_starts_another_training(
    train: Train, dense: Dense, exported: list[Any]
) -> None:
    trained = train(model=nf4(), method={"tuner": "lora"}, optim=STEPS)
    expected = logits_in_memory(exported)
    torch.testing.assert_close(logits_of_the_export(dense(), trained), expected, rtol=1e-5, atol=1e-5)
    method = {"tuner": "lora", "lora": {"start_from": [str(trained.run)]}}
    further = train(name="further", model=nf4(), method=method, optim={**STEPS, "max_steps": 1})
    anew = train(name="anew", model=nf4(), method={"tuner": "lora"}, optim={**STEPS, "max_steps": 1})
    assert further.losses()[0] < anew.losses()[0]


def test_flops_are_those_of_lora(make_loop: Callable[..., Loop]) -> None:
    quantised, plain = (make_loop(name=name, model=model, method={"tuner": "lora"}) for name, model in MODELS.items())
    assert quantised.recorder.flops == plain.recorder.flops


@pytest.mark.parametrize("double", [False, True])
def test_no_matrix_is_left_whole(make_loop: Callable[..., Loop], double: bool) -> None:
    loop = make_loop(model=nf4(double=double), method={"tuner": "lora"})
    model = loop.objective.model
    layers = {name: each for name, each in model.named_modules() if isinstance(each, Nf4Linear)}
    assert {name.removesuffix(".base_layer").rpartition(".")[2] for name in layers} == set(LINEAR)
    held = sum(buffer.nbytes for layer in layers.values() for buffer in layer.buffers())
    assert held == sum(bytes_of(each.in_features * each.out_features, double=double) for each in layers.values())
    kept = {name for name, each in model.named_parameters() if each.ndim == 2 and not each.requires_grad}
    assert {name.rpartition(".")[0].rpartition(".")[2] for name in kept} == {"embed_tokens"}


def test_nothing_stays_mapped_from_the_files(make_loop: Callable[..., Loop], dense: Dense) -> None:
    directory = dense()
    loop = make_loop(model=nf4(path=str(directory)), method={"tuner": "lora"})
    gc.collect()
    with Path("/proc/self/maps").open() as maps:
        assert not [line for line in maps if str(directory) in line]
    assert loop.objective.model


def test_an_adapter_of_a_quantised_parameter_is_refused(train: Train) -> None:
    method = {"tuner": "lora", "lora": {"target": ["q_proj.weight"]}}
    with pytest.raises(RecipeError) as refused:
        train(model=nf4(), method=method)
    assert refused.value.code == "quantised-parameter-adapted" and "q_proj" in refused.value.remedy


def test_matrices_of_gpt2_are_refused(train: Train, variant: Callable[..., Path]) -> None:
    from transformers import GPT2Config

    base = variant(GPT2Config(vocab_size=512, n_embd=16, n_layer=1, n_head=2))
    with pytest.raises(RecipeError) as refused:
        train(model=nf4(path=str(base)), method={"tuner": "lora"})
    assert refused.value.code == "nothing-to-quantise"


def test_a_mixture_keeps_router_and_stacked_experts_as_they_are(
    train: Train, variant: Callable[..., Path], exported: list[Any]
) -> None:
    from transformers import Qwen3MoeConfig

    config = Qwen3MoeConfig(
        vocab_size=512, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2, pad_token_id=0,
    )  # fmt: skip
    train(model=nf4(path=str(variant(config))), method={"tuner": "lora"}, optim=STEPS)
    names = {name.rpartition(".")[2] for name, each in exported[0].named_modules() if isinstance(each, Nf4Linear)}
    assert names == {"base_layer"}
    layers = [name for name, each in exported[0].named_modules() if isinstance(each, Nf4Linear)]
    assert {name.split(".")[-2] for name in layers} == {"q_proj", "k_proj", "v_proj", "o_proj"}
