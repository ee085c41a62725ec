"""A training loop of forty lines that dumps its steps: the model for faults that a real loop is not to have.

Ranks are copies of the model in one process, whose gradients are averaged by hand.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dump_writer import DumpWriter

VOCABULARY, ROWS = 128, 8
Rows = list[tuple[list[int], int]]
"""Tokens of a row, and how many at its begin are not trained on."""


def model_of(attention: str = "eager", **config: Any) -> nn.Module:
    """A Llama of three layers and random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "attention_bias": True,
        "attn_implementation": attention,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**{**settings, **config}))
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                nn.init.normal_(parameter, std=0.02)
    return model.train()


def rows_of(step: int, seed: int = 0) -> Rows:
    """Eight rows of 9 to 24 tokens."""
    draw = torch.Generator().manual_seed(1000 * seed + step)
    rows = []
    for _ in range(ROWS):
        length = int(torch.randint(9, 25, (1,), generator=draw))
        rows.append((torch.randint(1, VOCABULARY, (length,), generator=draw).tolist(), 3))
    return rows


@dataclass
class Bare:
    """What a training does; the tests change one thing at a time.

    Attributes:
        edit: changes the model before the first step.
        autocast: dtype of matrix products, or None.
        divisor: of the loss's sum, from the labelled tokens of the step and of the micro-batch.
        reduced: changes the gradients of the ranks' models after they were averaged.
        before_step: changes the ranks' models before a step.
    """

    model: Callable[[], nn.Module] = model_of
    rows: Callable[[int], Rows] = rows_of
    edit: Callable[[nn.Module], object] = lambda model: None
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)
    ranks: int = 1
    accumulate: int = 1
    steps: int = 3
    autocast: torch.dtype | None = None
    is_packed: bool = False
    leaks: bool = False
    is_causal: bool = True
    averages: bool = True
    divisor: Callable[[int, int], float] = lambda step, micro_batch: step
    before_step: Callable[[int, Sequence[nn.Module]], object] = lambda step, models: None
    rate: Callable[[int], float] = lambda step: 1e-3
    tensors: bool = False

    def run(self, directory: Path) -> Path:
        first = self.model()
        self.edit(first)
        models = [first, *(copy.deepcopy(first) for _ in range(self.ranks - 1))]
        optimizers = [self.optimizer([each for each in model.parameters() if each.requires_grad]) for model in models]
        directory.mkdir(parents=True)
        records = []
        for step in range(1, self.steps + 1):
            self.before_step(step, models)
            writers = [
                DumpWriter(model, step, rank=rank, world_size=self.ranks, tensors=self.tensors)
                for rank, model in enumerate(models)
            ]
            rows = self.rows(step)
            labelled = sum(len(tokens) - max(kept, 1) for tokens, kept in rows)
            share = len(rows) // self.ranks
            loss = 0.0
            for rank, (model, writer) in enumerate(zip(models, writers, strict=True)):
                writer.parameters("parameter_before")
                of_rank = rows[rank * share : (rank + 1) * share]
                size = len(of_rank) // self.accumulate
                for number in range(self.accumulate):
                    writer.micro_batch = number
                    with writer.hooks():
                        loss += self._backward(model, of_rank[number * size : (number + 1) * size], labelled, writer)
            if self.averages:
                _average(models)
            norm = float(
                torch.stack([each.grad.norm() for each in models[0].parameters() if each.grad is not None]).norm()
            )
            for optimizer, writer in zip(optimizers, writers, strict=True):
                for group in optimizer.param_groups:
                    group["lr"] = self.rate(step)
                writer.parameters("gradient")
                optimizer.step()
                writer.parameters("parameter_after")
                optimizer.zero_grad()
                writer.write(directory)
            records.append({"step": step, "loss": loss, "grad_norm": norm, "learning_rate": self.rate(step)})
        (directory / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
        facts = {"format": 1, "torch": torch.__version__, "command": ["bare"], "world_size": self.ranks}
        (directory / "recorded.json").write_text(json.dumps({**facts, "optimizer": "AdamW"}))
        return directory

    def _backward(self, model: nn.Module, rows: Rows, labelled: int, writer: DumpWriter) -> float:
        batch = _packed(rows, leaks=self.leaks, is_causal=self.is_causal) if self.is_packed else _padded(rows)
        of_batch = sum(len(tokens) - max(kept, 1) for tokens, kept in rows)
        labels = batch.pop("labels")
        cast = torch.autocast("cpu", self.autocast) if self.autocast else nullcontext()
        with cast:
            logits = model(**batch, use_cache=False).logits
        total = cross_entropy(logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
        scaled = total / self.divisor(labelled, of_batch)
        writer.add("loss", "", "loss", "", scaled)
        (scaled * self.ranks).backward()
        return float(scaled.detach())


def _average(models: Sequence[nn.Module]) -> None:
    for parameters in zip(*(model.parameters() for model in models), strict=True):
        gradients = [each.grad for each in parameters]
        if gradients[0] is not None:
            mean = torch.stack(gradients).mean(dim=0)
            for each in parameters:
                each.grad = mean.clone()


def _padded(rows: Rows) -> dict[str, torch.Tensor]:
    longest = max(len(tokens) for tokens, _ in rows)
    tokens = torch.zeros(len(rows), longest, dtype=torch.long)
    labels = torch.full_like(tokens, -100)
    mask = torch.zeros_like(tokens)
    for at, (row, kept) in enumerate(rows):
        tokens[at, : len(row)] = torch.tensor(row)
        labels[at, kept : len(row)] = torch.tensor(row[kept:])
        mask[at, : len(row)] = 1
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels}


def _packed(rows: Rows, *, leaks: bool, is_causal: bool) -> dict[str, torch.Tensor]:
    """All rows in one, block-diagonal unless documents leak."""
    tokens = torch.tensor([[token for row, _ in rows for token in row]])
    labels = torch.tensor([[-100 if at < kept else token for row, kept in rows for at, token in enumerate(row)]])
    positions = torch.tensor([[at for row, _ in rows for at in range(len(row))]])
    document = torch.tensor([number for number, (row, _) in enumerate(rows) for _ in row])
    length = tokens.shape[1]
    seen = torch.ones(length, length, dtype=torch.bool)
    if is_causal:
        seen = seen.tril()
    if not leaks:
        seen &= document[:, None] == document[None, :]
    mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
    return {"input_ids": tokens, "labels": labels, "position_ids": positions, "attention_mask": mask}
