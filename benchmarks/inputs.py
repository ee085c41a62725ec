"""What all tools are measured on: generated, seeded, made once and kept in the benchmarks' cache."""

from __future__ import annotations

import json
import math
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from data_preparation import _DEFAULT_TEXT, make_tokenizer, sentences
from peers.venv import cache_directory

_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_SHAPES = {
    "m15": {
        "vocab_size": 8192,
        "hidden_size": 384,
        "intermediate_size": 1280,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
    },
    "toy": {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    },
}


@dataclass(frozen=True)
class Inputs:
    """Files that every tool can read."""

    model: Path
    """Random weights, fp32, with tokenizer and chat template."""
    alpaca: Path
    """JSON: instruction, input, output."""
    messages: Path
    """A directory with one JSONL: the same rows as prompt and completion, each a list of messages."""
    pad_id: int
    """A token that never stands in a row: what is not it is a real token."""


def make(name: str, rows: int = 2000) -> Inputs:
    """A Qwen2 with random weights, m15 or toy, and conversations of one turn.

    Lengths are log-normal with a median of 60 tokens; for the toy all are short, so that nothing is computed.
    """
    shape = _SHAPES[name]
    where = cache_directory() / f"inputs-{name}-{rows}"
    inputs = Inputs(where / "model", where / "alpaca.json", where / "messages", pad_id=0)
    if not where.exists():
        building = where.with_name(f".{where.name}")
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        written = _rows(rows, most=600 if name == "m15" else 24)
        _write_rows(building, written)
        make_tokenizer(building / "model", [" ".join(row.values()) for row in written], shape["vocab_size"])
        _write_model(building / "model", shape)
        building.rename(where)
    return inputs


def _rows(count: int, most: int) -> list[dict[str, str]]:
    drawn = random.Random(0)
    words = " ".join(drawn.sample(parts := sentences(_DEFAULT_TEXT), len(parts))).split()

    def text(length: int) -> str:
        start = drawn.randrange(len(words) - length)
        return " ".join(words[start : start + length])

    rows = []
    for _ in range(count):
        # ChatML adds 13 tokens; a word of this text is about 1.4 tokens.
        tokens = min(most, max(20, round(drawn.lognormvariate(math.log(60), 0.75)))) - 13
        answer = max(1, round(tokens * drawn.uniform(0.5, 0.9) / 1.4))
        rows.append({"instruction": text(max(2, round(tokens / 1.4) - answer)), "input": "", "output": text(answer)})
    return rows


def _write_rows(directory: Path, rows: list[dict[str, str]]) -> None:
    (directory / "alpaca.json").write_text(json.dumps(rows, ensure_ascii=False))
    (directory / "messages").mkdir()
    with (directory / "messages" / "train.jsonl").open("w") as file:
        for row in rows:
            pair = {
                "prompt": [{"role": "user", "content": row["instruction"]}],
                "completion": [{"role": "assistant", "content": row["output"]}],
            }
            file.write(json.dumps(pair, ensure_ascii=False) + "\n")


def _write_model(directory: Path, shape: dict[str, int]) -> None:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        **shape,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    Qwen2ForCausalLM(config).save_pretrained(directory)
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "Qwen2Tokenizer", "chat_template": _CHAT_TEMPLATE, "bos_token": None}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
