"""The files of a data set: their selection, and their content as bytes or lines of text, decompressed and decoded."""

from __future__ import annotations

import codecs
import gzip
import io
import re
import shlex
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Literal, cast

from ascendtune.core.dataset_card import CARD, ChosenFiles, choose_files, named_splits
from ascendtune.core.errors import DataError, read_fault
from ascendtune.core.files import expanded, is_endless, walk
from ascendtune.core.foreign_json import LFS_POINTER
from ascendtune.core.log import say, warn
from ascendtune.core.suggest import path_suggestion
from ascendtune.core.units import count_of
from ascendtune.data.encoding import UTF16_MARKS, Encoding, Transcoded, likely_encoding
from ascendtune.data.spec import DatasetSpec

_GZIP = b"\x1f\x8b"
_UTF8_MARK = b"\xef\xbb\xbf"
_LONGEST_LINE = 512 << 20
_MOST_BLANK_LINES, _MOST_BLANK_BYTES = 100_000, 64 << 20
"""Between two rows, or at the end of a file."""
_MOST_UNPACKED, _MOST_TIMES = 1 << 30, 200
"""A file of more uncompressed bytes than the first may have at most this many times its size on the disk."""
_PIECE = 1 << 20
_MOST_ENTRIES = 300_000
"""Files and directories in the directory of a data set; a whole file system has millions."""


@contextmanager
def opened(path: Path, encoding: Encoding = "auto") -> Iterator[IO[bytes]]:
    """The content of `path`, decompressed, and converted to UTF-8 from another encoding, or from UTF-16 with its mark.

    Excel and PowerShell write UTF-16.

    Raises:
        DataError: it cannot be read, is a pointer of Git LFS, the gzip stream is damaged, or the text is not in its
            encoding.
        MachineError: no permission to read it, or the disk fails.
    """
    try:
        with path.open("rb") as file:
            begin = file.read(len(LFS_POINTER))
            if begin == LFS_POINTER:
                # It would be trained on as text.
                raise DataError(
                    "this is a Git LFS pointer, not the data",
                    code="git-lfs-pointer",
                    remedy="run `git lfs pull` in its directory",
                    where=path,
                )
            compressed = path.suffix.lower() == ".gz" or begin.startswith(_GZIP)
            file.seek(0)
            # GzipFile is a binary file; its declared type differs.
            content = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if compressed else file
            codec = "utf-16" if content.read(2) in UTF16_MARKS else encoding
            content.seek(0)
            yield content if codec == "auto" else io.BufferedReader(Transcoded(content, path, codec))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(
            f"the gzip file is damaged or cut off: {error}",
            code="gzip-damaged",
            remedy="copy or download it again; `gzip -t` checks it",
            where=path,
        ) from error
    except OSError as error:
        fault = DataError(
            f"cannot be read: {error.strerror or error}", code="file-unreadable", remedy="check the file", where=path
        )
        raise read_fault(error, path) or fault from error


def head(path: Path, size: int = 4096, encoding: Encoding = "auto") -> bytes:
    """The first bytes, uncompressed."""
    with opened(path, encoding) as file:
        return file.read(size)


def read_text(path: Path, encoding: Encoding = "auto") -> str:
    """The whole file.

    Raises:
        DataError: not UTF-8; names line and byte.
    """
    return "".join(read_pieces(path, encoding))


def read_pieces(path: Path, encoding: Encoding = "auto") -> Iterator[str]:
    """The text of a file, one piece after the other.

    Raises:
        DataError: not UTF-8 (with line and byte), or far larger than on the disk.
    """
    most = max(_MOST_UNPACKED, _MOST_TIMES * path.stat().st_size)
    read, line, column, rest = 0, 1, 1, b""
    with opened(path, encoding) as file:
        while True:
            piece = file.read(_PIECE)
            content = rest + piece
            if not read:
                content = content.removeprefix(_UTF8_MARK)
            read += len(piece)
            if read > most:
                raise _too_large(path, most)
            try:
                text, used = codecs.utf_8_decode(content, "strict", not piece)
            except UnicodeDecodeError as error:
                line += content.count(b"\n", 0, error.start)
                behind_break = content.rfind(b"\n", 0, error.start) + 1
                column = error.start - behind_break + (1 if behind_break else column)
                raise _not_utf8(path, line, column, content, error.start) from error
            if text:
                yield text
            if not piece:
                return
            rest, behind_break = content[used:], content.rfind(b"\n", 0, used) + 1
            line += content.count(b"\n", 0, used)
            column = used - behind_break + (1 if behind_break else column)


