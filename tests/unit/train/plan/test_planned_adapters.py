"""A plan counts the adapters that training has: those of PiSSA, and those of the files that it starts from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from ascendtune.core.errors import RecipeError
from ascendtune.machine.torch_backend.cpu import CpuDevice
from ascendtune.recipe.method import MethodSection
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.model import apply_tuner, auto_class
from ascendtune.train.plan import estimate
from ascendtune.train.plan.arithmetic import compute_step
from ascendtune.train.plan.count_work import count_work
from ascendtune.train.plan.request import DocumentSize, EstimateRequest, Target
from ascendtune.train.plan.traced_step import trace_step
from ascendtune.train.plan.training_choices import TrainingChoices

_HIDDEN, _INNER, _LAYERS = 32, 48, 2
_WIDTH = _LAYERS * (4 * 2 * _HIDDEN + 3 * (_HIDDEN + _INNER))
"""Numbers in the adapters of rank 1: A and B of all linear modules."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    config = {
        "model_type": "llama", "vocab_size": 64, "hidden_size": _HIDDEN, "intermediate_size": _INNER,
        "num_hidden_layers": _LAYERS, "num_attention_heads": 2, "num_key_value_heads": 2, "pad_token_id": 0,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def _values(model: Path, quantization: str | None = None, **keys: Any) -> dict[str, Any]:
    section = {"path": str(model), "quantization": quantization}
    return {"model": section, "data": {"train": "x.jsonl"}, "precision": "fp32", **keys}


def _setting(model: Path, adapters: Sequence[Path] = (), **keys: Any) -> TrainingChoices:
    recipe = Recipe.check(_values(model, **keys))
    return TrainingChoices.of(recipe, model, CpuDevice(), ranks=1, vocabulary=0, pad_id=0, adapters=adapters)


def test_pissa_has_a_second_adapter_on_device_and_disk(model: Path) -> None:
    setting = _setting(model, method={"tuner": "lora", "lora": {"rank": 6, "init": "pissa"}})
    step, work = trace_step(setting, [DocumentSize(8, 7)]), count_work(setting)
    assert step.resting["adapters"] == work.model_bytes == 2 * 4 * 6 * _WIDTH
    # What stands frozen beside the trained one has no state, and is in no checkpoint.
    assert step.trainable == 6 * _WIDTH and work.checkpoint_bytes == 3 * 4 * 6 * _WIDTH


def test_rank_that_pissa_cannot_have_is_refused(model: Path) -> None:
    request = EstimateRequest(
        Recipe.check(_values(model, method={"tuner": "lora", "lora": {"rank": 33, "init": "pissa"}})).model_dump(),
        str(model), Target("cpu", "cpu", 2**30, 1), 0, 0,
    )  # fmt: skip
    with pytest.raises(RecipeError) as refused:
        estimate.answer(request, search=False)
    assert refused.value.code == "lora-rank-too-large"


@pytest.mark.filterwarnings("ignore:for .* copying from a non-meta parameter")
def test_adapters_that_training_starts_from_have_the_size_of_their_files(model: Path, tmp_path: Path) -> None:
    for rank in (3, 5):
        base = auto_class("sft").from_config(_setting(model).config)
        method = MethodSection.model_validate({"tuner": "lora", "lora": {"rank": rank}})
        apply_tuner(base, method).save_pretrained(tmp_path / f"rank-{rank}")
    adapters = [tmp_path / "rank-3", tmp_path / "rank-5"]
    setting = _setting(model, adapters, method={"tuner": "lora", "lora": {"start_from": list(map(str, adapters))}})
    traced, computed = trace_step(setting, [DocumentSize(8, 7)]), compute_step(setting, [DocumentSize(8, 7)])
    assert traced.trainable == computed.trainable == 5 * _WIDTH
    assert traced.resting["adapters"] == 4 * (3 + 5) * _WIDTH
    work = count_work(setting)
    assert work.checkpoint_bytes == 3 * 4 * 5 * _WIDTH and work.model_bytes == 4 * (3 + 5) * _WIDTH


def test_arithmetic_does_not_hide_that_a_quantised_parameter_would_be_adapted(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("as a model class that needs the content of tensors")

    monkeypatch.setattr(estimate, "trace_step", fails)
    method = {"tuner": "lora", "lora": {"target": ["q_proj.weight"]}}
    recipe = Recipe.check(_values(model, quantization="nf4", method=method)).model_dump(mode="json")
    request = EstimateRequest(recipe, str(model), Target("npu", "npu", 2**34, 1), 0, 0)
    with pytest.raises(RecipeError) as refused:
        estimate.answer(request, search=False)
    assert refused.value.code == "quantised-parameter-adapted"


def test_shapes_of_a_start_need_no_content() -> None:
    from transformers import LlamaConfig

    config = LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, vocab_size=8)
    with torch.device("meta"):
        base = auto_class("sft").from_config(config)
        tuned = apply_tuner(base, MethodSection.model_validate({"tuner": "lora", "lora": {"init": "pissa"}}))
    assert all(each.is_meta for each in tuned.parameters())
