"""Package of a frame: the installed one, the framework, or the public project that is run from a clone."""

from __future__ import annotations

import re
from itertools import pairwise

from ascendtune.check.explain.log.frame import is_command, is_of_standard_library, posix
from ascendtune.check.explain.traceback.public_project import project_of

_PACKAGE = re.compile(r".*/(?:site|dist)-packages/(?:[^/]+\.egg/)?([A-Za-z]\w*)")
_ANYBODYS = r"(?:train(?:ers?|ing)?|utils?|models?|data|common|core|scripts|tools|lib|apps?|server|code|python)/"
"""Directories below src/ that are parts of a project, not packages."""
_SOURCE_TREE = re.compile(
    rf".*/(?:pytorch/(?=torch/)|src/(?!{_ANYBODYS})(?=[a-z]\w*/)|(?P<name>[a-z]\w+)/(?=(?P=name)/))([a-z]\w*)/"
)
"""A package that runs from its source tree: below src/, or in a directory of its own name."""
OF_MODULES = ("__getattr__", "__getattribute__")
"""Methods of modules and configurations that raise AttributeError: the access is in the frame above them."""

_PASSING_ON = re.compile(
    r"torch/_ops\.py |torch/nn/modules/module\.py in _(?:wrapped_)?call_impl|torch/utils/_contextlib\.py |"
    r"accelerate/(?:hooks|utils/operations)\.py in (?:new_)?forward|"
    r"transformers/utils/(?:generic|deprecation)\.py in wrap|google/protobuf/"
)
"""Frames that only pass arguments on: the arguments were chosen in the frames above them."""
_RUN_FROM_CLONES = re.compile(
    r"(?:.*/)?(vllm_(?:ascend|omni)|mindspeed(?:_\w+)?|mindie_llm|atb_llm|(?<!swift/)megatron|flag_gems|torchair|torch(?:ao|tune|titan|rl|vision|audio)|tensordict|liger_kernel|skyrl_train|prime_rl|nemo_rl|mind(?:formers|one|nlp))/"
)
"""Packages that are mostly run from a clone, whose directory may have any name."""
_OF_FRAMEWORK = re.compile(
    r"(?:.*/)?(?:sglang/(?=srt/)|vllm/(?=(?:v1|engine|entrypoints|executor|model_executor|worker|compilation)/)|"
    r"lmdeploy/(?=(?:pytorch|turbomind|serve)/)|verl/(?=(?:trainer|workers|single_controller|utils|models)/)|"
    r"transformers/(?=(?:models|generation|integrations|utils)/)|deepspeed/(?=(?:runtime|ops|module_inject)/)|"
    r"llamafactory/(?=(?:train|data|model|hparams)/)|swift/(?=(?:cli|llm|trainers|megatron|tuners)/))"
)
"""Packages that are recognised by their inner directories, also in shortened paths."""

_SHORTENED = re.compile(r"(?:\.{3}|…)/(?:.*/(?:src|lib)/)?(?!(?:src|lib|site|dist)\b)(?P<package>[a-z][a-z0-9_]+)/")
"""A shortened path: the rest begins with the package."""
_OF_FROZEN = re.compile(
    r"(torch|transformers|diffusers|peft|accelerate|datasets|huggingface_hub|safetensors|tokenizers|numpy|gradio|"
    r"bitsandbytes|onnxruntime|ctranslate2|faster_whisper|sklearn|scipy|pandas|requests|urllib3|uvicorn|fastapi)/"
)
"""Packages that a frozen program (PyInstaller, Nuitka) contains; their paths are relative."""


def package_in(frames: list[tuple[str, int, str]], passed_on: str = "") -> str:
    """Package of the innermost of `frames` (file, line, function); empty if that is not in a package.

    Args:
        passed_on: a package whose frames do not count: it only passed on the arguments of its caller.
    """
    called = [(posix(file), function) for file, _, function in frames if function not in OF_MODULES]
    choosing = (file for file, function in reversed(called) if not _PASSING_ON.search(f"{file} in {function}"))
    packages = map(_package_of, choosing)
    return next((package for package in packages if not passed_on or package != passed_on), "")


def library_alone(frames: list[tuple[str, int, str]]) -> str:
    """Package of the innermost frame outside of torch, if all of `frames` belong to packages, to Python, or to a
    command that pip installed; empty if one is other code."""
    files = [posix(file) for file, _, _ in frames]
    others = [file for file in files if not (file.startswith("<frozen ") or is_command(file))]
    packages = [_package_of(file) for file in others if file[:1] == "<" or not is_of_standard_library(file)]
    return next((package for package in reversed(packages) if package != "torch"), "") if all(packages) else ""


def is_model_code_in(frames: list[tuple[str, int, str]]) -> bool:
    """Whether a frame belongs to a model's own code from the hub (trust_remote_code)."""
    return any("/transformers_modules/" in posix(file) for file, _, _ in frames)


def _package_of(file: str) -> str:
    match = _PACKAGE.match(file) or _SOURCE_TREE.match(file) or _RUN_FROM_CLONES.match(file)
    if match:
        return match[match.re.groups]
    frozen = _OF_FROZEN.match(file)
    return (
        framework_of(file) or _cloned(file) or project_of(file)[0] or _shortened(file) or (frozen[1] if frozen else "")
    )


def framework_of(file: str) -> str:
    """Training or serving framework of a file, by its directories; empty for other files."""
    match = _OF_FRAMEWORK.match(file)
    return match[0].rstrip("/").rpartition("/")[2] if match else ""


def _cloned(file: str) -> str:
    """Package in a clone whose directory has its name in another spelling: Moon-MM/moon_mm/."""
    *folders, _ = file.split("/")
    pairs = pairwise(folders)
    return next((inner for outer, inner in pairs if outer != inner and _spelt(outer) == inner), "")


def _shortened(file: str) -> str:
    match = _SHORTENED.match(file)
    is_anybodys = match is not None and re.match(_ANYBODYS, f"{match['package']}/") is not None
    return match["package"] if match and not is_anybodys else ""


def _spelt(folder: str) -> str:
    return folder.lower().replace("-", "_")