def read_lines(path: Path, encoding: Encoding = "auto") -> Iterator[tuple[int, str]]:
    """(line number from 1, line with its line end), one after the other.

    Raises:
        DataError: not UTF-8 (with line and byte), a line that is too long, or too many consecutive blank lines.
    """
    blank = _BlankLines(path)
    with opened(path, encoding) as file:
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE + 1), b""), 1):
            if len(line) > _LONGEST_LINE:
                raise DataError(
                    f"this line is longer than {_LONGEST_LINE >> 20} MiB",
                    code="line-too-long",
                    remedy="write one row per line, and split longer texts into several rows",
                    where=f"{path}:{number}",
                )
            blank.count(line, number)
            if number == 1:
                line = line.removeprefix(_UTF8_MARK)
            try:
                yield number, line.decode()
            except UnicodeDecodeError as error:
                raise _not_utf8(path, number, error.start + 1, line, error.start) from error


class _BlankLines:
    """Limits consecutive blank lines: a small gzip file can decompress to hundreds of millions of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = self._bytes = 0

    def count(self, line: bytes, number: int) -> None:
        if not line.isspace():
            self._lines = self._bytes = 0
            return
        self._lines += 1
        self._bytes += len(line)
        if self._lines > _MOST_BLANK_LINES or self._bytes > _MOST_BLANK_BYTES:
            raise DataError(
                f"more than {_MOST_BLANK_LINES:,} blank lines, or {_MOST_BLANK_BYTES >> 20} MiB of them, follow "
                "each other",
                code="too-many-blank-lines",
                remedy="remove the blank lines, or copy the file again",
                where=f"{self._path}:{number - self._lines + 1}",
            )


def _too_large(path: Path, most: int) -> DataError:
    return DataError(
        f"the gzip file unpacks to more than {most >> 20:,} MiB, {_MOST_TIMES} times its size",
        code="gzip-too-large",
        remedy="check its content; write large data as JSON lines, one row per line",
        where=path,
    )


def _not_utf8(path: Path, line: int, column: int, content: bytes, at: int) -> DataError:
    """The error for the byte at `at` of `content`, which is byte `column` of this line of the file, both from 1."""
    begin, end = content.rfind(b"\n", 0, at) + 1, content.find(b"\n", at)
    encoding = likely_encoding(content[begin : end if end >= 0 else None])
    converted = path.with_name("converted" + "".join(path.suffixes))
    return DataError(
        f"not UTF-8: byte 0x{content[at]:02x} at byte {column} of line {line}",
        code="not-utf8",
        remedy=f"set encoding: {encoding} in the data set, if it is that "
        f"(`ascendtune init --encoding {encoding}` shows rows), "
        f"or convert it: iconv -f {encoding.upper()} -t UTF-8 {shlex.quote(str(path))} > {shlex.quote(str(converted))}",
        where=f"{path}:{line}",
    )


_MARKDOWN = (".md", ".markdown")
SUFFIXES = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".arrow", ".txt", *_MARKDOWN)
_PACKED = (".zst", ".xz", ".bz2", ".lz4", ".br", ".7z", ".zip")
_NOT_DATA = re.compile(
    r"(?i)readme|licen[cs]e|requirements|dataset_(info|infos|dict)\.json|state\.json|cache-.*\.arrow"
)
"""Files beside the data of `save_to_disk`, among them caches of `map` and `filter`."""
_TRAINING = ("train", "training")
_OTHER_SPLITS = ("test", "testing", "validation", "valid", "val", "dev", "eval", "evaluation")
"""With `_TRAINING` the words by which `datasets` assigns files to splits."""


def data_suffix(path: Path) -> str | None:
    """`.jsonl` for rows.jsonl and rows.jsonl.gz; None if the name has no known suffix."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in SUFFIXES else None


def data_files(spec: DatasetSpec, path: Path | None = None) -> list[Path]:
    """The files of a data set, in the order in which they are read.

    Args:
        path: the location of the data set; default is `spec.path`.

    Raises:
        DataError: the path does not exist, or contains no data file, or none of the split or subset.
    """
    path = path or expanded(spec.path)
    if not path.exists():
        remedy = path_suggestion(path, "check the path; it starts at the working directory")
        raise DataError("no such data file or directory", code="path-missing", remedy=remedy, where=path)
    if path.is_dir():
        return _files_in(path, spec)
    _require_file(path)
    return [path]


def _require_file(path: Path) -> None:
    if not path.is_file() or is_endless(path):
        raise DataError(
            "a pipe or device is not a data file: data files are read several times",
            code="not-a-regular-file",
            remedy="write the rows into a file",
            where=path,
        )
    if _is_packed(path):
        raise DataError(
            f"a {path.suffix} file is not read",
            code="data-format-unknown",
            remedy="unpack it; of compressed files those in gzip (.gz) are read",
            where=path,
        )


def _files_in(folder: Path, spec: DatasetSpec) -> list[Path]:
    files = _data_below(folder)
    chosen, split = choose_files(folder, spec.subset, spec.split), None
    of_card = [file for file in files if chosen and chosen.includes(file.relative_to(folder).as_posix())]
    if chosen and of_card:
        _log_chosen_files(chosen, of_card, files, folder, spec)
        files, split = of_card, chosen.split
    elif spec.subset:
        files = _matching(files, folder, spec, "subset")
    if split is None:
        files = _matching(files, folder, spec, "split") if spec.split else _training_files(files, folder)
    for file in files:
        _require_file(file)
    return files


