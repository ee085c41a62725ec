"""Versions of packages and programs in a log, in the forms in which programs and people write them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_NAMES = (
    *("torch_npu", "torchvision", "torchaudio", "torchtext", "torchao", "pytorch_lightning", "pytorch", "torch"),
    *("transformers", "accelerate", "peft", "trl", "deepspeed", "datasets", "tokenizers", "sentencepiece"),
    *("vllm_ascend", "vllm", "sglang", "sgl_kernel", "lmdeploy", "llamafactory", "ms_swift", "verl", "unsloth_zoo"),
    *("unsloth", "numpy", "scipy", "pandas", "triton_ascend", "triton", "flash_attn", "flashinfer_python"),
    *("flashinfer", "xformers", "bitsandbytes", "auto_gptq", "autoawq", "gptqmodel", "optimum", "liger_kernel"),
    *("mindspeed", "mindspore", "megatron_core", "safetensors", "huggingface_hub", "diffusers", "protobuf"),
    *("pydantic", "gradio", "ray", "tensorflow_gpu", "tensorflow", "keras", "jax", "llama_cpp_python", "apex"),
    *("setuptools", "CANN", "Python", "CUDA", "NCCL", "driver", "firmware"),
)
_SAME = {"pytorch": "torch", "flashinfer_python": "flashinfer", "tensorflow_gpu": "tensorflow"}
"""Second names of packages."""
_WORDS = (
    *("torch", "transformers", "accelerate", "peft", "trl", "deepspeed", "datasets", "tokenizers", "sentencepiece"),
    *("vllm", "sglang", "sgl", "lmdeploy", "llamafactory", "swift", "verl", "unsloth", "numpy", "scipy", "pandas"),
    *("triton", "flash", "xformers", "bitsandbytes", "gptq", "awq", "optimum", "liger", "mindsp", "megatron"),
    *("safetensors", "huggingface", "diffusers", "protobuf", "pydantic", "gradio", "ray", "tensorflow", "keras", "jax"),
    *("llama_cpp", "llama-cpp", "apex", "setuptools", "cann", "python", "cuda", "nccl", "driver", "firmware"),
)
"""Each of `_NAMES` contains one of them."""
_SPELT = "|".join(sorted((name.replace("_", "[-_]") for name in _NAMES), key=len, reverse=True))
_VALUE = r"(?P<value>\d+\.\d+[\w.+-]*)"
_QUOTES = r"[`*'\"]{0,3}"
_VERSION = re.compile(
    rf"(?<![\w.-])(?P<name>{_SPELT})"
    # vllm/vllm-openai:v0.5.4, huggingface/transformers-pytorch-gpu:4.35.2
    rf"(?:(?:-openai|-pytorch-gpu)(?=:)|\.__version__| API server)?{_QUOTES}"
    r"(?: ?(?:version|release|info|版本)(?: \(GPU\?\))?)?(?: ?(?:is|为|是))?"
    rf"{_QUOTES}"
    r"(?:(?P<equal> ?={1,2} ?)|[:：] *| +(?:\.{3,} )?(?:\| +)?|/|@| \((?=[\d.]+\))|"
    r"(?<=cuda)|(?<=torch)|(?<=本)|(?<=[为是]))"
    rf"{_QUOTES}(?:(?P<again>{_SPELT})==)?v?{_VALUE}",
    re.IGNORECASE,
)
_CANN = re.compile(
    r"(?:ascend-toolkit/|ascendai/cann:|(?<![\w.])cann-(?:toolkit_|nnrt_)?|(?<=/)CANN/)"
    r"(?P<value>\d+\.\d+(?:\.(?:rc|t|b|alpha|beta|\d)[a-z\d]*)*)(?=[-_/\s'\":]|$)",
    re.IGNORECASE,
)
"""Release of CANN in a path, a package's file or an image."""
_INSTALLED = re.compile(r"Successfully installed (?P<packages>[\w.+ -]+)")
"""pip's line; "torch-npu-2.7.1" is name and version."""
_PACKAGE = re.compile(rf"(?<!\S)(?P<name>{_SPELT})-(?P<value>\d+\.\d+[\w.+]*)(?!\S)", re.IGNORECASE)
_PRESENT = re.compile(
    rf"Requirement already satisfied: (?P<name>{_SPELT})(?![\w.-])[^\n]* \((?P<value>\d+\.\d+[\w.+]*)\)\s*$",
    re.IGNORECASE | re.MULTILINE,
)
_SHOWN = re.compile(
    rf"^[Nn]ame(?:: | = \")(?P<name>{_SPELT})\"?\n[Vv]ersion(?:: | = \")(?P<value>[\w.+]+)\"?$",
    re.IGNORECASE | re.MULTILINE,
)
"""Output of `pip show`, or a table of poetry.lock or uv.lock."""
_ASKED = re.compile(
    rf"(?<![\w.])(?P<name>{_SPELT})\.__version__[)\"' ;]*\n(?:Out ?\[\d+\]: ?)?['\"]?{_VALUE}['\"]?$",
    re.IGNORECASE | re.MULTILINE,
)
"""Python's answer, in the line below the question."""
_ENGINE = re.compile(rf"Initializing (?P<name>an LLM|a V\d LLM) engine \(v{_VALUE}\)")
"""The first words of vLLM's engine."""
_EGG = re.compile(rf"/(?P<name>{_SPELT})-(?P<value>\d+\.\d+[\w.+]*)-py\d\.\d+\.egg/", re.IGNORECASE)
"""Part of the path of a module that easy_install or setup.py has installed."""
_WHEEL = re.compile(rf"(?<![\w.-])(?P<name>{_SPELT})-(?P<value>\d+\.\d+[\w.+]*)-(?:cp|py)\d+\S*\.whl", re.IGNORECASE)
_FETCHED = re.compile(r"(?:Downloading|Using cached|Collecting|Found link|Looking|Skipping) [^\n]*$")
_PYTHON_OF_PATH = re.compile(r"/lib/python(?P<value>3\.\d{1,2})/(?:site|dist)-packages/")
_NVCC = re.compile(r"Cuda compilation tools, release (?P<value>\d+\.\d+)")
_REQUIRED = re.compile(
    r"(?:requires?|depends on|requirement|no matching distribution found for|conflicts? with|[<>!]=?|^\s*-) ?[`'\"*]*$",
    re.IGNORECASE,
)
"""Words before a package that is asked for, or removed, with its version."""
_OF_OTHER_SENTENCE = re.compile(
    r"(?:(?<![A-Za-z])(?:requires?|depends on|found existing installation:|needs?|at least|minimum|since|until|before|"
    r"(?:removed|deprecated|dropped|introduced|added|available) in|than|(?:built|compiled) (?:with|for|against)|"
    r"(?:up|down)grade to|update to|use|install|supports?|for|or|below|above)|[<>]=?|"
    r"必须|需要|至少|要求|升级到|降级到|低于|高于|支持)[ `'\"*]*$",
    re.IGNORECASE,
)
"""Words before a name and a version that do not say what is installed."""
_RANGE = re.compile(
    r"\s?(?:or (?:newer|later|above|higher|greater|earlier|older)|and (?:newer|later|above|higher)|\+(?!\w)|"
    r"is required|及?以[上下]|或更[高新])",
    re.IGNORECASE,
)
"""Words behind a version that is a bound."""
_BEFORE = 48
"""Characters before a name that are searched for the words above."""
_OTHER_NUMBERS = {"cuda": re.compile(r"\.? CUDA Toolkit")}
"""Follows Unsloth's "CUDA: 8.0", the compute capability of the GPU."""
_MONTHLY = re.compile(r"\d\d\.\d\d-py")
"""Tag of NVIDIA's images: nvcr.io/nvidia/pytorch:23.10-py3 is not a release of torch."""


