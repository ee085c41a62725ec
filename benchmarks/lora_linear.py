"""The LoRA layer of this project beside PEFT's: casts and operations of a step, CPU time, losses.

    python benchmarks/lora_linear.py [--steps 20]

A Llama of 4 layers, hidden size 256, in bf16 under autocast, one row of 512 tokens, one thread; rank 8 on all linear
layers, adapters in fp32. Both train the same row from the same weights, step by step in turn.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from typing import Any

import torch
from measure import table
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from ascendtune.recipe.method import MethodSection
from ascendtune.train.tuner.lora import add_adapter
from ascendtune.train.tuner.lora_linear import FusedLoraLinear


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count[function._schema.name] += 1
        return function(*args, **(kwargs or {}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    torch.set_num_threads(1)
    models = {"PEFT": tuned(fused=False), "ascendtune": tuned(fused=True)}
    optimizers = {
        name: torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], 1e-3)
        for name, model in models.items()
    }
    figures: dict[str, list[dict[str, Any]]] = {}
    for name, model in models.items():
        gradients(model)
        model.zero_grad()
        with Counting() as counting:
            gradients(model)
        model.zero_grad()
        counts = {"casts": counting.count["aten::_to_copy"], "operations": counting.count.total()}
        figures[name] = [counts]
    for _ in range(given.steps):
        for name, model in models.items():
            begun = time.process_time()
            loss = gradients(model)
            optimizers[name].step()
            optimizers[name].zero_grad()
            figures[name].append({"seconds": time.process_time() - begun, "loss": loss.item()})
    rows = []
    seconds = {name: [each["seconds"] for each in found[1:]][given.steps // 5 :] for name, found in figures.items()}
    ratio = statistics.median(ours / theirs for theirs, ours in zip(*seconds.values(), strict=True))
    for name, (counts, *steps) in figures.items():
        time_of = "1" if name == "PEFT" else f"{ratio:.3f}"
        losses = f"{steps[0]['loss']:.6f} … {steps[-1]['loss']:.4f}"
        rows.append([name, str(counts["casts"]), str(counts["operations"]), time_of, losses])
    columns = ["layer", "casts a step", "operations a step", "CPU time of PEFT's (median)", "loss, first … last"]
    print(table(columns, rows))


def tuned(*, fused: bool) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512, hidden_size=256, intermediate_size=688, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=4,
    )  # fmt: skip
    model = add_adapter(LlamaForCausalLM(config).bfloat16(), MethodSection(tuner="lora"))
    for name, module in model.named_modules():
        if isinstance(module, FusedLoraLinear) and not fused:
            module.__class__ = FusedLoraLinear.__base__
        if name.endswith("lora_B.default"):
            torch.nn.init.normal_(module.weight, std=0.02)
    return model


def gradients(model: Any) -> torch.Tensor:
    """() loss of one row of tokens; its gradients are added."""
    ids = torch.arange(512)[None]
    with torch.autocast("cpu", torch.bfloat16):
        loss: torch.Tensor = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    return loss


if __name__ == "__main__":
    main()
