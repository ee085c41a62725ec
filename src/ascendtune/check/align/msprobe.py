"""Dumps of msprobe (MindStudio-Probe, `task: statistics`): dump.json, and construct.json beside it.

`stepN/rankR/dump.json` (`stepN/procPID` without a process group) contains statistics by call:
`Module.PATH.CLASS.forward.K`, `….backward.K`, `….parameters_grad.K` and `API.K.forward`. Steps are numbered from 0;
`input` of a backward call is the gradient of the output. construct.json contains the module in which an API was called.
Whole tensors of `task: tensor` are pickles and are not read; their statistics are. stack.json is not needed.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ascendtune.check.align.dump import (
    Dump,
    RankDump,
    TensorKey,
    TensorStatistics,
    add_tensor,
    checked_shape,
    checked_text,
    damaged,
)
from ascendtune.core.foreign_json import read_json_object

_NAME = "dump.json"
_MOST_BYTES = 512 << 20
_STEP = re.compile(r"step([0-9]{1,9})")
_RANK = re.compile(r"rank([0-9]{1,6})")
_MODULE = re.compile(
    r"Module\.(?P<path>.+)\.(?P<kind>[^.]+)\.(?P<call>forward|backward|parameters_grad)\.(?P<nth>[0-9]+)"
)
_API = re.compile(r"(?P<path>.+)\.(?P<nth>[0-9]+)\.(?P<call>forward|backward)")
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "infinity": math.inf, "-infinity": -math.inf}


def find_msprobe(path: Path) -> Dump | None:
    """The dump at `path`: a dump.json, or a directory of ranks or of steps; None if there is none."""
    if path.name == _NAME and path.is_file():
        return Dump({1: {0: path}}, read_msprobe)
    if (path / _NAME).is_file():
        return Dump({1: {0: path / _NAME}}, read_msprobe)
    if not path.is_dir():
        return None
    steps = {int(match[1]) + 1: each for each in path.iterdir() if (match := _STEP.fullmatch(each.name))}
    files = {step: ranks for step, each in (steps or {1: path}).items() if (ranks := _ranks(each))}
    return Dump(files, read_msprobe) if files else None


def _ranks(directory: Path) -> dict[int, Path]:
    if not directory.is_dir():
        return {}
    directories = {
        int(each[1]): directory / each[0] / _NAME for each in map(_RANK.fullmatch, _names(directory)) if each
    }
    if not directories:
        # Without a process group msprobe names the directory after the process, or `rank`.
        alone = [name for name in _names(directory) if name == "rank" or re.fullmatch(r"proc[0-9]+", name)]
        directories = {rank: directory / name / _NAME for rank, name in enumerate(alone)}
    return {rank: path for rank, path in sorted(directories.items()) if path.is_file()}


def _names(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir())


def read_msprobe(path: Path) -> RankDump:
    """Read one dump.json.

    Raises:
        DataError: it is not a dump of msprobe, or a statistic has the wrong type.
        RecipeError: it is not a regular file, too large, or not JSON.
        MachineError: it cannot be read.
    """
    data = read_json_object(path, _MOST_BYTES).get("data")
    if not isinstance(data, dict):
        raise damaged(path, "it has no object `data`")
    parents = _parents(path.with_name("construct.json"))
    tensors: dict[TensorKey, TensorStatistics] = {}
    counts: Counter[TensorKey] = Counter()
    for call, content in data.items():
        try:
            for key, kind, statistics in _of_call(call, content, parents):
                add_tensor(tensors, counts, key, _tensor(statistics, kind, order=len(tensors)))
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise damaged(path, f"a statistic of {call[:200]} is missing or has the wrong type") from error
    return RankDump(path, max(1, len(_ranks(path.parent.parent))), tensors)


def _of_call(call: str, content: Any, parents: Mapping[str, str]) -> Iterator[tuple[TensorKey, str, Any]]:
    """Key, class and statistics of the tensors of one call."""
    if not isinstance(content, dict):
        raise TypeError(call)
    if module := _MODULE.fullmatch(call):
        yield from _of_module(module, content)
    elif api := _API.fullmatch(call):
        name = checked_text(f"{parents.get(call, '')}/{api['path']}.{api['nth']}")
        yield from _of_outputs(api["call"], 0, name, api["path"], content)


def _of_module(module: re.Match[str], content: dict[str, Any]) -> Iterator[tuple[TensorKey, str, Any]]:
    name, kind, micro_batch = checked_text(module["path"]), module["kind"], int(module["nth"])
    if module["call"] == "parameters_grad":
        for parameter, values in content.items():
            for each in values:
                yield TensorKey("gradient", None, f"{name}.{checked_text(parameter)}", "gradient", 0), "", each
        return
    if module["call"] == "forward":
        if not micro_batch:
            for parameter, each in (content.get("parameters") or {}).items():
                yield TensorKey("parameter_before", None, f"{name}.{checked_text(parameter)}", "parameter", 0), "", each
        inputs = dict(enumerate(content.get("input_args") or ())) | (content.get("input_kwargs") or {})
        for argument, each in inputs.items():
            if _is_tensor(each):
                yield TensorKey("forward", micro_batch, name, f"input.{checked_text(str(argument))}", 0), kind, each
    yield from _of_outputs(module["call"], micro_batch, name, kind, content)


def _of_outputs(
    call: str, micro_batch: int, name: str, kind: str, content: dict[str, Any]
) -> Iterator[tuple[TensorKey, str, Any]]:
    """The outputs of a forward call, or their gradients, which are the inputs of a backward call."""
    tensors = list(content.get("output" if call == "forward" else "input") or ())
    for number, each in enumerate(tensors):
        if _is_tensor(each):
            slot = "output" if len(tensors) == 1 else f"output.{number}"
            yield TensorKey(call, micro_batch, name, slot, 0), kind, each


def _is_tensor(record: Any) -> bool:
    return isinstance(record, dict) and record.get("type") == "torch.Tensor"


def _tensor(record: Any, kind: str, order: int) -> TensorStatistics:
    numbers = [_number(record.get(name)) for name in ("Min", "Max", "Mean", "Norm")]
    lowest, highest, mean, l2 = (each if math.isfinite(each) else math.nan for each in numbers)
    # msprobe does not count NaN and infinity; its statistics cover all elements and are null for an empty tensor.
    is_empty = record.get("Max") is None
    return TensorStatistics(
        order,
        checked_text(kind),
        checked_shape(record["shape"]),
        checked_text(record["dtype"]).removeprefix("torch."),
        lowest,
        highest,
        mean,
        l2,
        nan=0 if is_empty else int(math.isnan(numbers[1])),
        inf=int(any(map(math.isinf, numbers))),
        digest=checked_text(record.get("md5")),
        samples=(),
    )


def _number(value: Any) -> float:
    if isinstance(value, str):
        return _NOT_FINITE[value.lower()]
    if value is None:
        return math.nan
    if not isinstance(value, int | float):
        raise TypeError(value)
    return float(value)


def _parents(path: Path) -> dict[str, str]:
    """Path of the module in which an API was called, by the name of the call."""
    if not path.is_file():
        return {}
    matches = ((call, _MODULE.fullmatch(str(parent))) for call, parent in read_json_object(path, _MOST_BYTES).items())
    return {call: parent["path"] for call, parent in matches if parent}
