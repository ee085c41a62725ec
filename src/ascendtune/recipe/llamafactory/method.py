"""The `method` section of a LLaMA-Factory recipe: stage, loss and tuner."""

from __future__ import annotations

from ascendtune.recipe.llamafactory.llamafactory_recipe import LlamaFactoryRecipe, NativeRecipe, final_weights

_OF_ONE_TUNER = {
    "freeze": ("freeze_trainable_layers", "freeze_trainable_modules"),
    "oft": ("oft_rank", "oft_block_size", "oft_target"),
}
_STAGES = {"pt": "pretrain", "sft": "sft", "rm": "reward", "dpo": "preference", "kto": "preference"}


def translate_method(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    """The `method` section."""
    _put_stage(recipe, native)
    tuner = recipe["finetuning_type"]
    native.put("method.tuner", tuner, recipe.place("finetuning_type"))
    if tuner == "oft":
        _put_oft(recipe, native)
    else:
        _put_lora(recipe, native)
    _put_dropout(recipe, native)
    _note_keys_of_other_tuners(recipe, native)
    _put_whole_modules(recipe, native, tuner)
    _put_adapters(recipe, native)
    _put_sft_loss(recipe, native)
    if tuner == "freeze":
        _put_freeze(recipe, native)
    elif recipe["use_llama_pro"]:
        recipe.refuse(
            "use_llama_pro",
            f"use_llama_pro with finetuning_type: {tuner}",
            "use finetuning_type: freeze, which trains the added layers",
        )


def _put_stage(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    stage, place = recipe["stage"], recipe.place("stage")
    if stage == "ppo":
        recipe.refuse("stage", "stage: ppo", "use stage: dpo, the closest method in this version")
        return
    native.put("method.stage", _STAGES[stage], place)
    if stage == "rm":
        native.note(
            "stage: rm: scores are computed without dropout; LLaMA-Factory has one of 0.1 before its value head"
        )
    if stage == "kto":
        native.put("method.preference.loss", "kto", place)
        if recipe["gradient_accumulation_steps"] > 1:
            native.note(
                "stage: kto: the divergence from the reference is estimated once a step, from all its rows; in "
                "LLaMA-Factory for each micro-batch by itself"
            )
        if recipe["pref_ftx"] and recipe["per_device_train_batch_size"] > 1:
            native.note(
                "pref_ftx with stage: kto: the cross-entropy of good answers is a mean over all rows; LLaMA-"
                "Factory's weight grows as fewer of a device's rows are good"
            )
    elif recipe.given("pref_loss") or stage == "dpo":
        _put_loss(recipe, native)
    if recipe.given("ref_model"):
        native.put("method.preference.reference", final_weights(recipe["ref_model"]), recipe.place("ref_model"))


def _put_loss(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    loss = recipe["pref_loss"]
    if loss == "kto_pair":
        recipe.add_error(
            "pref_loss",
            "pref_loss: kto_pair is not supported in this version; LLaMA-Factory trains sigmoid in its place",
            "use pref_loss: sigmoid, or stage: kto with answers marked good or bad",
            code="not-in-this-version",
        )
        return
    if loss == "kto":
        recipe.refuse(
            "pref_loss",
            f"pref_loss: kto with stage: {recipe['stage']}",
            "use stage: kto, with answers marked good or bad",
        )
        return
    native.put("method.preference.loss", loss, recipe.place("pref_loss"))
    if loss in ("hinge", "ipo"):
        native.note(f"pref_loss: {loss} is trained; LLaMA-Factory 0.9.4 and 0.9.5 train sigmoid in its place")


def _put_sft_loss(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    flags = [key for key in ("use_dft_loss", "use_eaft_loss", "use_asft_loss") if recipe[key]]
    if len(flags) > 1:
        recipe.add_error(flags[1], f"{' and '.join(flags)} contradict each other", "keep one", code="conflicting-keys")
    elif flags:
        native.put("method.sft.loss", flags[0].split("_")[1], recipe.place(flags[0]))
        native.note(f"{flags[0]}: the evaluation loss stays the cross-entropy; LLaMA-Factory weights that too")
    if "use_asft_loss" in flags and recipe.given("ref_model"):
        recipe.add_error(
            "ref_model", "ref_model with use_asft_loss: the loss compares with the model before training",
            "remove ref_model", code="not-in-this-version",
        )  # fmt: skip
    if recipe["neftune_noise_alpha"]:
        native.put("method.sft.neftune_alpha", recipe["neftune_noise_alpha"], recipe.place("neftune_noise_alpha"))
        native.note(
            "neftune_noise_alpha: the noise of a row follows from its own length; in LLaMA-Factory from that of the "
            "longest row in its batch"
        )
    if "use_asft_loss" in flags and recipe["gradient_accumulation_steps"] > 1:
        native.note(
            "use_asft_loss: the gradient is a mean over the tokens of a step; LLaMA-Factory's is "
            "gradient_accumulation_steps times as large, before clipping"
        )
    if "use_eaft_loss" in flags:
        native.note("use_eaft_loss: the entropy is divided by ln 20, as in the paper; LLaMA-Factory divides by 3")


def _put_lora(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    if recipe.given("lora_target"):
        target = recipe["lora_target"]
        native.put("method.lora.target", "all-linear" if "all" in target else target, recipe.place("lora_target"))
    if recipe["pissa_init"]:
        native.put("method.lora.init", "pissa", recipe.place("pissa_init"))

    if recipe["finetuning_type"] == "lora":
        _note_lora_optimizer(recipe, native)


def _note_lora_optimizer(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    names_targets = recipe.given("lora_target") and "all" not in recipe["lora_target"]
    grows = recipe["resize_vocab"] or recipe["add_tokens"] or recipe["add_special_tokens"]
    if recipe["loraplus_lr_ratio"] and (recipe["use_dora"] or recipe["additional_target"] or names_targets or grows):
        native.note(
            "loraplus_lr_ratio: B matrices alone learn faster, those of embeddings too; in LLaMA-Factory norms and "
            "DoRA's magnitudes learn faster and decay, and an adapter of embeddings learns at loraplus_lr_embedding"
        )
    elif recipe["use_dora"] and recipe["weight_decay"]:
        native.note("weight_decay with use_dora: DoRA's magnitudes do not decay; in LLaMA-Factory they do")


def _put_dropout(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    if not recipe["lora_dropout"]:
        return
    if recipe["stage"] in ("dpo", "kto"):
        native.note_ignored("lora_dropout", f"stage {recipe['stage']} trains without dropout, as in LLaMA-Factory")
    else:
        native.put("method.lora.dropout", recipe["lora_dropout"], recipe.place("lora_dropout"))


def _note_keys_of_other_tuners(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    tuner = recipe["finetuning_type"]
    keys = [key for owner, keys in _OF_ONE_TUNER.items() if owner != tuner for key in keys if recipe.given(key)]
    if keys and not recipe["use_llama_pro"]:
        native.note_ignored(", ".join(keys), f"finetuning_type is {tuner}")


def _put_oft(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    rank, size = recipe["oft_rank"], recipe["oft_block_size"]
    if rank and size and recipe.given("oft_block_size"):
        recipe.add_error(
            "oft_rank", "oft_rank and oft_block_size contradict each other: their product is the number of inputs",
            "keep one", code="conflicting-keys",
        )  # fmt: skip
    elif not rank and not size:
        recipe.add_error(
            "oft_block_size", "oft_block_size: 0 without oft_rank leaves no blocks", "set one of them",
            code="conflicting-keys",
        )  # fmt: skip
    elif rank:
        native.put("method.oft.rank", rank, recipe.place("oft_rank"))
    else:
        native.put("method.oft.block_size", size, recipe.place("oft_block_size"))
    key = "oft_target" if recipe.given("oft_target") else "lora_target"
    if recipe.given(key):
        target = recipe[key]
        native.put("method.oft.target", "all-linear" if "all" in target else target, recipe.place(key))
        if key == "oft_target" and "all" not in target:
            native.note("oft_target: LLaMA-Factory trains the modules of lora_target in its place")
    if recipe["module_dropout"]:
        native.note("module_dropout: blocks are dropped; in LLaMA-Factory nothing is, because PEFT never does it")


def _put_adapters(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    if adapters := recipe["adapter_name_or_path"]:
        place = recipe.place("adapter_name_or_path")
        if (tuner := recipe["finetuning_type"]) not in ("lora", "oft"):
            recipe.add_error(
                "adapter_name_or_path", f"adapter_name_or_path: finetuning_type: {tuner} cannot continue adapters",
                "use finetuning_type: lora or oft; or merge them first, with `ascendtune merge`, and train the result",
                code="not-in-this-version",
            )  # fmt: skip
        native.put(f"method.{'oft' if tuner == 'oft' else 'lora'}.start_from", adapters, place)
        if recipe["stage"] in ("dpo", "kto") and not recipe["ref_model"]:
            native.note(
                "adapter_name_or_path: the reference is the model with this adapter, as it is before training; in "
                "LLaMA-Factory it is the model without any adapter"
            )


def _put_whole_modules(recipe: LlamaFactoryRecipe, native: NativeRecipe, tuner: str) -> None:
    """`additional_target`; or, as in LLaMA-Factory, embeddings and head beside a new adapter if the vocabulary may
    grow."""
    key = f"method.{'oft' if tuner == 'oft' else 'lora'}.modules_to_save"
    if recipe["additional_target"]:
        native.put(key, recipe["additional_target"], recipe.place("additional_target"))
    growing = next((each for each in ("resize_vocab", "add_tokens", "add_special_tokens") if recipe[each]), None)
    if growing is None:
        return
    is_adapter = tuner in ("lora", "oft")
    if is_adapter and not recipe["additional_target"] and not recipe["adapter_name_or_path"]:
        native.put(key, "all-embeddings", recipe.place(growing))
        native.note(f"{growing}: embeddings and head are trained whole beside the adapter, as in LLaMA-Factory")
    elif growing == "resize_vocab":
        native.note("resize_vocab: no effect: embeddings grow where add_tokens names tokens")


def _put_freeze(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    count, place = recipe["freeze_trainable_layers"], recipe.place("freeze_trainable_layers")
    if recipe["use_llama_pro"]:
        native.put("method.freeze.spread_layers", abs(count), recipe.place("use_llama_pro"))
    else:
        _put_outer_layers(native, count, place)
    modules = recipe["freeze_trainable_modules"]
    if recipe.given("freeze_trainable_modules") and "all" not in modules:
        native.put("method.freeze.modules", modules, recipe.place("freeze_trainable_modules"))
    for name in recipe["freeze_extra_modules"] or ():
        if name in "post_attention_layernorm":
            native.note(
                f"freeze_extra_modules: {name}: the module of that name alone; LLaMA-Factory also trains those whose "
                "names contain it, such as the norms of all layers"
            )


def _put_outer_layers(native: NativeRecipe, count: int, place: str) -> None:
    native.put("method.freeze.first_layers" if count < 0 else "method.freeze.last_layers", abs(count), place)
    if count < 0:
        native.put("method.freeze.last_layers", 0, place)
