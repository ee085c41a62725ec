"""The headline: one sentence with the failure, the facts of its message, and the rank."""

from __future__ import annotations

import re

from ascendtune.check.explain.answer import misfits
from ascendtune.check.explain.answer.container_claims import without_container_claims
from ascendtune.check.explain.answer.misfits import misfit_of
from ascendtune.check.explain.answer.remedies_by_owner import place_in_library
from ascendtune.check.explain.cause.diagnosis import Diagnosis
from ascendtune.check.explain.event.event import Event, without_stamp
from ascendtune.check.explain.event.message_rule import turned_round
from ascendtune.check.explain.event.plain_message import message_of, reasons_in
from ascendtune.check.explain.event.unmatched import EXCEPTION
from ascendtune.check.explain.facts import facts as facts_of
from ascendtune.check.explain.facts.facts import ENDED, Facts
from ascendtune.check.explain.facts.memory import sums_in
from ascendtune.check.explain.facts.shapes import mismatch_in
from ascendtune.check.explain.facts.state_dict import names_in
from ascendtune.check.explain.knowledge.entries import IMPORTER, OWNER
from ascendtune.check.explain.knowledge.matcher import filled
from ascendtune.check.explain.knowledge.matcher import names_in as captured_in
from ascendtune.check.explain.language import say
from ascendtune.check.explain.traceback import cann_reason

_FIELDS_OF_TORCHRUN = "failed (exitcode: "
"""torchrun's line with the end of a process in fields; the headline has its rank and host."""
_STATE_DICT = "state-dict"
_OF_CANN = ("ascend-codes", "aclnn-codes", "acl-codes", "ascend-runtime", "ascend-report", "ascend-hccl")
_GENERAL_ANCHORS = 3
"""Number of anchors from which on an entry is general: the headline quotes the message."""
_LONGEST_MESSAGE = 300
_LEAST_WORDS = 3
_LONGEST_SENTENCE = 120
_LEAST_NEW_WORDS = 2
"""Words of a message that its entry lacks, from which on the headline quotes the message."""
_WORD = re.compile(r"[a-z_]{3,}|\d+")
_IS_RECORD = re.compile(r"\{\"|\w+=\S+ \w+=")
_IN_FIELD = re.compile(r"\"(?:(?:\w+\.)*[A-Z]\w*(?:Error|Exception): )(?P<message>[^\"\\]{10,})\"")
"""The error in one field of a log line that consists of fields: JSON, or NAME=VALUE."""
_SENTENCE_END = re.compile(r"(?<!\.)[.!?;](?=\s+[A-Z])|(?<=[a-z]{3})\.(?=[A-Z][a-z]+ [A-Z])")
_OTHER_TEXT = re.compile(
    r"(?<=[\w)\]'\"])\s*(?=[^\x00-\x7f]{2})|\s+(?=[{\[][^]}]{60}|\S{40}|[\w.]*(?:Error|Exception): )"
)
_CLAUSE_END = re.compile(r"[,;](?=\s)")
_VALUES = re.compile(r"(?:Expected|Got|Found|Actual|Current|Requested|But got)\b.*\d")
"""A second sentence with the values for the first one."""
_BROKEN_OFF = re.compile(r",? +(?:and|as|because|but|by|for|in|of|or|since|that|the|to|which|with)$")
_OF_ERRNO = re.compile(
    r"(?:\[Errno \d+\] )?(?:no such (?:file or directory|device(?: or address)?)|permission denied|invalid argument|"
    r"operation not (?:permitted|supported)|input/output error|file exists|not a directory|is a directory|"
    r"device or resource busy|read-only file system|connection (?:refused|reset by peer|timed out)|bad address|"
    r"i/o timeout|unknown error \d+|exec format error|executable file not found in \S+)",
    re.IGNORECASE,
)
"""Error texts of the system, which need the reason before them."""
_TIME = re.compile(r"^\W*\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d\S* (?=\S)")
_VALUE = re.compile(
    r"(?<![\w\[])(?<!, )'([^'\s<>]{2,60})'(?!\w)|(?<![\w\[])(?<!, )\"([^\"\s<>]{2,60})\"(?!\w)|`([^`\s<>]{2,60})`|"
    r"(?<![\w/.:'\"`])((?:~|\.{0,2})/(?!usr/|opt/|lib)[\w+-][\w.+-]*(?:/[\w.+-]*[\w+-])+)(?![\w(:.'\"`]|/)|"
    r"\b(\d+(?:\.\d+)? ?(?:[GMKT]i?B|bytes|tokens))\b"
)
"""A quoted name, a path, or a size."""
_OF_CODE = re.compile(
    r"::|@|[()]|[-/]packages/|\.(?:py|pyx|so|cpp|cc|cu|h|cmake)\b|^\w+_only$|^\W|^(?:True|False|None)$"
)
"""A value that is code, or a file of code."""
_MOST_VALUES = 3
_DOUBTS_RELEASE = re.compile(
    r"\b(?:too (?:old|new)|older|newer|(?:an)?other (?:version|release)|(?:do|does) not (?:fit|have|know|take)|"
    r"(?:built|made|written) for|the installed|this (?:release of )?CANN|since|has no)\b"
)
_HAS_RELEASE = re.compile(
    r"(?<![\w.-])(?:CANN|torch_npu|torch|transformers|accelerate|peft|trl|deepspeed|datasets|tokenizers|vllm|numpy|"
    r"triton|bitsandbytes|driver)(?![\w.-]|\.\w| \d)",
    re.IGNORECASE,
)
"""A program or package whose release a sentence may doubt."""
_REFUSED_BY = "{package} refuses what it was given ({type}): {message}"
_FAILED_IN = "{package} failed with {type}: {message}"


