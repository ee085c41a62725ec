"""A step that is traced with a few layers of a model, against one that is traced with all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.tensor import debug

from ascendtune.machine.torch_backend.cpu import CpuDevice
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.plan.live_bytes import StepMemory
from ascendtune.train.plan.repeated_layers import Repeats
from ascendtune.train.plan.request import DocumentSize
from ascendtune.train.plan.traced_step import trace_step
from ascendtune.train.plan.training_choices import TrainingChoices

_MODEL = {
    "model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 9,
    "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False, "pad_token_id": 0,
}  # fmt: skip
_ROWS = (DocumentSize(100, 80), DocumentSize(60, 59))


@pytest.fixture(autouse=True)
def no_layouts_of_a_fake_group() -> Iterator[None]:
    """Forget how DTensors of rank 0 were laid out: torch keeps that by shape, and ranks forked later would take it."""
    yield
    debug._clear_sharding_prop_cache()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(_MODEL))
    return tmp_path


def _trace(model: Path, ranks: int = 1, documents: Any = _ROWS, **keys: Any) -> StepMemory:
    recipe = Recipe.check({
        "model": {"path": str(model)}, "data": {"train": [{"path": "x.jsonl"}]}, "precision": "fp32", **keys,
    })  # fmt: skip
    return trace_step(TrainingChoices.of(recipe, model, CpuDevice(), ranks=ranks, vocabulary=0, pad_id=0), documents)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"memory": {"gradient_checkpointing": True}, "method": {"tuner": "lora"}, "precision": "bf16"},
        {"method": {"tuner": "freeze"}},
        {"ranks": 2, "parallel": {"strategy": "fsdp"}},
        {"method": {"stage": "preference"}, "documents": (DocumentSize(64, 50), DocumentSize(60, 46))},
        {"method": {"stage": "reward"}, "documents": (DocumentSize(64, 50), DocumentSize(60, 46))},
        {"data": {"train": [{"path": "x.jsonl"}], "packing": False}, "batch": {"accumulate": 2}},
    ],
)
def test_few_layers_say_what_all_layers_say(model: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any]) -> None:
    few = _trace(model, **keys)
    monkeypatch.setattr(Repeats, "counts", lambda self: [self.layers])
    every = _trace(model, **keys)
    assert few.layers == every.layers == 9
    assert every.how == "9 of 9 layers traced" != few.how
    found, expected = (max(each.total() for each in traced.moments.values()) for traced in (few, every))
    assert found == pytest.approx(expected, rel=0.005)
    assert few.resting.total() == pytest.approx(every.resting.total(), rel=0.005)
