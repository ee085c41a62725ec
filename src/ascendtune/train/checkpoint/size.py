"""Size on disk of a run's checkpoints, from the shapes of the trained parameters."""

from __future__ import annotations

from torch import nn

from ascendtune.recipe.deepspeed_config import stage_of, zero_config
from ascendtune.recipe.recipe import Recipe
from ascendtune.recipe.sections import OptimSection
from ascendtune.train.optimizer import state_numbers, states_per_parameter, tables_of


def checkpoint_bytes(recipe: Recipe, model: nn.Module, *, computed_bytes: int) -> int:
    """Bytes of a checkpoint of `model`, of all ranks together.

    Args:
        model: its parameters are full, sharded by FSDP, or on the meta device, but not sharded by DeepSpeed.
        computed_bytes: bytes of a number in the compute dtype.
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
    """Bytes of a trained number in a checkpoint of DeepSpeed's engine (0.19).

    It stores the optimizer's fp32 weights and states; stages 1 and 2 also store the weights in the compute dtype. In
    stage 3 these are sharded, and the engine omits them; stage 0 computes in fp32 and has no others.
    """
    return 4 * (1 + states_per_parameter(section)) + (computed_bytes if stage in (1, 2) else 0)
