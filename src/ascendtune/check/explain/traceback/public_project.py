"""Public projects that people clone and run as they are: code in such a clone is not the user's own."""

from __future__ import annotations

import re

from ascendtune.check.explain.log.frame import is_installed, is_of_standard_library

_MODULES = {
    "llama-factory": "llamafactory",
    "lm-evaluation-harness": "lm_eval",
    "megatron-lm": "megatron",
    "mindspeed-llm": "mindspeed_llm",
    "mindspeed-mm": "mindspeed_mm",
    "ms-swift": "swift",
    "vllm-ascend": "vllm_ascend",
}
"""Projects whose module has another name."""
_PROJECT = re.compile(
    r"""(?P<root> (?: .*?/ )? (?<!/home/) (?<!/Users/) (?P<name>
    # training of language models
    alignment-handbook | alpaca-lora | AscendSpeed | axolotl | Baichuan2?(?:-\d+B)? | BELLE | ChatGLM\d?(?:-6B)? |
    Chinese-LLaMA-Alpaca(?:-\d)? | ColossalAI | DeepSeek-(?:Coder | Math | MoE | OCR | R1 | V\d[\w.-]* | VL2?) |
    DeepSpeedExamples | EasyR1 | FastChat | Firefly | GLM-4[\w.]* | gpt-neox | InternLM | InternVL |
    (?:LLaMA | Llama | llama)-(?:Efficient-Tuning | Factory | factory) |
    llama-(?:cookbook | recipes) | LLaVA(?:-(?:Med | NeXT | UHD))? |
    lit-?(?:gpt | llama) | LMFlow | lm-evaluation-harness | Megatron-(?:DeepSpeed | LM) | mindformers |
    MindSpeed(?:-\w+)? | MiniCPM(?:-[oV])? | MiniGPT-4 | mini(?:GPT | mind) | ModelLink | ModelZoo-PyTorch | ms-swift |
    nanochat | nanoGPT | NeMo(?:-RL)? | open-instruct | open-r1 | opencompass | OpenRLHF | Pai-Megatron-Patch | qlora |
    Qwen[\d.]*(?:-(?:Agent | Audio | Coder | Image | Math | Omni | VL))? | stanford_alpaca | TinyZero | trlx | verl |
    VisualGLM-6B | VLMEvalKit | vllm-ascend | xtuner |
    # images, video, sound
    ai-toolkit | CogV(?:LM | ideo)X?\d? | [Cc]omfy[Uu][Ii] | ControlNet | CosyVoice | detectron2 | diffusion-pipe |
    DiffSynth-Studio | EveryDream2trainer | F5-TTS | fairseq | fish-speech | Fooocus | FramePack | FunASR |
    gaussian-splatting | GPT-SoVITS(?:-\w+)? | Grounded-Segment-Anything | GroundingDINO | HunyuanVideo(?:-\w+)? |
    index-tts | InvokeAI | kohya_ss | latent-diffusion | LatentSync | mm(?:detection(?:3d)? | segmentation | pose) |
    mm(?:pretrain | ocr) | musubi-tuner | nerfstudio | OneTrainer | Open-Sora(?:-Plan)? |
    Paddle(?:Detection | MIX | NLP | OCR | Seg | Speech) | pytorch-CycleGAN-and-pix2pix |
    Retrieval-based-Voice-Conversion-WebUI | sd-scripts | segment-anything | SenseVoice | SimpleTuner | so-vits-svc |
    stable-diffusion-webui(?:-\w+)? | stablediffusion | stylegan[23](?:-ada)?(?:-pytorch)? | taming-transformers |
    tortoise-tts | Wan2\.\d | wenet | whisperX | yolov\d+ |
    # serving
    exllama(?:v\d)? | GPTQ-for-LLaMa | h2ogpt | KoboldAI(?:-Client)? | Langchain-Chat(?:chat | GLM) | llama\.cpp |
    llm-awq | open-webui | privateGPT | tabbyAPI | text-generation-webui
    ) (?: [-_] (?:main | master | v?\d[\w.]*) )? ) /""",
    re.VERBOSE,
)
_EXAMPLES = re.compile(r"(?P<root>(?:.*/)?(?P<name>accelerate|diffusers|peft|transformers|trl))/examples/")
"""Scripts in the repository of a library."""
_PLUGIN = re.compile(r"(?P<root>.*/(?:custom_nodes|stable-diffusion-webui[\w-]*/extensions)/(?P<name>[\w.-]+))/")
"""Nodes of ComfyUI and extensions of the web UI of Stable Diffusion: a clone of its own for each."""


def project_of(file: str) -> tuple[str, str]:
    """Name and directory of the public project with a file, which is written with slashes; empty for other files."""
    if is_installed(file) or is_of_standard_library(file) or "/transformers_modules/" in file:
        return "", ""
    match = _PLUGIN.match(file) or _EXAMPLES.match(file) or _PROJECT.match(file)
    return (_MODULES.get(match["name"].lower(), match["name"]), match["root"]) if match else ("", "")
