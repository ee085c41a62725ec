"""The process behind `Node`: imports what takes long, forks for every line of directories that it reads.

Each directory holds request.json (file, function, environment) and arguments.pickle, and gets out, err and
result.pickle. The answer to a line is the list of exit codes, negative for signals.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import signal
import sys
import traceback
from pathlib import Path

import peft  # noqa: F401
import pytest  # noqa: F401
import torch
import transformers  # noqa: F401
from transformers.models.qwen2 import modeling_qwen2  # noqa: F401

from ascendtune.train import attempt  # noqa: F401

_PATIENCE_SECONDS = 150

# Test files import what pytest finds for them.
sys.path.insert(0, str(Path(__file__).parents[2]))


def serve() -> None:
    assert "torch_npu" in sys.modules, "torch did not load torch_npu"
    assert not torch.npu.is_initialized()
    for line in sys.stdin:
        children = [_start(Path(place)) for place in json.loads(line)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(codes), flush=True)


def _start(place: Path) -> int:
    if child := os.fork():
        return child
    code = 70
    try:
        # A child that hangs ends itself.
        signal.alarm(_PATIENCE_SECONDS)
        _redirect(place)
        code = _run(place)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001  # told to the caller by the exit code
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Not by the interpreter's end: torch_npu's would take seconds, and clean up what belongs to the parent.
        os._exit(code)


def _redirect(place: Path) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    sys.stdin = os.fdopen(0, closefd=False)
    for descriptor, name in ((1, "out"), (2, "err")):
        file = os.open(place / name, os.O_WRONLY | os.O_CREAT, 0o644)
        os.dup2(file, descriptor)
        os.close(file)


def _run(place: Path) -> int:
    request = json.loads((place / "request.json").read_text())
    os.environ.update(request["environment"])
    spec = importlib.util.spec_from_file_location("on_the_node", request["file"])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["on_the_node"] = module
    spec.loader.exec_module(module)
    result = getattr(module, request["function"])(*pickle.loads((place / "arguments.pickle").read_bytes()))
    (place / "result.pickle").write_bytes(pickle.dumps(result))
    return 0


if __name__ == "__main__":
    serve()
    # torch_npu takes seconds to leave a device that was never used.
    os._exit(0)
