"""Run a Python script with its training recorded: `python -m ascendtune.train.dump.script SCRIPT ARGUMENTS`.

`ascendtune align record` starts this in place of the script, also under torchrun and `accelerate launch`. The variable
ASCENDTUNE_RECORD holds the request.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from ascendtune.core import log
from ascendtune.core.errors import AscendtuneError, MachineError
from ascendtune.core.mask import command_without_secrets
from ascendtune.train.dump.request import VARIABLE, RecordRequest


def main(arguments: list[str]) -> None:
    """Run `arguments`: a script with its arguments, or `-m` and a module with its."""
    log.set_up()
    try:
        from ascendtune.train.dump.recording import Recording
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        missing = MachineError(
            f"{sys.executable} has no torch, which the recorded training needs",
            code="package-missing",
            remedy="start the command with the Python that has torch and ascendtune",
        )
        log.error(str(missing))
        sys.exit(missing.exit_code)
    request = RecordRequest.from_json(os.environ[VARIABLE])
    is_module = arguments[0] == "-m"
    sys.argv = arguments[is_module:]
    try:
        with Recording(request, command_without_secrets(arguments)).active():
            if is_module:
                sys.path[0] = str(Path.cwd())
                runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
            else:
                # As Python does for a script.
                sys.path[0] = str(Path(arguments[0]).resolve().parent)
                runpy.run_path(arguments[0], run_name="__main__")
    except AscendtuneError as error:
        log.error(str(error))
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main(sys.argv[1:])
