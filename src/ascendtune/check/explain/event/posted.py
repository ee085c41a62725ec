"""Failures in short posts: a few lines of a log among a person's words.

The exception may be only in the title, frames may lack their heading and exception, and a reason may have no level.
The author of a post asks about a failure: the worst line is taken for it, unless later lines show that the program
continued.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ascendtune.check.explain.log import level, message_lines
from ascendtune.check.explain.log.frame import frame_of
from ascendtune.check.explain.traceback.trace import Trace
from ascendtune.check.explain.traceback.traces import Traces

_EXCERPT = 40
"""Most lines of an excerpt in a post; in a longer log the program itself reports its end."""
_LONGEST_POST = 60
_LEAST_WORDS = 4
_LEAST_OF_PROGRAM = 2
_LEAST_OF_SCRIPT = 3
"""Fewest lines of a script or a person beside complaints that are a failure by themselves."""
_PERSON = re.compile(
    r"\s*(?:#{2,6} \w|\*\*\w.*\*\*:?$|- \[[ x]\] |```)|"  # Markdown
    r"^\W*(?:(?:Hi|Hello|Hey|Dear)\b(?!.*\d)|(?:大家|您|你)好)|\b[Tt]hanks for\b|"
    r"(?:^|[\s(])(?:I|I'm|I've|I'd|[Mm]y|[Ww]e|[Ww]e're|[Ww]e've) (?=[a-z'])|"
    r"^\W*(?:[Ww]hat|[Ww]hy|[Hh]ow|[Dd]oes|[Ii]s|[Aa]re|[Aa]ny(?:one)?|[Cc]an|[Hh]as|[Hh]ave|[Ss]hould)\b.{12,}\?\s*$|"
    r"\b(?:[Tt]hanks(?: in advance)?[.!]?$|[Tt]hank you\b|[Aa]ny (?:help|idea|suggestion)s?\b|[Pp]lease help\b)|"
    r"请问|怎么(?:办|解决|回事|处理)|求助|麻烦|大佬|谢谢|有没有人|有人(?:遇到|知道)|我(?:在|的|用|想|们|是|也)|报错如下|日志如下"
)
"""A line of a person, not of a program."""
_FORM = re.compile(
    r"\s*(?:[-*] )?(?:PyTorch [Vv]ersion \(e\.g\.|OS \(e\.g\.|How you installed |GPU models and configuration|"
    r"(?:Important )?[Pp]ackage versions:?$|(?:[Ss]teps to )?[Rr]eproduc(?:e|tion)\b.{0,20}$|"
    r"(?:[Ee]xpected|[Aa]ctual) behaviou?r:?\W*$)|"
    r"\s*`[^`]{16,}`\s*$|\s*\[end of output\]\s*$"
)
"""A line of a form for reports of failures that a person has filled in, one that is marked as code, or pip's below the
output of a failed build. Programs that list an environment write the other lines of such forms, too."""
_PROMPT = re.compile(r"(?:\(\w+\) )?(?:\[?[\w.-]+@[\w.-]+[^$#>]{0,60}[$#>]\]? ?|\$ |>>> |PS [A-Z]:\\[^>]*> ?)[\w./]")
"""A command that a person typed into a terminal."""
_SCRIPT = re.compile(
    r"\s*(?:#(?:!/|SBATCH )|(?:export )?[A-Z][A-Z_0-9]+=\S*\s*$|--?[a-zA-Z][\w-]* ?\S*.{0,80}\\\s*$|"
    r"(?:[A-Z][A-Z_0-9]+=\S+ )*(?:python3?|torchrun|bash|sh|accelerate|deepspeed|mpirun|msrun|srun|docker|conda|pip) "
    r"(?=.*(?:\\$|\.py\b|\.sh\b| run | install | -))\S)"
)
"""A line of a shell script or a command, as a person shows it beside its output."""
_IN_TROUBLE = re.compile(
    r"\b(?:errors?|fail(?:s|ed|ure|ing)?|crash\w*|problems?|issues?|bugs?|(?:not|n't) work\w*|stuck|hangs?|wrong|"
    r"stops?|missing|cannot|can't|won't|unable|trouble|help)\b|报错|失败|问题|错误|无法|异常|不了|解决",
    re.IGNORECASE,
)
"""Words of a person who has a failure."""
_FIGURE = re.compile(r"(?:[:=]\s+|\.{3}\s*|\s{2,})[\d.,%]+$|\.{5} |^[-*•] .{0,30}: |(?: {3,}\S+){3}")
"""A row of numbers, of a list or of a table."""
_SOLVED = re.compile(r"\b(?:solved|fixed|resolved|works? (?:now|again|fine now))\b|已解决|已修复|解决了")
_EVENT_OF_POD = re.compile(
    r"\s*Warning {2,}[A-Z]\w+ {2,}\S.*? {2,}[a-z][\w-]*(?:, \S+)? {2,}\S|\S+ +Warning +[A-Z]\w+ +\S+/\S+ +\S"
)
"""A row of the events of `kubectl describe`, or of `kubectl get events`."""
_POD_GOES_ON = re.compile(r"(?:\s*|\S+ +)Normal +(?:Started|Scheduled|Pulled|Created|SuccessfulAttachVolume)\b")
_EXCEPTION = re.compile(
    r"(?P<before>.*?)(?<![\w.])(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w+(?:Error|Exception))"
    r"[`*]{0,3}[:：] ?(?P<message>\S.{7,})",
    re.ASCII,
)
_BARE_EXCEPTION = re.compile(r"(?:\w+\.)*[A-Z]\w+(?:Error|Exception)")
_TITLE = re.compile(
    r"\W{0,4}[\[【](?:bug|usage|issue|question|help|install(?:ation)?|build|problem|问题|求助|缺陷)(?: report)?[\]】]",
    re.IGNORECASE,
)
"""Kind of a report, in brackets before its title."""
_FIRST_PERSON = re.compile(
    r"\b(?:I|we) (?:also |always |still |then |now )?(?:get|got|am getting|are getting|saw|hit|face|"
    r"encounter(?:ed)?) (?:this|the|an?|following|that)\b|"
    r"\b(?:gives|gave) me\b",
    re.IGNORECASE,
)
_OF_COMMIT = re.compile(r"\(#\d+\)\s*$")
"""Number of the pull request, after the title of a commit."""
_CHINESE = re.compile(r"[\u4e00-\u9fff]{2}")
_CHINESE_GOES_ON = re.compile("完成|成功|继续|跳过|忽略|默认|已解决|已修复|重试|改用|不影响|捕获|警告")
_OVERCOME = re.compile(
    r"\b(?:fixed|fix(?:es)?|solved|resolved|no longer|instead|(?<![Mm]ax )retr(?:y|ies|ying)|skip\w*|ignor\w*|"
    r"caught|catch|handled|fall(?:ing)? ?back|used to (?:be|fail|crash|hang)|harmless|continu\w+|warn(?:ing)?)\b",
    re.IGNORECASE,
)
_OF_PROGRAM = re.compile(r"\W*\d{1,4}[:/-]\d\d|\s|#|//|>>>|[\"'(]|(?:print|raise|except|assert|return|log\w*\.)\b")
"""Beginning of a line of a log with its time, or of code."""
_TROUBLE = re.compile(
    r"\b(?:errors?|exceptions?|traceback|crash(?:es|ed)?)(?: (?:below|here|log|message|stack))?\W*$|"
    r"(?:报错|错误|异常)\W*$",
    re.IGNORECASE,
)
"""End of a line that announces an error below it."""
_ANNOUNCES = re.compile(
    r"(?:.*\b(?:errors?|exceptions?|failures?)\b[^:：]{0,60}|.*(?:报错|错误|异常)[^:：]{0,20})[:：]\s*$", re.IGNORECASE
)
_DENIES = re.compile(
    r"\b(?:no|without|zero|0|not|if|any|known|expected|previous|earlier|possible|common)\b|没有|无|已知", re.IGNORECASE
)
_DEMANDS = re.compile(r"\b(?:not (?:\w+ )?(?:set|configured|defined)|must (?:be|have|not)|should (?:be|have|not))\b")


def exception_in_title(texts: Sequence[str], first: int) -> Trace | None:
    """Exception that a person names: in a title, after words in the first person, or in Chinese.

    A program that quotes an exception and continues writes none of these, and its later lines show that it continues.

    Args:
        texts: last lines of a log.
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


