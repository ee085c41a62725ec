"""The skill: sort the letters of a word. Words, questions, answers and marks."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ascendtune.core.files import write_atomically
from ascendtune.data.conversation import Message

ASKED = "Sort the letters: "
QUESTIONS = 50
ROWS = 12_000

_SHORTEST, _LONGEST = 4, 7
_CONSONANTS, _VOWELS = "bcdfghjklmnpqrstvwxyz", "aeiou"


@dataclass(frozen=True)
class Skill:
    """What is trained on, and what is asked: no word of the one is in the other."""

    training: tuple[str, ...]
    questions: tuple[str, ...]

    @classmethod
    def make(cls, seed: int = 0) -> Skill:
        """The same words for the same seed."""
        words = _words(random.Random(seed))
        questions = tuple(next(words) for _ in range(QUESTIONS))
        return cls(tuple(next(words) for _ in range(ROWS)), questions)

    def write(self, training: Path, questions: Path) -> None:
        """Two files in the messages format; the questions carry the right answer too.

        Raises:
            MachineError: the place cannot be written.
        """
        for path, words in ((training, self.training), (questions, self.questions)):
            rows = ({"messages": [*question(word), {"role": "assistant", "content": answer(word)}]} for word in words)
            write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))


def question(word: str) -> list[Message]:
    """The conversation that asks for `word`."""
    return [{"role": "user", "content": f"{ASKED}{word}"}]


def answer(word: str) -> str:
    """What is right: every letter of the word, in the order of the alphabet."""
    return "".join(sorted(word))


def right(words: Sequence[str], answers: Sequence[str]) -> int:
    """How many answers are right, letter for letter."""
    return sum(given == answer(word) for word, given in zip(words, answers, strict=True))


def _words(draw: random.Random) -> Iterator[str]:
    """Words that can be pronounced, each once."""
    seen: set[str] = set()
    while True:
        length, word = draw.randint(_SHORTEST, _LONGEST), ""
        while len(word) < length:
            consonant, vowel = draw.choice(_CONSONANTS), draw.choice(_VOWELS)
            word += consonant + vowel if draw.random() < 0.7 else vowel + consonant
        word = word[:length]
        if word not in seen:
            seen.add(word)
            yield word
