"""Headers, shards and index of a model's weights: what contradicts itself is named before anything is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ascendtune.core.errors import RecipeError
from ascendtune.core.foreign_json import read_json_object
from ascendtune.hub import safetensors_header
from ascendtune.hub.safetensors_header import read_safetensors_header
from ascendtune.hub.weight_files import INDEX, all_tensors, read_weight_headers, sample_of_weights

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def _tensor(*names: str) -> dict[str, Any]:
    return {name: numpy.zeros((2, 3), numpy.float32) for name in names}


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    save_file(_tensor("a", "b"), tmp_path / ONE)
    save_file(_tensor("c"), tmp_path / TWO)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": ONE, "b": ONE, "c": TWO}}))
    return tmp_path


def test_file_with_too_many_tensors_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a few MB can hold a million empty tensors, with which libraries are busy for minutes."""
    save_file(_tensor("a", "b", "c"), path := tmp_path / "model.safetensors")
    monkeypatch.setattr(safetensors_header, "_MOST_TENSORS", 3)
    assert len(read_safetensors_header(path).tensors) == 3
    monkeypatch.setattr(safetensors_header, "_MOST_TENSORS", 2)
    with pytest.raises(RecipeError, match="it has 3 tensors, more than 2") as caught:
        read_safetensors_header(path)
    assert caught.value.code == "weight-file-damaged"


def test_shards_are_read_as_one_model(sharded: Path) -> None:
    tensors = all_tensors(read_weight_headers(sharded))
    assert {name: tensor.shape for name, tensor in tensors.items()} == dict.fromkeys("abc", (2, 3))
    save_file(_tensor("a"), sharded / "consolidated.safetensors")
    assert set(read_weight_headers(sharded)) == {ONE, TWO}


