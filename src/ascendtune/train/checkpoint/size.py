"""Bytes on disk of a run's checkpoints, from the shapes of what trains."""

from __future__ import annotations

from torch import nn

from ascendtune.recipe.deepspeed_config import stage_of, zero_config
from ascendtune.recipe.recipe import Recipe
from ascendtune.recipe.sections import OptimSection
from ascendtune.train.optimizer import state_numbers, states_per_parameter, tables_of


def checkpoint_bytes(recipe: Recipe, model: nn.Module, *, computed_bytes: int) -> int:
    """Of a checkpoint of `model`, all ranks together.

    Args:
        model: its parameters are whole, sharded by FSDP, or on the meta device; DeepSpeed has not divided them.
        computed_bytes: of a number in the type of computation.
    """
    trained = [each for each in model.parameters() if each.requires_grad]
    if recipe.parallel.strategy == "deepspeed":
        stage = stage_of(zero_config(recipe, compute=None, ranks=None, hidden_size=None))
        return sum(each.numel() for each in trained) * zero_bytes(recipe.optim, stage, computed_bytes)
    tables = {id(each) for each in tables_of(model)} if recipe.optim.optimizer == "muon" else set()
    return sum(
        (each.numel() + state_numbers(recipe.optim, each.shape, is_table=id(each) in tables)) * each.element_size()
        for each in trained
    )


def zero_bytes(section: OptimSection, stage: int, computed_bytes: int) -> int:
    """Of a trained number in a checkpoint of DeepSpeed's engine (0.19).

    The optimizer's fp32 weights and its states; stages 1 and 2 write the weights in the type of computation as well.
    In stage 3 these are divided, and the engine leaves them out; stage 0 computes in fp32 and has no others.
    """
    return 4 * (1 + states_per_parameter(section)) + (computed_bytes if stage in (1, 2) else 0)
