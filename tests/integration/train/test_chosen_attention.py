"""Masks, states and caps of models are trained as transformers computes them, for every choice of `auto`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integration.train.test_architectures import MIXTURE, SHAPE, by_transformers, config_of, gradients_of

from ascendtune.core.errors import RecipeError
from ascendtune.train.loop import Loop

PACKED, PADDED = True, False
FUSED, EAGER, OWN, OWN_EAGER = "sdpa_fp32", "eager", "transformers_sdpa", "transformers_eager"
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 2, "linear_num_key_heads": 2,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "num_experts": 4, **MIXTURE,
}  # fmt: skip
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
# config class, what differs from SHAPE, attention, whether documents share sequences. Rows have 12 to 60 tokens.
FAMILIES: list[tuple[str, dict[str, Any], str, bool]] = [
    ("Gemma2Config", {"sliding_window": 8, "query_pre_attn_scalar": 8}, EAGER, PACKED),
    ("VaultGemmaConfig", {"sliding_window": 8, "query_pre_attn_scalar": 8}, EAGER, PACKED),
    ("NanoChatConfig", {}, FUSED, PACKED),
    ("RecurrentGemmaConfig", {"num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 8}, FUSED, PADDED),
    ("Qwen2MoeConfig", {**MIXTURE, "num_experts": 4, "shared_expert_intermediate_size": 32, "sliding_window": 8,
                        "use_sliding_window": True, "max_window_layers": 1}, FUSED, PACKED),
    ("PhimoeConfig", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8}, FUSED, PACKED),
    ("StableLmConfig", {}, FUSED, PADDED),
    ("NemotronConfig", {}, FUSED, PADDED),
    ("JambaConfig", {"num_experts": 2, "num_experts_per_tok": 1, "attn_layer_period": 2, "attn_layer_offset": 1,
                     "use_mamba_kernels": False, "mamba_d_state": 8}, FUSED, PACKED),
    ("MiniMaxConfig", {"num_local_experts": 4, "num_experts_per_tok": 2, "block_size": 8,
                       "layer_types": ["linear_attention", "full_attention"]}, FUSED, PADDED),
    ("FalconConfig", {}, OWN, PADDED),
    ("FalconConfig", {"alibi": True}, OWN_EAGER, PADDED),
    ("MambaConfig", {"state_size": 8}, FUSED, PACKED),
    ("Mamba2Config", {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1, "chunk_size": 8}, FUSED, PACKED),
    ("Lfm2Config", {"layer_types": ["conv", "full_attention"]}, FUSED, PACKED),
    ("FalconH1Config", {**MAMBA, "mamba_d_ssm": 64, "lm_head_multiplier": 0.3}, FUSED, PACKED),
    ("Zamba2Config", {"num_hidden_layers": 3, "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
                      "mamba_d_state": 8, "n_mamba_heads": 4, "mamba_ngroups": 1, "chunk_size": 8, "num_mem_blocks": 1,
                      "use_mem_rope": True}, FUSED, PACKED),
    ("Qwen3NextConfig", LINEAR, FUSED, PACKED),
    ("BloomConfig", {"n_head": 4, "n_layer": 2}, OWN_EAGER, PADDED),
    ("Llama4TextConfig", {"intermediate_size_mlp": 64, "num_local_experts": 2, "attention_chunk_size": 8}, OWN, PADDED),
    ("LlamaConfig", {}, FUSED, PACKED),
    ("Qwen2Config", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}, FUSED, PACKED),
    ("Qwen3Config", {}, FUSED, PACKED),
    ("Gemma3TextConfig", {"sliding_window": 8, "query_pre_attn_scalar": 8}, FUSED, PACKED),
    ("GptOssConfig", {"sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2}, FUSED, PACKED),
    ("Olmo2Config", {}, FUSED, PACKED),
    ("CohereConfig", {}, FUSED, PACKED),
    ("GraniteConfig", {"logits_scaling": 2.0, "attention_multiplier": 0.5}, FUSED, PACKED),
]  # fmt: skip


def draw_large_weights(model: Any) -> None:
    """Attention that prefers some tokens, biases and gates that do something, logits of the size that caps bite."""
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        drawn = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() >= 2:
            parameter.copy_(drawn * parameter.shape[-1] ** -0.5)
        else:
            parameter.add_(0.1 * drawn)
    model.get_output_embeddings().weight.mul_(8)


@pytest.mark.parametrize(("name", "changes", "attention", "packed"), FAMILIES, ids=[each[0][:-6] for each in FAMILIES])
def test_auto_trains_what_transformers_computes(
    name: str,
    changes: dict[str, Any],
    attention: str,
    packed: bool,
    variant: Callable[..., Path],
    make_loop: Callable[..., Loop],
) -> None:
    shape = {key: value for key, value in SHAPE.items() if (name, key) != ("FalconConfig", "head_dim")}
    directory = variant(config_of(name, **{**shape, **changes}), draw_large_weights)
    loop = make_loop(model={"path": str(directory)}, data={"packing": "auto"})
    assert loop.run_directory.read()["resolved"]["attention"]["name"] == attention
    assert loop.run_directory.read()["resolved"]["packing"] == packed
    rows = [1, 4, 2, 0, 3]
    objective = loop.objective.eval()
    objective.zero_grad()
    loss = objective(loop.batches.make([(row,) for row in rows])).loss
    loss.backward()
    gradients = gradients_of(loop.model)
    expected_loss, expected = by_transformers(directory, loop, rows)
    assert loss.item() == pytest.approx(expected_loss, rel=1e-5)
    assert gradients.keys() == expected.keys()
    largest = max(float(each.abs().max()) for each in expected.values())
    for parameter, gradient in expected.items():
        difference = float((gradients[parameter] - gradient).abs().max()) / largest
        assert difference <= 1e-5, f"{parameter}: {difference:.1e} of the largest gradient"


def test_attention_that_picks_keys_by_score_takes_one_row_at_a_time(
    variant: Callable[..., Path], make_loop: Callable[..., Loop]
) -> None:
    """Which of equal scores are among the best depends on how many there are, so padding changes what is seen."""
    from transformers import DogeConfig

    config = DogeConfig(**SHAPE, keep_window_size=8, sliding_window=8)
    model = {"path": str(variant(config, draw_large_weights))}
    with pytest.raises(RecipeError, check=lambda error: error.code == "rows-need-padding"):
        make_loop(model=model, batch={"per_device": 2})
    loop = make_loop(model=model, batch={"per_device": 1})
    objective, rows = loop.objective.eval(), [1, 4, 2]
    objective.zero_grad()
    loss = sum(objective(loop.batches.make([(row,)])).loss for row in rows)
    loss.backward()
    expected_loss, expected = by_transformers(Path(model["path"]), loop, rows)
    assert loss.item() == pytest.approx(expected_loss, rel=1e-5)
    largest = max(float(each.abs().max()) for each in expected.values())
    gradients = gradients_of(loop.model)
    for parameter, gradient in expected.items():
        assert float((gradients[parameter] - gradient).abs().max()) <= 1e-5 * largest, parameter


_PACKAGES = {
    "fla/__init__.py": "", "fla/ops/__init__.py": "",
    "fla/ops/gated_delta_rule.py": "def chunk_gated_delta_rule(q, k, v, **_): raise ValueError('cpu tensor?')\n",
    "causal_conv1d.py": "def causal_conv1d_fn(x, weight, **_): raise RuntimeError('Expected x.is_cuda()')\n",
}  # fmt: skip
"""Packages for GPUs, as they answer to tensors in host memory."""


def test_packages_for_gpus_do_not_change_what_is_chosen(variant: Callable[..., Path], tmp_path: Path) -> None:
    """With them a model calls their kernels, in the trials on the host, too: it was left with rows alone, eager."""
    from transformers import Qwen3NextConfig

    model = variant(Qwen3NextConfig(**{**SHAPE, **LINEAR}))
    for name, text in _PACKAGES.items():
        file = tmp_path / "packages" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    script = (
        "import sys\n"
        "from transformers import AutoConfig\n"
        "from ascendtune.recipe.sections import ModelSection\n"
        "from ascendtune.train.attention.choice import choose_attention\n"
        "config = AutoConfig.from_pretrained(sys.argv[1])\n"
        "choice = choose_attention(ModelSection(path=sys.argv[1]), 'sft', config, 'varlen')\n"
        "from transformers.models.qwen3_next import modeling_qwen3_next\n"
        "print(choice.name, choice.support.padded, 'fla' in sys.modules)\n"
    )
    path = os.pathsep.join([str(tmp_path / "packages"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    argv = [sys.executable, "-c", script, str(model)]
    ended = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert ended.stdout.split() == ["varlen", "True", "True"], ended.stdout + ended.stderr
