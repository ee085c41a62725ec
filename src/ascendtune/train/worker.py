"""The training process: `python -m ascendtune.train.worker RUNDIR`, alone or one of many under torchrun."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NoReturn

from ascendtune.core import log
from ascendtune.core.claim import Claim
from ascendtune.core.errors import AscendtuneError, Stopped, out_of_host_memory
from ascendtune.core.imports import import_fault, scan_models_once, uncollected_imports
from ascendtune.core.interrupts import interrupt, keep_interrupts
from ascendtune.core.ownership import require_own, restrict_umask
from ascendtune.core.progress_bar import slow_work_bar
from ascendtune.core.rundir import RunDir
from ascendtune.core.terminal_text import make_streams_safe
from ascendtune.train.attempt_end import note_end
from ascendtune.train.stack_dump import block_stacks_signal, dump_stacks_on_signals


def main(arguments: list[str]) -> int:
    """Train, report how the training ended, and return the exit code."""
    debug = "ASCENDTUNE_DEBUG" in os.environ
    block_stacks_signal()
    make_streams_safe()
    scan_models_once()
    log.set_up()
    restrict_umask()
    if len(arguments) not in (1, 2):
        log.warn("usage: python -m ascendtune.train.worker RUNDIR [START_ID]")
        return 2
    run = RunDir(arguments[0])
    try:
        with claimed(run, arguments[1] if len(arguments) > 1 else None) as record:
            dump_stacks_on_signals(run)
            try:
                # A script's shell starts commands that end with `&` with SIGINT ignored, and `jobs stop` sends SIGINT.
                signal.signal(signal.SIGINT, interrupt)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
                # Imported here: torch and transformers take seconds to import, and Ctrl-C meanwhile must not print a
                # traceback.
                with slow_work_bar() as bar, bar.counting("importing torch"):
                    train = _import_attempt()
            except KeyboardInterrupt as stop:
                note_end(run, record, stop, int(os.environ.get("RANK", "0")))
                raise
            except ImportError as error:
                if (fault := import_fault(error)) is None:
                    raise
                note_end(run, record, fault, int(os.environ.get("RANK", "0")))
                raise fault from error
            train(run, record)
    except AscendtuneError as error:
        (log.say if isinstance(error, Stopped) else log.error)(str(error))
        if debug and not isinstance(error, Stopped):
            traceback.print_exc()
        return error.exit_code
    except KeyboardInterrupt:
        # A third Ctrl-C must not interrupt the last message.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        log.say("stopped at once")
        sys.stderr.flush()
        # Exits here instead of returning: the interpreter would wait for the thread that writes a checkpoint.
        os._exit(130)
    except MemoryError as error:
        exhausted = out_of_host_memory(error)
        log.error(str(exhausted))
        if debug:
            traceback.print_exc()
        return exhausted.exit_code
    except Exception as error:  # noqa: BLE001  # a bug is reported in one line
        _report_bug(run, error, debug)
        return 1
    return 0


@contextmanager
def claimed(run: RunDir, start_id: str | None) -> Iterator[dict[str, Any]]:
    """Context in which no other start may write to `run`; yields run.json.

    Args:
        start_id: id of the start that wrote the recipe and claimed `run`; None if a user has started this process on
            an existing run: then rank 0 claims it.

    Raises:
        InputError: `run` is not a run directory.
        MachineError: another start has claimed it, or other users may write to it.
    """
    RunDir.open(run.path)
    require_own(run.path, run.recipe, run.run_json)
    if start_id is not None:
        claim = Claim.inherited(run.path, start_id)
    else:
        if run.checkpoints.is_dir():
            require_own(run.checkpoints, run.checkpoints)
        claim = Claim.take(run.path) if os.environ.get("RANK", "0") == "0" else None
    with claim or nullcontext():
        record = run.read()
        if start_id is not None:
            run.require_started_for(start_id, record)
        yield record


def _import_attempt() -> Callable[[RunDir, dict[str, Any]], None]:
    """Import `attempt.train` and the large modules that it needs."""
    with uncollected_imports():
        import transformers.modeling_utils  # noqa: F401

        from ascendtune.train.attempt import train
    return train


def _report_bug(run: RunDir, error: Exception, debug: bool) -> None:
    rank = os.environ.get("RANK", "0")
    place = run.logs / f"rank_{rank}.log"
    where = "above"
    if debug or rank != "0":
        # The standard error of the other ranks is their log file.
        traceback.print_exc()
    else:
        with suppress(OSError), place.open("a") as file:
            traceback.print_exc(file=file)
            where = f"in {place}"
    message = " ".join(str(error).split())
    log.error(f"this is a bug in ascendtune: {type(error).__name__}: {message}; the traceback is {where}")


def _leave(exit_code: int) -> NoReturn:
    """End this process.

    If one of several ranks fails, the end of the interpreter could wait for the others, which wait for this rank:
    torch_npu first completes what is queued on the device, also sums over ranks.
    """
    if exit_code and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(exit_code)
    sys.exit(exit_code)


if __name__ == "__main__":
    keep_interrupts()
    _leave(main(sys.argv[1:]))
