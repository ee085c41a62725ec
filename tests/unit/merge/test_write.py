"""Files written tensor by tensor are what the safetensors library reads."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from ascendtune.core.errors import InputError
from ascendtune.hub.safetensors_header import read_safetensors_header
from ascendtune.merge import write
from ascendtune.merge.write import copy_bytes, write_header


def _source(directory: Path) -> Path:
    tensors = {"b": numpy.arange(6, dtype=numpy.float32).reshape(2, 3), "a": numpy.arange(5, dtype=numpy.int8)}
    save_file(tensors, directory / "source", metadata={"format": "pt", "über": "x"})
    return directory / "source"


@pytest.mark.parametrize("kernel_copies", [True, False])
def test_a_copy_is_the_same_file(kernel_copies: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not kernel_copies:

        def refuse(*arguments: object) -> int:
            raise OSError(18, os.strerror(18))

        monkeypatch.setattr(write.os, "copy_file_range", refuse)
        monkeypatch.setattr(write, "_CHUNK", 7)
    header = read_safetensors_header(_source(tmp_path))
    assert list(header.tensors) == ["b", "a"]
    with (tmp_path / "copy").open("wb") as target, header.path.open("rb") as source:
        rows = [(name, each.dtype, each.shape, each.size) for name, each in header.tensors.items()]
        write_header(target, rows, header.metadata)
        copy_bytes(source, header.tensors["b"].begin, header.tensors["b"].size, target)
        target.write(b"\x05\x04\x03\x02\x01")
    with safe_open(tmp_path / "copy", "np") as file:
        assert file.metadata() == {"format": "pt", "über": "x"}
        assert file.get_tensor("b").tolist() == [[0, 1, 2], [3, 4, 5]]
        assert file.get_tensor("a").tolist() == [5, 4, 3, 2, 1]


def test_copy_from_a_truncated_source_raises_eof(tmp_path: Path) -> None:
    header = read_safetensors_header(_source(tmp_path))
    with (tmp_path / "copy").open("wb") as target, header.path.open("rb") as source, pytest.raises(EOFError):
        copy_bytes(source, header.tensors["a"].begin, 100, target)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"abc",
        (2**60).to_bytes(8, "little") + b"{}",
        b"\x02" + b"\0" * 7 + b"[]",
        b"\x06" + b"\0" * 7 + b'{"a":{}}',
    ],
)
def test_invalid_safetensors_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(InputError):
        read_safetensors_header(tmp_path / "x")


def test_truncated_safetensors_file_is_refused(tmp_path: Path) -> None:
    path = _source(tmp_path)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(InputError) as caught:
        read_safetensors_header(path)
    assert caught.value.code == "weight-file-damaged"


def test_data_is_aligned(tmp_path: Path) -> None:
    for length in range(1, 10):
        with (tmp_path / "x").open("wb") as file:
            write_header(file, [("n" * length, "F32", (1,), 4)], None)
            file.write(bytes(4))
        [tensor] = read_safetensors_header(tmp_path / "x").tensors.values()
        assert tensor.begin % 8 == 0
        assert json.loads((tmp_path / "x").read_bytes()[8 : tensor.begin])
