"""Merge, block-by-block loading and use of weights trained on the device give the CPU's results."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from ascendtune.infer.engine import load
from ascendtune.merge.merge import merge
from ascendtune.recipe.parallel import ParallelSection
from ascendtune.recipe.sections import BatchSection, ModelSection
from ascendtune.train.model import ModelToLoad, load_deferred, read_config
from ascendtune.train.precision import Precision
from ascendtune.train.strategy.base import RootModule
from ascendtune.train.strategy.fsdp import FsdpStrategy

if TYPE_CHECKING:
    from tests.hardware.conftest import TrainOn

    from ascendtune.machine.torch_backend.device import Device

ASKED = [[{"role": "user", "content": text}] for text in ("healthy tips", "the capital", "公园")]


def test_merged_adapter_answers_as_the_adapter_on_the_cpu(
    device: Device, cpu: Device, train_on: TrainOn, tmp_path: Path
) -> None:
    lora = {"tuner": "lora", "lora": {"rank": 4}}
    trained = train_on(device, "adapter", precision="fp32", method=lora, optim={"learning_rate": 1e-2})
    merged = merge([str(trained.run.path)], tmp_path / "merged")
    assert merged.verification is not None and merged.changed > 0
    ids = torch.arange(5, 45)[None]
    with torch.no_grad():
        expected = trained.load_model()(input_ids=ids).logits
        model = AutoModelForCausalLM.from_pretrained(merged.directory, dtype=torch.float32).to(device.torch_device)
        found = model.eval()(input_ids=ids.to(device.torch_device)).logits.cpu()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    answers = load(merged.directory, device).generate(ASKED, 16)
    assert answers == load(trained.run.path, cpu).generate(ASKED, 16)


def test_weights_that_are_loaded_block_by_block_are_those_of_the_files(device: Device, tiny_model: Path) -> None:
    recipe: Any = SimpleNamespace(parallel=ParallelSection(), batch=BatchSection(accumulate=1))
    section, fp32 = ModelSection(path=str(tiny_model)), Precision("fp32", "fp32", "as asked", device.kind)
    config = read_config(section, tiny_model)
    wanted = ModelToLoad(section, "sft", tiny_model, config, fp32, "sdpa", vocabulary=512, seed=0)
    found = load_deferred(wanted, copied=False)
    assert found is not None
    model, weights = found
    strategy = FsdpStrategy(device, recipe)
    try:
        strategy.shard(RootModule(model), fp32, weights.fill)
        expected = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).state_dict()
        for name, parameter in model.named_parameters():
            assert isinstance(parameter, DTensor) and parameter.device.type == device.kind
            assert torch.equal(parameter.full_tensor().cpu(), expected[name])
    finally:
        strategy.close()
