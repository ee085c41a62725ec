"""The cells of the speed table: which model, tuner and row length, and the speed that is aimed at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TOOLS = ("ascendtune", "bare", "trl", "llamafactory")
"""`bare`: a compiled transformers model in a plain loop, as `hardware/speed.py` says."""
_WITHOUT_PEERS = TOOLS[:2]
_QWEN3 = {"model_type": "qwen3", "head_dim": 128, "max_position_embeddings": 16384, "rope_theta": 1000000.0}
SHAPES: dict[str, dict[str, Any]] = {
    "1b": {
        "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
        "max_position_embeddings": 16384, "tie_word_embeddings": True,
    },
    "8b": {
        **_QWEN3, "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": False,
    },
    "moe": {
        **_QWEN3, "model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 8,
        "intermediate_size": 6144, "num_attention_heads": 32, "num_key_value_heads": 4, "tie_word_embeddings": False,
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True,
    },
    "mla": {
        "model_type": "deepseek_v2", "vocab_size": 102400, "hidden_size": 2048, "num_hidden_layers": 8,
        "intermediate_size": 10944, "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "topk_method": "greedy", "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
        "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "max_position_embeddings": 16384,
        "tie_word_embeddings": False,
    },
    "sinks": {
        "model_type": "gpt_oss", "vocab_size": 201088, "hidden_size": 2880, "num_hidden_layers": 6,
        "intermediate_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
        "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128, "max_position_embeddings": 16384,
        "tie_word_embeddings": False,
    },
    "tiny": {
        **_QWEN3, "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True,
    },
    "tiny-sinks": {
        "model_type": "gpt_oss", "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 4,
        "num_experts_per_tok": 2, "sliding_window": 128, "max_position_embeddings": 16384, "tie_word_embeddings": False,
    },
}  # fmt: skip
"""Those of Llama-3.2-1B and Qwen3-8B; some layers of Qwen3-30B-A3B, DeepSeek-V2-Lite and gpt-oss-20b; and two that a
CPU trains in milliseconds."""


@dataclass(frozen=True)
class Cell:
    """bf16 products, AdamW in the type of the weights, no gradient checkpointing, one device."""

    shape: str
    tuner: str
    """full, or lora with rank 8 on all linear layers."""
    length: int
    """Tokens of a packed row."""
    rows: int
    """In a step."""
    target: int | None = None
    """Real tokens per second on one NVIDIA H200."""
    weights: str = "bf16"
    """Their type; fp32, which recipes of full fine-tuning have unless they say otherwise, is computed with autocast."""
    warm_steps: int = 4
    steps: int = 10
    """Measured, after the warm ones."""
    tools: tuple[str, ...] = TOOLS

    @property
    def name(self) -> str:
        length = f"{self.length // 1024}k" if self.length >= 1024 else str(self.length)
        return f"{self.shape}-{self.tuner}-{length}" + ("-fp32" if self.weights == "fp32" else "")


_FULL = (
    Cell("8b", "lora", 4096, 2, target=13_000),
    Cell("8b", "full", 4096, 2, target=8_200),
    Cell("1b", "full", 4096, 4, target=48_000),
    Cell("1b", "full", 4096, 4, weights="fp32"),
    Cell("1b", "lora", 4096, 4),
    Cell("8b", "lora", 8192, 1),
    Cell("8b", "full", 8192, 1),
    Cell("1b", "full", 8192, 2),
    Cell("1b", "lora", 8192, 2),
    *(Cell(shape, "lora", 4096, 2, tools=_WITHOUT_PEERS) for shape in ("moe", "mla", "sinks")),
    Cell("moe", "full", 4096, 2, tools=_WITHOUT_PEERS),
    Cell("sinks", "lora", 8192, 1, tools=_WITHOUT_PEERS),
)
_SMALL = (
    Cell("tiny", "full", 256, 2, warm_steps=1, steps=2),
    Cell("tiny", "full", 256, 2, weights="fp32", warm_steps=1, steps=2),
    Cell("tiny", "lora", 256, 2, warm_steps=1, steps=2),
    Cell("tiny-sinks", "lora", 256, 2, warm_steps=1, steps=2, tools=_WITHOUT_PEERS),
)
PEER_RATIO = 1.3
"""How many times the speed of TRL's and LLaMA-Factory's best setting is aimed at."""


def cells(*, small: bool) -> tuple[Cell, ...]:
    return _SMALL if small else _FULL


def cell_of(name: str) -> Cell:
    """Raises KeyError."""
    return {each.name: each for each in (*_FULL, *_SMALL)}[name]
