"""Turns the rule in a message into advice: the value to choose, set or omit.

The rules are read from the usual English of programs: "X must be divisible by Y", "only supports A and B", "requires
X=True", "X is not supported with Y". The advice adds nothing to the message.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ascendtune.check.explain.language import say

_LONGEST = 90
"""Most characters of a part of a message that is quoted in a remedy."""
_ANY = r"(?:[^.;:\n]|[.:](?=\S))"
_WITHIN_CLAUSE = r"(?:[^.;:,\n]|,(?=\d)|[.:](?=\S))"
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
    r"(?:must|should|can only|has to|needs to) be (?:one|any) of|"
    r"(?:must|should|can only) be (?:in|either(?! \w+ and ))|"
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
_WITHOUT = (
    rf"{_CLAUSE}(?P<x>{_WITHIN_CLAUSE}{{1,90}}?) (?:is|are|does|do|was)(?: currently)?(?: not|n't)(?: yet| "
    rf"currently)? (?:be )?"
    r"(?:supported?|compatible|allowed|implemented|work|available|usable)(?: yet| currently)? "
)
_TOGETHER = re.compile(
    rf"{_WITHOUT}(?:with|together with|when using|when|while|if|in combination with) (?P<y>{_ANY}{{2,90}}?){_END}"
)
_AT_PLACE = re.compile(rf"{_WITHOUT}(?:for|on|in|by) (?P<y>{_ANY}{{2,90}}?){_END}")
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
    rf"unsupported)|(?:is|are)n't supported){_END}"
)
_UNSUPPORTED_THING = re.compile(rf"[Uu]nsupported (?P<x>(?!operand)[\w-]+:? [^.;,\n]{{2,60}}?){_END}")
_NO_SUPPORT = re.compile(rf"(?:does not|doesn't|do not|not) (?:yet |currently )?support (?P<x>[^.;,\n]{{2,60}}?){_END}")
_SINCE_SAVED = re.compile(
    rf"{_CLAUSE}(?P<x>{_WITHIN_CLAUSE}{{1,60}}?) (?:is|are|was|were) (?:inconsistent|different|changed|not the same)\b"
    r"[^.;\n]{0,40}\b(?:checkpoint|saved|resum\w+|before)\b"
)
_GOT_OF_TWO = re.compile(
    rf"{_CLAUSE}(?:[\w' ]{{0,30}}: )?[Ee]xpect(?:ed|s|ing) (?P<want>{_ANY}{{1,90}}?),? (?:but )?(?:got|found|"
    rf"received|was|"
    r"given|instead got|is)(?: instead)?:? (?P<got>[^;\n]{1,90}?)(?=[.;!](?:\s|$)|\s*$|, )"
)
_EXPECTED_TO = (
    rf"{_CLAUSE}[Ee]xpect(?:ed|s|ing) (?P<key>(?!(?:it|this|that|them|these|those) ){_ANY}{{1,60}}?) to VERB "
    rf"(?P<want>{_ANY}{{1,60}}?),? "
    rf"(?:but (?:got|found|received|it (?:is|was|has))|got|found|not|instead of) (?P<got>[^;,\n]{{1,90}}?)"
    r"(?=[.;!](?:\s|$)|\s*$|, )"
)
_TO_BE = re.compile(_EXPECTED_TO.replace("VERB", "be"))
_TO_HAVE = re.compile(_EXPECTED_TO.replace("VERB", "(?:have|contain)"))
_ONLY_BUT = re.compile(
    rf"{_CLAUSE}{_ANY}{{1,60}}? (?:can only|must|should|has to|needs to) be "
    r"(?!(?:specified|provided|given|set|defined|passed|present|called|used|installed)\b)"
    rf"(?P<want>{_ANY}{{1,80}}?),? (?:but )?"
    r"(?:got|found|received|not|is|was|but) (?P<got>[^\n]{1,160}?)(?=[.;!](?:\s|$)|\s*$)"
)
_UNLIKE = re.compile(
    rf"{_CLAUSE}(?P<x>{_ANY}{{1,80}}?) (?:is|are|does|do|did)(?: not|n't) (?:match(?:ed)?(?: with| to)?|equal(?: to)?|"
    rf"the same as|consistent with|agree with) (?P<y>[^;\n]{{1,80}}?){_END}"
)
_MUST_MATCH = re.compile(
    rf"{_CLAUSE}(?P<x>{_ANY}{{1,80}}?) (?:{_MUST} (?:match|equal|be equal to|be the same as|be consistent with)) "
    rf"(?P<y>[^;\n]{{1,80}}?){_END}"
)
_LESS = re.compile(r"\((?P<x>\d[\d.]*) ?(?:<=?|>=?|!=) ?(?P<y>\d[\d.]*)\)")
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
_EMPTY = re.compile(
    rf"{_CLAUSE}(?P<x>{_ANY}{{1,80}}?) "
    r"(?:(?:cannot|can't|can not|must not|may not|should not) be (?:empty|an empty \w+)|"
    rf"{_MUST} (?:contain|have|include) at least one (?P<y>[\w ]{{2,40}}?)){_END}"
)
_CHARACTERS = re.compile(
    r"(?:cannot|can't|must not|may not|should not) (?:contain|include|have|start with|begin with|end with)"
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

_ONLY_WHEN = re.compile(
    r"(?:[Pp]ass|[Ss]et|[Uu]se|[Ss]pecify|[Gg]ive) (?P<key>[\w.`'\"-]{2,40}) only (?P<when>(?:when|if|for|"
    r"with) [^.;:\n]{3,120}?)"
    r"(?=[.;:!](?:\s|$)| \(|\s*$)"
)
_ONLY = re.compile(
    rf"\bonly (?:supports?|supported (?:on|with|by|for)|works? (?:with|on|for)|runs? (?:on|with)|available "
    rf"(?:on|with|for|in))"
    rf" (?P<y>{_ANY}{{2,90}}?){_END}"
)
_REQUIRES = re.compile(
    rf"(?:(?<!\bnot )\brequires?|\bneeds) (?!grad|to\b|an argument)(?:that |the )?(?P<y>{_ANY}{{4,90}}?){_END}"
)
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

_MULTIPLE = "choose '{x}' as a multiple of '{y}'"
_MULTIPLE_OF = "choose '{x}' as a multiple of '{y}': {numbers}"
_NEAREST = "{below} or {above} in place of {given}"
_LEAST_MULTIPLE = "{above} in place of {given}"
_DIVISORS = "{list} in place of {divisor} (divisors of {given}); or {other}, where that number is yours to choose"
_ONE_OF_TWO = "the two do not go together: leave out '{x}' or '{y}'"
_GIVE = "'{want}' is expected where '{got}' is given: change what gives it there"
_HAS_TO_BE = "'{key}' has to be '{want}' and is '{got}': change it where it is set or made"
_EQUAL = "the two have to agree: '{x}' and '{y}': set one to the value of the other"
_LEAVE = "leave out '{x}' (the option, key or call that asks for it); a newer release may have it"
_FILL = "'{x}' is empty: print it where it is set, read or made, and give it what is missing"
_LACKS = "'{x}' has no '{y}': print it where it is set, read or made, and give it one"
_OTHER_TEXT = "choose another text for what the message quotes: the rule is '{rule}'"
_IN_PLACE = "use {y} in place of {x}"
_OTHER_VALUE = "give {key} another value than {x}"
_GIVE_IT = "give {key}: on the command line, in the configuration or the environment, where the others stand"


def turned_round(message: str) -> str:
    """Advice from the first recognized rule in `message`; empty if there is none."""
    text = " ".join(message.split())
    sentences = (rule(text) if callable(rule) else _said_of(text, *rule) for rule in _RULES)
    return next(filter(None, sentences), "")


def _said_of(text: str, pattern: re.Pattern[str], sentence: str) -> str:
    """Insert the captured parts of the text into the sentence; empty if one of them cannot be quoted."""
    match = pattern.search(text)
    if match is None:
        return ""
    parts = {name: _part(name, part) for name, part in match.groupdict().items()}
    return say(sentence, **parts) if all(parts.values()) else ""


def _part(name: str, part: str) -> str:
    if name in _AS_IT_STANDS:
        return part.rstrip(".")
    part = _short(part)
    # The beginning of a long value is sufficient.
    return f"{part[:_LONGEST_GIVEN]}…" if name == "got" and len(part) > _LONGEST_GIVEN else part


def _multiple(text: str) -> str:
    match = _DIVISIBLE.search(text)
    if match is None:
        return ""
    x, y = _short(match["x"]), _short(match["y"])
    numbers = _NUMBER_IN.findall(x) + _NUMBER_IN.findall(y)
    # With several numbers it is unknown which one is the value.
    if len(numbers) != 2 or not int(numbers[1]):
        return say(_MULTIPLE, x=x, y=y) if x and y else ""
    given, divisor = map(int, numbers)
    below, above = given // divisor * divisor, -(-given // divisor) * divisor
    if below == above:
        return ""
    remedy = say(_NEAREST if below else _LEAST_MULTIPLE, below=below, above=above, given=given)
    divisors = [str(each) for each in range(2, min(divisor * 2, given, 4096) + 1) if given % each == 0]
    if divisors and divisor <= given:
        remedy = say(_DIVISORS, given=given, divisor=divisor, list=", ".join(divisors[-4:]), other=remedy)
    return say(_MULTIPLE_OF, x=x, y=y, numbers=remedy)


def _other_text(text: str) -> str:
    invalid, rather = _INVALID.search(text), _RATHER.search(text)
    if invalid is not None and rather is not None:
        return say(_IN_PLACE, x=invalid["x"], y=rather["y"])
    if (match := _CHARACTERS.search(text)) is not None:
        return say(_OTHER_TEXT, rule=match[0][:_LONGEST])
    if invalid is not None and invalid["key"]:
        return say(_OTHER_VALUE, key=invalid["key"], x=invalid["x"])
    return ""


def _not_empty(text: str) -> str:
    match = _EMPTY.search(text)
    x = _short(match["x"]) if match else ""
    if match is None or not x:
        return ""
    return say(_LACKS, x=x, y=match["y"]) if match["y"] else say(_FILL, x=x)


def _give_it(text: str) -> str:
    match = _MISSING.search(text)
    key = match and (match["key"] or match["other"])
    return say(_GIVE_IT, key=key) if key and _KEY.search(key) else ""


def _short(part: str) -> str:
    """Remove lead words and quotes from a part of a message; empty if it is too long, or a pronoun."""
    part = _INSTEAD.sub("", _LEAD.sub("", part.strip())).strip(" ,.:")
    if part[:1] in _QUOTES and part.endswith(part[:1]) and part.count(part[:1]) == _TWO:
        part = part[1:-1]
    if any(part.count(opening) != part.count(closing) for opening, closing in _PAIRS) or part.count('"') % 2:
        return ""
    is_reference = part.lower() in ("it", "this", "that", "they", "which", "these", "those", "there", "value", "")
    return "" if is_reference or len(part) > _LONGEST else part


_AS_IT_STANDS = ("list", "key", "value", "when", "how")
"""Names of parts that are quoted unchanged."""
_RULES: tuple[tuple[re.Pattern[str], str] | Callable[[str], str], ...] = (
    (_ONE_OF, "of what the message names, use one that it lists: {list}"),
    _multiple,
    (
        _SINCE_SAVED,
        "continue with the same {x} as the checkpoint was written with (its run's configuration or log has it), or "
        "without the part of the checkpoint that depends on it",
    ),
    (_SET, "set {key}={value}, or leave out what asks for it"),
    (_TO_SET, "{key} has to be {value}: set it so where it is configured"),
    (_ONLY_WHEN, "leave out {key}: it is to be given only {when}"),
    *((pattern, _ONE_OF_TWO) for pattern in (_BETWEEN, _ONLY_ONE, _EXCLUSIVE, _INCOMPATIBLE, _TOGETHER)),
    (_AT_PLACE, "leave out '{x}': '{y}' does not have it"),
    (_TO_BE, _HAS_TO_BE),
    (_TO_HAVE, "'{key}' has to have '{want}' and has '{got}': change it where it is set or made"),
    (_GOT_OF_TWO, _GIVE),
    (_ONLY_BUT, _GIVE),
    (_LESS, "{x} is on one side and {y} on the other: change the one that is configured so that the comparison holds"),
    (_BOUND, "bring '{x}' to where it is {how} '{y}'"),
    (_OVER, "lower '{x}', or raise '{y}' where it is configured"),
    (_UNDER, "raise '{x}', or lower '{y}' where it is configured"),
    (_UNLIKE, _EQUAL),
    (_MUST_MATCH, _EQUAL),
    _not_empty,
    _other_text,
    _give_it,
    (
        _ONLY,
        "it goes with '{y}' only: what differs from that here (option, type, release, hardware) is to be changed",
    ),
    (_REQUIRES, "see to what it requires, '{y}', or leave out the option that requires it"),
    *((pattern, _LEAVE) for pattern in (_UNSUPPORTED, _UNSUPPORTED_THING, _NO_SUPPORT)),
)
"""Rules in the order of trying: a pattern with the sentence for its captures, or a function of the message."""
