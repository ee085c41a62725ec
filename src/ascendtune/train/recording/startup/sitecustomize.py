"""Imported by Python at its start under `ascendtune align record`: records the program if it imports torch.

The directory of this file is the first of PYTHONPATH, so that programs started by a shell or `os.posix_spawn` are
recorded. Most of them train nothing, so nothing is imported until torch is. Interpreters without ascendtune are not
affected. The user's own `sitecustomize` is imported afterwards.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder

TYPE_CHECKING = False  # importing `typing` takes half as long as Python's start
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

_RECORDER = "ascendtune.train.recording.script"


class _RecordOnceTorchIsImported:
    """A finder for `sys.meta_path`: finds torch by the other finders, and starts recording after it was imported."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        specs = (each.find_spec(name, path, target) for each in sys.meta_path if each is not cls)
        spec = next((each for each in specs if each is not None), None)
        if spec is None or spec.loader is None:
            return spec
        loader, execute = spec.loader, spec.loader.exec_module

        def execute_and_record(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            if cls in sys.meta_path:
                sys.meta_path.remove(cls)
                _record()

        loader.exec_module = execute_and_record  # type: ignore[method-assign]
        return spec


def _record() -> None:
    try:
        from ascendtune.train.recording.script import record_this_process
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("ascendtune"):
            raise
        return
    record_this_process(sys.orig_argv[1:])


def _import_next() -> None:
    """Import the `sitecustomize` that Python would have imported without this one."""
    own = __file__.rpartition(os.sep)[0]
    sys.path[:] = [each for each in sys.path if each.rstrip(os.sep) != own]
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules["sitecustomize"])


# The recorder itself appears after `-m`, or in the text after `-c` with which multiprocessing starts a process.
if "ASCENDTUNE_RECORD" in os.environ and not any(_RECORDER in word for word in sys.orig_argv):
    if "torch" in sys.modules:
        _record()
    else:
        sys.meta_path.insert(0, _RecordOnceTorchIsImported)
_import_next()
