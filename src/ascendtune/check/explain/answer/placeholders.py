"""Replaces placeholders in remedies by names from the log.

PACKAGE becomes the package that pip could not build, of an extension that does not load, or of the failed code; PATH
and FILE the only path that the message quotes. JOB, NODE, HOST, PORT and PID become the only such value in the message,
else (JOB and NODE) in the whole log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ascendtune.check.explain.event.event import Event
from ascendtune.check.explain.package.distributions import named_for_pip

_PLACE = re.compile(r"(?<![\w.{/-])(?<!install -y )(?<!apt install )(?<!yum install )PACKAGE(?![\w/-]|\.(?:run|[A-Z]))")
"""PACKAGE, except in commands of the system's package manager, in file names, and as a part of other words."""
_ASIDE = re.compile(r" \(PACKAGE\)|（PACKAGE）")
"""PACKAGE in brackets after a description of the package."""
_OF_PIP = re.compile(r"\bpip (?:download|install|index versions|show)\b[^`;:,)；：，]*(?::all: [^`;:,)；：，]*)?")
_FAILED = re.compile(
    r"(?:Failed building wheel for|Could not build wheels for|Failed to (?:download and )?build) [`']?"
    r"(?P<name>[A-Za-z][\w.-]*\w)(?=[\s`',=]|$)",
    re.MULTILINE,
)
_TRIED = re.compile(r"^ *(?:Building wheel for|Collecting) (?P<name>[A-Za-z][\w.-]*\w)", re.MULTILINE)
_BUILDS = ("build", "package-managers")
"""Families of failures during the build of a package."""
_EXTENSION = re.compile(
    r"(?:site|dist)-packages/(?P<package>[A-Za-z]\w*?)/[^\s:]*\.so\b|"
    r"/(?P<file>[A-Za-z]\w*?)(?:_\d+)?_(?:cuda|cu\d+|C|ops|kernels)(?:\.[\w-]+)*\.so\b"
)
_OF_LOADER = re.compile(r"undefined symbol|cannot open shared object|compiled for version")
_TORCH = "torch"
_LOOKED_AT = re.compile(
    r"((?:\bls -ld?|\bnamei -l|\bgetfacl|\bfindmnt (?:-\w+ (?:[A-Z,]+ )?)*-T|\bfile|\bdf -[hT]+|"
    r"\bstat|\bcat|\bpython -m json\.tool|\bchown -R \"\$USER\"|\bchmod u\+\w+) |\bopen\(')(?:PATH|FILE)(?![\w/.*])"
)
"""A command that shows the file, or changes its owner or rights."""
_YAML = re.compile(r"(?<![\w/])FILE\.yaml\b")
_QUOTED = re.compile(r"(?<=['\"‘`])[~/][^\s'\"`’;$&|<>()*\\]+(?=['\"’`])")
_OF_YAML = re.compile(r"in \"(?P<file>[^\s\"';$&|<>()]+\.ya?ml)\", line")
_NAMED = (
    (
        re.compile(r"(?<=-j )JOB(?![\w:/])|(?<=show job )(?:JOB|ID)(?![\w:/])|(?<=scancel )JOB(?![\w:/])"),
        re.compile(
            r"\b(?:JOB|STEP|JobId=?|StepId=|SLURM_JOB_?ID[=:]|Submitted batch job|job_?id[=:]|slurmstepd: .*\bJOB) ?"
            r"(?P<value>\d{1,10})\b"
        ),
    ),
    (
        re.compile(
            r"(?<=--exclude=)NODE\b|(?<=nodename=)NODE\b|(?<=show node )NODE\b|(?<=describe node )NODE\b|(?<=-w )NODE\b"
        ),
        re.compile(
            r"(?:\b[Nn]ode |\bON |\bnodename=|\bNodeName=)(?!name\b|state\b|is\b|on\b)"
            r"(?P<value>[a-z][\w.-]*\d[\w-]*)(?![\w.-]|\[)"
        ),
    ),
    (
        re.compile(r"(?<=-connect HOST:)PORT\b|(?<=nc -[vz]{2} HOST )PORT\b"),
        re.compile(r"(?:\bport[= ]{1,2}|://[\w.-]+:|\b(?:\d{1,3}\.){3}\d{1,3}:)(?P<value>\d{2,5})\b"),
    ),
    (
        re.compile(
            r"(?<=ssh )HOST\b|(?<=ssh -v )HOST\b|(?<=ssh-keyscan )HOST\b|(?<= on )HOST(?=[:,;])|(?<=is )HOST(?= up)|"
            r"(?<=-R )HOST\b|(?<=-connect )HOST(?=:)|(?<=ping -c 2 )HOST\b|(?<=nc -[vz]{2} )HOST\b|"
            r"(?<=no_proxy=)HOST\b|(?<=127\.0\.0\.1,)HOST\b|(?<=getent hosts )HOST\b"
        ),
        re.compile(
            r"(?:\bhost[= ]['\"]?|://(?:[\w.-]+@)?|\bresolve (?:host(?:name)?:? )?|\bdial tcp |"
            r"\b(?:by|from) (?=\S+ port \d))"
            r"(?P<value>[A-Za-z\d][\w-]*(?:\.[\w-]+)*)(?=['\"/:,\s]|$)"
        ),
    ),
    (re.compile(r"(?<=--pid )PID\b|(?<=-p )PID\b"), re.compile(r"\bpid[ =:]{1,2}(?P<value>\d{2,7})\b", re.IGNORECASE)),
)
"""Placeholders of commands, each with a pattern of its value in logs: a Slurm job, a node, the other side of a
connection (its port before its host), a process."""
_OF_MESSAGE = tuple(place for place, _ in _NAMED[2:])
"""Placeholders whose value only the message itself can provide."""


