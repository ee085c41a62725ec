"""A training with DeepSpeed on a CPU: deepspeed deepspeed_job.py STAGE OUT [WORD …]. Words: save, bf16, offload."""

from __future__ import annotations

import sys

import deepspeed
import torch
import torch.distributed as dist
from torch import nn


def main() -> None:
    stage, out, *words = [word for word in sys.argv[1:] if not word.startswith("--local_rank")]
    deepspeed.init_distributed("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    zero = {"stage": int(stage), "reduce_bucket_size": 4096, "allgather_bucket_size": 4096}
    if "offload" in words:
        zero["offload_optimizer"] = {"device": "cpu"}
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": zero,
        "bf16": {"enabled": "bf16" in words},
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 2,
        "wall_clock_breakdown": "save" in words,
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    kind = next(engine.parameters()).dtype
    for step in range(6):
        loss = engine(torch.randn(4, 16, dtype=kind)).float().pow(2).mean()
        engine.backward(loss)
        engine.step()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    if "save" in words:
        engine.save_checkpoint(out)
        engine.load_checkpoint(out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
