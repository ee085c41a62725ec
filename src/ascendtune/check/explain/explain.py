"""Explains logs: the first failure, its place, its cause, and the remedies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from ascendtune.check.explain import reading
from ascendtune.check.explain.answer import misfits
from ascendtune.check.explain.answer.applicable_remedies import fitted
from ascendtune.check.explain.answer.checkouts import of_checkouts
from ascendtune.check.explain.answer.environment_notes import with_environment
from ascendtune.check.explain.answer.headline import culprit_of, headline_of, is_of_cann
from ascendtune.check.explain.answer.misfits import misfit_of
from ascendtune.check.explain.answer.placeholders import without_placeholders
from ascendtune.check.explain.answer.remedies_by_owner import for_owner
from ascendtune.check.explain.answer.unmatched_remedies import (
    is_of_ranks,
    last_resort,
    may_be_of_device,
    names_ascend,
    remedies_of_unmatched,
)
from ascendtune.check.explain.cause.attempts import Attempts, attempts_of
from ascendtune.check.explain.cause.certainty import sureness_of
from ascendtune.check.explain.cause.diagnosis import SEEN_FROM_OUTSIDE, Diagnosis, diagnose, weighed
from ascendtune.check.explain.cause.stalled import Stall, stalled_at_start
from ascendtune.check.explain.event.event import Event
from ascendtune.check.explain.event.scan import Scan, texts_of
from ascendtune.check.explain.facts import facts as facts_of
from ascendtune.check.explain.facts.batch_sizes import batch_sizes_in
from ascendtune.check.explain.facts.facts import Facts
from ascendtune.check.explain.facts.memory import Sums, sums_in
from ascendtune.check.explain.facts.shapes import mismatch_in
from ascendtune.check.explain.facts.state_dict import names_in
from ascendtune.check.explain.knowledge.entries import entries
from ascendtune.check.explain.knowledge.matcher import Matcher
from ascendtune.check.explain.knowledge.paired_packages import with_notes
from ascendtune.check.explain.language import say
from ascendtune.check.explain.log.directory import Unread
from ascendtune.check.explain.traceback import cann_reason
from ascendtune.check.finding import Finding, Status
from ascendtune.check.recorded_cause import cause_in_words
from ascendtune.core.errors import NoVerdict
from ascendtune.core.imports import uncollected_imports

PLOG = "~/ascend/log/debug/plog/plog-PID_*.log"
"""CANN's own logs, one file for each process."""
_EXCERPT = 100
"""Lines up to which the headline of a log without a failure has a notice: a longer one has many."""
_PLOGS = "/debug/plog/"

_COMPARE = (
    "compare what CANN names with what the job passes at the frame shown: print shape, dtype and attributes of the "
    "inputs before the call; then change the setting, layout or parallel size that they come from"
)


def explain(names: Sequence[str], *, is_here: bool = False) -> Explanation:
    """Explain log files, "-" for standard input, run directories (their newest attempt), or directories of logs.

    Args:
        is_here: the logs were written on this machine; known for a run on this host alone.

    Raises:
        InputError: a file cannot be read, or is not text; a directory contains neither a run nor logs.
    """
    scanned, unread, runs = reading.read(names, _matcher())
    scans = tuple(scanned)
    cause = next((run.cause for run in runs if run.cause), None)
    stop = next((run.stop for run in runs if run.stop), None)
    facts, diagnosis = _weigh(scans, cause)
    if (
        (plogs := [log for run in runs for log in run.plogs])
        and diagnosis.first is not None
        and is_of_cann(diagnosis.first)
    ):
        # For other failures CANN's own logs contain only consequences, and errors that the job survived.
        scans += tuple(Scan(log, _matcher()).run() for log in plogs)
        facts, diagnosis = _weigh(scans, cause)
    if cause is not None and diagnosis.first is None and diagnosis.rank is None:
        diagnosis = replace(diagnosis, rank=cause.get("rank"))
    is_here = is_here or (bool(runs) and all(run.is_here for run in runs))
    is_running = any(run.is_running for run in runs)
    attempts = attempts_of(diagnosis, scans, facts)
    return Explanation(diagnosis, scans, facts, cause, stop, is_running, is_here, tuple(unread), attempts)


def _weigh(scans: tuple[Scan, ...], cause: dict[str, Any] | None) -> tuple[Facts, Diagnosis]:
    facts = facts_of.of_log(texts_of(scans))
    return facts, weighed(diagnose(scans, facts), cause)