def headline_of(first: Event, diagnosis: Diagnosis, facts: Facts) -> str:
    """Headline for a first cause: the failure and its rank."""
    if diagnosis.missing is not None:
        return diagnosis.missing.what
    sentence = _told(first)
    what = without_container_claims(meaning_of(first), first.entry, facts)
    what += f": {sentence}" if sentence else ""
    what += "" if sentence else _values(first)
    return what + place_in_library(first) + _versions(first, facts) + culprit_of(diagnosis)


def _told(first: Event) -> str:
    """Facts of the message for the headline."""
    if (sums := sums_in(first.text)) is not None:
        return sums.headline()
    if (mismatch := mismatch_in(first.text)) is not None and "{" not in first.entry.what:
        return mismatch.headline()
    entry = first.entry
    if first.reason and _yields_to_reason(first):
        return first.reason
    if entry.id == _STATE_DICT and (names := names_in(first.text)) is not None:
        return names.headline()
    if not first.is_known or entry.kind == "consequence" or _FIELDS_OF_TORCHRUN in first.text:
        return ""
    if "{" in entry.what:
        is_filled = any(name in first.hit.names for name in captured_in(entry.what))
        return "" if is_filled else _own_sentence(first)
    if entry.specific:
        return _own_sentence(first) if _says_more(first) else ""
    if entry.general:
        reason = _innermost_reason(first)
        if not reason and is_of_cann(first):
            reason = cann_reason.reason_in([first.text])
        if not _says_more(first):
            reason = _direct_cause(first) or reason
        return "" if reason in first.meaning else reason
    says_more = len(entry.anchors) >= _GENERAL_ANCHORS or _says_more(first)
    quoted = _own_sentence(first) if says_more else ""
    return quoted or facts_of.told(facts_of.of_message(facts_of.statement(first.message)), first.meaning)


def _values(first: Event) -> str:
    """Values of the message of a known cause, in brackets, if its sentence names none: what its entry's example has is
    part of the words of the message."""
    entry = first.entry
    if not first.is_known or entry.kind != "cause" or any(name in first.hit.names for name in captured_in(entry.what)):
        return ""
    message = first.trace.message if first.trace is not None else message_of(first)
    sentence = _SENTENCE_END.split(message[:_LONGEST_MESSAGE], maxsplit=1)[0]
    named = (next(filter(None, match.groups())) for match in _VALUE.finditer(sentence))
    known = f"{entry.test} {first.meaning}".lower()
    values = list(dict.fromkeys(value for value in named if value.lower() not in known and not _OF_CODE.search(value)))
    return say(" ({values})", values=", ".join(values)) if 0 < len(values) <= _MOST_VALUES else ""


def _versions(first: Event, facts: Facts) -> str:
    """Versions of the packages of a failed import or call, and of those whose release the sentence doubts, if the log
    contains one of each."""
    if (misfit := misfit_of(first, facts)) is not None:
        return misfits.told(misfit)
    named: list[str] = []
    if {"module", "package", OWNER} & first.hit.names.keys():
        named = [first.hit.names.get(name, "").partition(".")[0] for name in ("module", "package", OWNER, IMPORTER)]
    if _DOUBTS_RELEASE.search(first.entry.what):
        named += _HAS_RELEASE.findall(filled(first.entry.what, first.hit.names))
    known = {package: facts_of.versions(facts, package) for package in named if package}
    shown = [
        f"{package} {values[0]}"
        for package, values in known.items()
        if len(values) == 1 and values[0] not in first.meaning
    ]
    return say(" (by the log: {versions})", versions=", ".join(shown)) if shown else ""


