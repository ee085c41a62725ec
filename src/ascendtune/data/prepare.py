"""Returns the tokens for a recipe, from the cache, or prepares them once and caches them.

An entry is a directory named after the fingerprint: `prepared.json`, `train/`, and `eval/` if there is evaluation
data. It is built beside its place and renamed: it is complete or absent. The process that builds it has a lock that the
kernel releases when the process ends: other processes wait, then use the entry. A leftover of a killed process is one
whose lock is free; it is removed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascendtune.core.directories import abandoned, building_of, cache_directory, lock_of
from ascendtune.core.errors import InputError, MachineError, translated_disk_errors
from ascendtune.core.files import appearing, digest_of_file, expanded
from ascendtune.core.locks import file_lock
from ascendtune.core.ownership import require_own
from ascendtune.core.records import read_json_record, read_record, write_json
from ascendtune.data.fingerprint import TokenInputs, fingerprint
from ascendtune.data.report import DataReport
from ascendtune.data.spec import DataSection, DatasetSpec, Task

_FORMAT_VERSION = 4
_RECORD = "prepared.json"
_FINGERPRINT = re.compile(r"[0-9a-f]{32}", re.ASCII)

Progress = Callable[[str, int, int], None]
"""Called with (current work, rows done, rows in all)."""


@dataclass(frozen=True)
class PreparedData:
    """Tokens on disk, and the facts that training and generation need."""

    directory: Path
    fingerprint: str
    train: Path
    """Opened by `TokenDataset.open`, like `eval`."""
    eval: Path | None
    report: DataReport
    eval_report: DataReport | None
    vocab_size: int
    """Required rows of the model's embeddings."""
    added_ids: tuple[int, ...]
    """Ids of the tokenizer's added tokens, such as BOS and EOS."""
    eos_id: int | None
    pad_id: int
    stop_ids: tuple[int, ...]
    """Token ids that end an answer in this template."""
    chat_template: str
    """Jinja text of the template that was used; the model's own, or empty, if none is (task text)."""
    warnings: tuple[str, ...]
    cached: bool
    """Whether it was found in the cache."""


def prepare(
    section: DataSection,
    model_directory: str | Path,
    *,
    task: Task = "conversations",
    new_tokens: Sequence[str] = (),
    seed: int,
    cache: Path | None = None,
    resolve: Callable[[DatasetSpec], Path] | None = None,
    progress: Progress | None = None,
) -> PreparedData:
    """Tokens of all rows of `section`, with labels; built unless they are in the cache.

    Args:
        model_directory: the directory of the tokenizer.
        task: the kind of rows in the data sets.
        seed: for the choice of rows by a weight, `eval_fraction` or `eval_rows`.
        cache: default is `tokens` in the cache directory.
        resolve: returns the location of a data set on this machine; default is its path.

    Raises:
        RecipeError: tokenizer or template.
        DataError: files or rows.
        MachineError: the cache cannot be written, others may have written it, or a worker was killed.
    """
    cache = cache or cache_directory() / "tokens"
    resolve = resolve or (lambda spec: expanded(spec.path))
    locations = [(spec, resolve(spec)) for spec in (*section.train, *section.eval)]
    inputs = TokenInputs(section, Path(model_directory), locations, task, new_tokens, seed)
    name = fingerprint(inputs)
    entry = cache / name
    _require_own(entry)
    if cached := _intact(entry):
        return cached
    with translated_disk_errors(cache, "preparing the data"):
        cache.mkdir(parents=True, exist_ok=True)
    with file_lock(lock_of(cache, name), wait=True):
        if cached := _intact(entry):
            return cached
        with translated_disk_errors(cache, "preparing the data"):
            building = building_of(cache, name)
            _remove_leftovers(cache, building)
            _remove(entry)
            # Needs tokenizers, jinja2 and pyarrow, which a cached run does not.
            from ascendtune.data.build import build

            with appearing(entry, building, mode=0o755):
                facts = build(building, inputs, progress)
                _write_record(building, facts)
    return _read(entry, read_json_record(entry / _RECORD), cached=False)


def find_prepared(inputs: TokenInputs) -> PreparedData | None:
    """The cached tokens that `prepare` would return; None if it would have to build them."""
    try:
        return open_prepared(cache_directory() / "tokens" / fingerprint(inputs))
    except (InputError, MachineError):
        return None


def cached_tokens(fingerprint: str) -> Path:
    """The directory of the tokens with this fingerprint, which need not exist.

    Raises:
        MachineError: not a fingerprint, but perhaps another path; other users may have written run.json.
    """
    if not _FINGERPRINT.fullmatch(fingerprint):
        raise MachineError(
            f"run.json is damaged: its data_hash is not 32 hexadecimal digits: {fingerprint[:40]!r}",
            code="record-damaged",
            remedy="train again under another name",
        )
    return cache_directory() / "tokens" / fingerprint


