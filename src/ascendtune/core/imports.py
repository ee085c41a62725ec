"""Imports of large packages, such as torch and transformers, and of other objects that live until the end."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from ascendtune.core.errors import MachineError

_OF_EXTRA_TRAIN = frozenset(
    ("torch", "transformers", "tokenizers", "safetensors", "peft", "huggingface_hub", "jinja2", "numpy", "pyarrow")
)
_SCANNER = "transformers.utils.import_utils"


@contextmanager
def uncollected_imports() -> Iterator[None]:
    """Import in this context without garbage collection.

    Imports create hundreds of thousands of objects and hardly any garbage; repeated traversal takes a fifth of their
    time. These objects live until the end: the collector never traverses them again.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
    gc.freeze()


def scan_models_once() -> None:
    """Make transformers, if imported from now on, scan the source of its models once, and faster.

    By default it scans them for itself and again for `transformers.models`, each time a quarter of a second of CPU
    time: it caches 128 directories, and there are 549 (`create_import_structure_from_path`, 5.23). Half of that time
    goes into the lines above `__all__` (`fetch__all__`).
    """
    if _SCANNER not in sys.modules and not any(isinstance(each, _ScannerPatcher) for each in sys.meta_path):
        sys.meta_path.insert(0, _ScannerPatcher())


class _ScannerPatcher:
    """A finder for `sys.meta_path`; not an `importlib.abc.MetaPathFinder`, whose import takes 3 ms of each start."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _SCANNER:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_patch(module: ModuleType) -> None:
                execute(module)
                _patch(vars(module))

            vars(spec.loader)["exec_module"] = execute_and_patch
        return spec


def _patch(scanner: dict[str, Any]) -> None:
    scan = getattr(scanner.get("create_import_structure_from_path"), "__wrapped__", None)
    names_in = scanner.get("fetch__all__")
    if scan is not None and callable(names_in):
        scanner["create_import_structure_from_path"] = functools.cache(scan)
        # The last line that begins with it counts.
        scanner["fetch__all__"] = lambda source: names_in(source[source.rfind("\n__all__") + 1 :])


def import_fault(error: ImportError) -> MachineError | None:
    """The error for a package that is missing, damaged or of a version that does not fit; None for a module of ours."""
    from ascendtune.core.foreign_json import first_line

    package = (error.name or "").partition(".")[0]
    if package == __name__.partition(".")[0]:
        return None
    if isinstance(error, ModuleNotFoundError) and package in _OF_EXTRA_TRAIN:
        return MachineError(
            f"this command needs {package}, which is not installed",
            code="package-missing",
            remedy="install the extra `train`: pip install 'ascendtune[train]', or '.[train]' in a clone",
        )
    return MachineError(
        f"a package cannot be imported: {first_line(error)}",
        code="package-not-importable",
        remedy="`ascendtune doctor` checks which versions belong together; `pip install 'ascendtune[train]'` (or "
        "'.[train]' in a clone) installs versions that do",
    )