def test_sample_is_of_weights_and_not_of_files(sharded: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    save_file(_tensor("a", "b", "c"), other / "model.safetensors")
    assert sample_of_weights(sharded) == sample_of_weights(other)
    for changed in ({"c": numpy.ones((2, 3), numpy.float32)}, {"c": numpy.zeros((3, 2), numpy.float32)}):
        save_file({**_tensor("a", "b"), **changed}, other / "model.safetensors")
        assert sample_of_weights(sharded) != sample_of_weights(other)


def _index(weight_map: Any) -> Callable[[Path], Any]:
    return lambda path: (path / INDEX).write_text(json.dumps({"weight_map": weight_map}))


_DAMAGES: dict[str, tuple[Any, ...]] = {
    "missing shard": (lambda path: (path / TWO).unlink(), "weights-missing", TWO),
    "shard that the index does not name": (
        lambda path: save_file(_tensor("d"), path / "model-00003-of-00003.safetensors"),
        "weight-files-unlisted",
        "model-00003-of-00003.safetensors",
    ),
    "whole file beside shards": (
        lambda path: save_file(_tensor("a"), path / "model.safetensors"),
        "weight-files-unlisted",
        "model.safetensors",
    ),
    "tensor in two shards": (lambda path: save_file(_tensor("a", "c"), path / TWO), "weight-index-mismatch", "a is in"),
    "tensor that the index does not name": (
        lambda path: save_file(_tensor("c", "d"), path / TWO),
        "weight-index-mismatch",
        "about d",
    ),
    "tensor that no file has": (_index({"a": ONE, "b": ONE, "c": TWO, "e": TWO}), "weight-index-mismatch", "about e"),
    "tensor in another file": (_index({"a": ONE, "b": TWO, "c": TWO}), "weight-index-mismatch", "about b"),
    "index without map": (_index({}), "weight-index-damaged"),
    "index with a list": (_index([]), "weight-index-damaged"),
    "index out of the folder": (_index({"a": "../x.safetensors"}), "invalid-field", "weight_map of a"),
    "index with a number": (_index({"a": 1}), "invalid-field", "weight_map of a is 1"),
    "index names a pickle": (_index({"a": "pytorch_model.bin"}), "invalid-field", "weight_map of a"),
    "no index": (lambda path: (path / INDEX).unlink(), "weight-index-missing", ONE),
    "distributed checkpoint": (
        lambda path: save_file(_tensor("a"), path / "shard-00001-model-00001-of-00002.safetensors"),
        "distributed-checkpoint",
    ),
}


@pytest.mark.parametrize("damage", _DAMAGES)
def test_contradicting_weight_files_are_refused_by_name(sharded: Path, damage: str) -> None:
    spoil, code, *named = _DAMAGES[damage]
    spoil(sharded)
    with pytest.raises(RecipeError) as caught:
        read_weight_headers(sharded)
    assert caught.value.code == code and all(each in caught.value.what for each in named)


def _file(header: object, data: int = 8, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + bytes(data)


def _entry(**changes: Any) -> dict[str, Any]:
    return {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


_TWO_OF = {"a": _entry()["w"], "b": _entry()["w"]}
_HEADERS: dict[str, bytes] = {
    "length 2**63": _file(_entry(), length=2**63),
    "length beyond the file": _file(_entry(), length=500),
    "length 0": _file(_entry(), length=0),
    "deep": _file(b"{" + b'"a":{' * 5000),
    "a list": _file([]),
    "negative offsets": _file(_entry(data_offsets=[-8, 0])),
    "offsets beyond the end": _file(_entry(data_offsets=[0, 8]), data=4),
    "data behind the last tensor": _file(_entry(), data=12),
    "gap": _file(_entry(data_offsets=[4, 12]), data=12),
    "overlap": _file(_TWO_OF),
    "offsets the wrong way": _file(_entry(data_offsets=[8, 0])),
    "three offsets": _file(_entry(data_offsets=[0, 8, 8])),
    "offsets of texts": _file(_entry(data_offsets=["0", "8"])),
    "unknown dtype": _file(_entry(dtype="F31")),
    "dtype is a list": _file(_entry(dtype=["F32"])),
    "shape of NaN": _file(_entry(shape=[float("nan")])),
    "shape of true": _file(_entry(shape=[True, 2])),
    "negative shape": _file(_entry(shape=[-1, -2])),
    "shape too large": _file(_entry(shape=[2**40, 2**40])),
    "shape does not fit": _file(_entry(shape=[3])),
    "entry is a number": _file({"w": 1}),
    "metadata is a list": _file({**_entry(), "__metadata__": []}),
    "name twice": _file(b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"w":{"dtype":"I32"}}'),
}


@pytest.mark.parametrize("name", _HEADERS)
def test_damaged_header_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(_HEADERS[name])
    with pytest.raises(RecipeError) as raised:
        read_safetensors_header(path)
    assert raised.value.where == str(path)


def test_header_equals_that_of_the_safetensors_library(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    kinds = [numpy.float64, numpy.float32, numpy.float16, numpy.int64, numpy.int8, numpy.uint8, numpy.bool_]
    tensors = {f"{number}": numpy.ones((number, 2), kind) for number, kind in enumerate(kinds)}
    save_file(tensors, path, metadata={"format": "pt"})
    header = read_safetensors_header(path)
    with safe_open(path, "np") as opened:
        names = opened.keys()
        shapes = {name: opened.get_slice(name).get_shape() for name in names}
    assert {name: list(each.shape) for name, each in header.tensors.items()} == shapes


@pytest.mark.parametrize("name", [name for name in _HEADERS if name not in ("shape of true", "name twice")])
def test_the_library_agrees_that_the_file_is_damaged(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(_HEADERS[name])
    with pytest.raises((SafetensorError, OSError)), safe_open(path, "np"):
        pass


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_damaged_file_of_the_hub_cache_is_to_be_removed_where_its_content_lies(tmp_path: Path, name: str) -> None:
    """The cache links the same content again as long as it is there."""
    repository = tmp_path / "models--o--m"
    blob, link = repository / "blobs" / "0a", repository / "snapshots" / "1b" / name
    for path in (blob, link):
        path.parent.mkdir(parents=True)
    blob.write_bytes(bytes(100))
    link.symlink_to(blob)
    with pytest.raises(RecipeError) as caught:
        (read_safetensors_header if name.endswith("tensors") else read_json_object)(link)
    assert str(blob) in caught.value.remedy and "copy" not in caught.value.remedy
