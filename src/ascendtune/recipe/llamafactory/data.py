"""What is trained on: data sets, template, lengths."""

from __future__ import annotations

from typing import Any

from ascendtune.data.spec import LAST_THOUGHT
from ascendtune.recipe.llamafactory.dataset_info import DataSets, data_sets
from ascendtune.recipe.llamafactory.llamafactory_recipe import Native, Theirs
from ascendtune.recipe.llamafactory.templates import WITHOUT_THOUGHT, template_of


def put_data(theirs: Theirs, native: Native, *, modelscope: bool) -> None:
    """The `data` section.

    Raises:
        RecipeError: of `data_sets`.
    """
    if not theirs.given("dataset"):
        theirs.complain(
            "dataset", "dataset is missing", "name data sets of dataset_info.json, with commas between them"
        )
        return
    if theirs.given("eval_dataset") and theirs["val_size"]:
        theirs.complain("val_size", "eval_dataset and val_size contradict each other", "keep one of them")
    for name, key in (("dataset", "data.train"), ("eval_dataset", "data.eval")):
        if theirs.given(name):
            found = data_sets(
                theirs[name], theirs["dataset_dir"], theirs["stage"], theirs.place(name), modelscope=modelscope
            )
            _put_data_sets(theirs, native, key, found)
    _put_held_out(theirs, native)
    _put_template(theirs, native)
    _put_lengths(theirs, native)
    if theirs["train_on_prompt"]:
        native.put("data.loss_on", "all", theirs.place("train_on_prompt"))
    native.put("data.on_bad_row", "skip", theirs.source)


def _put_data_sets(theirs: Theirs, native: Native, key: str, found: DataSets) -> None:
    most, system = theirs["max_samples"], theirs["default_system"]
    specs: list[dict[str, Any]] = []
    for spec in found.specs:
        limits = [limit for limit in (most, spec.get("limit")) if limit is not None]
        specs.append(spec | ({"limit": min(limits)} if limits else {}) | ({"system": system} if system else {}))
    places = found.places
    native.put(key, specs, places[0][""])
    section, name = key.split(".")
    for number, of_spec in enumerate(places):
        own = {"limit": theirs.place("max_samples")} if most is not None else {}
        for below, place in ({**of_spec, **own, "system": theirs.place("default_system")}).items():
            native.document.places[(section, name, number, below) if below else (section, name, number)] = place
    for sentence in found.notes:
        native.note(sentence)


def _put_held_out(theirs: Theirs, native: Native) -> None:
    size, place = theirs["val_size"], theirs.place("val_size")
    if size >= 1 and not float(size).is_integer():
        theirs.complain("val_size", f"'val_size: {size}' is not possible", "give a share below 1, or a number of rows")
    elif size >= 1:
        native.put("data.eval_rows", int(size), place)
    elif size:
        native.put("data.eval_fraction", size, place)


def _put_template(theirs: Theirs, native: Native) -> None:
    if theirs["stage"] == "pt":
        if theirs["template"] == "llama3":
            native.note("template: llama3: texts end with the tokenizer's own end token; theirs writes <|end_of_text|>")
        return
    if not theirs.given("template"):
        if not theirs["enable_thinking"]:
            native.note("enable_thinking: no effect: without `template` the model's own chat template decides it")
        _say_thoughts_are_kept(theirs, native)
        return
    name = theirs["template"]
    found = template_of(name)
    if isinstance(found, tuple):
        theirs.complain("template", *found)
        return
    if not theirs["enable_thinking"] and name in WITHOUT_THOUGHT:
        theirs.complain(
            "enable_thinking",
            f"template: {name} without thoughts is another template",
            f"use template: {WITHOUT_THOUGHT[name]}",
        )
        return
    if name == "alpaca":
        native.note("template: alpaca: an empty line follows a system message; in theirs none does")
    if name in WITHOUT_THOUGHT and theirs["stage"] != "sft":
        # Where only the last answer is learnt, theirs takes the thoughts out of those before it.
        found += LAST_THOUGHT
        if theirs["preserve_thinking"]:
            theirs.complain(
                "preserve_thinking", f"preserve_thinking with stage: {theirs['stage']} is not in this version",
                "remove it: earlier answers lose their thoughts, the last one keeps its own",
            )  # fmt: skip
    else:
        _say_thoughts_are_kept(theirs, native)
    native.put("data.template", found, theirs.place("template"))


def _say_thoughts_are_kept(theirs: Theirs, native: Native) -> None:
    if theirs["preserve_thinking"]:
        native.note(
            "preserve_thinking: no effect: earlier answers keep their thoughts, as in theirs without mask_history"
        )


def _put_lengths(theirs: Theirs, native: Native) -> None:
    length, stage = theirs["cutoff_len"], theirs["stage"]
    asked = theirs["packing"] or theirs["neat_packing"]
    packs = asked or (stage == "pt" and theirs["packing"] is None)
    place = theirs.place("neat_packing" if theirs["neat_packing"] else "packing")
    # Theirs takes one token off, and pads it on again.
    native.put("data.max_length", length - 1 if asked else length, theirs.place("cutoff_len"))
    if stage == "pt":
        native.put("data.packing", bool(packs), place)
        if not packs:
            native.note("packing: false: a text longer than cutoff_len becomes several rows; theirs loses its end")
    elif stage == "sft":
        native.put("data.packing", bool(asked), place)
        if asked:
            native.put("data.on_long_row", "drop", place)
    if packs and not theirs["neat_packing"] and stage in ("pt", "sft"):
        native.note("packing: rows that share a sequence do not see each other here; in theirs they do")
    if stage != "pt" and not (asked and stage == "sft"):
        native.note(
            "cutoff_len: a longer row loses its end and is not taught to stop there; theirs cuts question and answer "
            "in proportion"
        )
