"""The files of tensors of a checkpoint: what ranks write, and what any number of ranks reads."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from ascendtune.core.files import digest_of_file
from ascendtune.machine.torch_backend.find import find_device
from ascendtune.train.checkpoint.tensor_files import (
    _DTYPES,
    Staging,
    TensorPart,
    file_of_rank,
    fill,
    part_of,
    parts_of_rank,
    stored_tensors,
)


def write(directory: Path, ranks: list[dict[str, TensorPart]]) -> None:
    directory.mkdir(exist_ok=True)
    (directory / "state.json").write_text(json.dumps({"ranks": len(ranks)}))
    for rank, parts in enumerate(ranks):
        staging = Staging(find_device())
        staging.copy(parts)
        staging.write(file_of_rank(directory, rank))


def read(directory: Path) -> dict[str, torch.Tensor]:
    stored = stored_tensors(directory)
    found = {name: torch.empty(each.size, dtype=each.dtype) for name, each in stored.items()}
    fill(found, stored)
    return found


def test_every_type_and_shape_is_read_as_it_was_written(tmp_path: Path) -> None:
    tensors = {
        f"{dtype}.{len(shape)}": torch.randn(shape).mul(9).to(dtype)
        for dtype, shape in itertools.product(_DTYPES.values(), [(), (3,), (5, 7), (2, 0)])
    }
    # Not contiguous.
    tensors["transposed"] = torch.arange(12.0).view(3, 4).T
    write(tmp_path, [{name: part_of(tensor) for name, tensor in tensors.items()}])
    plainly = load_file(file_of_rank(tmp_path, 0))
    for found in (read(tmp_path), plainly):
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
            assert found[name].contiguous().view(-1).view(torch.uint8).tolist() == (
                tensor.contiguous().view(-1).view(torch.uint8).tolist()
            )


def test_rank_that_writes_no_tensor_leaves_a_file_that_can_be_read(tmp_path: Path) -> None:
    """A second copy of a model writes nothing (HSDP), nor does a rank where there are fewer tensors than ranks."""
    values = torch.arange(6.0).view(2, 3)
    for rank in range(3):
        staging = Staging(find_device())
        staging.copy(parts_of_rank({"weight": values}, rank, 3))
        staging.write(file_of_rank(tmp_path, rank))
    (tmp_path / "state.json").write_text(json.dumps({"ranks": 3}))
    found = torch.zeros(2, 3)
    fill({"weight": found}, stored_tensors(tmp_path))
    assert torch.equal(found, values)


def test_memory_is_used_again_and_holds_the_newest_values(tmp_path: Path) -> None:
    staging, tensor = Staging(find_device()), torch.zeros(4, 4)
    staging.copy({"a": part_of(tensor)})
    first = staging._buffer.data_ptr()
    tensor += 1
    staging.copy({"a": part_of(tensor)})
    assert staging._buffer.data_ptr() == first
    digest = staging.write(tmp_path / "file")
    assert torch.equal(load_file(tmp_path / "file")["a"], tensor)
    assert digest == digest_of_file(tmp_path / "file")
    # Other tensors have another layout.
    staging.copy({"a": part_of(tensor), "b": part_of(tensor.double())})
    staging.write(tmp_path / "file")
    assert load_file(tmp_path / "file")["b"].dtype == torch.float64


def test_room_that_was_made_is_used_by_the_first_copy_and_made_once(tmp_path: Path) -> None:
    staging, tensor = Staging(find_device()), torch.ones(3, 5000)
    staging.preallocate({"a": part_of(tensor)})
    assert staging._room is not None
    staging._room.result(20)
    room = staging._buffer.data_ptr()
    staging.copy({"a": part_of(tensor)})
    assert staging._buffer.data_ptr() == room
    # Where there was a copy first, its content is kept: it may be written at this moment.
    staging.preallocate({"a": part_of(tensor)})
    assert staging._room is None
    staging.write(tmp_path / "file")
    assert torch.equal(load_file(tmp_path / "file")["a"], tensor)


def test_room_is_pinned_for_the_device_of_this_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new thread's device is the first one, where CUDA would begin a context of this process."""
    device, told = find_device(), list[tuple[str, int]]()
    monkeypatch.setattr(device, "use_in_thread", lambda: told.append(("device", threading.get_ident())))
    monkeypatch.setattr(device, "pin", lambda buffer: bool(told.append(("pin", threading.get_ident()))))
    staging = Staging(device)
    staging.preallocate({"a": part_of(torch.ones(3))})
    assert staging._room is not None
    staging._room.result(20)
    names, threads = zip(*told, strict=True)
    assert names == ("device", "pin")
    assert len(set(threads)) == 1 and threading.get_ident() not in threads


