"""Maps spans of characters to tokens."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Encoding


def trained_tokens(encoding: Encoding, spans: Sequence[tuple[int, int]], characters: int) -> list[tuple[int, int]]:
    """Token ranges of character spans: a token is trained on if it overlaps a span. A span may have no token.

    Only the tokens at the borders are inspected: reading all offsets takes a fifth of the time of tokenisation. Several
    tokens may share a character (bytes of one letter), and a character may belong to no token (dropped white space).

    Args:
        spans: ascending and disjoint [begin, end) in characters of the encoded text.
        characters: length of that text.

    Returns:
        Ascending [begin, end) ranges of token positions.
    """
    ranges = []
    count = len(encoding)
    for begin, end in spans:
        first = _first_token(encoding, begin, end)
        if first is None:
            continue
        after = _first_token(encoding, end, characters)
        stop = count if after is None else after
        # The first token after the span may overlap its end, and then it is trained on; a token of no width is not.
        while stop < count and _begins_before(encoding, stop, end):
            stop += 1
        while stop > first + 1 and not _begins_before(encoding, stop - 1, end):
            stop -= 1
        ranges.append((first, stop))
    return ranges


def begins_within_token(encoding: Encoding, spans: Sequence[tuple[int, int]]) -> bool:
    """Whether a span begins within a token: the text before the span, tokenised alone, ends with another one.

    Args:
        spans: as for `trained_tokens`.
    """
    first_tokens = ((_first_token(encoding, begin, end), begin) for begin, end in spans)
    return any(token is not None and _begins_before(encoding, token, begin) for token, begin in first_tokens)


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
