"""LLaMA-Factory's templates by name: those that exist here too, and those that do not.

`make compat` renders conversations with LLaMA-Factory's templates, read from its source distribution, and compares.
"""

from __future__ import annotations

from ascendtune.core.suggest import did_you_mean

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
"""Every template name of LLaMA-Factory that is known here."""

_INSTEAD = "remove `template`: the model's own chat template is used; or write data.template=FILE.jinja at the start"


def template_of(name: str) -> str | tuple[str, str]:
    """The value of data.template, or what is wrong and what to do."""
    if name in SAME:
        return SAME[name]
    if name in _MULTIMODAL:
        return f"template: {name} belongs to a multimodal model; multimodal models are not in this version", (
            "train a text model on text"
        )
    if name in _OTHERS:
        return f"template: {name} is not in this version", _INSTEAD
    return f"LLaMA-Factory has no template '{name}'", f"{did_you_mean(name, NAMES)} Or {_INSTEAD}".lstrip()
