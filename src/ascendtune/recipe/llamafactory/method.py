"""Stage, loss and tuner."""

from __future__ import annotations

from ascendtune.recipe.llamafactory.llamafactory_recipe import Native, Theirs, final_weights

_STAGES = {"pt": "pretrain", "sft": "sft", "rm": "reward", "dpo": "preference", "kto": "preference"}


def put_method(theirs: Theirs, native: Native) -> None:
    """The `method` section."""
    _put_stage(theirs, native)
    tuner = theirs["finetuning_type"]
    if tuner == "oft":
        theirs.complain("finetuning_type", "finetuning_type: oft is not in this version", "use lora")
        return
    native.put("method.tuner", tuner, theirs.place("finetuning_type"))
    _put_lora(theirs, native)
    if tuner == "freeze":
        _put_freeze(theirs, native)


def _put_stage(theirs: Theirs, native: Native) -> None:
    stage, place = theirs["stage"], theirs.place("stage")
    if stage == "ppo":
        theirs.complain("stage", "stage: ppo is not in this version", "use dpo, the nearest")
        return
    native.put("method.stage", _STAGES[stage], place)
    if stage == "kto":
        native.put("method.preference.loss", "kto", place)
        if theirs["pref_ftx"] and theirs["per_device_train_batch_size"] > 1:
            native.note(
                "pref_ftx with stage: kto: the cross-entropy of good answers is a mean over all rows; theirs weighs "
                "more, the fewer of a device's rows are good"
            )
    elif theirs.given("pref_loss") or stage == "dpo":
        _put_loss(theirs, native)
    if theirs.given("ref_model"):
        native.put("method.preference.reference", final_weights(theirs["ref_model"]), theirs.place("ref_model"))


def _put_loss(theirs: Theirs, native: Native) -> None:
    loss = theirs["pref_loss"]
    if loss == "kto_pair":
        theirs.complain(
            "pref_loss", "pref_loss: kto_pair is not in this version; LLaMA-Factory trains sigmoid in its place",
            "use pref_loss: sigmoid, or stage: kto with answers marked good or bad",
        )  # fmt: skip
        return
    native.put("method.preference.loss", loss, theirs.place("pref_loss"))
    if loss in ("hinge", "ipo"):
        native.note(f"pref_loss: {loss} is trained; LLaMA-Factory 0.9.4 and 0.9.5 train sigmoid in its place")


def _put_lora(theirs: Theirs, native: Native) -> None:
    if theirs.given("lora_target"):
        target = theirs["lora_target"]
        native.put("method.lora.target", "all-linear" if "all" in target else target, theirs.place("lora_target"))
    if theirs["pissa_init"]:
        native.put("method.lora.init", "pissa", theirs.place("pissa_init"))
    _put_whole_modules(theirs, native)
    if adapters := theirs["adapter_name_or_path"]:
        place = theirs.place("adapter_name_or_path")
        if (tuner := theirs["finetuning_type"]) != "lora":
            theirs.complain(
                "adapter_name_or_path", f"adapter_name_or_path: finetuning_type: {tuner} does not go on from adapters",
                "use finetuning_type: lora; or merge them first, with `ascendtune merge`, and train the result",
            )  # fmt: skip
        native.put("method.lora.start_from", adapters, place)
        if theirs["stage"] in ("dpo", "kto") and not theirs["ref_model"]:
            native.note(
                "adapter_name_or_path: the reference is the model with this adapter, as it is before training; in "
                "theirs it is the model without any adapter"
            )


def _put_whole_modules(theirs: Theirs, native: Native) -> None:
    """A vocabulary that may grow makes theirs train embeddings and head, beside an adapter that begins."""
    asked = next((key for key in ("resize_vocab", "add_tokens", "add_special_tokens") if theirs[key]), None)
    if asked is None:
        return
    if theirs["finetuning_type"] == "lora" and not theirs["additional_target"] and not theirs["adapter_name_or_path"]:
        native.put("method.lora.modules_to_save", "all-embeddings", theirs.place(asked))
        native.note(f"{asked}: embeddings and head are trained whole beside the adapter, as in theirs")
    elif asked == "resize_vocab":
        native.note("resize_vocab: no effect: embeddings grow where add_tokens names tokens")


def _put_freeze(theirs: Theirs, native: Native) -> None:
    count, place = theirs["freeze_trainable_layers"], theirs.place("freeze_trainable_layers")
    native.put("method.freeze.first_layers" if count < 0 else "method.freeze.last_layers", abs(count), place)
    if count < 0:
        native.put("method.freeze.last_layers", 0, place)
    modules = theirs["freeze_trainable_modules"]
    if theirs.given("freeze_trainable_modules") and "all" not in modules:
        native.put("method.freeze.modules", modules, theirs.place("freeze_trainable_modules"))