def _data_below(folder: Path) -> list[Path]:
    """The data files in a directory and those below it, sorted."""
    # Raises if the directory cannot be read; a walk would silently find nothing.
    next(folder.iterdir(), None)
    found, entries = set[Path](), 0
    for place, directories, names in walk(folder):
        found.update(place / name for name in names)
        entries += len(directories) + len(names)
        if entries > _MOST_ENTRIES:
            raise DataError(
                f"the directory contains more than {_MOST_ENTRIES:,} files and directories",
                code="directory-too-large",
                remedy="give the directory of one data set",
                where=folder,
            )
    # An unreadable file must not be missing silently, unless it lies beside the file that it was made from.
    found -= {file for file in found if _is_packed(file) and file.with_suffix("") in found}
    data = (file for file in sorted(found) if _is_data(file.relative_to(folder)))
    files = [file for file in data if file.exists() and not file.is_dir()]
    if not files:
        raise DataError(
            "no data file in this directory",
            code="data-file-missing",
            remedy=f"put files there that end in {', '.join(SUFFIXES)} (or .gz)",
            where=folder,
        )
    # Beside data of another type, Markdown files describe the data.
    return [file for file in files if data_suffix(file) not in _MARKDOWN] or files


def _log_chosen_files(
    chosen: ChosenFiles, found: list[Path], files: list[Path], folder: Path, spec: DatasetSpec
) -> None:
    is_choice = spec.subset is None and bool(chosen.other_subsets)
    if is_choice or (len(found) < len(files) and not (spec.subset and spec.split)):
        what = f"subset '{chosen.subset}'" + (f", split '{chosen.split}'" if chosen.split else "")
        names = ", ".join(chosen.other_subsets[:3]) + (", …" if len(chosen.other_subsets) > 3 else "")
        others = f"; other subsets: {names}" if names else ""
        share = f"{count_of(len(found), 'file')} of {len(files)}"
        remedy = "; it names no default: set `subset`" if chosen.is_guess else ""
        # A guess is reported in spite of --quiet.
        _log_once(f"{folder}: {CARD} names what is read, {what} ({share}){others}{remedy}", chosen.is_guess)


def _training_files(files: list[Path], folder: Path) -> list[Path]:
    """`files` without those of other splits, if a file is named after `train`: test.jsonl beside train.jsonl."""
    of_train = [file for file in files if any(_mentions(file, folder, word) for word in _TRAINING)]
    others = [file for file in files if any(_mentions(file, folder, word) for word in _OTHER_SPLITS)]
    others = [file for file in others if file not in of_train]
    if not of_train or not others:
        return files
    names = ", ".join(str(file.relative_to(folder)) for file in others[:3]) + (", …" if len(others) > 3 else "")
    _log_once(f"{folder}: the split 'train' is read, not {names} ({count_of(len(others), 'file')} of {len(files)})")
    return [file for file in files if file not in others]


@cache
def _log_once(message: str, is_warning: bool = False) -> None:
    # The files are listed for the format, for the hash of the tokens, and for reading.
    (warn if is_warning else say)(message)


def _matching(files: list[Path], folder: Path, spec: DatasetSpec, word: Literal["subset", "split"]) -> list[Path]:
    name = (spec.subset if word == "subset" else spec.split) or ""
    if mentioned := [file for file in files if _mentions(file, folder, name)]:
        return mentioned
    of_card, what, missing = named_splits(folder), f"the {word} '{name}'", word
    if word == "subset" and spec.split and name in of_card:
        what, missing = f"the split '{spec.split}' of the subset '{name}'", "split"
    names = ", ".join(str(file.relative_to(folder)) for file in files[:5])
    known = [f"{subset} ({', '.join(splits)})" if splits else subset for subset, splits in of_card.items()]
    raise DataError(
        f"no file belongs to {what}",
        code="data-file-missing",
        remedy=f"choose a {missing} that a file or directory is named after; there are: {names}"
        + (f"; {CARD} names the subsets (and splits) {', '.join(known[:5])}" if known else ""),
        where=folder,
    )


def _mentions(file: Path, folder: Path, word: str) -> bool:
    """Whether a word occurs in a path: `train` in train.jsonl, data/train-00000-of-00002.parquet, not in
    training.json."""
    return bool(re.search(rf"(?<![a-zA-Z0-9]){re.escape(word)}(?![a-zA-Z0-9])", str(file.relative_to(folder)), re.I))


def _is_data(relative: Path) -> bool:
    hidden = any(part.startswith(".") for part in relative.parts)
    is_data = data_suffix(relative) is not None or _is_packed(relative)
    return not hidden and is_data and not _NOT_DATA.match(relative.name)


def _is_packed(path: Path) -> bool:
    """Whether the file is data in another compression than gzip: rows.jsonl.zst."""
    return path.suffix.lower() in _PACKED and data_suffix(path.with_suffix("")) is not None
