"""An explanation as text: failure, certainty, place, causes, remedies, and source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from ascendtune.check.explain.answer.applicable_remedies import causes_here
from ascendtune.check.explain.answer.headline import meaning_of
from ascendtune.check.explain.event.event import Event
from ascendtune.check.explain.event.scan import Scan
from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.language import say
from ascendtune.check.explain.log import level
from ascendtune.check.explain.log.frame import is_of_build, posix
from ascendtune.check.explain.package.origin import FAULTS_OF_CODE
from ascendtune.check.explain.rank.missing_report import LastLine
from ascendtune.check.explain.traceback.trace import Trace
from ascendtune.check.recorded_cause import cause_in_words
from ascendtune.check.table import WIDE, Paint
from ascendtune.core.terminal_text import columns_of, wrap_words

if TYPE_CHECKING:
    from ascendtune.check.explain.answer.model_answer import Opinion

_SHORT = 400
_MOST_LINES = 12
"""Lines of the usual answer; only --all shows the least important blocks."""
_LINES_OF_A_MESSAGE = 4
_LABEL = 9
_SEEN = "seen"
"""Label of the quoted line, which is cut if nothing else can be omitted."""
_MORE_OF_IT = " […]"
_KEPT, _NEXT, _HELPFUL, _MORE, _BESIDES, _REFERENCE, _ALL = range(7)
_SENTENCE_END = re.compile(r"(?<=[.;!?])\s")
_FOUNDED = "{sure}, says the language model; not checked, but the lines it quotes are in the logs"
_UNFOUNDED = "{sure}, says the language model; not checked, and it may be invented: see what it quotes"
_LINES = 3
_MOST_TELLING = 2
"""Number of other lines shown if nothing is known about the first cause."""
_EXCERPT = 100
"""Most lines of an excerpt."""
_FRAME = re.compile(r"\bframe\b")
"""Word of a remedy that is useful only together with the frame."""


@dataclass(frozen=True)
class _Block:
    label: str
    text: str
    rank: int
    """From `_KEPT`, always shown, to `_ALL`, shown only by --all."""


def as_text(explanation: Explanation, *, columns: int | None, paint: Paint, everything: bool = False) -> str:
    """The answer in 12 lines if possible; `everything` shows all blocks.

    Args:
        columns: width of the terminal, None if there is none.
    """
    limit = max(columns or WIDE, 40)
    head, *blocks = _blocks(explanation, min(_SHORT, _LINES_OF_A_MESSAGE * (limit - _LABEL)))
    bold = [paint(line, "bold") for line in wrap_words(head.text, limit)]
    shown = [(block, _wrapped(block, limit)) for block in _once(blocks) if everything or block.rank < _ALL]
    hidden = 0 if everything else sum(block.rank == _ALL for block in blocks)
    while not everything:
        excess = sum(len(lines) for _, lines in shown) + len(bold) + bool(hidden) - _MOST_LINES
        if excess <= 0:
            break
        least = max(range(len(shown)), key=lambda index: (shown[index][0].rank, index))
        if shown[least][0].rank == _KEPT:
            shown = [(block, _cut(lines, excess, limit) if block.label == _SEEN else lines) for block, lines in shown]
            break
        hidden += 1
        del shown[least]
    lines = [line for _, lines in shown for line in lines]
    more = [" " * _LABEL + say("(--all shows {hidden} more)", hidden=hidden)] if hidden else []
    return "\n".join([*bold, *lines, *more])


def opinion_as_text(opinion: Opinion, *, columns: int | None, paint: Paint) -> str:
    """The opinion of a language model, with the warning that it has not been checked.

    Args:
        columns: width of the terminal, None if there is none.
    """
    limit = max(columns or WIDE, 40)
    head = say("{model} says: {cause}", model=opinion.model, cause=opinion.cause)
    bold = [paint(line, "bold") for line in wrap_words(head, limit)]
    return "\n".join([*bold, *(line for block in _opinion(opinion) for line in _wrapped(block, limit))])


def _opinion(opinion: Opinion) -> Iterator[_Block]:
    yield _Block("sure", say(_FOUNDED if opinion.is_founded else _UNFOUNDED, sure=opinion.sure), _KEPT)
    for quoted in opinion.lines:
        yield _Block(
            "seen", quoted.text if quoted.in_logs else say("(not in the logs) {text}", text=quoted.text), _KEPT
        )
    yield from _numbered("why", opinion.why, _KEPT)
    yield from _numbered("do", opinion.do, _KEPT)


def _numbered(label: str, sentences: Iterable[str], *ranks: int) -> Iterator[_Block]:
    """A block for each sentence; the last of the ranks is used for all further ones."""
    for number, sentence in enumerate(sentences, 1):
        yield _Block(label if number == 1 else "", f"{number}. {sentence}", ranks[min(number, len(ranks)) - 1])


def _wrapped(block: _Block, limit: int) -> list[str]:
    label = say(block.label) if block.label else ""
    return wrap_words(block.text, limit, label + " " * (_LABEL - columns_of(label)), " " * _LABEL)


def _cut(lines: list[str], excess: int, limit: int) -> list[str]:
    """Remove the last `excess` lines; at least one remains."""
    kept = lines[: max(1, len(lines) - excess)]
    if len(kept) == len(lines):
        return lines
    words = kept[-1].split(" ")
    while len(words) > 1 and columns_of(" ".join(words)) + len(_MORE_OF_IT) > limit:
        words.pop()
    return [*kept[:-1], " ".join(words) + _MORE_OF_IT]


def _once(blocks: list[_Block]) -> list[_Block]:
    """Remove blocks with a repeated sentence."""
    return list({block.text.partition(". ")[2] or block.text: block for block in reversed(blocks)}.values())[::-1]


def _blocks(explanation: Explanation, short: int) -> Iterator[_Block]:
    """Blocks of an explanation; the first one is the headline.

    Args:
        short: characters after which a message is cut at the end of a sentence.
    """
    diagnosis, first = explanation.verdict, explanation.verdict.first
    yield _Block("", explanation.headline(), _KEPT)
    if first is None and explanation.run_cause is None:
        if explanation.stop:
            yield _Block("do", cause_in_words(explanation.stop).remedy, _KEPT)
        if (stall := explanation.stall) is not None:
            yield from _numbered("do", stall.remedies, _KEPT, _NEXT)
        yield from _read(explanation)
        return
    if first is not None and diagnosis.missing is None and first.entry.kind == "consequence":
        echoes = say("These logs hold echoes only; the cause stands above them, or in the log of another process.")
        yield _Block("", f"{echoes} {explanation.plog or ''}".rstrip(), _KEPT)
    if explanation.is_running:
        yield _Block("", say("The run is under way; this is what it has written since it was started."), _KEPT)
    if first is not None:
        yield _Block("sure", explanation.sureness, _KEPT)
        yield from _places(explanation, first, short)
        yield from _entry(explanation, first)
    yield from _numbered("do", explanation.remedies(), _KEPT, _NEXT, _MORE)
    for number, state in enumerate(explanation.now()):
        yield _Block("now" if number == 0 else "", state, _NEXT)
    if first is not None:
        if first.entry.checks and diagnosis.missing is None:
            yield _Block("look", "ascendtune doctor " + " ".join(first.entry.checks), _MORE)
        if diagnosis.certainty == "unexplained":
            yield _Block("collect", "; ".join(explanation.to_collect), _HELPFUL)
        yield _Block("source", first.entry.source, _REFERENCE)
    if explanation.cut_off:
        yield _Block("note", say("{cut_off}: what follows is not known", cut_off=explanation.cut_off), _NEXT)
    for note in explanation.reading_notes():
        yield _Block("note", note, _NEXT)
    yield from _echoes(explanation, short)


def _places(explanation: Explanation, first: Event, short: int) -> Iterator[_Block]:
    missing = explanation.verdict.missing
    if missing is not None:
        if missing.last_line:
            yield _Block("where", missing.where, _KEPT)
            line = _short(missing.last_line, short)
            last = say("last line of rank {rank}: {line}", rank=missing.first_rank, line=line)
            yield _Block(_SEEN, last, _KEPT)
        for other in missing.last_lines:
            if other.rank != missing.first_rank:
                yield _Block("", _last_line(other, short), _ALL)
        yield _Block("waited", f"{first.where}: {_short(first.quote, short)}", _MORE)
        return
    yield _Block("where", first.where, _KEPT)
    is_told = " ".join(first.message.split()).rstrip(".") in explanation.headline()
    yield _Block(_SEEN, _short(first.quote, short), _HELPFUL if is_told else _KEPT)
    if first.beside and first.beside not in first.quote:
        yield _Block("", _short(first.beside, short), _NEXT)
    if explanation.verdict.certainty == "unexplained":
        telling = sorted(explanation.verdict.echoes, key=lambda event: (event.weight, event.is_vague))
        for event in telling[:_MOST_TELLING]:
            yield _Block("", f"{event.where}: {_short(event.quote, short)}", _HELPFUL)
    is_named = any(map(_FRAME.search, first.entry.remedies[:1]))
    place = first.trace.place if first.trace is not None else None
    if first.trace is not None and place is not None and not is_of_build(place[0]):
        yield _Block("frame", _frame(first.trace, place), _NEXT if is_named else _HELPFUL)
    elif is_named:
        code = first.trace.code if first.trace is not None else ""
        absent = say("not in this log; the whole traceback ends with it: `File …, line …`")
        yield _Block("frame", f"{absent}: {code}" if code else absent, _MORE)
    if (rival := explanation.verdict.rival) is not None:
        yield _Block("or", f"{meaning_of(rival)} ({rival.where})", _KEPT)


def _last_line(other: LastLine, short: int) -> str:
    if not other.text:
        return say("no line of rank {rank} is known", rank=other.rank)
    phase = say(" (while {phase})", phase=say(other.phase)) if other.phase else ""
    line = say("last line of rank {rank}: {line}", rank=other.rank, line=_short(other.text, short))
    return f"{line}{phase} ({other.where})"


def _frame(trace: Trace, place: tuple[str, int, str]) -> str:
    """Frame of `place`; if a package that it called failed by a mistake in its code, also its innermost frame."""
    called = trace.last_call
    is_of_package = trace.type in FAULTS_OF_CODE and place in trace.frames[:-1] and bool(trace.package)
    if not is_of_package or called is None or (posix(place[0]).endswith(called[0]) and called[1:] == place[1:]):
        return _as_text(place)
    return say("{caller}, which led to {called}", caller=_as_text(place), called=_as_text(called))


def _as_text(frame: tuple[str, int, str]) -> str:
    file, line, function = frame
    return f"{file}:{line}" + (say(" in {function}", function=function) if function else "")


def _entry(explanation: Explanation, first: Event) -> Iterator[_Block]:
    if (sums := explanation.sums) is not None:
        yield _Block("memory", sums.line(), _HELPFUL)
        if sums.conclusion:
            yield _Block("", sums.conclusion, _HELPFUL)
    if explanation.verdict.missing is not None:
        return
    causes = causes_here(first.causes, first.entry, explanation.facts)
    yield from _numbered("why", causes, _HELPFUL, _HELPFUL, _MORE)


def _echoes(explanation: Explanation, short: int) -> Iterator[_Block]:
    """Other events, which are not the cause: their count, and with --all a line for each kind."""
    first = explanation.verdict.first
    kinds: dict[str, list[Event]] = {}
    for event in explanation.verdict.echoes:
        name = event.entry.id if event.is_known else event.text[:80]
        if first is None or (name != first.entry.id and event is not explanation.verdict.rival):
            kinds.setdefault(name, []).append(event)
    if kinds:
        count = sum(len(events) for events in kinds.values())
        names = ", ".join(name for name, events in kinds.items() if events[0].is_known)
        among = f" ({names})" if names else ""
        others = say("{count} other {count:message|messages}{among}", count=count, among=among)
        yield _Block("besides", others, _BESIDES)
    for name, events in kinds.items():
        ranks = sorted({event.rank for event in events if event.rank is not None})
        who = say(" on rank {ranks}", ranks=", ".join(map(str, ranks))) if ranks else ""
        meaning = f": {events[0].meaning}" if events[0].is_known else ""
        yield _Block("", _short(f"{name}{who} ({events[0].where}){meaning}", short), _ALL)


def _read(explanation: Explanation) -> Iterator[_Block]:
    for scan in explanation.scans:
        names = ", ".join(scan.parts.names)
        yield _Block("read", say("{name}: {lines:,} {lines:line|lines}", name=names, lines=scan.lines_read), _MORE)
        # An unknown failure is most often in them.
        if scan.last_words:
            yield _Block("last", _short(scan.last_words, _SHORT), _MORE)
    for note in explanation.reading_notes():
        yield _Block("note", note, _NEXT)
    for event in explanation.verdict.notices[:_LINES]:
        yield _Block("note", f"{event.meaning} ({event.where})", _MORE)
    for event in explanation.verdict.dismissed[:_LINES]:
        # The job may have failed nevertheless: these are the nearest known failures.
        yield _Block(
            "maybe", f"{event.meaning} ({event.where}); {say('do')}: {explanation.remedies_here(event)[0]}", _MORE
        )
    if not explanation.verdict.dismissed:
        for where, line in islice(_lines_that_sound_bad(explanation.scans), _LINES):
            yield _Block("maybe", _short(f"{where}: {line}", _SHORT), _MORE)


def _lines_that_sound_bad(scans: Iterable[Scan]) -> Iterator[tuple[str, str]]:
    """(place, line) of each line with words of trouble, in logs that are excerpts."""
    for scan in scans:
        for number, line in scan.last_lines if scan.lines_read <= _EXCERPT else ():
            if level.sounds_bad(line) and line.strip() != scan.last_words:
                yield scan.parts.where(number), line


def _short(text: str, limit: int) -> str:
    """Shorten a long line to whole sentences."""
    text = " ".join(text.split())
    if len(text) <= limit:
        return text
    ends = [match.start() for match in _SENTENCE_END.finditer(text)]
    end = max((each for each in ends if each <= limit), default=0)
    if not end and len(text) <= 2 * _SHORT:
        return text
    end = end or min((each for each in ends if each <= 3 * _SHORT), default=0) or text.rfind(" ", 0, 2 * _SHORT)
    return f"{text[: end if end > 0 else 2 * _SHORT]} […]"
