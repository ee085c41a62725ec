"""Remedies for a message that no entry matches, from the path, limit, peer or file in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from ascendtune.check.explain.answer.set_in_log import place_of_setting
from ascendtune.check.explain.event.event import Event, without_stamp
from ascendtune.check.explain.event.message_rule import turned_round
from ascendtune.check.explain.event.plain_message import program_and_message
from ascendtune.check.explain.event.scan import Scan, texts_of
from ascendtune.check.explain.event.unmatched import explains_itself
from ascendtune.check.explain.facts.facts import Facts, versions
from ascendtune.check.explain.language import say
from ascendtune.check.explain.package.distributions import named_for_pip
from ascendtune.check.explain.package.origin import advice_on_frames, advises_search
from ascendtune.check.explain.traceback.advice import IN_MESSAGE

_PATH = re.compile(r"(?<![\w/.:#*<>$}-])(?P<path>/[\w.@+-]+(?:/[\w.@+%=-]+)+)(?![\w/]*[#*<{$])")
_SOURCES = (".c", ".cc", ".cpp", ".cu", ".cuh", ".go", ".h", ".hpp", ".py", ".rs", ".ts")
"""Ends of paths that are the place in a source, not the subject of the message."""
_DEVICES, _OF_KERNEL = "/dev/", ("/proc/", "/sys/")
_ABSENT = re.compile(r"no such file or directory|does not exist|\bENOENT\b|\bnot found\b", re.IGNORECASE)
_IN_MEMORY = "/dev/shm"
_NO_SPACE = re.compile(r"no space left|disk quota exceeded|\bENOSPC\b|\bEDQUOT\b", re.IGNORECASE)
_DENIED = re.compile(r"permission denied|\bEACCES\b", re.IGNORECASE)
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
    r"(?<![\w./@])(?:\w+://)?(?P<host>\d{1,3}(?:\.\d{1,3}){3}|[A-Za-z][\w-]*(?:\.[\w-]+)+|"
    r"localhost):(?P<port>\d{2,5})\b"
)
_CONFIGURATION = re.compile(
    r"(?<![\w/:])(?P<file>[\w./~-]*\w\.(?:conf|cfg|ini|ya?ml|toml|json|env|properties|xml))(?![\w.]|:\d+\])"
)
_CRASH = re.compile(
    r"\bpanic(?:ked)?\b|\bsegfault|segmentation fault|\bcore dumped|\binternal (?:compiler )?error\b|"
    r"assert(?:ion)?\b.{0,160}\bfailed|\bassertion failed|runtime error: (?:index|invalid memory|slice)|"
    r"nil pointer dereference|\bcheck failed: |\bunreachable code|\bstack smashing|double free|heap corruption",
    re.IGNORECASE,
)
"""Words of a program that crashed, or whose own check failed."""
_LIBRARY = re.compile(r"\.so(?:\.\d+)*$")
_LEAST_REASON = 2
"""Fewest words after a path that explain why it could not be read."""

_OF_VALUE = "value-refused"
"""Entry for any ValueError with a rule in its message."""
_OF_RANKS = frozenset(("world_size", "nproc", "nnodes", "joined"))
_CUDA = re.compile(r"cuda|nccl|cudnn|cublas|\bgpu\b|torch", re.IGNORECASE)
_UNIT = re.compile(r"(?<![\w./@-])(?P<unit>[A-Za-z][\w@:.-]*\.service)(?!\w)")
_OF_UNIT = re.compile(r"\bunit \S+ (?P<unit>[A-Za-z][\w.@-]+)\[\d+\]")
_NO_UNITS = ("systemd", "kernel", "sudo", "python", "python3", "bash", "audit")
_POD = re.compile(r"\b(?:pod/[\w.-]+/|[Pp]od[ =:]+\"?(?:[a-z0-9-]+/)?)(?P<pod>[a-z0-9](?:[a-z0-9]*-)+[a-z0-9]+)\b")
_OF_THIS_RUN = re.compile(
    r"(?<!\w)'[^'\n]*'(?!\w)|\"[^\"\n]*\"|`[^`\n]*`|\[[^\]]*\]|\{[^}]*\}|\([^)]*\)|<[^>\n]*>|\S*[/\\=]\S*|"
    r"\S*\d\S*|[.;!?:](?=\s|$)"
)
"""Parts of a message that differ in another run (values, places), and ends of sentences."""
_OF_SYSTEM = re.compile(
    r"\[(?:Errno|WinError) \d+\]|\b(?:[Nn]o such file or directory|[Pp]ermission denied|[Nn]o space left|"
    r"[Oo]ut of memory|"
    r"[Aa]ddress already in use|[Cc]onnection (?:refused|reset|timed out)|"
    r"exit status)\b"
)
"""Error texts of the system, which any program may print."""
_LONGEST_WORDS = 80
_SEARCHED = 400
_MOST_WORDS = 9
_LEAST_WORDS = 4

_OF_DEVICE = re.compile(
    r"\bCUDA|\bcu(?:da|dnn|blas)|device-side|\bNPU\b|\bnpu:|\bacl|hccl|\bNCCL|\bE[A-Z1-9]\d{4}\b|ERR\d{5}|"
    r"\bAI ?[Cc]ore|[Kk]ernel|tiling",
    re.ASCII,
)
"""Words of device failures; for others a second run with synchronous launches is useless."""
_OF_BUILD = re.compile(
    r"^CMake (?:Error|Warning)\b|-- Configuring incomplete|"
    r"^(?:ninja|g?make(?:\[\d+\])?|collect2|ld(?:\.\w+)?|cc1plus|configure): |"
    r"\.(?:c|cc|cpp|cxx|cu|h|hpp|asc)(?::\d+){1,2}:? (?:fatal )?error: |undefined reference to |"
    r"\b(?:No module named|Failed to build|Failed building wheel|subprocess-exited-with-error)\b|"
    r"No matching distribution|^error: command '|Compilation Failed!|ERROR: Cannot install "
)
"""Lines of configuring, compiling, linking and installing."""
_OF_CODE = (
    *("AssertionError", "AttributeError", "FileNotFoundError", "ImportError", "IndexError", "KeyError", "LookupError"),
    *("ModuleNotFoundError", "NameError", "OSError", "PermissionError", "TypeError", "UnboundLocalError", "ValueError"),
)
"""Exceptions that are not used for device failures."""
_LONGEST_ADVICE = 200
_SENTENCE = re.compile(r".+?(?:[.!?](?=\s|$)|$)\s*")

_SEARCH_PACKAGE = (
    '{package}{version} raises it: search its issues for "{words}"; `pip show {package}` (a clone: `git log -1`) shows '
    "the release: a newer one may accept it"
)
_SEARCH_PROGRAM = 'search the issues of {program} for "{words}", the message without the values of this run'
_SEARCH = 'search for "{words}", the message without the values of this run'
_UNIT_STATUS = (
    "`systemctl status {unit}; journalctl -u {unit} -n 50 --no-pager`: the first error there says why it ended"
)
_POD_STATE = "`kubectl describe pod {pod}; kubectl logs {pod} --previous`: the events at the end, and its last lines"
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
_FREE = (
    "`df -h {parent}; df -i {parent}; quota -s`: full, or out of inodes or quota: remove what is not "
    "needed there, or name "
    "a directory with room where this one is configured (/dev/shm in a container: docker run "
    "--shm-size=16g, --ipc=host)"
)
_ALLOW = (
    "`id; namei -l {path}` as the user and in the container of the program: the first line there that this "
    "user may not "
    "enter or write: change its owner or rights, or name a directory of this user where this one is configured"
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


def remedies_of_unmatched(
    event: Event, scans: Sequence[Scan], facts: Facts, of_device: tuple[str, ...]
) -> tuple[str, ...]:
    """Remedies for a failure without an entry, or with an entry for a whole class of messages.

    Args:
        of_device: remedies for failures that may come from the device.
    """
    is_of_value = event.entry.id == _OF_VALUE
    own = own_advice(event)
    advice = advice_on_message(event, scans) if is_of_value or not event.remedies else own
    # The rule, or the line that sets the value, replaces the general remedy on its origin.
    of_class = () if is_of_value and len(advice) > len(own) else event.remedies
    on_frames = advice_on_frames(event.trace) if event.trace is not None else ()
    return (*advice, *of_class, *on_frames, *of_device, *search_for(event, facts))


def is_of_ranks(event: Event | None, rank: int | None, facts: Facts) -> bool:
    """Whether the logs show a Python program or a job of several processes."""
    is_python = event is not None and event.trace is not None
    return is_python or rank is not None or not _OF_RANKS.isdisjoint(facts)


def may_be_of_device(first: Event | None, scans: Sequence[Scan], facts: Facts) -> bool:
    """Whether a failure without an entry may come from the device: its words show it, or explain nothing. Imports and
    builds do not use the device."""
    is_of_start = first is not None and first.trace is not None and first.trace.is_of_start
    if first is None or is_of_start or "failed_build" in facts or _OF_BUILD.search(first.text):
        return False
    is_of_code = first.trace is not None and first.trace.type.rpartition(".")[2] in _OF_CODE
    if (is_of_code or explains_itself(first)) and _OF_DEVICE.search(first.text) is None:
        return False
    # The line of a program that does not use a device is not a device failure.
    return first.trace is not None or names_ascend(scans) or any(map(_CUDA.search, texts_of(scans)))


def names_ascend(scans: Sequence[Scan]) -> bool:
    """Whether the logs name Ascend."""
    return any(scan.speaks_of_ascend for scan in scans)


def advice_on_message(event: Event, scans: Sequence[Scan]) -> tuple[str, ...]:
    """Remedies from a message without an entry, the most direct first: its own advice; the line of the log that sets
    its value; advice from its rule; a command with more information about its subject. Empty if there is none."""
    message = event.trace.message if event.trace is not None else program_and_message(event.text)[1]
    setting = place_of_setting(event, scans, message) if message else ""
    rule = turned_round(message)
    advice = _on_path(message) or _on_others(message, is_line=event.trace is None) or ("" if rule else _on_unit(event))
    advised = own_advice(event)
    return (*advised, *filter(None, (setting, rule, "" if advised and (setting or rule) else advice)))


def search_for(event: Event, facts: Facts) -> tuple[str, ...]:
    """Remedy: a search for the message in the issues of the package or program that prints it."""
    trace = event.trace
    if trace is not None and (not trace.type or not trace.message or advises_search(trace)):
        return ()
    program, message = ("", trace.message) if trace is not None else program_and_message(event.text)
    if _OF_SYSTEM.search(message) or (trace is None and not explains_itself(event)):
        return ()
    words = _words_to_search(message)
    package = trace.package_that_failed if trace is not None else ""
    if package and trace is not None:
        release = versions(facts, package)
        named = say(" (by the log {version})", version=release[0]) if len(release) == 1 else ""
        whole = f"{trace.type.rpartition('.')[2]}: {message}".replace('"', "'")
        words = words or (whole if len(whole) <= _LONGEST_WORDS else "")
        if not words:
            return ()
        return (named_for_pip(say(_SEARCH_PACKAGE, package=package, version=named, words=words)),)
    if not words or (trace is not None and trace.frames):
        # Messages of the user's own code are not found elsewhere.
        return ()
    return (say(_SEARCH_PROGRAM, program=program, words=words) if program else say(_SEARCH, words=words),)


def own_advice(event: Event) -> tuple[str, ...]:
    """Advice in the message itself, as a remedy; empty if there is none."""
    words = _advice_of(event)
    return (say("the message itself advises: {words}", words=words),) if words else ()


def _advice_of(event: Event) -> str:
    """Advice in the message itself, cut after a whole sentence; empty if there is none."""
    match = IN_MESSAGE.search(without_stamp(event.message))
    words = match[0] if match is not None else event.trace.advice if event.trace is not None else ""
    shown = ""
    for sentence in _SENTENCE.findall(words):
        if len(shown) + len(sentence) > _LONGEST_ADVICE:
            break
        shown += sentence
    return shown.strip()


def last_resort(event: Event | None) -> tuple[str, ...]:
    """Remedy for a message without any of these."""
    names_it = event is not None and explains_itself(event)
    return (say(_CORRECT_IT if names_it else "read the lines shown"),)


def _on_unit(event: Event) -> str:
    """Command with more information about the service or pod of a line."""
    unit = _UNIT.search(event.text) or _OF_UNIT.search(event.speaker)
    if unit is not None and unit["unit"] not in _NO_UNITS:
        return say(_UNIT_STATUS, unit=unit["unit"])
    pod = _POD.search(event.speaker) or _POD.search(event.text)
    return say(_POD_STATE, pod=pod["pod"]) if pod is not None else ""


def _words_to_search(message: str) -> str:
    """First consecutive words of a message without values of this run; empty if they are too few."""
    text = " ".join(message.split())[:_SEARCHED]
    runs = [" ".join(run.split()[:_MOST_WORDS]).strip(" .,;:!?-()") for run in _OF_THIS_RUN.split(text)]
    return next((run for run in runs if len(run.split()) >= _LEAST_WORDS), "")


def _on_path(message: str) -> str:
    named = next((each for each in _PATH.finditer(message) if not each["path"].endswith(_SOURCES)), None)
    path = named["path"].rstrip(".") if named is not None else ""
    if named is None or path.startswith(_OF_KERNEL):
        return ""
    place = PurePosixPath(path)
    where = {"path": path, "parent": str(place.parent), "above": str(place.parent.parent)}
    if path.startswith(_DEVICES) and not path.startswith(_IN_MEMORY):
        return say(_DEVICE, **where) if _ABSENT.search(message) else ""
    if _NO_SPACE.search(message):
        return say(_FREE, **where)
    if _DENIED.search(message):
        return say(_ALLOW, **where)
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
