from __future__ import annotations

import io
import os
import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StoragePrefix

from ascendtune.core.errors import MachineError
from ascendtune.train.object_collectives import PlansUnpickler


def _sent(content: object) -> Any:
    return PlansUnpickler(io.BytesIO(pickle.dumps(content))).load()


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


@pytest.mark.parametrize(
    "name", ["os\nsystem", "torch\n_C.Generator", "torch.distributed.checkpoint.planner\nSavePlan.__init__", "no\nsuch"]
)
def test_a_name_that_is_not_listed_is_refused(name: str) -> None:
    with pytest.raises(MachineError) as caught:
        PlansUnpickler(io.BytesIO(f"c{name}\n.".encode())).load()
    assert caught.value.code == "foreign-pickle"
    # Protocol 4 writes names in another way, and lets dots lead through attributes.
    module, _, attribute = name.encode().partition(b"\n")
    stacked = b"".join(b"\x8c" + bytes([len(each)]) + each for each in (module, attribute))
    with pytest.raises(MachineError) as caught:
        PlansUnpickler(io.BytesIO(b"\x80\x04" + stacked + b"\x93.")).load()
    assert caught.value.code == "foreign-pickle"


def test_a_plan_arrives_as_it_was_sent() -> None:
    planner = DefaultSavePlanner()
    planner.set_up_planner({"a": torch.ones(2, 3, dtype=torch.bfloat16), "b": 1}, is_coordinator=True)
    plans, metadata = planner.create_global_plan([planner.create_local_plan()])
    assert _sent(plans) == plans
    assert _sent(metadata) == metadata
    assert _sent([_StoragePrefix("a"), Path("/a"), torch.float16, torch.Size([2])]) == [
        *(_StoragePrefix("a"), Path("/a"), torch.float16, torch.Size([2]))
    ]


def test_the_failure_of_a_rank_arrives_as_it_was_sent() -> None:
    try:
        raise OSError(28, "No space left on device")
    except OSError as error:
        summary = traceback.extract_tb(error.__traceback__)
        failed = CheckpointException("write", {1: (error, summary)})
    arrived = _sent(failed)
    assert isinstance(arrived, CheckpointException) and str(arrived) == str(failed)
