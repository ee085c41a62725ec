"""From character spans to token ranges: a token is learnt when it overlaps a span."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Encoding


def learnt_tokens(encoding: Encoding, spans: Sequence[tuple[int, int]], characters: int) -> list[tuple[int, int]]:
    """(begin, end) token ranges of character spans; a span that no token covers gives none.

    Only the tokens at the borders are looked at: asking for all offsets costs a fifth of tokenising. Several tokens
    may share a character (bytes of one letter), and characters may belong to no token (white space that is dropped).

    Args:
        spans: ascending and disjoint (begin, end) in characters of the text that was encoded.
        characters: length of that text.
    """
    ranges = []
    count = len(encoding)
    for begin, end in spans:
        first = _first_token(encoding, begin, end)
        if first is None:
            continue
        after = _first_token(encoding, end, characters)
        stop = count if after is None else after
        # The first token of what follows may reach back over the border, and then it is learnt; one of no width is not.
        while stop < count and _begins_before(encoding, stop, end):
            stop += 1
        while stop > first + 1 and not _begins_before(encoding, stop - 1, end):
            stop -= 1
        ranges.append((first, stop))
    return ranges


def _first_token(encoding: Encoding, begin: int, end: int) -> int | None:
    """The first token that overlaps the characters from `begin` to `end`."""
    for character in range(begin, end):
        token: int | None = encoding.char_to_token(character)
        if token is not None:
            return token
    return None


def _begins_before(encoding: Encoding, token: int, character: int) -> bool:
    place: tuple[int, int] | None = encoding.token_to_chars(token)
    return place is not None and place[0] < character
