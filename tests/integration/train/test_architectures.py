"""Models of other families: packed is padded, and both are what transformers computes with its own attention."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from ascendtune.data.collate import collate
from ascendtune.data.plan import PackedSequence
from ascendtune.machine.torch_backend.find import find_device
from ascendtune.train.batch import to_device
from ascendtune.train.loop import Loop
from ascendtune.train.objective.head import PLAIN, HeadForm

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train

Measured = tuple[float, dict[str, torch.Tensor]]
"""A summed loss, and the gradient of every weight."""

SHAPE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MIXTURE = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
# config class, what differs from SHAPE, attention, scale and cap of the logits. A window of 8 is shorter than the rows.
ARCHITECTURES: list[tuple[str, dict[str, Any], str, HeadForm]] = [
    ("LlamaConfig", {}, "sdpa", PLAIN),
    ("Qwen2Config", {}, "sdpa", PLAIN),
    ("Qwen3Config", {}, "sdpa", PLAIN),
    ("Olmo2Config", {}, "sdpa", PLAIN),
    ("Qwen3MoeConfig", {**MIXTURE, "num_experts": 4}, "sdpa", PLAIN),
    ("MistralConfig", {"sliding_window": 8}, "sdpa", PLAIN),
    ("Gemma2Config", {"sliding_window": 8, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 1.0,
                      "final_logit_softcapping": 0.5}, "eager", HeadForm(1.0, 0.5)),
    ("Gemma3TextConfig", {"sliding_window": 8, "query_pre_attn_scalar": 8}, "sdpa", PLAIN),
    ("GlmConfig", {}, "sdpa", PLAIN),
    ("Glm4Config", {}, "sdpa", PLAIN),
    ("GraniteConfig", {"logits_scaling": 2.0, "attention_multiplier": 0.5}, "sdpa", HeadForm(0.5)),
    ("CohereConfig", {}, "sdpa", HeadForm(0.0625)),
    ("Cohere2Config", {"sliding_window": 8}, "sdpa", HeadForm(0.0625)),
    ("Phi3Config", {"sliding_window": 8}, "sdpa", PLAIN),
    ("GptOssConfig", {"sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2}, "sdpa", PLAIN),
    ("DeepseekV3Config", {**MIXTURE, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "q_lora_rank": 16,
                          "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
                          "num_key_value_heads": 4}, "sdpa", PLAIN),
    ("GPT2Config", {"n_embd": 32, "n_head": 4, "n_layer": 2}, "sdpa", PLAIN),
]  # fmt: skip


def config_of(name: str, **values: Any) -> Any:
    """A config of transformers by the name of its class; only the modules of that model are imported."""
    import transformers

    return getattr(transformers, name)(**values)


@pytest.mark.parametrize(
    ("name", "changes", "attention", "form"), ARCHITECTURES, ids=[each[0][:-6] for each in ARCHITECTURES]
)
def test_packed_is_padded_is_transformers(
    name: str,
    changes: dict[str, Any],
    attention: str,
    form: HeadForm,
    variant: Callable[..., Path],
    make_loop: Callable[..., Loop],
) -> None:
    directory = variant(config_of(name, **{**SHAPE, **changes}))
    loop = make_loop(model={"path": str(directory)}, data={"packing": True})
    rows = [(1, 4, 2), (0, 3)]
    one_by_one = [row for sequence in rows for row in sequence]
    packed = loss_and_gradients(loop, rows, padding_free=True)
    padded = loss_and_gradients(loop, [(row,) for row in one_by_one], padding_free=False)
    theirs = by_transformers(directory, loop, one_by_one)
    for loss, gradients in (padded, theirs):
        assert packed[0] == pytest.approx(loss, rel=1e-5)
        assert packed[1].keys() == gradients.keys()
        largest = max(float(each.abs().max()) for each in gradients.values())
        for parameter, gradient in gradients.items():
            difference = float((packed[1][parameter] - gradient).abs().max())
            assert difference <= 1e-5 * largest, f"{parameter}: {difference / largest:.1e} of the largest gradient"
    assert loop.run_directory.read()["resolved"]["attention"]["name"].startswith(attention)
    assert loop.objective.head_form == form


def test_a_model_whose_head_caps_its_logits_learns(train: Train, variant: Callable[..., Path]) -> None:
    from transformers import Gemma2Config

    config = Gemma2Config(**SHAPE, query_pre_attn_scalar=8, sliding_window=8)
    trained = train(
        model={"path": str(variant(config))},
        data={"packing": True},
        optim={"max_steps": 8, "learning_rate": 0.01},
    )
    assert trained.losses()[-1] < 0.9 * trained.losses()[0]


def loss_and_gradients(loop: Loop, sequences: list[PackedSequence], *, padding_free: bool) -> Measured:
    objective = loop.objective.eval()
    objective.zero_grad()
    loss = objective(
        to_device(collate(loop.batches.dataset, sequences, padding_free=padding_free, pad_id=0), find_device())
    ).loss
    loss.backward()
    return loss.item(), gradients_of(loop.model)


def by_transformers(directory: Path, loop: Loop, rows: list[int]) -> Measured:
    """Row by row: no padding, no packing, no attention of ours, the loss of the textbook."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    total = torch.zeros(())
    for row in rows:
        ids, labels = (torch.tensor(each.tolist()) for each in loop.batches.dataset.row(row))
        logits = model(input_ids=ids[None], use_cache=False).logits[0]
        total = total + cross_entropy(logits[:-1].float(), labels[1:], reduction="sum")
    total.backward()
    return total.item(), gradients_of(model)


def gradients_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