def refusal(texts: list[str], messages: list[str], last_lines: int) -> tuple[int, str]:
    """Refusal of a program (`message_lines.refusal`), else the reason that a person announces, else the worst line of a
    post, else the last warning among a pod's events; as (index, text)."""
    reason = message_lines.refusal(texts, messages, last_lines)
    for search in (_announced_reason, _worst_line, _last_event_of_pod):
        reason = reason if reason[1] else search(texts, messages)
    return reason


def is_post(texts: Sequence[str]) -> bool:
    """Whether the lines are few, and some of them are words or typed commands of a person, or of a report's form."""
    return len(texts) <= _LONGEST_POST and any(
        _PERSON.search(each) or _PROMPT.match(each) or _FORM.match(each) for each in texts
    )


def asks_about_failure(texts: Sequence[str]) -> bool:
    """Whether the lines are a post of a person who has a failure."""
    return is_post(texts) and any(
        _FORM.match(each) or (_PERSON.search(each) and _IN_TROUBLE.search(each)) for each in texts
    )


def shows_trouble_alone(texts: Sequence[str]) -> bool:
    """Whether the lines are a script, or words of a person, and all lines of programs among them are complaints."""
    filled = [each for each in texts if each.strip()]
    others = _of_programs(filled)
    is_short = len(filled) <= _LONGEST_POST and 0 < len(others) <= len(filled) - _LEAST_OF_SCRIPT
    return is_short and all(level.is_warning(each) or level.sounds_bad(each) for each in others)


