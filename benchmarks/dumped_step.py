"""How much longer a dumped step takes on CPU, by processor time: the median of several steps of each kind.

    OMP_NUM_THREADS=1 python benchmarks/dumped_step.py [--hidden 64,128,256,512,1024] [--steps 7]

Plain and dumped steps of the same training alternate. The model is a Llama of four layers with random weights; a step
has 512 tokens.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ascendtune.machine.torch_backend.find import open_device
from ascendtune.recipe.sections import AlignSection
from ascendtune.train.dump.step_dumps import StepDumps
from ascendtune.train.strategy.base import Strategy

LAYERS, ROWS, LENGTH, VOCABULARY = 4, 4, 128, 2048


def ratio_of(hidden: int, steps: int, level: str, dtype: torch.dtype) -> tuple[float, float]:
    """Seconds of a plain step, and how many times as long a dumped one takes."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=LAYERS,
        num_attention_heads=max(1, hidden // 64),
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(0, VOCABULARY, (ROWS, LENGTH))
    taken: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as directory:
        section = AlignSection.model_validate({"dump_steps": f"1-{4 * steps}", "level": level})
        dumps = StepDumps(Path(directory), section, Strategy(open_device("cpu", 0)), model)
        for step in range(1, 2 * steps + 3):
            is_dumped = step % 2 == 0
            begun = time.process_time()
            # Steps beyond the named ones are plain.
            with dumps.step(step if is_dumped else 10 * steps + step):
                loss = model(input_ids=ids, labels=ids).loss
                dumps.loss(loss)
                loss.backward()
                dumps.before_update()
                optimizer.step()
                optimizer.zero_grad()
            if step > 2:
                taken[is_dumped].append(time.process_time() - begun)
    plain, dumped = (statistics.median(taken[each]) for each in (False, True))
    return plain, dumped / plain


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", default="64,128,256,512,1024")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--level", default="module")
    parser.add_argument("--dtype", default="float32")
    asked = parser.parse_args()
    for hidden in map(int, asked.hidden.split(",")):
        plain, ratio = ratio_of(hidden, asked.steps, asked.level, getattr(torch, asked.dtype))
        print(f"hidden {hidden}, {asked.dtype}: a step takes {plain * 1e3:.0f} ms, a dumped one {ratio:.2f} times that")


if __name__ == "__main__":
    main()
