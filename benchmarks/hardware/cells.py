"""The cells of the speed table: which model, tuner and row length, and the speed that is aimed at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TOOLS = ("ascendtune", "bare", "trl", "llamafactory")
"""`bare`: a compiled transformers model in a plain loop, as `hardware/speed.py` says."""
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
    "tiny": {
        **_QWEN3, "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True,
    },
}  # fmt: skip
"""Those of Llama-3.2-1B and Qwen3-8B, and one that a CPU trains in milliseconds."""


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
)
_SMALL = (
    Cell("tiny", "full", 256, 2, warm_steps=1, steps=2),
    Cell("tiny", "full", 256, 2, weights="fp32", warm_steps=1, steps=2),
    Cell("tiny", "lora", 256, 2, warm_steps=1, steps=2),
)
PEER_RATIO = 1.3
"""How many times the speed of TRL's and LLaMA-Factory's best setting is aimed at."""


def cells(*, small: bool) -> tuple[Cell, ...]:
    return _SMALL if small else _FULL


def cell_of(name: str) -> Cell:
    """Raises KeyError."""
    return {each.name: each for each in (*_FULL, *_SMALL)}[name]
