"""The rule that a message states, turned round: what to choose, set or leave out so that it holds.

The rules are read from the usual English of programs: "X must be divisible by Y", "only supports A and B", "requires
X=True", "X is not supported with Y". Nothing is said that the message does not hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ascendtune.check.explain.language import say

_LONGEST = 90
"""Characters of a part of a message that is quoted in a remedy."""
_ANY = r"(?:[^.;:\n]|[.:](?=\S))"
_WITHIN_CLAUSE = r"(?:[^.;:,\n]|[.,](?=\d)|:(?=\S))"
_LONGEST_GIVEN = 50
_MUST = r"(?:must|should|has to|have to|needs? to|ought to|can only)"
_CLAUSE = r"(?:(?<=[.;:!?] )|(?<=, )|^)"
_END = r"(?=[.;!?](?:\s|$)|, (?:but|got|found|and|however|so|which|please|Thus|thus)\b| but | \(|\s*$|\n)"
_VALUE_END = r"(?=[.;!?](?:\s|$)|,? (?:but|however|instead|in order|because|for|when|while|to)\b|, |\s*$|\n)"
_WORD = r"(?!(?:but|expect\w*|got|found|and|or|which|in|when|no|not|the)\b)['\"`]?[\w.+/-]*[\w+]['\"`]?"
_LIST = (
    r"(?P<list>[\[({][^\])}\n]{1,160}[\])}]|"
    rf"(?:{_WORD}, )+{_WORD}(?:,? (?:or|and) {_WORD})?|{_WORD}(?: (?:or|and) {_WORD}))"
)
_ONE_OF = re.compile(
    r"(?:(?:only (?:supports?|allows?|accepts?|works? with)|supports? only)(?: one of)?(?: the)?|"
    r"(?:must|should|can only|has to|needs to) be (?:one|any) of|(?:must|should|can only) be (?:in|either)|"
    r"is not (?:one of|in)|not in|(?:choose|select|pick|choices?:?) (?:one )?(?:from|of)|expected (?:one|any) of|"
    r"(?<![a-z])(?:available|valid|allowed|possible|supported|permitted|known)(?: \w+){0,8}(?: are| is|:)|"
    r"supports? one of(?: the)?|the support(?:ed)? list is)"
    rf":? (?:the following:? )?{_LIST}",
    re.IGNORECASE,
)
_DIVISIBLE = re.compile(
    rf"{_CLAUSE}(?P<x>{_ANY}{{1,90}}?) (?:{_MUST} be|to be|is not|not) (?:an? )?(?:evenly )?(?:divisible by|"
    rf"(?:integer )?"
    rf"multiple of) (?P<y>{_ANY}{{1,90}}?){_VALUE_END}",
    re.IGNORECASE,
)
_NUMBER_IN = re.compile(r"(?<![\w.])(\d{1,9})(?![\w]|\.\d)")
_SET = re.compile(
    r"(?:[Rr]equires?|[Nn]eeds?|must (?:set|pass|specify|use|have)|only (?:supported|works|available) "
    r"(?:with|when|if)|without)"
    r" (?:that )?['\"`]?(?P<key>-{0,2}[A-Za-z_][\w.-]*)['\"`]? ?(?:==? ?['\"`]?|(?:to be|set to) ['\"`]?"
    r"(?=True|False|None|true|false|\d|['\"`]))(?P<value>[\w.-]+)",
)
_TO_SET = re.compile(
    rf"(?<![\w'\"`-])(?<!or )(?<!and )['\"`]?(?P<key>-{{0,2}}[a-z]\w*_[\w.-]*|--[\w-]+|`[^`]+`)['\"`]? "
    rf"{_MUST} be (?:set to )?['\"`]?"
    r"(?P<value>True|False|None|true|false|enabled|disabled|set|specified|provided|positive|non-negative)\b"
)
_BETWEEN = re.compile(
    r"between ['\"`](?P<x>[^'\"`\n]{1,60})['\"`] and ['\"`](?P<y>[^'\"`\n]{1,60})['\"`]",
)
_EXCLUSIVE = re.compile(
    rf"{_CLAUSE}(?:[Cc]annot|[Cc]an ?not|[Cc]an't|[Dd]o not|[Yy]ou can(?:not|'t)|[Uu]nable to) (?:use|specify|set|pass"
    rf"|combine|enable|have|mix) (?:both )?(?P<x>{_WITHIN_CLAUSE}{{1,60}}?) (?:and|with|together with|when|while) "
    rf"(?P<y>{_WITHIN_CLAUSE}{{1,60}}?)(?: together| at the same time)?{_END}"
)
_WITHOUT = re.compile(
    rf"{_CLAUSE}(?P<x>{_WITHIN_CLAUSE}{{1,90}}?) (?:is|are|does|do|was)(?: currently)?(?: not|n't)(?: yet| "
    rf"currently)? (?:be )?"
    r"(?:supported?|compatible|allowed|implemented|work|available|usable)(?: yet| currently)? (?P<how>with|"
    r"together with|"
    r"when using|when|while|if|in combination with|for|on|in|by) "
    rf"(?P<y>{_ANY}{{2,90}}?){_END}"
)
_ONLY_ONE = re.compile(
    r"[Oo]nly one of (?P<x>[^.;:,\n]{1,60}?) (?:and|or) (?P<y>[^.;:,\n]{1,60}?) (?:should|can|may|must|has)\b"
)
_INCOMPATIBLE = re.compile(
    rf"{_CLAUSE}(?P<x>{_WITHIN_CLAUSE}{{1,90}}?) (?:(?:is|are) (?:mutually exclusive|incompatible)|cannot be "
    rf"(?:used|combined)|"
    r"can't be used|can not be used|conflicts?) (?:with|together with|when|while|in combination with) "
    rf"(?P<y>{_ANY}{{2,90}}?){_END}"
)
_UNSUPPORTED = re.compile(
    rf"{_CLAUSE}(?P<x>{_ANY}{{2,90}}?) (?:(?:is|are) (?:not (?:yet |currently )?(?:supported|implemented|allowed)|"
    rf"unsupported)|(?:is|are)n't supported){_END}|[Uu]nsupported (?P<other>(?!operand)[\w-]+:? "
    rf"[^.;,\n]{{2,60}}?){_END}|"
    rf"(?:does not|doesn't|do not|not) (?:yet |currently )?support (?P<third>[^.;,\n]{{2,60}}?){_END}"
)
_SINCE_SAVED = re.compile(
    rf"{_CLAUSE}(?P<x>{_WITHIN_CLAUSE}{{1,60}}?) (?:is|are|was|were) (?:inconsistent|different|changed|not the same)\b"
    r"[^.;\n]{0,40}\b(?:checkpoint|saved|resum\w+|before)\b"
)
_GOT_OF_TWO = re.compile(
    rf"{_CLAUSE}(?:[\w' ]{{0,30}}: )?[Ee]xpect(?:ed|s|ing) (?P<want>{_ANY}{{1,90}}?),? (?:but )?(?:got|found|"
    rf"received|was|"
    r"given|instead got|is)(?: instead)?:? (?P<got>[^;\n]{1,90}?)(?=[.;!](?:\s|$)|\s*$|, )"
)
_ONLY_BUT = re.compile(
    rf"{_CLAUSE}(?P<x>{_ANY}{{1,60}}?) (?:can only|must|should|has to|needs to) be "
    rf"(?P<want>{_ANY}{{1,80}}?),? (?:but )?"
    r"(?:got|found|received|not|is|was|but) (?P<got>[^\n]{1,160}?)(?=[.;!](?:\s|$)|\s*$)"
)
_UNLIKE = re.compile(
    rf"{_CLAUSE}(?P<x>{_ANY}{{1,80}}?) (?:is|are|does|do|did)(?: not|n't) (?:match(?:ed)?(?: with| to)?|equal(?: to)?|"
    rf"the same as|consistent with|agree with) (?P<y>[^;\n]{{1,80}}?){_END}|"
    rf"{_CLAUSE}(?P<a>{_ANY}{{1,80}}?) (?:{_MUST} (?:match|equal|be equal to|be the same as|be consistent with)) "
    rf"(?P<b>[^;\n]{{1,80}}?){_END}"
)
_LESS = re.compile(r"\((?P<x>\d[\d.]*) ?(?P<sign><=?|>=?|!=) ?(?P<y>\d[\d.]*)\)")
_BOUND = re.compile(
    rf"{_CLAUSE}(?P<x>{_ANY}{{1,80}}?) {_MUST} be (?P<how>(?:strictly )?(?:greater|larger|more|bigger|higher|less|"
    r"smaller|lower|fewer)(?: than)?(?: or equal to)?|at least|at most|no (?:more|less) than|>=?|<=?|between) "
    rf"(?P<y>{_ANY}{{1,80}}?){_VALUE_END}"
)
_OVER = re.compile(
    rf"{_CLAUSE}(?P<x>{_ANY}{{1,80}}?) (?:exceeds|is (?:larger|greater|longer|bigger|higher|more) than|is too (?:large|"
    rf"long) for|is over|is above|is beyond) (?P<y>{_ANY}{{1,90}}?){_END}"
)
_UNDER = re.compile(
    rf"{_CLAUSE}(?P<x>{_ANY}{{1,80}}?) is (?:smaller|less|lower|shorter|fewer) than (?P<y>{_ANY}{{1,90}}?){_END}"
)
_CHARACTERS = re.compile(
    r"(?:cannot|can't|must not|may not|should not) (?:contain|include|have|start with|begin with|end with|be empty)"
    r"(?P<what>[^\n]{0,90}?)(?=, found|, got|[.;!](?:\s|$)|\s*$)"
)
_INVALID = re.compile(
    r"[Ii]nvalid (?:value|argument|choice|\w+(?: name)?):? (?P<x>['\"`][^'\"`\n]{1,80}['\"`])(?: (?:for|in|of) "
    r"(?P<key>[^:;,\n]{2,60}?)(?=[:;,.]?\s|$))?"
)
_RATHER = re.compile(
    r"(?:would resolve to|did you mean|meant to use|use instead|instead use) (?P<y>['\"`][^'\"`\n]{1,80}['\"`])"
)
_MISSING = re.compile(
    r"(?:[Mm]issing (?:required )?(?:argument|option|key|field|parameter|config(?:uration)?|environment variable)s?"
    r"(?: for)?:?|[Rr]equired (?:argument|option|key|field|parameter)s?:?) (?P<key>['\"`]?[\w.-]+['\"`]?)|"
    r"(?P<other>['\"`][^'\"`\n]{1,40}['\"`]|-{0,2}[A-Za-z_][\w.-]*) (?:is|must be|are) "
    r"(?:required|mandatory|not (?:set|specified|given|provided|defined)|missing)\b"
)

_CHOOSE = "of what the message names, use one that it lists: {list}"
_MULTIPLE = "choose '{x}' as a multiple of '{y}'"
_MULTIPLE_OF = "choose '{x}' as a multiple of '{y}': {numbers}"
_NEAREST = "{below} or {above} in place of {given}"
_LEAST_MULTIPLE = "{above} in place of {given}"
_DIVISORS = "{list} in place of {divisor} (divisors of {given}); or {other}, where that number is yours to choose"
_SET_IT = "set {key}={value}, or leave out what asks for it"
_SET_TO = "{key} has to be {value}: set it so where it is configured"
_ONLY_WHEN = re.compile(
    r"(?:[Pp]ass|[Ss]et|[Uu]se|[Ss]pecify|[Gg]ive) (?P<x>[\w.`'\"-]{2,40}) only (?P<when>(?:when|if|for|"
    r"with) [^.;:\n]{3,120}?)"
    r"(?=[.;:!](?:\s|$)| \(|\s*$)"
)
_LEAVE_UNLESS = "leave out {x}: it is to be given only {when}"
_NOT_THERE = "leave out '{x}': '{y}' does not have it"
_ONE_OF_TWO = "the two do not go together: leave out '{x}' or '{y}'"
_ONLY = re.compile(
    rf"\bonly (?:supports?|supported (?:on|with|by|for)|works? (?:with|on|for)|runs? (?:on|with)|available "
    rf"(?:on|with|for|in))"
    rf" (?P<y>{_ANY}{{2,90}}?){_END}"
)
_REQUIRES = re.compile(
    rf"(?:(?<!\bnot )\brequires?|\bneeds) (?!grad|to\b|an argument)(?:that |the )?(?P<y>{_ANY}{{4,90}}?){_END}"
)
_ONLY_THERE = "it goes with '{y}' only: what differs from that here (option, type, release, hardware) is to be changed"
_MEET = "see to what it requires, '{y}', or leave out the option that requires it"
_LEAVE = "leave out '{x}' (the option, key or call that asks for it); a newer release may have it"
_AS_SAVED = (
    "continue with the same {x} as the checkpoint was written with (its run's configuration or log has it), or "
    "without the part of the checkpoint that depends on it"
)
_GIVE = "'{want}' is expected where '{got}' is given: change what gives it there"
_EQUAL = "the two have to agree: '{x}' and '{y}': set one to the value of the other"
_COMPARED = "{x} is on one side and {y} on the other: change the one that is configured so that the comparison holds"
_WITHIN = "bring '{x}' to where it is {how} '{y}'"
_LOWER = "lower '{x}', or raise '{y}' where it is configured"
_RAISE = "raise '{x}', or lower '{y}' where it is configured"
_OTHER_TEXT = "choose another text for what the message quotes: the rule is '{rule}'"
_IN_PLACE = "use {y} in place of {x}"
_OTHER_VALUE = "give {key} another value than {x}"
_GIVE_IT = "give {key}: on the command line, in the configuration or the environment, where the others stand"


def turned_round(message: str) -> str:
    """What to do so that the first rule of `message` that is recognized holds; empty if it states none."""
    text = " ".join(message.split())
    return next(filter(None, (rule(text) for rule in _RULES)), "")


def _one_of(text: str) -> str:
    match = _ONE_OF.search(text)
    return say(_CHOOSE, list=match["list"].rstrip(".")) if match else ""


def _multiple(text: str) -> str:
    match = _DIVISIBLE.search(text)
    if match is None:
        return ""
    x, y = _parts(match, "x", "y")
    numbers = _NUMBER_IN.findall(x) + _NUMBER_IN.findall(y)
    # Of several numbers the message does not say which is the value.
    if len(numbers) != 2 or not int(numbers[1]):
        return say(_MULTIPLE, x=x, y=y) if x and y else ""
    given, divisor = map(int, numbers)
    below, above = given // divisor * divisor, -(-given // divisor) * divisor
    if below == above:
        return ""
    told = (
        say(_NEAREST, below=below, above=above, given=given)
        if below
        else say(_LEAST_MULTIPLE, above=above, given=given)
    )
    divisors = [str(each) for each in range(1, min(divisor * 2, given, 4096) + 1) if given % each == 0 and each > 1]
    if divisors and divisor <= given:
        told = say(_DIVISORS, given=given, divisor=divisor, list=", ".join(divisors[-4:]), other=told)
    return say(_MULTIPLE_OF, x=x, y=y, numbers=told)


def _set_it(text: str) -> str:
    if (match := _SET.search(text)) is not None:
        return say(_SET_IT, key=match["key"], value=match["value"].rstrip("."))
    match = _TO_SET.search(text)
    return say(_SET_TO, key=match["key"], value=match["value"]) if match else ""


def _one_of_two(text: str) -> str:
    if (match := _ONLY_WHEN.search(text)) is not None:
        return say(_LEAVE_UNLESS, x=match["x"], when=match["when"])
    for pattern in (_BETWEEN, _ONLY_ONE, _EXCLUSIVE, _INCOMPATIBLE, _WITHOUT):
        if (match := pattern.search(text)) is not None:
            x, y = _parts(match, "x", "y")
            is_place = pattern is _WITHOUT and match["how"] in ("for", "on", "in", "by")
            if x and y:
                return say(_NOT_THERE, x=x, y=y) if is_place else say(_ONE_OF_TWO, x=x, y=y)
    return ""


def _as_saved(text: str) -> str:
    match = _SINCE_SAVED.search(text)
    return say(_AS_SAVED, x=match["x"]) if match else ""


def _give(text: str) -> str:
    match = _GOT_OF_TWO.search(text) or _ONLY_BUT.search(text)
    if match is None:
        return ""
    want, got = _parts(match, "want", "got")
    # Of a long value its kind is enough.
    got = f"{got[:_LONGEST_GIVEN]}…" if len(got) > _LONGEST_GIVEN else got
    return say(_GIVE, want=want, got=got) if want and got else ""


def _equal(text: str) -> str:
    match = _UNLIKE.search(text)
    if match is None:
        return ""
    x, y = _parts(match, "x", "y") if match["x"] else _parts(match, "a", "b")
    return say(_EQUAL, x=x, y=y) if x and y else ""


def _compared(text: str) -> str:
    match = _LESS.search(text)
    return say(_COMPARED, x=match["x"], y=match["y"]) if match else ""


def _within(text: str) -> str:
    for pattern, sentence in ((_BOUND, _WITHIN), (_OVER, _LOWER), (_UNDER, _RAISE)):
        if (match := pattern.search(text)) is not None:
            x, y = _parts(match, "x", "y")
            how = match["how"] if pattern is _BOUND else ""
            return say(sentence, x=x, y=y, how=how) if x and y else ""
    return ""


def _other_text(text: str) -> str:
    invalid, rather = _INVALID.search(text), _RATHER.search(text)
    if invalid is not None and rather is not None:
        return say(_IN_PLACE, x=invalid["x"], y=rather["y"])
    if (match := _CHARACTERS.search(text)) is not None:
        return say(_OTHER_TEXT, rule=match[0][:_LONGEST])
    if invalid is not None and invalid["key"]:
        return say(_OTHER_VALUE, key=invalid["key"], x=invalid["x"])
    return ""


def _only(text: str) -> str:
    for pattern, sentence in ((_ONLY, _ONLY_THERE), (_REQUIRES, _MEET)):
        if (match := pattern.search(text)) is not None and (part := _short(match["y"])):
            return say(sentence, y=part)
    return ""


def _leave(text: str) -> str:
    match = _UNSUPPORTED.search(text)
    what = match and next(filter(None, match.groups()))
    return say(_LEAVE, x=_short(what)) if what and _short(what) else ""


def _give_it(text: str) -> str:
    match = _MISSING.search(text)
    key = match and (match["key"] or match["other"])
    return say(_GIVE_IT, key=key) if key and _names_a_key(key) else ""


_RULES: tuple[Callable[[str], str], ...] = (
    _one_of, _multiple, _as_saved, _set_it, _one_of_two, _give, _compared, _within, _equal,
    _other_text, _give_it, _only, _leave,
)  # fmt: skip
_KEY = re.compile(r"['\"`-]|[a-z]_[a-z]|[A-Z]_[A-Z]")
_LEAD = re.compile(
    r"^.{0,60}\b(?:requires?|expects?) (?:the )?|^(?:(?:Currently|Note that|Sorry|Error|Assertion failed|"
    r"However|But|The|the|a|an|that|when|if|as|and|please|your)"
    r",? )+|^[A-Z][A-Z_]{6,}: "
)


_INSTEAD = re.compile(r" instead$")
_QUOTES = ("'", '"', "`")
_TWO = 2
_PAIRS = (("(", ")"), ("[", "]"), ("{", "}"))


def _names_a_key(word: str) -> bool:
    return _KEY.search(word) is not None


def _parts(match: re.Match[str], x: str, y: str) -> tuple[str, str]:
    return _short(match[x]), _short(match[y])


def _short(part: str) -> str:
    """A part of a message without its lead words and quotes; empty if it is too long, or refers to something else."""
    part = _INSTEAD.sub("", _LEAD.sub("", part.strip())).strip(" ,.:")
    if part[:1] in _QUOTES and part.endswith(part[:1]) and part.count(part[:1]) == _TWO:
        part = part[1:-1]
    if any(part.count(opening) != part.count(closing) for opening, closing in _PAIRS) or part.count('"') % 2:
        return ""
    is_reference = part.lower() in ("it", "this", "that", "they", "which", "these", "those", "there", "value", "")
    return "" if is_reference or len(part) > _LONGEST else part
