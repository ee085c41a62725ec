"""Reads logs; files that could not be read are reported, because they may contain a failure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascendtune.check.explain.event.scan import Scan
from ascendtune.check.explain.knowledge.matcher import Matcher
from ascendtune.check.explain.language import say
from ascendtune.check.explain.log.directory import IS_COPY, IS_LINK, IS_UNNAMED, Log, Unread, logs_in
from ascendtune.check.explain.log.source import STDIN
from ascendtune.core.errors import InputError
from ascendtune.core.rundir import RunDir

if TYPE_CHECKING:
    from ascendtune.check.explain.run import Newest

_NOTHING_READ = "the compressed file {name} is cut off or damaged, and nothing of it could be read"
_NO_ALL_CLEAR = "no verdict: {cut_off}; up to there no failure was found"
_NOT_ALL_READ = "no verdict: {unread} could not be read; in the rest no failure was found"
_CUT_LINE = "{where} is longer than 64 KiB: its beginning and its end were read"
_SHOWN = 3


def read(names: Sequence[str], matcher: Matcher) -> tuple[list[Scan], list[Unread], list[Newest]]:
    """Read log files, run directories and directories of logs.

    Returns:
        The scans, the files that were not read, and the newest attempts of the runs.

    Raises:
        InputError, PermissionError: a named log, or all logs of a directory, cannot be read.
    """
    scans, unread = list[Scan](), list[Unread]()
    runs: list[Newest] = []
    for name in dict.fromkeys(names):
        if name == STDIN or not Path(name).is_dir():
            scans.append(Scan(name, matcher).run())
        elif RunDir(name).run_json.is_file():
            from ascendtune.check.explain.run import newest_attempt

            runs.append(newest_attempt(RunDir(name)))
            scans += [Scan(log, matcher, start).run() for log, start in runs[-1].logs]
        else:
            logs, passed_over = logs_in(Path(name))
            unread += passed_over
            scans += _read_all(logs, matcher, unread)
    return scans, unread, runs


def _read_all(logs: Sequence[Log], matcher: Matcher, unread: list[Unread]) -> Iterator[Scan]:
    """Read the logs of a directory; a log that cannot be read is skipped and added to `unread`."""
    are_read, last = False, logs[-1]
    for log in logs:
        scan = Scan(log.name, matcher, earlier=log.earlier)
        try:
            scan.run()
        except (InputError, PermissionError) as error:
            if log is last and not are_read:
                raise
            unread.append(Unread.after(error, log.name))
        else:
            are_read = True
            unread += scan.parts.unread
            yield scan


def sources_as_json(scans: Sequence[Scan]) -> list[dict[str, Any]]:
    return [
        {
            "name": scan.name,
            "earlier": list(scan.parts.names[:-1]),
            "lines": scan.lines_read,
            "bytes": scan.bytes,
            "is_cut_off": bool(scan.parts.cut_off[0]),
        }
        for scan in scans
    ]


def cut_off(scans: Sequence[Scan]) -> str:
    """Sentence on a compressed log that could not be read to its end; empty if all were."""
    cut = next((scan for scan in scans if scan.parts.cut_off[0]), None)
    if cut is None:
        return ""
    name, why = cut.parts.cut_off
    line = cut.parts.lines_of(name)
    return say(why, name=name, line=line) if line else say(_NOTHING_READ, name=name)


def no_verdict(scans: Sequence[Scan], unread: Sequence[Unread]) -> str:
    """Reason for which the absence of failures is not conclusive; empty if it is."""
    if cut := cut_off(scans):
        return cut if all(scan.is_empty for scan in scans) else say(_NO_ALL_CLEAR, cut_off=cut)
    names = [each.name for each in unread if each.may_matter]
    return say(_NOT_ALL_READ, unread=_some(names)) if names else ""


def notes(scans: Sequence[Scan], unread: Sequence[Unread], *, is_found: bool) -> list[str]:
    """Files and lines that were not read, for the report; if a failure was found, without copies, links and files that
    are not named like logs."""
    by_reason: dict[str, list[str]] = {}
    for each in unread:
        if is_found and each.why in (IS_COPY, IS_LINK, IS_UNNAMED):
            continue
        by_reason.setdefault(each.why, []).append(each.name)
    sentences = [say("not read: {names} ({why})", names=_some(names), why=say(why)) for why, names in by_reason.items()]
    long = next((scan.parts.where(scan.parts.cut_line) for scan in scans if scan.parts.cut_line), "")
    return [*sentences, *([say(_CUT_LINE, where=long)] if long else [])]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(islice(names, _SHOWN))
    return say("{names} and {more} more", names=shown, more=len(names) - _SHOWN) if len(names) > _SHOWN else shown