class Copies(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.waits: list[bool] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.copy_.default:
            self.waits.append(not (args[2] if len(args) > 2 else (kwargs or {}).get("non_blocking", False)))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("is_pinned", [True, False])
def test_copies_wait_where_the_room_is_not_pinned(is_pinned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """CANN says of a copy to other memory that is left to itself that it fails in ways that cannot be foreseen."""
    device = find_device()
    monkeypatch.setattr(device, "pin", lambda buffer: is_pinned)
    with Copies() as copies:
        Staging(device).copy({"a": part_of(torch.ones(3)), "b": part_of(torch.ones(2))})
    assert copies.waits == [not is_pinned] * 2


def test_room_that_could_not_be_made_is_made_by_the_first_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staging, tensor = Staging(find_device()), torch.ones(3)

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    with monkeypatch.context() as patched:
        patched.setattr(staging._device, "pin", fails)
        staging.preallocate({"a": part_of(tensor)})
        assert staging._room is not None and staging._room.exception(20)
    staging.copy({"a": part_of(tensor)})
    staging.write(tmp_path / "file")
    assert torch.equal(load_file(tmp_path / "file")["a"], tensor)


def test_room_for_other_tensors_does_not_matter(tmp_path: Path) -> None:
    """As after a first step that was skipped: the optimizer has no state yet."""
    staging, tensor = Staging(find_device()), torch.ones(3)
    staging.preallocate({"a": part_of(torch.ones(7))})
    staging.copy({"a": part_of(tensor)})
    staging.write(tmp_path / "file")
    assert torch.equal(load_file(tmp_path / "file")["a"], tensor)


def test_a_file_longer_than_a_block_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascendtune.train.checkpoint.tensor_files._BLOCK_BYTES", 10)
    staging, tensor = Staging(find_device()), torch.arange(101)
    staging.copy({"a": part_of(tensor)})
    digest = staging.write(tmp_path / "file")
    assert torch.equal(load_file(tmp_path / "file")["a"], tensor) and digest == digest_of_file(tmp_path / "file")


def test_every_undivided_tensor_is_written_once_and_bytes_are_balanced() -> None:
    tensors = {f"t{n}": torch.zeros(n % 7 * 10) for n in range(50)}
    shares = [parts_of_rank(tensors, rank, 3) for rank in range(3)]
    assert sorted(name for share in shares for name in share) == sorted(tensors)
    sizes = [sum(part.values.numel() for part in share.values()) for share in shares]
    assert max(sizes) - min(sizes) <= 60
    assert parts_of_rank(tensors, 0, 1).keys() == tensors.keys()


def pieces(length: int, cuts: list[int]) -> list[tuple[int, int]]:
    edges = sorted({0, length, *(cut for cut in cuts if cut < length)})
    return list(itertools.pairwise(edges))


_CUTS = st.lists(st.integers(1, 8), max_size=4)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 8), st.integers(1, 8), _CUTS, _CUTS, st.randoms(use_true_random=False))
def test_divided_tensor_is_read_whole(
    tmp_path_factory: pytest.TempPathFactory,
    rows: int,
    columns: int,
    first: list[int],
    second: list[int],
    random: Random,
) -> None:
    directory = tmp_path_factory.mktemp("step")
    whole = torch.arange(rows * columns, dtype=torch.float32).view(rows, columns)
    grid = list(itertools.product(pieces(rows, first), pieces(columns, second)))
    random.shuffle(grid)
    ranks = [
        {"w": TensorPart(whole[top:bottom, left:right], tuple(whole.shape), (top, left))}
        for (top, bottom), (left, right) in grid
    ]
    write(directory, ranks)
    assert torch.equal(read(directory)["w"], whole)


def test_missing_part_of_a_tensor_is_an_error(tmp_path: Path) -> None:
    whole = torch.arange(6.0)
    write(tmp_path, [{"w": TensorPart(whole[:2], (6,), (0,))}, {"w": TensorPart(whole[3:], (6,), (3,))}])
    with pytest.raises(ValueError, match="1 numbers of w"):
        read(tmp_path)
