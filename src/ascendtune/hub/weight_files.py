"""The safetensors files of a model and their index, checked against each other. Free of torch."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from ascendtune.core.errors import RecipeError
from ascendtune.core.foreign_json import bad_field, open_foreign, read_json_object, remedy_for_damaged, shown_names
from ascendtune.core.units import count_of
from ascendtune.hub.safetensors_header import SafetensorsHeader, StoredTensor, read_safetensors_header

INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
# transformers would read these, and all others beside them, instead of the files in the index.
_DISTRIBUTED = re.compile(r"shard-\d{5}-model-\d{5}-of-\d{5}\.safetensors")
_PICKLES = ("*.bin", "*.pt", "*.pth")
MOST_INDEX_BYTES = 256 << 20
_SAMPLED_TENSORS, _SAMPLED_BYTES = 1024, 4096


def read_weight_headers(directory: Path) -> dict[str, SafetensorsHeader]:
    """File name -> header, of every file that transformers loads for the model in `directory`.

    Raises:
        RecipeError: files are missing, damaged, or contradict each other or their index.
        MachineError: permission is denied, or the disk fails.
    """
    distributed = sorted(file.name for file in directory.glob("shard-*.safetensors") if _DISTRIBUTED.match(file.name))
    if distributed:
        raise RecipeError(
            f"{distributed[0]} is a part of a distributed checkpoint, not of a model",
            code="distributed-checkpoint",
            remedy="save the model with save_pretrained, or move these files elsewhere",
            where=directory,
        )
    index = directory / INDEX
    if not index.exists():
        return {name: read_safetensors_header(directory / name) for name in [_single_file(directory)]}
    where = read_index(index)
    names = sorted(set(where.values()))
    _require_files(directory, names)
    headers = {name: read_safetensors_header(directory / name) for name in names}
    _require_agreement(index, where, headers)
    return headers


def all_tensors(headers: Mapping[str, SafetensorsHeader]) -> dict[str, StoredTensor]:
    """Every tensor of the model by its name."""
    return {name: tensor for header in headers.values() for name, tensor in header.tensors.items()}


def sample_of_weights(directory: Path) -> str:
    """A hash, in hexadecimal, that differs for weights of another model or release, independent of their files.

    Of name, type and shape of every tensor, and of the bytes in the middle of some: reading all would take minutes.

    Raises:
        RecipeError, MachineError: as `read_weight_headers`.
    """
    headers = read_weight_headers(directory)
    tensors = sorted((name, file, each) for file, header in headers.items() for name, each in header.tensors.items())
    digest = hashlib.sha256(repr([(name, each.dtype, each.shape) for name, _, each in tensors]).encode())
    for _, name, each in tensors[:: -(-len(tensors) // _SAMPLED_TENSORS) or 1]:
        with open_foreign(directory / name) as file:
            file.seek(each.begin + each.size // 2)
            digest.update(file.read(min(_SAMPLED_BYTES, each.size - each.size // 2)))
    return digest.hexdigest()


def read_index(path: Path) -> dict[str, str]:
    """Tensor -> file, according to an index.

    Raises:
        RecipeError: damaged, or it lists a file that does not exist.
        MachineError: permission is denied, or the disk fails.
    """
    where = read_json_object(path, MOST_INDEX_BYTES).get("weight_map")
    if not isinstance(where, dict) or not where:
        raise RecipeError(
            "the index of the weights has no weight_map",
            code="weight-index-damaged",
            remedy=remedy_for_damaged(path),
            where=path,
        )
    for tensor, name in where.items():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise bad_field(path, f"weight_map of {tensor}", name, "the name of a safetensors file beside it")
    return where


def _single_file(directory: Path) -> str:
    names = sorted(file.name for file in directory.glob("*.safetensors"))
    if _WHOLE in names:
        return _WHOLE
    if names:
        raise RecipeError(
            f"the weights ({shown_names(names)}) are neither {_WHOLE} nor listed in {INDEX}",
            code="weight-index-missing",
            remedy=f"copy or download {INDEX} of this model too; a single file must be named {_WHOLE}",
            where=directory,
        )
    if any(found for pattern in _PICKLES for found in directory.glob(pattern)):
        convert = "from transformers import AutoModelForCausalLM as M; "
        convert += f"M.from_pretrained({str(directory)!r}).save_pretrained('safetensors')"
        raise RecipeError(
            "the weights are pickles (.bin, .pt), which can run code when they are loaded",
            code="pickled-weights",
            remedy="take a model with *.safetensors; or, if you trust these, convert them once: "
            f"python -c {shlex.quote(convert)} and copy the tokenizer's files beside them",
            where=directory,
        )
    raise RecipeError(
        "the model has no weights (*.safetensors)",
        code="weights-missing",
        remedy="finish the download, or set model.init: random to start from random weights",
        where=directory,
    )


def _require_files(directory: Path, names: list[str]) -> None:
    if missing := [name for name in names if not (directory / name).exists()]:
        raise RecipeError(
            f"{len(missing)} of {count_of(len(names), 'weight file')} missing: {shown_names(missing)}",
            code="weights-missing",
            remedy="finish the download or the copy",
            where=directory,
        )
    present = {file.name for file in directory.glob("*.safetensors")}
    # transformers prefers the single file, whatever the index contains.
    unlisted = [name for name in present - set(names) if name == _WHOLE or _SHARD.fullmatch(name)]
    if unlisted:
        raise RecipeError(
            f"{INDEX} does not name {shown_names(unlisted)}",
            code="weight-files-unlisted",
            remedy="the directory contains parts of two models: remove the files that do not belong to this one",
            where=directory,
        )


def _require_agreement(index: Path, where: Mapping[str, str], headers: Mapping[str, SafetensorsHeader]) -> None:
    places: dict[str, list[str]] = {}
    for file, header in headers.items():
        for tensor in header.tensors:
            places.setdefault(tensor, []).append(file)
    twice = [tensor for tensor, files in places.items() if len(files) > 1]
    if twice:
        raise RecipeError(
            f"{twice[0]} is in two weight files: {' and '.join(places[twice[0]][:2])}",
            code="weight-index-mismatch",
            remedy="copy or download the model again",
            where=index,
        )
    differing = [tensor for tensor in {**where, **places} if places.get(tensor) != [where.get(tensor)]]
    if differing:
        raise RecipeError(
            f"the index and the weight files disagree about {shown_names(differing)}",
            code="weight-index-mismatch",
            remedy="copy or download the model again",
            where=index,
        )
