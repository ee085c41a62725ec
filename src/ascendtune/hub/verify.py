"""Is a directory a whole model in Hugging Face format? Looked at before torch is imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ascendtune.core.errors import RecipeError, read_fault

_TOKENIZERS = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
)
_INDEX = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth")
_LONGEST_HEADER = 100_000_000


def check_model_directory(path: Path, *, weights_needed: bool) -> None:
    """Raise when something is missing or cut off.

    Raises:
        RecipeError: naming the file and what to do.
    """
    if not path.is_dir():
        raise RecipeError(
            "a model is a directory, this is a file", remedy="give the directory that holds config.json", where=path
        )
    _check_config(path)
    if not any((path / name).exists() for name in _TOKENIZERS) and not any(path.glob("*.tiktoken")):
        raise RecipeError(
            "the model has no tokenizer",
            remedy="copy tokenizer.json and tokenizer_config.json from where the model came from",
            where=path,
        )
    if weights_needed:
        for file in _weight_files(path):
            _check_safetensors(file)


def require_unquantised(path: Path) -> None:
    """Raises:
    RecipeError: the weights are quantised, and training on those is not in this version.
    """
    if quantisation := _json(path / "config.json").get("quantization_config"):
        method = quantisation.get("quant_method", "some method") if isinstance(quantisation, dict) else quantisation
        raise RecipeError(
            f"this model is quantised ({method}), and training on quantised weights is not in this version",
            remedy="give the original in bf16 or fp16; method.tuner: lora keeps it frozen",
            where=path / "config.json",
        )


def _check_config(path: Path) -> None:
    config = path / "config.json"
    if not config.exists():
        raise RecipeError("not a model: there is no config.json", remedy=_instead_of(path), where=path)
    if not isinstance(content := _json(config), dict) or "model_type" not in content:
        raise RecipeError(
            "config.json does not say the model_type",
            remedy="copy config.json from where the model came from",
            where=config,
        )


def _instead_of(path: Path) -> str:
    if (path / "adapter_config.json").exists():
        return "this is a LoRA adapter; give the base model, or merge the adapter into it first"
    inside = sorted([*path.glob("*/config.json"), *path.glob("snapshots/*/config.json")])
    return f"did you mean '{inside[0].parent}'?" if inside else "give a directory in Hugging Face format, or a hub id"


def _weight_files(path: Path) -> list[Path]:
    if (index := path / _INDEX).exists():
        return _indexed(path, index)
    if files := sorted(path.glob("*.safetensors")):
        return files
    if any(found for pattern in _PICKLES for found in path.glob(pattern)):
        raise RecipeError(
            "the weights are pickles (.bin, .pt), which can run code when they are loaded",
            remedy="take a model with *.safetensors; or, if you trust these, convert them once: python -c "
            '"from transformers import AutoModelForCausalLM as M; '
            f"M.from_pretrained('{path}').save_pretrained('safetensors')\" and copy the tokenizer's files beside them",
            where=path,
        )
    raise RecipeError(
        "the model has no weights (*.safetensors)",
        remedy="finish the download, or set model.init: random to start from random weights",
        where=path,
    )


def _indexed(path: Path, index: Path) -> list[Path]:
    content = _json(index)
    shards = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(shards, dict) or not shards:
        raise RecipeError("the index of the weights has no weight_map", remedy="copy or download it again", where=index)
    names = sorted({str(name) for name in shards.values()})
    missing = [name for name in names if not (path / name).is_file()]
    if missing:
        shown = ", ".join(missing[:3]) + (" …" if missing[3:] else "")
        raise RecipeError(
            f"{len(missing)} of {len(names)} weight files are missing: {shown}",
            remedy="finish the download or the copy",
            where=path,
        )
    return [path / name for name in names]


def _check_safetensors(file: Path) -> None:
    """The header says how long the file must be; a download that stopped early is shorter."""
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            begin = opened.read(20)
            opened.seek(8)
            length = int.from_bytes(begin[:8], "little")
            header = opened.read(length) if length <= min(size, _LONGEST_HEADER) else b""
    except OSError as error:
        fault = RecipeError(f"cannot be read: {error.strerror}", remedy="check the file", where=file)
        raise read_fault(error, file) or fault from error
    ends = _ends_of_tensors(header)
    if ends is not None and size == 8 + length + max(ends, default=0):
        return
    if begin.startswith(b"version https://git-"):
        raise RecipeError(
            "this is a Git LFS pointer, not the weights",
            remedy="run `git lfs pull` in the model's directory",
            where=file,
        )
    raise RecipeError("the weight file is damaged or cut off", remedy="copy or download it again", where=file)


def _ends_of_tensors(header: bytes) -> list[int] | None:
    try:
        content = json.loads(header)
        return [tensor["data_offsets"][1] for name, tensor in content.items() if name != "__metadata__"]
    except (ValueError, AttributeError, KeyError, TypeError, IndexError):
        return None


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        fault = RecipeError(f"not readable as JSON: {error}", remedy="copy or download it again", where=file)
        raise read_fault(error, file) or fault from error