@dataclass(frozen=True)
class Explanation:
    verdict: Diagnosis
    scans: tuple[Scan, ...]
    facts: Facts
    """Variables, versions, ports and sizes in the logs."""
    run_cause: dict[str, Any] | None = None
    """`exit_cause` of run.json, if a run is explained."""
    stop: dict[str, Any] | None = None
    """`exit_cause` of run.json, if the run was asked to stop."""
    is_running: bool = False
    """Whether the explained run is in progress."""
    is_here: bool = False
    """Whether the logs were written on this machine, so that its state can be checked."""
    unread: tuple[Unread, ...] = ()
    """Files of a directory that may be logs and were not read."""
    attempts: Attempts | None = None
    """Later attempt that finished, after the launcher restarted the failed job."""

    @property
    def is_healthy(self) -> bool:
        return self.verdict.certainty == "healthy" and self.run_cause is None

    @property
    def is_empty(self) -> bool:
        """Whether the logs are empty, and nothing else is known."""
        return bool(self.scans) and not self._is_known and all(scan.is_empty for scan in self.scans)

    @property
    def _is_known(self) -> bool:
        """Whether the state of a run is known without its logs."""
        return bool(self.run_cause or self.stop or self.is_running)

    @property
    def cut_off(self) -> str:
        """Sentence on a compressed log that could not be read to its end; empty if all were."""
        return reading.cut_off(self.scans)

    def reading_notes(self) -> list[str]:
        """Notes on files and lines that were not read."""
        return reading.notes(self.scans, self.unread, is_found=not self.is_healthy)

    @property
    def exit_code(self) -> int:
        """0: no failure, or one after which a later attempt finished; 1: a failure; 4: the logs are empty or could not
        be read completely, and no failure was found."""
        if not self.is_healthy:
            return 0 if self.attempts is not None else 1
        return NoVerdict.exit_code if self.is_empty or (self._no_verdict and not self._is_known) else 0

    @property
    def _no_verdict(self) -> str:
        return reading.no_verdict(self.scans, self.unread)

    @property
    def sums(self) -> Sums | None:
        return sums_in(self.verdict.first.text) if self.verdict.first else None

    @property
    def stall(self) -> Stall | None:
        """A log without a failure that ends at a place where ranks may wait for each other."""
        return stalled_at_start(self.scans) if self.is_healthy and not self._is_known else None

    @property
    def sureness(self) -> str:
        """Certainty of the first cause, as a phrase."""
        return sureness_of(self.verdict, self.scans)

    @property
    def to_collect(self) -> tuple[str, ...]:
        """Information to collect next, if nothing is known."""
        log = (
            "the log of every rank"
            if is_of_ranks(self.verdict.first, self.verdict.rank, self.facts)
            else "the whole log of the program that failed"
        )
        makers = set(self.facts.get("accelerator", ()))
        is_ascend = self.plog is not None or makers == {"ascend"}
        is_of_others = not is_ascend and makers and not makers & {"ascend", "nvidia"}
        variable = "ASCEND_LAUNCH_BLOCKING" if is_ascend else "CUDA_LAUNCH_BLOCKING"
        of_device = (*filter(None, (self.plog,)), say("{variable}=1 on a second run", variable=variable))
        return (
            "`ascendtune doctor --bundle report.tar.gz`",
            say(log),
            *(of_device if self._may_be_of_device and not is_of_others else ()),
            say("the opinion of a language model (--ask URL)"),
        )

    @property
    def plog(self) -> str | None:
        """Path of CANN's own logs, if the logs name Ascend."""
        return PLOG if names_ascend(self.scans) else None

    @property
    def _may_be_of_device(self) -> bool:
        return may_be_of_device(self.verdict.first, self.scans, self.facts)

    def headline(self) -> str:
        """One sentence: the failure and its rank, and the result of a later attempt if there was one."""
        return self._failure() if self.attempts is None else self.attempts.told(self._failure())

    def _failure(self) -> str:
        if self.verdict.first is not None:
            return headline_of(self.verdict.first, self.verdict, self.facts)
        if self.run_cause is not None:
            # The sentence of such a cause names its rank.
            is_named = self.run_cause.get("kind") in SEEN_FROM_OUTSIDE
            return cause_in_words(self.run_cause).what + ("" if is_named else culprit_of(self.verdict))
        if self.stop:
            return say("nothing went wrong: {what}", what=cause_in_words(self.stop).what)
        if self.is_running:
            return say("the run is under way, and its logs show no failure since it was started")
        if self._no_verdict:
            return self._no_verdict
        if self.stall is not None:
            return self.stall.headline()
        if self.is_empty:
            return say("there is nothing to explain: the log is empty")
        notices = self.verdict.notices
        if notices and all(scan.lines_read <= _EXCERPT for scan in self.scans):
            return say("no failure was found; one line tells: {what}", what=notices[0].meaning)
        return say("no failure was found")

    def findings(self) -> list[Finding]:
        """The first cause in the common form of all checks."""
        first = self.verdict.first
        if first is None and self.run_cause is None:
            return []
        code = first.entry.id if first else "run"
        evidence = (f"{first.where}: {first.quote}",) if first else ()
        # A job whose later attempt finished has not failed.
        status: Status = "failure" if self.exit_code else "warning"
        return [Finding(code, status, self.headline(), remedy="; ".join(self.remedies()), evidence=evidence)]

    def remedies(self) -> tuple[str, ...]:
        """Remedies, in the order in which to try them."""
        texts = texts_of(self.scans)
        remedies = with_environment(self._remedies(), self.verdict, self.scans)
        first = self.verdict.first
        remedies = without_placeholders(remedies, first, texts) if first is not None else remedies
        remedies = of_checkouts(remedies, first.trace) if first is not None and first.trace is not None else remedies
        remedies = fitted(remedies, first.entry if first is not None else None, self.facts)
        misfit = misfit_of(first, self.facts) if first is not None and self.verdict.missing is None else None
        remedies = remedies if misfit is None else (misfits.remedy(misfit), *remedies)
        return with_notes(remedies, texts, self.facts, names_ascend=self.plog is not None)

    def remedies_here(self, event: Event) -> tuple[str, ...]:
        """Remedies of any event's entry, for the system where the job ran."""
        return fitted(event.remedies, event.entry, self.facts)

    def _remedies(self) -> tuple[str, ...]:
        diagnosis, first = self.verdict, self.verdict.first
        if diagnosis.missing is not None:
            return diagnosis.missing.remedies
        if first is None:
            return (cause_in_words(self.run_cause).remedy,) if self.run_cause is not None else last_resort(None)
        if first.is_known and first.entry.remedies:
            return self._remedies_of_known(first)
        is_read = any(_PLOGS in scan.name for scan in self.scans)
        plog = self.plog if self._may_be_of_device and not is_read else None
        read_plog = (say("read {plog}, which says more about errors of the device", plog=plog),) if plog else ()
        return remedies_of_unmatched(first, self.scans, self.facts, read_plog) or last_resort(first)

    def _remedies_of_known(self, first: Event) -> tuple[str, ...]:
        remedies, sums = for_owner(first.remedies, first), self.sums
        remedies = sums.remedies(remedies) if sums is not None else remedies
        if first.entry.kind == "wrapper" and self._names_values(first.reason):
            remedies = (say(_COMPARE), *remedies[1:])
        if (mismatch := mismatch_in(first.text)) is not None and (split := mismatch.remedy()):
            remedies = (split, *remedies)
        elif (names := names_in(first.text)) is not None and (renamed := names.remedy()):
            remedies = (renamed,)
        elif (sizes := batch_sizes_in(first.text)) is not None:
            remedies = (sizes.remedy(), *remedies)
        if sums is not None and sums.is_own:
            return tuple(sorted(remedies, key=lambda remedy: "`ascendtune devices`" in remedy))
        return remedies

    def _names_values(self, reason: str) -> bool:
        """Whether the headline quotes a reason of an operator or HCCL, not only the state of a runtime call: a
        time-out has no inputs to compare."""
        return bool(reason) and reason in self._failure() and not cann_reason.is_of_runtime(reason)

    def now(self) -> tuple[str, ...]:
        """State of this machine, as far as the remedies depend on it."""
        first = self.verdict.first
        if not self.is_here or first is None or self.verdict.missing is not None:
            return ()
        from ascendtune.check.explain.answer.machine_state import on_this_machine, this_machine

        return on_this_machine(first, first.entry.remedies, self.facts, this_machine())


@cache
def _matcher() -> Matcher:
    with uncollected_imports():
        return Matcher(entries())
