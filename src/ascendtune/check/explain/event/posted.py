"""Failures in short posts, where a person's words stand around a few lines of a log.

The exception may stand in the title only, frames may lack their heading and exception, and a reason may have no level.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ascendtune.check.explain.log import level, message_lines
from ascendtune.check.explain.log.frame import frame_of
from ascendtune.check.explain.traceback.trace import Trace
from ascendtune.check.explain.traceback.traces import Traces

_EXCERPT = 40
"""Lines of what somebody posts; in a longer log a program's own words say how it ended."""
_LEAST_WORDS = 4
_EXCEPTION = re.compile(
    r"(?P<before>.*?)(?<![\w.])(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w+(?:Error|Exception))"
    r"[`*]{0,3}[:：] ?(?P<message>\S.{7,})",
    re.ASCII,
)
_TITLE = re.compile(
    r"\W{0,4}[\[【](?:bug|usage|issue|question|help|install(?:ation)?|build|problem|问题|求助|缺陷)(?: report)?[\]】]",
    re.IGNORECASE,
)
"""The kind of a report, in brackets before its title."""
_FIRST_PERSON = re.compile(
    r"\b(?:I|we) (?:also |always |still |then |now )?(?:get|got|am getting|are getting|saw|hit|face|"
    r"encounter(?:ed)?) (?:this|the|an?|following|that)\b|"
    r"\b(?:gives|gave) me\b",
    re.IGNORECASE,
)
_OF_COMMIT = re.compile(r"\(#\d+\)\s*$")
"""The number of the request, behind the title of a commit."""
_CHINESE = re.compile(r"[\u4e00-\u9fff]{2}")
_CHINESE_GOES_ON = re.compile("完成|成功|继续|跳过|忽略|默认|已解决|已修复|重试|改用|不影响|捕获|警告")
_OVERCOME = re.compile(
    r"\b(?:fixed|fix(?:es)?|solved|resolved|no longer|instead|retr(?:y|ies|ying)|skip\w*|ignor\w*|caught|catch|handled|"
    r"fall(?:ing)? ?back|used to|harmless|continu\w+|warn(?:ing)?)\b",
    re.IGNORECASE,
)
_OF_PROGRAM = re.compile(r"\W*\d{1,4}[:/-]\d\d|\s|#|//|>>>|[\"'(]|(?:print|raise|except|assert|return|log\w*\.)\b")
"""Beginning of a line of a log, with its time, and of code."""
_TROUBLE = re.compile(
    r"\b(?:errors?|exceptions?|traceback|crash(?:es|ed)?)(?: (?:below|here|log|message|stack))?\W*$|"
    r"(?:报错|错误|异常)\W*$",
    re.IGNORECASE,
)
"""The end of a line that calls what stands below it an error."""
_ANNOUNCES = re.compile(
    r"(?:.*\b(?:errors?|exceptions?|failures?)\b[^:：]{0,60}|.*(?:报错|错误|异常)[^:：]{0,20})[:：]\s*$", re.IGNORECASE
)
_DENIES = re.compile(
    r"\b(?:no|without|zero|0|not|if|any|known|expected|previous|earlier|possible|common)\b|没有|无|已知", re.IGNORECASE
)
_DEMANDS = re.compile(r"\b(?:not (?:\w+ )?(?:set|configured|defined)|must (?:be|have|not)|should (?:be|have|not))\b")


def exception_in_title(texts: Sequence[str], first: int) -> Trace | None:
    """Where a person names the exception: in a title, behind words of one's own, or in Chinese.

    A program that quotes an exception and goes on writes neither, and what it prints below shows that it does.

    Args:
        texts: the last lines of a log.
        first: number of the first of them.
    """
    filled = [index for index, each in enumerate(texts) if each.strip()]
    if len(texts) > _EXCERPT:
        return None
    for index in filled:
        named = _EXCEPTION.match(texts[index])
        if named is None or _OF_PROGRAM.match(texts[index]) or _OF_COMMIT.search(texts[index]):
            continue
        before = named["before"]
        if _goes_on(before) or level.is_warning_or_news(texts[index]) or _CHINESE_GOES_ON.search(texts[index]):
            continue
        is_tagged = index == filled[0] and _TITLE.match(before) is not None
        in_chinese = index in (filled[0], filled[-1]) and _CHINESE.search(before) is not None
        is_told = in_chinese or _FIRST_PERSON.search(before) is not None
        if is_tagged or (is_told and not _went_on(texts[index + 1 :])):
            return Traces.bare(f"{named['type']}: {named['message'].strip()}", first + index)
    return None


def refusal(texts: list[str], said: list[str], last_lines: int) -> tuple[int, str]:
    """What a program refuses (`message_lines.refusal`), else the reason that a person announces; with its index."""
    found = message_lines.refusal(texts, said, last_lines)
    return found if found[1] else _announced_reason(texts, said)


def _announced_reason(texts: Sequence[str], said: Sequence[str]) -> tuple[int, str]:
    """A reason without a level, right below the line in which a person says that errors follow.

    Args:
        texts: the last lines of a log.
        said: the same without their prefixes.

    Returns:
        The index of its line, and its words; empty if there is none.
    """
    if len(texts) > _EXCERPT:
        return 0, ""
    for index, each in enumerate(texts[:-1]):
        if not _ANNOUNCES.match(each) or _DENIES.search(each) or _OF_PROGRAM.match(each):
            continue
        follows = next((at for at in range(index + 1, len(texts)) if texts[at].strip()), None)
        if follows is None or _went_on(texts[follows:]) or _goes_on(texts[follows]):
            continue
        words = said[follows].strip()
        is_bad = level.sounds_bad(words) or _DEMANDS.search(words) is not None
        if is_bad and len(words.split()) >= _LEAST_WORDS and frame_of(words) is None:
            return follows, words
    return 0, ""


def are_frames_of_failure(texts: Sequence[str], trace: Trace, lines: int) -> bool:
    """Whether a person says above frames, of which neither heading nor exception is shown, that they are of an error.

    Args:
        texts: the last lines of a log.
        trace: the frames.
        lines: number of the last line.
    """
    before = lines - len(texts)
    if len(texts) > _EXCERPT or _went_on(texts[max(trace.end - before, 0) :]):
        return False
    above = next((each for each in reversed(texts[: max(trace.first_line - before - 1, 0)]) if each.strip()), "")
    is_told = _TROUBLE.search(above) is not None and _OF_PROGRAM.match(above) is None
    return is_told and not _goes_on(above)


def _went_on(texts: Sequence[str]) -> bool:
    return any(level.went_on(each) or _CHINESE_GOES_ON.search(each) for each in texts)


def _goes_on(text: str) -> bool:
    """Whether a line says of what it names that it is over, or was only a warning."""
    return bool(level.is_warning_or_news(text) or _OVERCOME.search(text) or _CHINESE_GOES_ON.search(text))