def went_on_after(texts: Sequence[str]) -> bool:
    """Whether lines of a post show progress of the job, or that the problem is solved."""
    return any(map(_SOLVED.search, texts)) or _went_on(_of_programs(texts))


def _last_event_of_pod(texts: Sequence[str], messages: Sequence[str]) -> tuple[int, str]:
    """Last warning of Kubernetes in an excerpt without later progress of the pod, as (index, text); (0, "") if none."""
    for index in range(len(texts) - 1, -1, -1):
        if len(texts) > _EXCERPT or _POD_GOES_ON.match(texts[index]):
            break
        if _EVENT_OF_POD.match(texts[index]):
            return index, messages[index].strip()
    return 0, ""


def _of_programs(texts: Sequence[str]) -> list[str]:
    """Lines that programs printed: neither a person's, nor of a script or command, which may go on on the next line."""
    found, goes_on = [], False
    for each in texts:
        is_command = goes_on or _SCRIPT.match(each) is not None
        goes_on = is_command and each.rstrip().endswith("\\")
        if not (is_command or _PERSON.search(each) or _PROMPT.match(each)):
            found.append(each)
    return found


def _worst_line(texts: Sequence[str], messages: Sequence[str]) -> tuple[int, str]:
    """Worst line of a program in a post without later progress, as (index, text); (0, "") if there is none.

    Args:
        texts: last lines of a log.
        messages: the same without their prefixes.
    """
    if not is_post(texts):
        return 0, ""
    words = [each.strip().strip("`").strip() for each in messages]
    of_program = [index for index, text in enumerate(texts) if _is_message_of_program(text, words[index])]
    plain = [index for index in of_program if not (level.is_overcome(texts[index]) or _goes_on(texts[index]))]
    candidates = [
        index for index in plain if _EXCEPTION.match(words[index]) or level.is_error(words[index], words[index])
    ]
    for is_bad in (level.are_last_words, level.is_last_refusal):
        candidates += [index for index in plain if is_bad(texts[index], words[index])]
    if asks_about_failure(texts):
        warned = [index for index in of_program if level.is_warning(texts[index])]
        candidates += [index for index in (*plain, *warned) if _sounds_bad(words[index])]
    worst = next((index for index in candidates if not went_on_after(texts[index + 1 :])), None)
    return (worst, words[worst]) if worst is not None else (0, "")


def _is_message_of_program(text: str, words: str) -> bool:
    if _PERSON.search(text) or _PROMPT.match(text) or words.endswith((":", "：")) or frame_of(words):
        return False
    is_message = len(words.split()) >= _LEAST_OF_PROGRAM or _BARE_EXCEPTION.fullmatch(words) is not None
    return is_message and _FIGURE.search(words) is None


def _sounds_bad(words: str) -> bool:
    return level.sounds_bad(words) and len(words.split()) >= _LEAST_WORDS


def _announced_reason(texts: Sequence[str], messages: Sequence[str]) -> tuple[int, str]:
    """A reason without a level, directly below the line in which a person announces errors.

    Args:
        texts: the last lines of a log.
        messages: the same without their prefixes.

    Returns:
        Index of its line, and its text; (0, "") if there is none.
    """
    if len(texts) > _EXCERPT:
        return 0, ""
    for index, each in enumerate(texts[:-1]):
        if not _ANNOUNCES.match(each) or _DENIES.search(each) or _OF_PROGRAM.match(each):
            continue
        follows = next((at for at in range(index + 1, len(texts)) if texts[at].strip()), None)
        if follows is None or _went_on(texts[follows:]) or _goes_on(texts[follows]):
            continue
        words = messages[follows].strip()
        is_bad = level.sounds_bad(words) or _DEMANDS.search(words) is not None
        if is_bad and len(words.split()) >= _LEAST_WORDS and frame_of(words) is None:
            return follows, words
    return 0, ""


def are_frames_of_failure(numbered: Sequence[tuple[int, str]], trace: Trace) -> bool:
    """Whether a person calls frames without heading and exception an error, in the lines above them.

    Args:
        numbered: the last lines of a log, each with its number.
        trace: the frames.
    """
    texts, before = [text for _, text in numbered], numbered[0][0] - 1
    below = texts[max(trace.end - before, 0) :]
    if asks_about_failure(texts) and not went_on_after(below):
        return True
    if len(texts) > _EXCERPT or _went_on(below):
        return False
    above = next((each for each in reversed(texts[: max(trace.first_line - before - 1, 0)]) if each.strip()), "")
    is_told = _TROUBLE.search(above) is not None and _OF_PROGRAM.match(above) is None
    return is_told and not _goes_on(above)


def _went_on(texts: Sequence[str]) -> bool:
    return any(level.went_on(each) or _CHINESE_GOES_ON.search(each) for each in texts)


def _goes_on(text: str) -> bool:
    """Whether a line is a warning, or reports that its problem is over."""
    return bool(level.is_warning_or_news(text) or _OVERCOME.search(text) or _CHINESE_GOES_ON.search(text))
