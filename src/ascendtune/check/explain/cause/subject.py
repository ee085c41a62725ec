"""What to look at where nothing but a message is known: the path, limit, peer or file that it is about."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from ascendtune.check.explain.event.event import Event
from ascendtune.check.explain.event.unmatched import advice_of, explains_itself, without_logger
from ascendtune.check.explain.language import say

_PATH = re.compile(r"(?<![\w/.:#*<>$}-])(?P<path>/[\w.@+-]+(?:/[\w.@+%=-]+)+)(?![\w/]*[#*<{$])")
_SOURCES = (".c", ".cc", ".cpp", ".cu", ".cuh", ".go", ".h", ".hpp", ".py", ".rs", ".ts")
"""Ends of paths that say where a message was made, not what it is about."""
_DEVICES, _OF_KERNEL = "/dev/", ("/proc/", "/sys/")
_ABSENT = re.compile(r"no such file or directory|does not exist|\bENOENT\b|\bnot found\b", re.IGNORECASE)
_MAKES = re.compile(r"\bmkdir|\bcreat(?:e|ing)\b|\bbind\b|\btouch\b|\bmake director|\bwrit(?:e|ing)\b", re.IGNORECASE)
_NOT_LOADED = re.compile(
    r"\b(?:could not|couldn't|cannot|can't|can not|failed to|unable to|error|failure|failed) "
    r"(?:load|open|read|stat|map|mmap|parse|access|import|loading|opening|reading|parsing|accessing)\b",
    re.IGNORECASE,
)
_LIMIT = re.compile(
    r"too many open files|\bEMFILE\b|\bENFILE\b|\bRLIMIT_\w+|\bulimit\b|resource temporarily unavailable|"
    r"locked memory|\bmemlock\b|file descriptor limit",
    re.IGNORECASE,
)
_NO_ANSWER = re.compile(
    r"connection (?:refused|timed out|reset)|"
    r"\bconnect(?:ing|ion)?\b.{0,80}(?:fail|tim(?:ed|e) ?out|unreachable|refused)|"
    r"(?:fail|unable|cannot|could not|couldn't).{0,24}\bconnect\b|no route to host|network is unreachable|i/o timeout",
    re.IGNORECASE,
)
_PEER = re.compile(
    r"(?<![\w./@])(?:\w+://)?(?P<host>\d{1,3}(?:\.\d{1,3}){3}|[A-Za-z][\w-]*(?:\.[\w-]+)+|localhost):(?P<port>\d{2,5})\b"
)
_CONFIGURATION = re.compile(
    r"(?<![\w/])(?P<file>[\w./~-]*\w\.(?:conf|cfg|ini|ya?ml|toml|json|env|properties|xml))(?![\w.]|:\d+\])"
)
_CRASH = re.compile(
    r"\bpanic(?:ked)?\b|\bsegfault|segmentation fault|\bcore dumped|\binternal (?:compiler )?error\b|"
    r"assert(?:ion)?\b.{0,160}\bfailed|\bassertion failed|runtime error: (?:index|invalid memory|slice)|"
    r"nil pointer dereference|\bcheck failed: |\bunreachable code|\bstack smashing|double free|heap corruption",
    re.IGNORECASE,
)
"""What a program says of itself: it crashed, or a check in its own code did not hold."""
_LIBRARY = re.compile(r"\.so(?:\.\d+)*$")
_LEAST_REASON = 2
"""Words behind a path from which on they say why it could not be read."""

_MAKE_PARENT = (
    "`ls -ld {parent} {above}`: {parent} is not there: make it, with the rights of the user that the program runs as "
    "(below /run it is gone after each start of the host: tmpfiles.d), or name another directory where it is configured"
)
_FIND = (
    "`ls -l {path}; ls -ld {parent}` where the program runs (inside the container): not there: correct the path where "
    "it is configured, or run the step that makes the file; there: a link or a mount that leads nowhere"
)
_LOAD = (
    "`ls -l {path}; ulimit -n; id`: it is there and readable: the limit of open files (1024 is little for many "
    "workers): ulimit -n 131072 in the same shell (a service: LimitNOFILE=), or a damaged file: install it again; not "
    "there: this installation or build lacks it"
)
_DEVICE = (
    "`ls -l {path}` where the program runs: not there: its driver is not loaded, or the container was started without "
    "it; there: look inside the container"
)
_RAISE_LIMIT = (
    "`ulimit -a` in the shell that starts the program: raise the limit that the message names there (a container: "
    "docker run --ulimit; a service: LimitNOFILE=, LimitNPROC= or LimitMEMLOCK=)"
)
_REACH = (
    "from this host `nc -zv {host} {port}; getent hosts {host}`: refused: nothing listens there: is that program "
    "running, and with this port? no answer: a firewall or another network; no address: DNS or the name"
)
_LOAD_LIBRARY = (
    "`ls -l {path}; ldd {path} | grep 'not found'`: a library is named: install it, or its directory into "
    "LD_LIBRARY_PATH; nothing: the rights of the file, or a build for another system (`file {path}`); no such file: "
    "the package that brings it is not whole: install it again"
)
_READ_AGAIN = (
    "`ls -l {path}; df -h {parent}`: empty, or smaller than at its source: fetch or make it again; whole: of another "
    "format or release than the program reads"
)
_CORRECT_IT = "the message names what is wrong: correct it where your code, data or configuration sets it"
_CORRECT = (
    "`grep -n WORD {file}` with a word of the message: correct that line, and start again the program that reads the "
    "file"
)
_REPORT = (
    "the program that prints this failed in its own code: search its issues for these words; then another release of it"
)


def advice_on_message(event: Event) -> tuple[str, ...]:
    """What a message that no entry knows advises itself; else the command that tells more about what it names, and
    what to do then; nothing if it names nothing of these."""
    if advised := own_advice(event):
        return advised
    message = without_logger(event.message)
    advice = _on_path(message) or _on_others(message, is_line=event.trace is None)
    return (advice,) if advice else ()


def own_advice(event: Event) -> tuple[str, ...]:
    """What a message itself advises, as a remedy; nothing if it advises nothing."""
    words = advice_of(event)
    return (say("the message itself advises: {words}", words=words),) if words else ()


def last_resort(event: Event | None) -> tuple[str, ...]:
    """What is left to say of a message that names nothing of these."""
    names_it = event is not None and explains_itself(event)
    return (say(_CORRECT_IT if names_it else "read the lines shown"),)


def _on_path(message: str) -> str:
    named = next((each for each in _PATH.finditer(message) if not each["path"].endswith(_SOURCES)), None)
    path = named["path"].rstrip(".") if named is not None else ""
    if named is None or path.startswith(_OF_KERNEL):
        return ""
    place = PurePosixPath(path)
    where = {"path": path, "parent": str(place.parent), "above": str(place.parent.parent)}
    if path.startswith(_DEVICES):
        return say(_DEVICE, **where) if _ABSENT.search(message) else ""
    if _ABSENT.search(message):
        return say(_MAKE_PARENT if _MAKES.search(message) else _FIND, **where)
    if not _NOT_LOADED.search(message):
        return ""
    if _LIBRARY.search(path):
        return say(_LOAD_LIBRARY, **where)
    has_reason = len(message[named.end() :].split()) >= _LEAST_REASON
    return say(_READ_AGAIN if has_reason else _LOAD, **where)


def _on_others(message: str, *, is_line: bool) -> str:
    if _LIMIT.search(message):
        return say(_RAISE_LIMIT)
    peer = _PEER.search(message)
    if peer is not None and _NO_ANSWER.search(message):
        return say(_REACH, host=peer["host"], port=peer["port"])
    if is_line and _CRASH.search(message):
        return say(_REPORT)
    if configured := _CONFIGURATION.search(message):
        return say(_CORRECT, file=configured["file"])
    return ""
