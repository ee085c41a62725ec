"""The reference: a transformers model in a plain torch loop, or in transformers.Trainer, on the tokens of ours.

    python benchmarks/bare.py MODEL TOKENS --steps 20 [--packing] [--trainer]

Nothing is checked, recorded or saved. Batches come from the same plan as ours; transformers' own attention and loss.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from ascendtune.data.plan import BatchPlan
from ascendtune.data.prepare import open_prepared
from ascendtune.data.store import TokenDataset

Batch = dict[str, torch.Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("tokens", type=Path, help="directory that `ascendtune train RECIPE --prepare` prints")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--max-length", type=int, default=512)
    parser.add_argument("--packing", action="store_true")
    parser.add_argument("--fp32", action="store_true", help="no bf16 autocast")
    parser.add_argument("--trainer", action="store_true", help="transformers.Trainer instead of the plain loop")
    given = parser.parse_args()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32)
    feed = batches(given.tokens, given.batch, given.max_length, packing=given.packing)
    (in_trainer if given.trainer else loop)(model, feed, given.steps, bf16=not given.fp32)


def loop(model: torch.nn.Module, feed: Iterator[Batch], steps: int, *, bf16: bool) -> None:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.5 * (1 + math.cos(math.pi * n / steps)))
    for _ in range(steps):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(**next(feed), use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    print(f"loss {loss.item():.4f}")


def in_trainer(model: torch.nn.Module, feed: Iterator[Batch], steps: int, *, bf16: bool) -> None:
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as scratch:
        arguments = TrainingArguments(
            scratch,
            max_steps=steps,
            per_device_train_batch_size=1,
            learning_rate=1e-4,
            lr_scheduler_type="cosine",
            logging_steps=1,
            disable_tqdm=True,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            bf16=bf16,
        )
        # A row is a whole batch: how it is put together costs the same as in the plain loop.
        whole = [next(feed) for _ in range(steps)]
        Trainer(model, arguments, train_dataset=whole, data_collator=lambda rows: rows[0]).train()  # type: ignore[arg-type]


def batches(tokens: Path, size: int, max_length: int, *, packing: bool) -> Iterator[Batch]:
    """`input_ids` and `labels`, (batch, longest) int64, padded on the right; with packing `position_ids` too."""
    dataset = TokenDataset.open(open_prepared(tokens).train)
    plan = BatchPlan(
        dataset.lengths,
        dataset.label_counts,
        capacity=max_length if packing else None,
        global_batch=size,
        seed=42,
    )
    step = 0
    while True:
        rows = [[dataset.row(row) for row in sequence] for sequence in plan.batch(step)]
        longest = max(sum(len(ids) for ids, _ in row) for row in rows)
        ids = torch.zeros(len(rows), longest, dtype=torch.int64)
        labels = torch.full_like(ids, -100)
        positions = torch.zeros_like(ids)
        for number, row in enumerate(rows):
            at = 0
            for document, targets in row:
                there = slice(at, at + len(document))
                ids[number, there] = torch.tensor(document)
                labels[number, there] = torch.tensor(targets)
                positions[number, there] = torch.arange(len(document))
                at += len(document)
        batch = {"input_ids": ids, "labels": labels}
        yield {**batch, "position_ids": positions} if packing else batch
        step += 1


if __name__ == "__main__":
    main()
