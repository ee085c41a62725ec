"""Checks before a job starts on several hosts: the same versions, the same kind of devices, different machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ascendtune.core.errors import InputError, MachineError, together
from ascendtune.core.log import warn
from ascendtune.job.nodes.cluster_spec import TargetHost
from ascendtune.job.nodes.difference import differ, groups_of, in_a_row, in_words, odd_hosts

_SKEW_SECONDS = 10.0

Answers = Mapping[TargetHost, Mapping[str, Any]]
"""What `handshake_reply.look_around` found on each host, and when it was `received`."""


def require_alike(answers: Answers) -> None:
    """Raise unless every host is another machine, and all have the same versions and compute on the same kind.

    Raises:
        InputError: a machine is named twice, under two names.
        MachineError: hosts differ; everything in which they do is named at once.
    """
    first = next(iter(answers.values()))
    compared = {
        package: {host.name: answer["versions"][package] or "absent" for host, answer in answers.items()}
        for package in first["versions"]
    }
    remedies = dict.fromkeys(compared, "install the same versions on every node")
    compared["devices"] = {host.name: answer["kind"] for host, answer in answers.items()}
    notes = [answer["note"] for answer in answers.values() if answer["note"]]
    remedies["devices"] = notes[0] if notes else "`ascendtune doctor` on each of them says more"
    errors = []
    for name, values in compared.items():
        if differ(values):
            groups = groups_of(values)
            where = ", ".join(odd_hosts(groups))
            errors.append(MachineError(in_words(name, groups), code="hosts-differ", remedy=remedies[name], where=where))
    if errors:
        raise together(errors)
    _require_apart(answers)


def warn_of_clocks(answers: Answers) -> None:
    for host, answer in answers.items():
        # The answer was under way for less than this difference: the rest is the clock.
        skew = answer["time"] - answer["received"]
        if abs(skew) > _SKEW_SECONDS:
            side = "ahead of" if skew > 0 else "behind"
            warn(f"the clock of {host.name} is {abs(skew):.0f} s {side} ours: logs will not line up")


def _require_apart(answers: Answers) -> None:
    names: dict[str, list[str]] = {}
    for host, answer in answers.items():
        names.setdefault(answer["machine"], []).append(host.name)
    if same := [those for those in names.values() if len(those) > 1]:
        raise InputError(
            "; ".join(f"{in_a_row(those)} are the same machine" for those in same),
            code="host-named-twice",
            remedy=f"name it once; for several processes there use --devices N, or `{same[0][0]} slots=N` in a host "
            "file",
            where="--nodes",
        )
