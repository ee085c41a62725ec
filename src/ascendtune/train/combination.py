"""One table of the combinations that are refused, each with its reason. Free of torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ascendtune.core.document import Path_
from ascendtune.train.parallel import STAGE_0_REMEDY, STAGE_0_ROUNDS

if TYPE_CHECKING:
    from ascendtune.train.recipe import Recipe


@dataclass(frozen=True)
class Refusal:
    """What cannot be trained together, why, and what to do instead."""

    applies: Callable[[Recipe], bool]
    what: str
    remedy: str
    path: Path_
    """The key that a message points at."""


REFUSALS = (
    Refusal(
        lambda recipe: recipe.method.tuner == "lora" and recipe.model.init == "random",
        "method.tuner: lora with model.init: random leaves an adapter whose base is nowhere on disk",
        "use method.tuner: full, or save the random model first and give its path",
        ("model", "init"),
    ),
    Refusal(
        lambda recipe: recipe.method.tuner == "lora" and recipe.method.lora.init == "pissa" and recipe.method.lora.dora,
        "method.lora.init: pissa with dora: DoRA scales the sum of the base and one adapter, PiSSA starts as two",
        "keep one of them",
        ("method", "lora", "dora"),
    ),
    Refusal(
        lambda recipe: (
            recipe.method.tuner == "lora" and recipe.method.lora.init == "pissa" and bool(recipe.method.lora.start_from)
        ),
        "method.lora.init: pissa with start_from: an adapter that goes on has its beginning already",
        "keep one of them",
        ("method", "lora", "init"),
    ),
    Refusal(
        lambda recipe: recipe.parallel.strategy in ("fsdp", "deepspeed") and recipe.optim.optimizer == "adafactor",
        "Adafactor keeps means over rows and columns of each matrix, and a rank that holds a piece of it has neither",
        "use optim.optimizer: adamw, or parallel.strategy: ddp",
        ("optim", "optimizer"),
    ),
    Refusal(
        # What `precision: auto` comes to is known on the device, and what a DeepSpeed JSON says when it is read.
        lambda recipe: (
            recipe.parallel.strategy == "deepspeed"
            and recipe.parallel.deepspeed.config is None
            and recipe.parallel.deepspeed.stage == 0
            and recipe.precision in ("bf16", "fp16")
        ),
        STAGE_0_ROUNDS,
        STAGE_0_REMEDY,
        ("parallel", "deepspeed", "stage"),
    ),
)

NO_SUMMANDS = {
    "use_dora": "DoRA scales the sum of the base and its own matrices",
    "lora_bias": "its matrices have biases",
    "target_parameters": "it changes parameters that are no modules",
    "trainable_token_indices": "it replaces rows of the embeddings",
}
"""Several adapters leave as one, their sum: keys of an adapter's own config that make it more than a term of it."""


def first_refusal(recipe: Recipe) -> Refusal | None:
    """The first entry of the table that applies to `recipe`."""
    return next((each for each in REFUSALS if each.applies(recipe)), None)
