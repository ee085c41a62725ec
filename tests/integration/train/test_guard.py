"""The proof of isolation fires when isolation is broken, and the head is fused only where it is plain."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from ascendtune.core.errors import CheckFailed, RecipeError
from ascendtune.train import model_checks as guard
from ascendtune.train.attention import interface
from ascendtune.train.attention.interface import sdpa_attention
from ascendtune.train.batch import DeviceBatch
from ascendtune.train.loop import Loop
from ascendtune.train.objective.head import PLAIN
from ascendtune.train.torch_errors import translated

PACKED = {"data": {"packing": True}}


def blind_to_borders(*inputs: Any, cu_seqlens: object = None, **named: Any) -> tuple[torch.Tensor, None]:
    return sdpa_attention(*inputs, **named)


def blurred_at_borders(
    *inputs: Any, cu_seqlens: tuple[int, ...] | None = None, **named: Any
) -> tuple[torch.Tensor, None]:
    """The second border is one token late: a token of the third document counts as the second's."""
    moved = (*cu_seqlens[:2], cu_seqlens[2] + 1, *cu_seqlens[3:]) if cu_seqlens and len(cu_seqlens) > 3 else cu_seqlens
    return sdpa_attention(*inputs, cu_seqlens=moved, **named)


def lacking(*inputs: Any, **named: Any) -> None:
    torch._cslt_compress(torch.zeros(2, 2))


@pytest.mark.parametrize("broken", [blind_to_borders, blurred_at_borders])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_guard_fails_when_attention_leaks(
    make_loop: Callable[..., Loop], monkeypatch: pytest.MonkeyPatch, broken: Callable[..., Any], precision: str
) -> None:
    # The function of a device; what the small copy is tried with stays as it is.
    monkeypatch.setitem(interface.TABLE, "sdpa_fp32", f"{__name__}:{broken.__name__}")
    with pytest.raises(CheckFailed) as caught:
        make_loop(**PACKED, precision=precision, model={"attention": "sdpa_fp32"})
    assert caught.value.code == "documents-not-isolated"


make_batch = guard._batch


def counting_on(documents: list[torch.Tensor]) -> DeviceBatch:
    batch = make_batch(documents)
    return dataclasses.replace(batch, position_ids=torch.arange(batch.input_ids.shape[1])[None])


def test_guard_fails_when_positions_continue_counting(
    make_loop: Callable[..., Loop], variant: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With absolute positions. Rotary ones are relative: they do not notice where a document begins."""
    from transformers import GPT2Config

    monkeypatch.setattr(guard, "_batch", counting_on)
    model = {"path": str(variant(GPT2Config(vocab_size=512, n_embd=32, n_head=4, n_layer=2)))}
    with pytest.raises(CheckFailed) as caught:
        make_loop(**PACKED, model=model)
    assert caught.value.code == "documents-not-isolated"


LINEAR_ATTENTION = {
    "vocab_size": 512, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "layer_types": ["linear_attention", "full_attention"], "block_size": 8, "intermediate_size": 64,
    "num_local_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip


def test_a_model_that_cannot_keep_documents_apart_is_padded(
    make_loop: Callable[..., Loop], variant: Callable[..., Path]
) -> None:
    from transformers import MiniMaxConfig

    model = {"path": str(variant(MiniMaxConfig(**LINEAR_ATTENTION)))}
    with pytest.raises(RecipeError, check=lambda error: error.code == "packing-unsupported"):
        make_loop(**PACKED, model=model)
    loop = make_loop(data={"packing": "auto"}, model=model)
    assert not loop.run_directory.read()["resolved"]["packing"]
    assert loop.run_directory.read()["resolved"]["packing"] is False
    assert loop.objective.head_form == PLAIN


def test_attention_asked_for_by_name_that_does_not_compute_the_model_is_refused(
    make_loop: Callable[..., Loop], variant: Callable[..., Path]
) -> None:
    from transformers import Gemma2Config

    shape = {"vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}  # fmt: skip
    capped = variant(Gemma2Config(**shape))
    for name in ("sdpa", "sdpa_fp32"):
        with pytest.raises(RecipeError, match="soft-capped scores"):
            make_loop(**PACKED, model={"path": str(capped), "attention": name})


def test_an_operator_that_the_device_lacks_is_not_a_matter_of_packing(
    make_loop: Callable[..., Loop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`packing: auto` would pad in silence, and the operator would be missing all the same."""

    monkeypatch.setitem(interface.TABLE, "sdpa_fp32", f"{__name__}:lacking")
    with pytest.raises(NotImplementedError, match="Could not run") as raised:
        make_loop(data={"packing": "auto"}, model={"attention": "sdpa_fp32"})
    told = translated(raised.value)
    assert told is not None and told.exit_code == 3
    assert told.what == "the device cannot compute aten::_cslt_compress: torch has no such operator for CPU"


@pytest.mark.parametrize("projection", ["q_proj", "k_proj", "v_proj"])
def test_weight_that_is_not_finite_is_named_before_training(tiny_model: Path, projection: str) -> None:
    """With fewer than 16 keys torch's attention on a CPU gives finite results for NaN in queries and keys."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation="sdpa")
    weight = model.model.layers[0].self_attn.get_submodule(projection).weight
    with torch.no_grad():
        weight[0, 0] = torch.nan
    with pytest.raises(RecipeError) as caught:
        guard.fusible_head(model, torch.device("cpu"), 512)
    assert caught.value.code == "weights-not-finite"
    assert f"model.layers.0.self_attn.{projection}.weight" in caught.value.what
