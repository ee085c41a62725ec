"""The `data` section of a LLaMA-Factory recipe: data sets, template, lengths."""

from __future__ import annotations

from typing import Any

from ascendtune.core.errors import RecipeError
from ascendtune.core.suggest import did_you_mean
from ascendtune.data.spec import LAST_THOUGHT
from ascendtune.recipe.llamafactory.dataset_info import DataSets, data_sets
from ascendtune.recipe.llamafactory.llamafactory_recipe import LlamaFactoryRecipe, NativeRecipe

SAME = {
    "alpaca": "alpaca",
    "baichuan2": "baichuan2",
    "chatml": "chatml",
    "deepseek": "deepseek",
    "deepseek3": "deepseek3",
    "deepseekcoder": "deepseekcoder",
    "deepseekr1": "deepseekr1",
    "default": "human_assistant",
    "gemma": "gemma",
    "gemma3": "gemma",
    "glm4": "glm4",
    "glm4_7": "glm4_7",
    "glm4_moe": "glmz1",
    "glmz1": "glmz1",
    "intern2": "intern2",
    "llama2": "llama2",
    "llama3": "llama3",
    "ministral": "ministral",
    "mistral": "mistral",
    "phi": "phi",
    "qwen": "qwen",
    "qwen3": "qwen3",
    "qwen3_nothink": "qwen3_nothink",
    "qwen3_5": "qwen3_5",
    "qwen3_5_nothink": "chatml",
    "smollm": "chatml",
    "yi": "chatml",
}
"""LLaMA-Factory's name -> the value of data.template that writes the same text."""

WITHOUT_THOUGHT = {
    "deepseekr1": "deepseek3",
    "glm4_7": "glm4",
    "glm4_moe": "glm4",
    "glmz1": "glm4",
    "qwen3": "qwen3_nothink",
    "qwen3_5": "qwen3_5_nothink",
}
"""LLaMA-Factory's template that writes thoughts -> the template to use with enable_thinking: false."""

_MULTIMODAL = (
    "dots_ocr", "ernie_vl", "gemma3n", "gemma4", "gemma4n", "glm4v", "glm4_5v", "glm_ocr", "granite3_vision",
    "intern_vl", "intern_s1", "keye_vl", "kimi_vl", "lfm2_vl", "llama4", "mllama", "llava", "llava_next",
    "llava_next_llama3", "llava_next_mistral", "llava_next_qwen", "llava_next_yi", "llava_next_video",
    "llava_next_video_mistral", "llava_next_video_yi", "mimo_vl", "minicpm_v", "minicpm_v_4_6", "minicpm_o",
    "mistral_small", "ministral3", "paligemma", "paligemma_chat", "pixtral", "qwen2_audio", "qwen2_omni",
    "qwen3_omni", "qwen3_omni_nothink", "qwen2_vl", "qwen3_vl", "qwen3_vl_nothink", "video_llava", "yi_vl",
    "youtu_vl",
)  # fmt: skip
_OTHERS = (
    "aeva", "bailing", "bailing_v2", "breeze", "chatglm3", "chatml_de", "cohere", "cpm4", "dbrx", "empty", "ernie",
    "ernie_nothink", "exaone", "falcon", "falcon_h1", "fewshot", "gemma2", "gpt_oss", "granite3", "granite4", "hunyuan",
    "hunyuan_small", "hy3", "index", "lfm2", "llama2_zh", "mimo", "mimo_v2", "minimax1", "minimax2", "moonlight",
    "olmo", "openchat", "openchat-3.6", "opencoder", "phi4", "phi4_mini", "phi_small", "qwen3_6", "sailor",
    "seed_coder", "seed_oss", "smollm2", "solar", "starchat", "telechat2", "vicuna", "xuanyuan", "youtu", "yuan",
    "zephyr",
)  # fmt: skip
NAMES = (*SAME, *_MULTIMODAL, *_OTHERS)
"""Every known template name of LLaMA-Factory."""

_ENDS = {
    **dict.fromkeys(("chatml", "qwen", "qwen3", "qwen3_nothink", "qwen3_5", "qwen3_5_nothink"), "<|im_end|>"),
    **dict.fromkeys(("gemma", "gemma3"), "<end_of_turn>"),
    "llama3": "<|end_of_text|>",
    "phi": "<|end|>",
}
"""LLaMA-Factory's template -> the token that ends a text of stage pt there, regardless of the tokenizer's EOS."""

_WITH_TOOLS = ("qwen", "qwen3", "qwen3_nothink")
"""LLaMA-Factory's templates that can write tools here."""

_FIRST_TOKENS = (
    "the loss is a mean over all tokens that are predicted; LLaMA-Factory's is a little lower, because it also counts "
    "the first token of each row"
)
_INSTEAD = "remove `template`: the model's own chat template is used; or write data.template=FILE.jinja at the start"


def template_of(name: str) -> str | tuple[str, str]:
    """The value of data.template, or the problem and its remedy."""
    if name in SAME:
        return SAME[name]
    if name in _MULTIMODAL:
        return f"template: {name} belongs to a multimodal model; multimodal models are not supported in this version", (
            "train a text model on text"
        )
    if name in _OTHERS:
        return f"template: {name} is not supported in this version", _INSTEAD
    return f"LLaMA-Factory has no template '{name}'", f"{did_you_mean(name, NAMES)} Or {_INSTEAD}".lstrip()


