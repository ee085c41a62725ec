"""Why a run ended, as run.json records it, in the language of the output."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from ascendtune.check.table import say
from ascendtune.core import language


class CauseInWords(NamedTuple):
    what: str
    remedy: str


def cause_in_words(cause: Mapping[str, Any]) -> CauseInWords:
    """The sentences for `exit_cause` of run.json.

    run.json contains them in English. In Chinese the ways in which processes end are told from the other fields, and
    the messages of errors, of which there are hundreds, are quoted.
    """
    what, remedy = str(cause.get("what") or say("no cause was recorded")), str(cause.get("remedy") or "")
    # `explain` infers a lost starter, in the language of its output.
    if language.current() == "en" or not cause.get("what") or cause.get("kind") == "lost_starter":
        return CauseInWords(what, remedy)
    match cause.get("kind"):
        case "stop":
            return _stop(cause)
        case "hang":
            ranks = ", ".join(map(str, cause.get("odd_ranks") or ()))
            match cause.get("step"):
                case int(step) if step:
                    what = say("the run hung in step {step}", step=step)
                case 0:
                    what = say("the run hung before its first step")
                case _:
                    what = say("the run hung")
            if ranks:
                what = say("{what}: rank {ranks} differed from the others", what=what, ranks=ranks)
            return CauseInWords(what, say("the stacks in the run's log directory show where"))
        case "signal":
            what = say("{process} was ended by {signal}", process=_process(cause), signal=cause.get("signal"))
            killed = "usually the host ran out of memory: see `dmesg | grep -i oom`; take a smaller batch"
            return CauseInWords(what, say(killed if cause.get("signal") == "SIGKILL" else "look at the end of its log"))
        case "exit":
            process, code = _process(cause), cause.get("process_exit_code")
            what = say("{process} ended with an error", process=process)
            if isinstance(code, int):
                what = say("{process} ended with exit code {code}", process=process, code=code)
            # Its class: the process ended because of another one.
            lost = "look at its last message: it lost its connection to another rank, or the network failed"
            return CauseInWords(what, say(lost if cause.get("exit_code") == 3 else "look at the end of its log"))
        case "launcher":
            what = say("the workers failed to start, or lost connection to each other")
            return CauseInWords(what, say("look at torchrun's messages"))
        case _:
            return CauseInWords(say("ascendtune says: {what}", what=what), remedy)


def _stop(cause: Mapping[str, Any]) -> CauseInWords:
    name, step, newest = _stop_signal(cause.get("exit_code")), cause.get("step"), cause.get("checkpoint_step")
    resumed = say("the same command resumes from the newest checkpoint, if there is one")
    if isinstance(newest, int):
        resumed = say("run the same command again: it resumes from step {step}", step=newest)
    if step == 0:
        return CauseInWords(say("stopped by {signal} before the first step", signal=name), resumed)
    if isinstance(step, int):
        what = say("stopped by {signal} after step {step}, with a checkpoint", signal=name, step=step)
        return CauseInWords(what, resumed)
    if "checkpoint_step" not in cause:
        return CauseInWords(say("stopped by {signal}", signal=name), resumed)
    if newest is None:
        resumed = say("run the same command again: it starts over, as there is no checkpoint yet")
    return CauseInWords(say("stopped at once by {signal}, without writing a checkpoint", signal=name), resumed)


def _stop_signal(exit_code: object) -> str:
    with suppress(ValueError):
        return signal.Signals(exit_code - 128 if isinstance(exit_code, int) else 0).name
    return "SIGTERM"


def _process(cause: Mapping[str, Any]) -> str:
    rank, host = cause.get("rank"), cause.get("host")
    process = "torchrun" if rank is None else f"rank {rank}"
    return process if host is None else say("{process} on {host}", process=process, host=host)
