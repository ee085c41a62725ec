"""Which files make a data set: one file, or those of a directory that belong to the split."""

from __future__ import annotations

import re
from pathlib import Path

from ascendtune.core.errors import DataError
from ascendtune.core.files import expanded, is_endless
from ascendtune.core.log import say
from ascendtune.core.nearest import nearest_path
from ascendtune.core.units import count_of
from ascendtune.data.spec import DatasetSpec

SUFFIXES = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".txt")
_NOT_DATA = re.compile(r"(?i)readme|licen[cs]e|requirements|dataset_(info|infos|dict)\.json|state\.json")
_SPLITS = ("train", "test", "validation", "valid", "val", "dev", "eval")


def data_suffix(path: Path) -> str | None:
    """`.jsonl` for rows.jsonl and rows.jsonl.gz; None when the name does not tell."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    return suffixes[-1] if suffixes and suffixes[-1] in SUFFIXES else None


def data_files(spec: DatasetSpec, path: Path | None = None) -> list[Path]:
    """The files of a data set, in the order in which they are read.

    Args:
        path: where the data set lies; default is `spec.path`.

    Raises:
        DataError: nothing is there, or no data file, or none of the split or subset.
    """
    path = path or expanded(spec.path)
    if not path.exists():
        nearest = nearest_path(path)
        remedy = f"did you mean '{nearest}'?" if nearest else "check the path; it starts at the working directory"
        raise DataError("no such data file or directory", remedy=remedy, where=path)
    if path.is_dir():
        return _files_in(path, spec)
    _require_file(path)
    return [path]


def _require_file(path: Path) -> None:
    if not path.is_file() or is_endless(path):
        raise DataError(
            "neither a file nor a directory: a data file is read several times, which a pipe or a device cannot be",
            remedy="write the rows into a file",
            where=path,
        )


def _files_in(folder: Path, spec: DatasetSpec) -> list[Path]:
    # Asked first: a pattern finds nothing, and says nothing, where a directory may not be read.
    next(folder.iterdir(), None)
    files = [file for file in sorted(folder.rglob("*")) if _is_data(file.relative_to(folder)) and file.exists()]
    files = [file for file in files if not file.is_dir()]
    for file in files:
        _require_file(file)
    if not files:
        raise DataError(
            "no data file in this directory",
            remedy=f"put files there that end in {', '.join(SUFFIXES)} (or .gz)",
            where=folder,
        )
    if spec.subset:
        files = _matching(files, folder, spec.subset, "subset")
    if spec.split:
        return _matching(files, folder, spec.split, "split")
    return _training_files(files, folder)


def _training_files(files: list[Path], folder: Path) -> list[Path]:
    """Nobody means to train on a file called test.jsonl because it lies beside train.jsonl."""
    of_train = [file for file in files if _mentions(file, folder, "train")]
    others = [file for file in files if any(_mentions(file, folder, split) for split in _SPLITS)]
    if of_train and len(others) == len(files) > len(of_train):
        say(f"{folder}: the split 'train' is read ({count_of(len(of_train), 'file')} of {len(files)})")
        return of_train
    return files


def _matching(files: list[Path], folder: Path, wanted: str, word: str) -> list[Path]:
    found = [file for file in files if _mentions(file, folder, wanted)]
    if not found:
        names = ", ".join(str(file.relative_to(folder)) for file in files[:5])
        raise DataError(
            f"no file belongs to the {word} '{wanted}'",
            remedy=f"choose a {word} that a file or directory is named after; there are: {names}",
            where=folder,
        )
    return found


def _mentions(file: Path, folder: Path, word: str) -> bool:
    """`train` is in train.jsonl, data/train-00000-of-00002.parquet and train/0.json, not in training.json."""
    return bool(re.search(rf"(?<![a-zA-Z0-9]){re.escape(word)}(?![a-zA-Z0-9])", str(file.relative_to(folder))))


def _is_data(relative: Path) -> bool:
    hidden = any(part.startswith(".") for part in relative.parts)
    return not hidden and data_suffix(relative) is not None and not _NOT_DATA.match(relative.name)
