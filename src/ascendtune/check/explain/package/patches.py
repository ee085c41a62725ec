"""Monkey patches: code of a package that replaces functions of another package, and the patched package."""

from __future__ import annotations

import re

from ascendtune.check.explain.log.frame import posix
from ascendtune.check.explain.traceback.trace import Trace

_PATCHERS = {
    "unsloth_zoo": "transformers",
    "unsloth": "transformers",
    "liger_kernel": "transformers",
    "axolotl": "transformers",
    "ring_flash_attn": "transformers",
    "xtuner": "transformers",
    "verl": "transformers",
    "swift": "transformers",
    "llamafactory": "transformers",
    "fastchat": "transformers",
    "mindspeed": "megatron-core",
    "mindspeed_llm": "megatron-core",
    "mindspeed_mm": "megatron-core",
}
"""Packages that patch others, each with the patched one if the path does not name it."""
_FILE = re.compile(r"(?:.*/)?(?P<package>" + "|".join(_PATCHERS) + r")/(?P<rest>\S+) in (?P<function>.*)")
_IS_PATCH = re.compile(
    r"temporary_patches/|monkey_?patch|(?:^|/)patch(?:es|er|ers|ing|_utils)?(?:/|_|\.py)|_patch(?:er|es)?\.py|"
    r"megatron_adaptor|hf_adapter\.py| in patch_\w+"
)
_WHOLLY = {"unsloth": "models/", "liger_kernel": "transformers/model/"}
"""Packages, each with the directory that contains only patches."""
_PATCHED = re.compile(r"(?:^|[/_.])(trl|peft|vllm|deepspeed|accelerate)(?:[/_.]|$)")
_NAMED = re.compile(
    r"\b(?P<function>(?:(?P<liger>lce_forward|liger_\w+)|\w+_fast_forward|unsloth_\w+)(?:\.[\w<>.]+)?)\(\) "
)
"""Functions that are recognised by their names, if the caller's frame is the last one."""


def patch_in(message: str, trace: Trace) -> dict[str, str] | None:
    """Package whose patch raised the exception, patched package, and place; None if the exception is not in a patch.

    Args:
        message: the exception's type and message.
    """
    if not trace.frames:
        return None
    file, line, function = trace.frames[-1]
    place = f"{posix(file)} in {function}"
    if named := _NAMED.search(message):
        package = "liger_kernel" if named["liger"] else "unsloth"
        return {"package": package, "missing": "transformers", "file": named["function"]}
    match = _FILE.match(place)
    if match is None:
        return None
    package, rest = match["package"], f"{match['rest']} in {match['function']}"
    if not (_IS_PATCH.search(rest) or rest.startswith(_WHOLLY.get(package, "\n"))):
        return None
    other = _PATCHED.search(rest)
    patched = other[1] if other else _PATCHERS[package]
    return {"package": package, "missing": patched, "file": f"{package}/{match['rest']}:{line}"}
