"""The document of ours that comes out."""

from __future__ import annotations

from typing import Any

from ascendtune.core.document import Document


class Native:
    """Values are put in by dotted key, each with the place in their files that it came from."""

    def __init__(self, source: str) -> None:
        self.document = Document({}, source)

    def put(self, key: str, value: Any, place: str) -> None:
        *parents, last = key.split(".")
        target = self.document.values
        for part in parents:
            target = target.setdefault(part, {})
        target[last] = value
        path = (*parents, last)
        self.document.places[path] = place
        for length in range(1, len(path)):
            self.document.places.setdefault(path[:length], place)

    def note(self, sentence: str) -> None:
        """Something that a user of theirs wants to know: what has no effect, and what is done otherwise."""
        self.document.notes.append(sentence)
