"""Is there such a program? Found out before anything is started."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ascendtune.core.errors import InputError
from ascendtune.core.suggest import path_suggestion


def program(word: str) -> str:
    """The absolute path of what `word` starts: a path, or the name of a program in PATH.

    Raises:
        InputError: there is none, or the operating system cannot start it.
    """
    path = Path(shutil.which(word) or word)
    if path.is_dir():
        raise InputError("this is a directory, not a program", remedy="name a program, then its arguments", where=path)
    if not path.is_file():
        otherwise = "check its name and PATH"
        remedy = path_suggestion(path, otherwise) if "/" in word or path.suffix else otherwise
        raise InputError(f"there is no program '{word}'", remedy=remedy)
    if not os.access(path, os.X_OK):
        remedy = f"start it as `python {word}`" if path.suffix == ".py" else f"chmod +x {word}, or name its interpreter"
        raise InputError(f"'{word}' is not executable", remedy=remedy, where=path)
    if not _can_start(path):
        remedy = f"start it as `python {word}`" if path.suffix == ".py" else "name its interpreter, as `bash script`"
        raise InputError(f"'{word}' is neither a program nor a script with #! in its first line", remedy=remedy)
    return str(path.absolute())


def _can_start(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4).startswith((b"#!", b"\x7fELF"))
    except OSError:
        # A program that may be started and not be read.
        return True