def culprit_of(diagnosis: Diagnosis) -> str:
    """Rank, device and host that failed first, in brackets; empty if unknown."""
    rank, host, first = diagnosis.rank, diagnosis.host, diagnosis.first
    parts = [say("rank {rank}", rank=rank)] if rank is not None else []
    if first is not None and first.device is not None:
        is_told = "{device}" in first.entry.what and first.hit.names.get("device") == str(first.device)
        parts += [] if is_told else [say("device {device}", device=first.device)]
    if host and not (first is not None and "{host}" in first.entry.what):
        parts.append(say("host {host}", host=host))
    return f" ({', '.join(parts)})" if parts else ""


def is_of_cann(event: Event) -> bool:
    """Whether the event is a report of CANN or HCCL."""
    return event.entry.family in _OF_CANN


def _yields_to_reason(first: Event) -> bool:
    """Whether the entry of a CANN call contains only its number or its class."""
    return first.entry.kind in ("wrapper", "unknown") or (first.entry.general and is_of_cann(first))


def meaning_of(event: Event) -> str:
    """Sentence of an event; for an exception without an entry, with the package that raised it."""
    trace = event.trace
    if trace is None or event.is_known or event.entry.what != EXCEPTION.what or not trace.message:
        return event.meaning
    package = trace.package_that_failed or trace.package
    if not package:
        return event.meaning
    names = {"package": package, "type": trace.type.rpartition(".")[2], "message": event.hit.names.get("message", "")}
    return say(_REFUSED_BY if turned_round(trace.message) else _FAILED_IN, **names)


def _own_sentence(event: Event) -> str:
    """First sentence of a message, for a headline; empty if it is long or continues on another line."""
    if event.trace is not None and not event.trace.type:
        return ""
    message = message_of(event)
    if (quoted := _IN_FIELD.search(message)) is not None and _IS_RECORD.match(message):
        message = quoted["message"]
    message = ENDED.sub("", _TIME.sub("", without_stamp(message), count=1), count=1)
    sentence, *rest = _SENTENCE_END.split(message.strip(), maxsplit=2)
    sentence = sentence.rstrip(".!")
    if rest and _VALUES.match(rest[0].strip()) and len(sentence) + len(rest[0]) < _LONGEST_SENTENCE:
        # The values of many messages are in their second sentence.
        sentence = f"{sentence}: {rest[0].strip().rstrip('.!')}"
    # A line that was broken within a sentence is quoted up to its last whole clause.
    sentence = _BROKEN_OFF.sub("", sentence)
    if len(sentence) > _LONGEST_MESSAGE:
        sentence = _beginning(sentence)
    is_short = len(sentence) <= _LONGEST_SENTENCE and not sentence.endswith((":", ",", "(")) and sentence[:1] != "{"
    return sentence if is_short and len(sentence.split()) > 1 else ""


def _beginning(sentence: str) -> str:
    """Beginning of a very long sentence, up to text of another kind (language, data, message) or to the last clause
    that fits; empty if neither is found."""
    other = _OTHER_TEXT.search(sentence)
    ends = [match.start() for match in _CLAUSE_END.finditer(sentence[: _LONGEST_SENTENCE + 1])]
    ends = [other.start()] if other and other.start() <= _LONGEST_SENTENCE else ends
    words = sentence[: ends[-1]].rstrip(" ,;:-") if ends else ""
    return words if len(words.split()) >= _LEAST_WORDS else ""


def _says_more(event: Event) -> bool:
    """Whether a message has words that are neither in the entry's example nor in its meaning."""
    entry = event.entry
    example = " ".join((entry.test, *(part for anchor in entry.anchors for part in anchor)))
    return len(_words(_own_sentence(event)) - _words(f"{event.meaning} {example}")) >= _LEAST_NEW_WORDS


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))


def _innermost_reason(event: Event) -> str:
    """Last of the reasons "X: Y: Z" of a message, else its first sentence if it is short."""
    parts = reasons_in(_TIME.sub("", without_stamp(message_of(event)), count=1))
    reasons = [part.strip(" .,!") for part in parts if len(part.split()) > 1]
    reason = re.split(r"\\+[n\"]|\\+$", reasons[-1])[0].strip(" .,!") if reasons else ""
    if len(reasons) > 1 and _OF_ERRNO.fullmatch(reason):
        reason = f"{reasons[-2]}: {reason}"
    return reason if reason and len(reason) <= _LONGEST_SENTENCE else _own_sentence(event)


def _direct_cause(event: Event) -> str:
    """First exception of the chain that led to this one, as "TYPE: MESSAGE"; empty if its message is too short."""
    first = event.trace.parents[-1] if event.trace is not None and event.trace.parents else None
    return first.text[:_LONGEST_MESSAGE] if first is not None and len(first.message.split()) >= _LEAST_WORDS else ""
