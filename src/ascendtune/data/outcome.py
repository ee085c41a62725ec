"""What became of rows when they were tokenised."""

from __future__ import annotations

from dataclasses import dataclass, field

NO_ANSWER_LEFT = "no answer left within max_length"
NOTHING_TO_LEARN = "nothing to learn in it"
TOO_LONG = "longer than max_length"
REFUSED = "the chat template refuses it"
INDIVISIBLE = "one word of millions of characters"


@dataclass
class Outcome:
    """What became of rows; `add` joins the outcomes of shards. Rows are named by their number; a pair is one row."""

    rows: int = 0
    tokens: int = 0
    labelled_tokens: int = 0
    """Labels that are predicted: all but a label on a row's first token."""
    truncated_rows: int = 0
    truncated_tokens: int = 0
    split_rows: int = 0
    """Texts that became several rows of tokens."""
    pieces: int = 0
    """Rows of tokens that they became."""
    uncounted_rows: int = 0
    """Rows so long that only their beginning was tokenised: of them `truncated_tokens` and `longest` hold what was."""
    uncounted_characters: int = 0
    """Characters of such rows that were not tokenised."""
    longest: int = 0
    """Tokens of the longest row, before truncation."""
    shortest: int | None = None
    dropped: list[tuple[int, str, str]] = field(default_factory=list)
    """(row, reason, detail): rows that were not written."""
    disagrees: bool = False
    """The fast path of rendering went wrong: nothing of this can be used."""

    def add(self, other: Outcome) -> None:
        self.rows += other.rows
        self.tokens += other.tokens
        self.labelled_tokens += other.labelled_tokens
        self.truncated_rows += other.truncated_rows
        self.truncated_tokens += other.truncated_tokens
        self.split_rows += other.split_rows
        self.pieces += other.pieces
        self.uncounted_rows += other.uncounted_rows
        self.uncounted_characters += other.uncounted_characters
        self.longest = max(self.longest, other.longest)
        shortest = [each for each in (self.shortest, other.shortest) if each is not None]
        self.shortest = min(shortest, default=None)
        self.dropped += other.dropped
        self.disagrees |= other.disagrees

    def saw(self, length: int) -> None:
        """Note the length of a row before truncation."""
        self.longest = max(self.longest, length)
        self.shortest = length if self.shortest is None else min(self.shortest, length)