def versions_in(text: str, lower: str) -> Iterator[tuple[str, str]]:
    """Name and version of packages and programs, in the order of the kinds of text; see `without_prefixes`.

    Args:
        lower: `text` in lower case.
    """
    yield from _named(text, lower)
    for name, value in _in_other_forms(text, lower):
        # The tag of an image goes on with its system.
        yield _spelt(name), value.partition("-")[0]
    for match in matches(_CANN, text, places(lower, ("ascend-toolkit/", "cann"))):
        yield "cann", match["value"]


def without_prefixes(values: Iterable[str]) -> tuple[str, ...]:
    """Remove versions that another one contains: 2.1.0 beside 2.1.0+cu118, the 3.10 of a path beside 3.10.12."""
    kept = list(values)
    return tuple(
        value
        for value in kept
        if not any(other != value and other.startswith((f"{value}.", f"{value}+")) for other in kept)
    )


def _named(text: str, lower: str) -> Iterator[tuple[str, str]]:
    for match in matches(_VERSION, text, places(lower, _WORDS)):
        name, value = _spelt(match["name"]), match["value"]
        line_start = text.rfind("\n", 0, match.start()) + 1
        before = text[max(line_start, match.start() - _BEFORE) : match.start()]
        unlike = _REQUIRED if match["equal"] else _OF_OTHER_SENTENCE
        if unlike.search(before) or _RANGE.match(text, match.end()) or _MONTHLY.match(value):
            continue
        other = _OTHER_NUMBERS.get(name)
        if other is not None and other.match(text, match.end("value") - value.endswith(".")):
            continue
        yield name, value.partition("-")[0]


