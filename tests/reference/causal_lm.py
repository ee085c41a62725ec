"""A causal language model in plain torch and transformers: one row at a time, with its own attention.

Independent of `ascendtune.train`, which it may not import: there is no padding, no packing, no fused loss and no
attention of ours here, so whatever agrees with it agrees with the model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

Row = tuple[torch.Tensor, torch.Tensor]
"""(tokens,) int64 ids and (tokens,) int64 labels, -100 where nothing is learnt."""


@dataclass(frozen=True)
class Result:
    loss: float
    """Mean over labelled tokens."""
    gradients: dict[str, torch.Tensor]
    """Of the mean loss; only of parameters that get one."""


def chatml_rows(directory: Path, file: Path) -> list[Row]:
    """Prompt and completion as one ChatML turn each; the completion and the token that ends it are learnt."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    rows = []
    for line in file.read_text().splitlines():
        row = json.loads(line)
        head = f"<|im_start|>user\n{row['prompt']}<|im_end|>\n<|im_start|>assistant\n"
        end = "<|im_end|>"
        encoding = tokenizer.encode(head + row["completion"] + end + "\n", add_special_tokens=False)
        learnt = range(len(head), len(head) + len(row["completion"]) + len(end))
        ids = torch.tensor(encoding.ids)
        tokens = zip(encoding.ids, encoding.offsets, strict=True)
        labels = torch.tensor([token if start in learnt else -100 for token, (start, _) in tokens])
        rows.append((ids, labels))
    return rows


def load(directory: Path, dtype: torch.dtype = torch.float32, adapter: Path | None = None) -> Any:
    """The model with its own attention and experts written out, which compute in any type; with its adapter where one
    is given."""
    from transformers import AutoModelForCausalLM

    written_out = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, **written_out).eval()
    if adapter is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, adapter, is_trainable=True, autocast_adapter_dtype=False)
        model.to(dtype).eval()
    return model


def loss_of(model: Any, rows: Sequence[Row]) -> torch.Tensor:
    """() mean cross-entropy over the labelled tokens of all rows, each of which goes through the model alone."""
    total = torch.zeros((), dtype=torch.float64)
    for ids, labels in rows:
        logits = model(input_ids=ids[None], use_cache=False).logits[0]
        wide = logits if logits.dtype == torch.float64 else logits.float()
        total = total + cross_entropy(wide[:-1], labels[1:], reduction="sum").double()
    return total / sum(int((labels[1:] != -100).sum()) for _, labels in rows)


def evaluate(model: Any, rows: Sequence[Row]) -> float:
    with torch.no_grad():
        return loss_of(model, rows).item()


def loss_and_gradients(model: Any, rows: Sequence[Row]) -> Result:
    model.zero_grad()
    loss = loss_of(model, rows)
    loss.backward()
    gradients = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    return Result(loss.item(), gradients)


def train(model: Any, rows: Sequence[Row], *, steps: int, learning_rate: float) -> list[float]:
    """The loss before each of `steps` steps of AdamW over all rows at once, and the loss behind the last."""
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=learning_rate, weight_decay=0.0)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, rows)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [*losses, evaluate(model, rows)]


def greedy(model: Any, prompt: Sequence[int], *, tokens: int, stop: int) -> list[int]:
    """The likeliest continuation, computed anew from the first token on for each further one: no cache that could be
    wrong."""
    ids = list(prompt)
    with torch.no_grad():
        while len(ids) < len(prompt) + tokens:
            following = int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax())
            if following == stop:
                break
            ids.append(following)
    return ids[len(prompt) :]
