"""A training with Accelerate as its examples write it: accelerate launch accelerate_job.py MODEL ROWS OUT [WORD …].

Words: workers, clip, states, limit, resumed, tensorboard, generate, debug, fsdp.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.logging import get_logger
from accelerate.utils import ProjectConfiguration, set_seed
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, get_linear_schedule_with_warmup

_LOG = get_logger(__name__, log_level="INFO")


def main(model_path: str, rows: str, out: str, *words: str) -> None:
    limits = ProjectConfiguration(out, automatic_checkpoint_naming=True, total_limit=1 if "limit" in words else None)
    tracker = "tensorboard" if "tensorboard" in words else None
    accelerator = Accelerator(cpu=True, project_config=limits, log_with=tracker, gradient_accumulation_steps=2)
    set_seed(7)
    accelerator.init_trackers("toy")
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    model = AutoModelForCausalLM.from_pretrained(model_path)
    data = load_dataset("json", data_files=rows, split="train[:64]")
    tokens = data.map(
        lambda row: tokenizer(str(row["messages"]), truncation=True, max_length=48, padding="max_length"),
        remove_columns=data.column_names,
        num_proc=2 if "workers" in words else None,
    ).with_format("torch")
    loader = DataLoader(tokens, batch_size=4, num_workers=2 if "workers" in words else 0, pin_memory="debug" in words)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = get_linear_schedule_with_warmup(optimizer, 2, 8)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    if "resumed" in words:
        accelerator.load_state(str(sorted(Path(out, "checkpoints").iterdir())[-1]))
    for step, batch in zip(range(8), loader, strict=False):
        with accelerator.accumulate(model):
            loss = model(**batch, labels=batch["input_ids"]).loss
            accelerator.backward(loss)
            if "clip" in words and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        accelerator.print(f"step {step}: loss {loss.item():.4f}")
        accelerator.log({"loss": loss.item()}, step)
        if "states" in words and step % 3 == 2:
            accelerator.save_state()
    if "generate" in words:
        inner = accelerator.unwrap_model(model)
        prompt = tokenizer("error", return_tensors="pt").input_ids
        accelerator.print(tokenizer.batch_decode(inner.generate(prompt, max_new_tokens=8, temperature=0.5)))
    losses = accelerator.gather_for_metrics(loss.detach().reshape(1))
    accelerator.print(f"mean of the last losses: {losses.mean().item():.3f}")
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