def _in_other_forms(text: str, lower: str) -> Iterator[tuple[str, str]]:
    for line in matches(_INSTALLED, text, places(lower, ("successfully installed",))):
        yield from ((package["name"], package["value"]) for package in _PACKAGE.finditer(line["packages"]))
    found = [*matches(_EGG, text, places(lower, (".egg/",)))]
    found += matches(_PRESENT, text, places(lower, ("already satisfied: ",)))
    found += _SHOWN.finditer(text) if "\nversion" in lower else ()
    found += matches(_ASKED, text, places(lower, (".__version__",)))
    for wheel in matches(_WHEEL, text, places(lower, (".whl",))):
        line_start = text.rfind("\n", 0, wheel.start()) + 1
        found += () if _FETCHED.search(text, line_start, wheel.start()) else (wheel,)
    yield from ((match["name"], match["value"]) for match in found)
    yield from (("vllm", match["value"]) for match in matches(_ENGINE, text, places(lower, ("llm engine (v",))))
    yield from (("cuda", match["value"]) for match in matches(_NVCC, text, places(lower, ("compilation tools",))))
    yield from (("python", match["value"]) for match in matches(_PYTHON_OF_PATH, text, places(lower, ("/lib/python",))))


def _spelt(name: str) -> str:
    name = name.lower().replace("-", "_")
    return _SAME.get(name, name)


def places(text: str, words: Iterable[str]) -> Iterator[int]:
    """Indices of the words in `text`; of each word only the first one in a line."""
    for word in words:
        place = text.find(word)
        while place >= 0:
            yield place
            line_end = text.find("\n", place)
            place = text.find(word, line_end) if line_end >= 0 else -1


LONGEST_CROSSING = 48
"""Most characters of a match on the lines below its first one."""


def matches(pattern: re.Pattern[str], text: str, at: Iterable[int]) -> Iterator[re.Match[str]]:
    """Matches of `pattern` that begin in the lines of `at` (indices into `text`), in the order of the text."""
    lines = {text.rfind("\n", 0, place) + 1: place for place in at}
    for start in sorted(lines):
        end = text.find("\n", lines[start])
        end = len(text) if end < 0 else end
        found = pattern.finditer(text, start, end + LONGEST_CROSSING)
        yield from (match for match in found if match.start() < end)