def without_placeholders(remedies: Iterable[str], event: Event, texts: Sequence[str]) -> tuple[str, ...]:
    """Replace the placeholders in the remedies, as far as the log contains their values.

    Args:
        texts: beginning and end of each log.
    """
    given = tuple(_with_named(_with_paths(remedy, event), event, texts) for remedy in remedies)
    if not any(map(_PLACE.search, given)):
        return given
    if built := _package_built(event, texts):
        return tuple(_OF_PIP.sub(lambda command: _PLACE.sub(built, command[0]), remedy) for remedy in given)
    if module := _module_of(event):
        return tuple(named_for_pip(_PLACE.sub(module, remedy)) for remedy in given)
    return tuple(_ASIDE.sub("", remedy) for remedy in given)


def _with_named(remedy: str, event: Event, texts: Sequence[str]) -> str:
    """Insert the only job, node, host, port and process of the message, or else of the log."""
    for place, value in _NAMED:
        if place.search(remedy) is None:
            continue
        values = {match["value"] for match in value.finditer(event.text)}
        if not values and place not in _OF_MESSAGE:
            # A log names processes and hosts of many kinds; only job and node are searched in it.
            values = {match["value"] for text in texts for match in value.finditer(text)}
        if len(values) == 1:
            remedy = place.sub(values.pop(), remedy)
    return remedy


def _with_paths(remedy: str, event: Event) -> str:
    """Insert the path of the message, if it quotes only one."""
    if _LOOKED_AT.search(remedy) is not None and len(paths := set(_QUOTED.findall(event.text))) == 1:
        path = paths.pop()
        remedy = _LOOKED_AT.sub(lambda command: f"{command[1]}{path}", remedy)
    if _YAML.search(remedy) is not None and (named := _OF_YAML.search(event.text)) is not None:
        remedy = _YAML.sub(lambda _: named["file"], remedy)
    return remedy


def _package_built(event: Event, texts: Sequence[str]) -> str:
    """The only package whose build failed; if none is reported, the last one that pip began to build."""
    if event.entry.family not in _BUILDS and "build" not in event.entry.id:
        return ""
    failed = {match["name"] for text in texts for match in _FAILED.finditer(text)}
    if len(failed) == 1:
        return failed.pop()
    tried = [match["name"] for text in texts for match in _TRIED.finditer(text)]
    return tried[-1] if tried and not failed else ""


def _module_of(event: Event) -> str:
    extension = _EXTENSION.search(event.text) if _OF_LOADER.search(event.text) else None
    if extension is not None:
        return extension["package"] or extension["file"]
    return event.trace.importer_of(_TORCH) if event.trace is not None and event.trace.frames else ""