def open_prepared(directory: str | Path) -> PreparedData:
    """The tokens that `prepare` wrote to `directory`; file sizes are checked, not contents.

    Raises:
        MachineError: missing or damaged, or other users may have written it.
    """
    directory = Path(directory)
    _require_own(directory)
    if directory.is_symlink():
        raise _damaged(directory)
    try:
        record = json.loads(read_record(directory / _RECORD))
        sizes = {name: size for name, (size, _) in record["files"].items()}
        if sizes == _sizes_of_files(directory) and record["format_version"] == _FORMAT_VERSION:
            return _read(directory, record, cached=True)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(directory) from error
    raise _damaged(directory)


def _sizes_of_files(directory: Path) -> dict[str, int]:
    """Path relative to `directory` -> bytes, of the files with tokens; links, pipes and devices are excluded."""
    files = ((path, path.lstat()) for path in directory.rglob("*.arrow"))
    return {str(path.relative_to(directory)): facts.st_size for path, facts in files if stat.S_ISREG(facts.st_mode)}


def _require_own(entry: Path) -> None:
    """Raise if other users may have put rows into these tokens."""
    # A directory that cannot be inspected cannot be read or written either, which has its own errors.
    with suppress(OSError):
        facts = entry.lstat()
        if stat.S_ISLNK(facts.st_mode):
            return
        if facts.st_uid not in (0, os.geteuid()) or facts.st_mode & 0o022:
            require_own(entry, entry, remedy="set XDG_CACHE_HOME to a directory of your own")


def _damaged(directory: Path) -> MachineError:
    return MachineError(
        "the prepared data is missing or damaged",
        code="prepared-data-damaged",
        remedy="prepare it again: `ascendtune train RECIPE --prepare` finds the damage and rebuilds it",
        where=directory,
    )


def _intact(entry: Path) -> PreparedData | None:
    """The entry, if nothing has touched its files since they were written, or the digest of every file matches."""
    try:
        prepared = open_prepared(entry)
        record, times = read_json_record(entry / _RECORD), _times_of_files(entry)
        if record.get("untouched") == times:
            return prepared
        if any(digest_of_file(entry / name) != expected for name, (_, expected) in record["files"].items()):
            return None
        # Of a copy, for the next start; a cache of another user may not be writable. One process at a time: hosts with
        # a common cache may have equal process ids, from which names of temporary files are made.
        with suppress(MachineError, OSError), file_lock(lock_of(entry.parent, entry.name), wait=False) as is_ours:
            if is_ours:
                write_json(entry / _RECORD, {**record, "untouched": times})
        return prepared
    except (MachineError, OSError):
        return None


def _times_of_files(directory: Path) -> dict[str, list[int]]:
    """Path below `directory` -> inode, and when content and inode were changed last, in nanoseconds.

    A file that was written to, copied or replaced has others, so billions of tokens need not be read at each start.
    """
    files = ((path, path.lstat()) for path in directory.rglob("*.arrow"))
    return {
        str(path.relative_to(directory)): [facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns] for path, facts in files
    }


def _read(directory: Path, record: dict[str, Any], *, cached: bool) -> PreparedData:
    ids = (record["vocab_size"], record["pad_id"], *record["stop_ids"])
    if not all(type(each) is int and each >= 0 for each in ids):
        raise ValueError("ids of tokens are whole numbers")
    evaluated = record["eval_report"]
    return PreparedData(
        directory=directory,
        fingerprint=directory.name,
        train=directory / "train",
        eval=directory / "eval" if evaluated else None,
        report=DataReport.from_json(record["report"]),
        eval_report=DataReport.from_json(evaluated) if evaluated else None,
        vocab_size=record["vocab_size"],
        added_ids=tuple(record["added_ids"]),
        eos_id=record["eos_id"],
        pad_id=record["pad_id"],
        stop_ids=tuple(record["stop_ids"]),
        chat_template=record["chat_template"],
        warnings=tuple(record["warnings"]),
        cached=cached,
    )


def _remove_leftovers(cache: Path, building: Path) -> None:
    """Remove half-built entries of killed processes, whose locks are free; this process has the lock of `building`."""
    _remove(building)
    for leftover in abandoned(cache):
        _remove(leftover)


def _remove(path: Path) -> None:
    """Remove a file or directory of any type: `rmtree` would wait for the writer of a pipe."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _write_record(building: Path, facts: dict[str, Any]) -> None:
    files = {
        str(path.relative_to(building)): (path.stat().st_size, digest_of_file(path))
        for path in building.rglob("*.arrow")
    }
    record = {"format_version": _FORMAT_VERSION, "files": files, "untouched": _times_of_files(building), **facts}
    write_json(building / _RECORD, record)
