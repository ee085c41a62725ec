"""One log in several files: the current one, and the rotated ones before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ascendtune.check.explain.log.directory import Unread
from ascendtune.check.explain.log.localised import in_english
from ascendtune.check.explain.log.source import CUT, LONGEST_LINE, blocks
from ascendtune.check.explain.log.wrapped import unwrapped
from ascendtune.core.errors import InputError


class Parts:
    """Reads the files as one log, and maps its lines to the files.

    Args:
        names: files, the oldest first.
        start: offset in bytes, for a single file.
    """

    def __init__(self, names: Sequence[str], start: int = 0) -> None:
        self.names = tuple(names)
        self.lines = 0
        """Lines read so far; the reader increments it."""
        self.cut_off = "", ""
        """The compressed file that could not be read to its end, and the reason; empty if all were."""
        self.cut_line = 0
        """Number of the first line without its middle; 0 if there is none."""
        self.unread: list[Unread] = []
        self._start = start
        self._begins = list[tuple[int, str]]()

    def blocks(self) -> Iterator[bytes]:
        """Blocks of whole lines.

        Raises:
            InputError, PermissionError: none of the files can be read; one of several is skipped.
        """
        for name in self.names:
            self._begins.append((self.lines, name))
            try:
                yield from self._blocks_of(name)
            except (InputError, PermissionError) as error:
                if len(self.unread) + 1 == len(self.names):
                    raise
                self.unread.append(Unread.after(error, name))

    def _blocks_of(self, name: str) -> Iterator[bytes]:
        def cut_off(why: str) -> None:
            self.cut_off = self.cut_off if self.cut_off[0] else (name, why)

        is_last = name == self.names[-1]
        for index, block in enumerate(blocks(name, self._start, cut_off)):
            block = in_english(block if index else unwrapped(block))
            if not self.cut_line and CUT in block:
                self._note_cut_line(block)
            yield block if is_last or block.endswith(b"\n") else block + b"\n"

    def _note_cut_line(self, block: bytes) -> None:
        for index, line in enumerate(block.split(b"\n"), 1):
            if len(line) >= LONGEST_LINE and CUT in line:
                self.cut_line = self.lines + index
                return

    def place_of(self, number: int) -> tuple[str, int] | None:
        """File of a line, and its number in that file; None if there is only one file."""
        if len(self.names) == 1:
            return None
        before, name = next((each for each in reversed(self._begins) if each[0] < number), (0, self.names[0]))
        return name, number - before

    def where(self, number: int) -> str:
        """Place of a line, as FILE:NUMBER."""
        file, line = self.place_of(number) or (self.names[0], number)
        return f"{file}:{line}"

    def lines_of(self, name: str) -> int:
        """Number of lines that were read from a file."""
        begins = [*(begin for begin, _ in self._begins), self.lines]
        index = self.names.index(name)
        return begins[index + 1] - begins[index]
