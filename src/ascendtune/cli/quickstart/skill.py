"""The task: sort the letters of a word. Words, questions, answers and scores."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ascendtune.data.conversation import Message

PROMPT_PREFIX = "Sort the letters: "
QUESTIONS = 50
CONVERSATIONS = 7_000
TRAINING_FILE, QUESTIONS_FILE = "train.jsonl", "questions.jsonl"

_SHORTEST, _LONGEST = 4, 6
_CONSONANTS, _VOWELS = "bcdfghjklmnpqrstvwxyz", "aeiou"
_MOST_TURNS = 3
_ASKED_FIRST, _ASKED_LATER = 0.75, 0.4
"""Probability that the first and a later turn contain the full question instead of only the word."""


@dataclass(frozen=True)
class Skill:
    """Training data and questions, which have no words in common."""

    training: tuple[tuple[Message, ...], ...]
    """Conversations of one to three words, so that the model can be talked to."""
    questions: tuple[str, ...]

    @classmethod
    def make(cls, seed: int = 0) -> Skill:
        """Deterministic in `seed`."""
        draw = random.Random(seed)
        words = _words(draw)
        questions = tuple(next(words) for _ in range(QUESTIONS))
        return cls(tuple(_conversation(draw, words) for _ in range(CONVERSATIONS)), questions)

    @property
    def files(self) -> dict[str, bytes]:
        """Two files in the messages format, by name; the questions include the right answer."""
        conversations = [(*question(word), _reply(word)) for word in self.questions]
        return {TRAINING_FILE: _rows(self.training), QUESTIONS_FILE: _rows(conversations)}


def question(word: str) -> list[Message]:
    """The conversation that asks for `word`."""
    return [{"role": "user", "content": f"{PROMPT_PREFIX}{word}"}]


def answer(word: str) -> str:
    """The right answer: the letters of the word in alphabetical order."""
    return "".join(sorted(word))


def count_right(words: Sequence[str], answers: Sequence[str]) -> int:
    """Number of right answers."""
    return sum(given == answer(word) for word, given in zip(words, answers, strict=True))


def _conversation(draw: random.Random, words: Iterator[str]) -> tuple[Message, ...]:
    turns: list[Message] = []
    for number in range(draw.randint(1, _MOST_TURNS)):
        word = next(words)
        is_asked = draw.random() < (_ASKED_LATER if number else _ASKED_FIRST)
        turns += [*(question(word) if is_asked else [Message(role="user", content=word)]), _reply(word)]
    return tuple(turns)


def _rows(conversations: Iterable[tuple[Message, ...]]) -> bytes:
    return "".join(json.dumps({"messages": turns}) + "\n" for turns in conversations).encode()


def _reply(word: str) -> Message:
    return {"role": "assistant", "content": answer(word)}


def _words(draw: random.Random) -> Iterator[str]:
    """Pronounceable words, each once, with no letter more than twice."""
    seen: set[str] = set()
    while True:
        word = _pronounceable(draw)
        # Counting equal letters is the hard part of the task: at most two are equal.
        if word not in seen and max(map(word.count, word)) <= 2:
            seen.add(word)
            yield word


def _pronounceable(draw: random.Random) -> str:
    length, word = draw.randint(_SHORTEST, _LONGEST), ""
    while len(word) < length:
        consonant, vowel = draw.choice(_CONSONANTS), draw.choice(_VOWELS)
        word += consonant + vowel if draw.random() < 0.7 else vowel + consonant
    return word[:length]
