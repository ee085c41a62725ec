"""Changes of a model to the output of its head are found for logits of any size, and are trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from tests.integration.train.test_architectures import SHAPE, config_of, gradients_of, loss_and_gradients
from torch import nn
from torch.nn.functional import cross_entropy

from ascendtune.train.loop import Loop
from ascendtune.train.objective.head import PLAIN, POSITIONS, HeadForm, find_head_form

# With the caps of the real models, which the logits of fresh weights come nowhere near.
CAPPED: list[tuple[str, dict[str, Any], HeadForm]] = [
    ("Gemma2Config", {"query_pre_attn_scalar": 8}, HeadForm(1.0, 30.0)),
    ("VaultGemmaConfig", {"query_pre_attn_scalar": 8}, HeadForm(1.0, 30.0)),
    ("NanoChatConfig", {}, HeadForm(1.0, 15.0)),
    ("RecurrentGemmaConfig", {"num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 64},
     HeadForm(1.0, 30.0)),
]  # fmt: skip


def enlarge_logits(model: Any) -> None:
    """Logits of fresh weights are small: as large as training would make them."""
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(500)


@pytest.mark.parametrize(("name", "changes", "form"), CAPPED, ids=[each[0][:-6] for each in CAPPED])
def test_capped_logits_are_trained_as_capped_however_small_they_begin(
    name: str,
    changes: dict[str, Any],
    form: HeadForm,
    variant: Callable[..., Path],
    make_loop: Callable[..., Loop],
) -> None:
    directory = variant(config_of(name, **{**SHAPE, **changes, "tie_word_embeddings": False}))
    loop = make_loop(model={"path": str(directory), "attention": "eager"}, data={"packing": False})
    assert loop.objective.head_form == form
    enlarge_logits(loop.objective.model)
    loss, gradients = loss_and_gradients(loop, [(0,), (1,), (2,)], padding_free=False)
    expected_loss, expected = by_transformers(directory, loop, [0, 1, 2])
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert gradients.keys() == expected.keys()
    largest = max(float(each.abs().max()) for each in expected.values())
    for parameter, gradient in expected.items():
        assert float((gradients[parameter] - gradient).abs().max()) <= 1e-5 * largest, parameter


@pytest.mark.parametrize(("name", "changes", "form"), CAPPED[:2], ids=[each[0][:-6] for each in CAPPED[:2]])
def test_the_cap_is_found_in_bf16_too(
    name: str,
    changes: dict[str, Any],
    form: HeadForm,
    variant: Callable[..., Path],
    make_loop: Callable[..., Loop],
) -> None:
    directory = variant(config_of(name, **{**SHAPE, **changes}))
    loop = make_loop(model={"path": str(directory), "attention": "eager"}, data={"packing": False}, precision="bf16")
    assert loop.objective.head_form == form


def by_transformers(directory: Path, loop: Loop, rows: list[int]) -> tuple[float, dict[str, torch.Tensor]]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    enlarge_logits(model)
    total, largest = torch.zeros(()), 0.0
    for row in rows:
        ids, labels = (torch.tensor(each.tolist()) for each in loop.batches.dataset.row(row))
        logits = model(input_ids=ids[None], use_cache=False).logits[0]
        largest = max(largest, float(logits.detach().abs().max()))
        total = total + cross_entropy(logits[:-1].float(), labels[1:], reduction="sum")
    assert largest > 10, "no logit comes near its cap"
    total.backward()
    return total.item(), gradients_of(model)


def llama() -> Any:
    from transformers import AutoModelForCausalLM, LlamaConfig

    return AutoModelForCausalLM.from_config(LlamaConfig(**SHAPE)).eval()


def changed(change: Callable[[Any, torch.Tensor], torch.Tensor]) -> Any:
    """A model that does something to the output of its head."""
    model = llama()
    inner = model.forward

    def forward(self: Any, **inputs: Any) -> Any:
        output = inner(**inputs)
        output.logits = change(self, output.logits)
        return output

    model.forward = MethodType(forward, model)
    return model


def padded_vocabulary(model: Any, logits: torch.Tensor) -> torch.Tensor:
    return logits.masked_fill(torch.arange(logits.shape[-1]) >= 500, float("-inf"))


def one_row_shifted(model: Any, logits: torch.Tensor) -> torch.Tensor:
    return logits + 1e-4 * (torch.arange(logits.shape[-1]) == 7)


def one_position_shifted(model: Any, logits: torch.Tensor) -> torch.Tensor:
    # Neither the scale, which is measured at the first position, nor the gradient tells it.
    return logits + 0.1 * (torch.arange(logits.shape[1]) == POSITIONS // 2)[:, None]


def only_in_training(model: Any, logits: torch.Tensor) -> torch.Tensor:
    return logits * 2 if model.training else logits


def learnt_scale(model: Any, logits: torch.Tensor) -> torch.Tensor:
    if not hasattr(model, "logit_scale"):
        model.logit_scale = nn.Parameter(torch.ones(()))
    return logits * model.logit_scale


def previous_position(model: Any, logits: torch.Tensor) -> torch.Tensor:
    return logits + logits.roll(1, dims=1)


def to_half_precision(model: Any, logits: torch.Tensor) -> torch.Tensor:
    return logits.to(torch.bfloat16)


def found(model: Any) -> HeadForm | None:
    form, *_ = find_head_form(model, torch.arange(POSITIONS)[None])
    return form


@pytest.mark.parametrize(
    "change",
    [
        padded_vocabulary,
        one_row_shifted,
        one_position_shifted,
        only_in_training,
        learnt_scale,
        previous_position,
        to_half_precision,
    ],
)
def test_heads_with_other_changes_than_scale_and_cap_use_the_models_own_logits(
    change: Callable[[Any, torch.Tensor], torch.Tensor],
) -> None:
    assert found(changed(change)) is None


def test_scale_and_cap_are_found_together() -> None:
    form = found(changed(lambda model, logits: 4 * torch.tanh(logits / 16) * 3))
    assert form == HeadForm(0.75, 12.0)
    assert found(changed(lambda model, logits: logits.double().float())) == PLAIN


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_type_of_the_weights_changes_nothing(dtype: torch.dtype) -> None:
    from transformers import AutoModelForCausalLM, Gemma2Config

    model = AutoModelForCausalLM.from_config(Gemma2Config(**SHAPE), dtype=dtype).eval()
    assert found(model) == HeadForm(1.0, 30.0)


def test_a_head_of_several_layers_takes_the_models_own_logits() -> None:
    from transformers import AutoModelForCausalLM, BertConfig

    assert found(AutoModelForCausalLM.from_config(BertConfig(**SHAPE, is_decoder=True)).eval()) is None


def test_a_head_of_several_layers_takes_the_models_own_logits_in_bf16_too() -> None:
    from transformers import AutoModelForCausalLM, RemBertConfig

    # Its decoder ends in bf16, and the first layer of its head has weights in fp32.
    config = RemBertConfig(**SHAPE, is_decoder=True, input_embedding_size=16, output_embedding_size=16)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.autocast("cpu", torch.bfloat16):
        assert found(model) is None


def test_hidden_states_scaled_on_their_way_to_the_head_take_the_models_own_logits() -> None:
    model = llama()
    head = model.lm_head

    class Scaled(nn.Module):
        def forward(self, states: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = head(states / 2)
            return logits

    model.lm_head = Scaled()
    model.get_output_embeddings = lambda: head
    assert found(model) is None
