from __future__ import annotations

import io
import os
import pickle
from typing import Any

import pytest
import torch

from ascendtune.core.errors import MachineError
from ascendtune.train.object_collectives import PlainUnpickler


def _sent(content: object) -> Any:
    return PlainUnpickler(io.BytesIO(pickle.dumps(content))).load()


class _Runs:
    def __init__(self, function: object, *arguments: object) -> None:
        self._what = function, arguments

    def __reduce__(self) -> Any:
        return self._what


@pytest.mark.parametrize(
    "content",
    [
        _Runs(os.system, "true"),
        _Runs(eval, "1"),
        _Runs(getattr, "", "join"),
        _Runs(__import__, "os"),
        _Runs(open, "/dev/null"),
        _Runs(torch.load, "/dev/null"),
        _Runs(torch.hub.load, "a", "b"),
    ],
)
def test_a_pickle_that_calls_a_function_is_refused(content: object) -> None:
    with pytest.raises(MachineError) as caught:
        _sent(content)
    assert caught.value.code == "foreign-pickle"


@pytest.mark.parametrize("name", ["os\nsystem", "torch\n_C.Generator", "torch\nSize.__init__", "no\nsuch"])
def test_a_name_that_is_not_listed_is_refused(name: str) -> None:
    with pytest.raises(MachineError) as caught:
        PlainUnpickler(io.BytesIO(f"c{name}\n.".encode())).load()
    assert caught.value.code == "foreign-pickle"
    # Protocol 4 writes names in another way, and lets dots lead through attributes.
    module, _, attribute = name.encode().partition(b"\n")
    stacked = b"".join(b"\x8c" + bytes([len(each)]) + each for each in (module, attribute))
    with pytest.raises(MachineError) as caught:
        PlainUnpickler(io.BytesIO(b"\x80\x04" + stacked + b"\x93.")).load()
    assert caught.value.code == "foreign-pickle"


def test_plain_data_arrives_as_it_was_sent() -> None:
    content = [{"a": (1, 2.5, None, True), "b": {"c"}}, b"bytes", torch.float16, torch.Size([2])]
    assert _sent(content) == content


def test_an_exception_is_refused() -> None:
    with pytest.raises(MachineError) as caught:
        _sent(OSError(28, "No space left on device"))
    assert caught.value.code == "foreign-pickle"
