"""Removes what a headline supposes about a container, if the log shows that the program ran on the host."""

from __future__ import annotations

import re

from ascendtune.check.explain.answer.applicable_remedies import ran_on_host
from ascendtune.check.explain.facts.facts import Facts
from ascendtune.check.explain.knowledge.entries import KnownFailure

_OF_CONTAINERS = ("containers", "daemons")
"""Families of failures of containers and their runtimes."""
_ALTERNATIVE = re.compile(
    r" \((?:or|and) (?:in )?(?:the |this |a )?container(?:'s)?\)|(?<='s) or container's|, (?:the )?container(?= or\b)|"
    r"\bthe container or (?=the |this )|(?<!,) or (?:in |from )?(?:the |this )?container(?=[ ,:;.)]|$)"
    r"(?! (?:without|that|was|lacks|in which|does not read)\b)|"
    r"（或容器）|、容器(?=或)|(?<!，) ?或(?:该|此|这个)?容器(?![没启未缺里中内外运镜网])"
)
"""A container as one of two places."""
_REASON = re.compile(
    r"(?:[:,] (?:or |and )?(?:most often )?(?:because )?(?:the|a|this) container\b(?!'s| or\b)|"
    r": in a container most often\b)[^:;,()]*$|"
    r"[：，](?:或者?)?(?:多半|通常|最常见的?)?(?:是|的是)?(?:因为)?(?:该|此|这个)?容器(?!的|或|、|里)[^：；，（）]*$"
)
"""The container as the supposed reason, at the end of a sentence."""
_TWO_REASONS = re.compile(r"(?<=: )(?P<one>[^:;,]+), (?P<other>(?!or |and )[^:;,]+)$")
_LATIN_BEFORE_CHINESE = re.compile(r"[A-Za-z0-9_][\u4e00-\u9fff]")


def without_container_claims(sentence: str, entry: KnownFailure, facts: Facts) -> str:
    """Remove containers from the places and the supposed reasons that `sentence` names.

    The sentence of an entry for containers stays as it is.
    """
    if entry.family in _OF_CONTAINERS or not ran_on_host(facts):
        return sentence
    reason = _REASON.search(sentence)
    sentence = _REASON.sub(_removed, sentence)
    if reason is not None and reason[0].startswith(", or "):
        sentence = _TWO_REASONS.sub(r"\g<one>, or \g<other>", sentence)
    return _ALTERNATIVE.sub(_removed, sentence)


def _removed(claim: re.Match[str]) -> str:
    """In Chinese a blank remains between a Latin word before the claim and the text behind it."""
    begin, end = claim.span()
    return " " if _LATIN_BEFORE_CHINESE.fullmatch(claim.string[begin - 1] + claim.string[end : end + 1]) else ""
