"""Keys that are valid but have no effect in combination with others: a note names them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ascendtune.recipe.recipe import Recipe

_NO_TURNS = "texts of stage pretrain have no turns"


def ignored_keys(recipe: Recipe, origins: dict[str, str]) -> list[str]:
    """A sentence for every key that is set and has no effect.

    Args:
        origins: the origin of each key's value, from `Recipe.load_with_origins`.
    """
    given = [key for key, origin in origins.items() if origin != "default"]
    ignored = [
        (key, reason, origins[key])
        for prefix, is_ignored, reason in _rules(recipe)
        if is_ignored
        for key in given
        if key.startswith(prefix)
    ]
    if recipe.method.stage == "pretrain":
        # A list has only one origin, that of the whole list.
        ignored += [
            (f"{name}[{number}].system", _NO_TURNS, origins[name])
            for name, datasets in (("data.train", recipe.data.train), ("data.eval", recipe.data.eval))
            for number, dataset in enumerate(datasets)
            if dataset.system
        ]
    return [f"{key} has no effect: {reason} ({origin})" for key, reason, origin in ignored]


def _rules(recipe: Recipe) -> list[tuple[str, bool, str]]:
    """Prefix of the keys, whether they have no effect in this recipe, and why."""
    data, method, optim = recipe.data, recipe.method, recipe.optim
    loss = method.preference.loss
    stage, strategy, deepspeed = method.stage, recipe.parallel.strategy, recipe.parallel.deepspeed
    no_warmup = optim.scheduler == "constant" and not optim.warmup_steps and not optim.warmup_ratio
    is_continued, is_new_oft = bool(method.start_from), method.tuner == "oft" and not method.start_from
    has_adamw = optim.optimizer in ("auto", "adamw", "muon")
    return [
        ("method.lora.", method.tuner != "lora", f"tuner is {method.tuner}"),
        *(
            (f"method.lora.{key}", method.tuner == "lora" and is_continued, "the adapters of start_from decide it")
            for key in ("target", "rank", "alpha", "rslora", "dora", "modules_to_save")
        ),
        ("method.oft.", method.tuner != "oft", f"tuner is {method.tuner}"),
        *(
            (f"method.oft.{key}", method.tuner == "oft" and is_continued, "the adapter of start_from decides it")
            for key in ("target", "rank", "block_size", "block_share", "eps", "cayley_neumann", "modules_to_save")
        ),
        ("method.oft.eps", is_new_oft and not method.oft.coft, "method.oft.coft is false"),
        (
            "method.oft.cayley_neumann_terms",
            is_new_oft and not method.oft.cayley_neumann,
            "method.oft.cayley_neumann is false",
        ),
        (
            "method.oft.module_dropout",
            is_new_oft and method.oft.block_share,
            "with method.oft.block_share a module has one block, which is kept",
        ),
        ("method.freeze.", method.tuner != "freeze", f"tuner is {method.tuner}"),
        ("method.sft.", stage != "sft", f"stage is {stage}"),
        ("method.sft.eaft_alpha", stage == "sft" and method.sft.loss != "eaft", f"loss is {method.sft.loss}"),
        ("method.sft.asft_alpha", stage == "sft" and method.sft.loss != "asft", f"loss is {method.sft.loss}"),
        ("method.reward.", stage != "reward", f"stage is {stage}"),
        ("method.preference.", stage != "preference", f"stage is {stage}"),
        *(
            (f"method.preference.{key}", stage == "preference" and loss != its, f"loss is {loss}")
            for key, its in (("simpo_gamma", "simpo"), ("desirable_weight", "kto"), ("undesirable_weight", "kto"))
        ),
        ("align.pad", data.packing is not False, "rows are padded only with data.packing: false"),
        ("data.template", stage == "pretrain", _NO_TURNS),
        ("data.loss_on", stage == "pretrain", "stage pretrain trains on every token"),
        ("data.loss_on", stage in ("reward", "preference"), "only the last answer is trained on"),
        (
            "data.on_long_row",
            stage == "pretrain" and data.on_long_row == "truncate",
            "stage pretrain splits long texts",
        ),
        ("parallel.fsdp.", strategy not in ("fsdp", "auto"), f"strategy is {strategy}"),
        ("parallel.deepspeed.", strategy == "auto", "strategy: auto uses ddp or fsdp"),
        ("parallel.deepspeed.", strategy in ("ddp", "fsdp"), f"strategy is {strategy}"),
        (
            "parallel.deepspeed.nvme_path",
            strategy == "deepspeed" and "nvme" not in (deepspeed.offload_optimizer, deepspeed.offload_param),
            "nothing is offloaded to nvme",
        ),
        ("optim.warmup", no_warmup, "it is zero"),
        ("optim.min_learning_rate_ratio", optim.scheduler == "constant", "the scheduler is constant"),
        ("optim.beta", not has_adamw, f"the optimizer is {optim.optimizer}"),
        ("optim.muon_momentum", optim.optimizer != "muon", f"the optimizer is {optim.optimizer}"),
        ("optim.epsilon", not has_adamw, f"the optimizer is {optim.optimizer}"),
        ("model.dtype", recipe.model.init == "random" and recipe.model.dtype != "fp32", "random weights are fp32"),
    ]