def translate_data(recipe: LlamaFactoryRecipe, native: NativeRecipe, *, modelscope: bool) -> None:
    """The `data` section."""
    if not (recipe.given("dataset") or recipe.is_invalid("dataset")):
        recipe.add_error(
            "dataset",
            "dataset is missing",
            "name data sets of dataset_info.json, with commas between them",
            code="recipe-key-missing",
        )
        return
    if recipe.given("eval_dataset") and recipe["val_size"]:
        recipe.add_error(
            "val_size", "eval_dataset and val_size contradict each other", "keep one of them", code="conflicting-keys"
        )
    # With a wrong directory or stage, the data sets cannot be determined.
    is_known = not (recipe.is_invalid("dataset_dir") or recipe.is_invalid("stage"))
    for name, key in (("dataset", "data.train"), ("eval_dataset", "data.eval")):
        if not (recipe.given(name) and is_known):
            continue
        place = recipe.place(name)
        try:
            sets = data_sets(recipe[name], recipe["dataset_dir"], recipe["stage"], place, modelscope=modelscope)
        except RecipeError as error:
            recipe.add_errors(error)
        else:
            _put_data_sets(recipe, native, key, sets)
    _put_held_out(recipe, native)
    _put_template(recipe, native)
    _put_lengths(recipe, native)
    if recipe["train_on_prompt"]:
        native.put("data.loss_on", "all", recipe.place("train_on_prompt"))
        native.note(f"train_on_prompt: {_FIRST_TOKENS}")
    native.put("data.on_bad_row", "skip", recipe.source)


def _put_data_sets(recipe: LlamaFactoryRecipe, native: NativeRecipe, key: str, found: DataSets) -> None:
    most, system = recipe["max_samples"], recipe["default_system"]
    specs: list[dict[str, Any]] = []
    for spec in found.specs:
        limits = [limit for limit in (most, spec.get("limit")) if limit is not None]
        specs.append(spec | ({"limit": min(limits)} if limits else {}) | ({"system": system} if system else {}))
    places = found.places
    native.put(key, specs, places[0][""])
    section, name = key.split(".")
    for number, of_spec in enumerate(places):
        own = {"limit": recipe.place("max_samples")} if most is not None else {}
        for below, place in ({**of_spec, **own, "system": recipe.place("default_system")}).items():
            native.document.places[(section, name, number, below) if below else (section, name, number)] = place
    for sentence in found.notes:
        native.note(sentence)
    template = recipe["template"]
    if found.has_tools and template in SAME and template not in _WITH_TOOLS:
        native.note(
            f"template: {template}: rows with tools or tool calls are left out; LLaMA-Factory writes them in a form of "
            "its own"
        )


def _put_held_out(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    size, place = recipe["val_size"], recipe.place("val_size")
    if size >= 1 and not float(size).is_integer():
        recipe.refuse_value("val_size", "give a share below 1, or a number of rows")
    elif size >= 1:
        native.put("data.eval_rows", int(size), place)
    elif size:
        native.put("data.eval_fraction", size, place)


def _put_template(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    if recipe["stage"] == "pt":
        if end := _ENDS.get(recipe["template"]):
            native.note(
                f"template: {recipe['template']}: texts end with the tokenizer's EOS; LLaMA-Factory writes {end}"
            )
        return
    if not recipe.given("template"):
        if not recipe["enable_thinking"]:
            native.note_ignored("enable_thinking", "without `template` the model's own chat template decides it")
        _note_thoughts_are_kept(recipe, native)
        return
    name = recipe["template"]
    template = template_of(name)
    if isinstance(template, tuple):
        recipe.add_error("template", *template, code="not-in-this-version")
        return
    if not recipe["enable_thinking"] and name in WITHOUT_THOUGHT:
        recipe.add_error(
            "enable_thinking",
            f"template: {name} does not support enable_thinking: false",
            f"use template: {WITHOUT_THOUGHT[name]}",
            code="not-in-this-version",
        )
        return
    if name == "alpaca":
        native.note("template: alpaca: an empty line follows a system message; in LLaMA-Factory none does")
    if name in WITHOUT_THOUGHT and recipe["stage"] != "sft":
        # If only the last answer is trained on, LLaMA-Factory removes the thoughts of earlier ones.
        template += LAST_THOUGHT
        if recipe["preserve_thinking"]:
            recipe.refuse(
                "preserve_thinking",
                f"preserve_thinking with stage: {recipe['stage']}",
                "remove it: only the last answer then keeps its reasoning",
            )
    else:
        _note_thoughts_are_kept(recipe, native)
    native.put("data.template", template, recipe.place("template"))


def _note_thoughts_are_kept(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    if recipe["preserve_thinking"]:
        native.note_ignored(
            "preserve_thinking", "earlier answers keep their thoughts (LLaMA-Factory without mask_history)"
        )


def _put_lengths(recipe: LlamaFactoryRecipe, native: NativeRecipe) -> None:
    length, stage = recipe["cutoff_len"], recipe["stage"]
    is_requested = recipe["packing"] or recipe["neat_packing"]
    packs = is_requested or (stage == "pt" and recipe["packing"] is None)
    place = recipe.place("neat_packing" if recipe["neat_packing"] else "packing")
    # LLaMA-Factory removes one token and adds it again as padding.
    native.put("data.max_length", length - 1 if is_requested else length, recipe.place("cutoff_len"))
    if stage == "pt":
        native.put("data.packing", bool(packs), place)
        if not packs:
            native.note(f"packing: false: {_FIRST_TOKENS}")
            native.note("packing: false: a text longer than cutoff_len becomes several rows; LLaMA-Factory cuts it")
    elif stage == "sft":
        native.put("data.packing", bool(is_requested), place)
    if packs and not recipe["neat_packing"] and stage in ("pt", "sft"):
        native.note("packing: rows that share a sequence do not attend to each other; in LLaMA-Factory they do")
    if stage != "pt":
        native.note(
            "cutoff_len: a longer row is cut at its end, without EOS, and left out if no answer remains; LLaMA-Factory "
            "cuts question and answer in proportion"
        )
