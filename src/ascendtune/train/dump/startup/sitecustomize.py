"""Python imports this when it starts below `ascendtune align record`: a program that trains becomes a recorded one.

The directory of this file is the first of PYTHONPATH, so that programs are followed that a shell or `os.posix_spawn`
starts. Interpreters that have no ascendtune are left alone. The user's own `sitecustomize` is imported afterwards.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path


def _become_recorded() -> None:
    words = sys.orig_argv[1:]
    options = next((at for at, word in enumerate(words) if not word.startswith("-") or word == "-m"), len(words))
    # Spared the import: an interactive interpreter, and `-c`, which multiprocessing uses for each of its processes.
    if "ASCENDTUNE_RECORD" not in os.environ or options == len(words) or "-c" in words[:options]:
        return
    with suppress(ImportError):
        from ascendtune.train.dump.command import recorded_command

        command = recorded_command([sys.executable, *words], directory=Path(sys.executable).absolute().parent)
        if command is not None:
            os.execv(command[0], command)


def _import_the_next() -> None:
    """Import the `sitecustomize` that Python would have imported without this one."""
    own = Path(__file__).parent
    sys.path[:] = [each for each in sys.path if Path(each) != own]
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules["sitecustomize"])


_become_recorded()
_import_the_next()
