"""Writes the merged model, file by file and tensor by tensor, in a directory that gets its name when it is complete."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ascendtune.core.directories import require_free_space
from ascendtune.core.errors import InputError, translated_disk_errors
from ascendtune.core.files import appearing, require_writable
from ascendtune.core.locks import file_lock
from ascendtune.core.records import write_json
from ascendtune.core.units import format_bytes
from ascendtune.data.stop_ids import add_stop_ids
from ascendtune.hub.verify import has_vocabulary
from ascendtune.hub.weight_files import INDEX
from ascendtune.merge.merge_plan import MergePlan, Output, Progress

if TYPE_CHECKING:
    from ascendtune.merge.arithmetic import Merger

_CHUNK = 16 << 20


def write_header(
    file: IO[bytes], tensors: Iterable[tuple[str, str, tuple[int, ...], int]], metadata: dict[str, str] | None
) -> None:
    """Begin a file whose data will follow in this order.

    Args:
        tensors: name, type, shape, bytes.
    """
    header: dict[str, object] = {} if metadata is None else {"__metadata__": metadata}
    offset = 0
    for name, dtype, shape, size in tensors:
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    # The data begins at a multiple of eight bytes, so that it can be mapped.
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)


def copy_bytes(source: IO[bytes], begin: int, size: int, target: IO[bytes]) -> None:
    """Append `size` bytes of `source` from `begin` on; inside the kernel where the file system can."""
    target.flush()
    done = 0
    try:
        while done < size:
            copied = os.copy_file_range(source.fileno(), target.fileno(), size - done, begin + done)
            if copied == 0:
                raise EOFError(f"{size - done} bytes are missing")
            done += copied
    except OSError:
        # Other file systems, old kernels. The write below raises for a full disk.
        source.seek(begin + done)
        target.seek(0, os.SEEK_END)
        while done < size:
            chunk = source.read(min(_CHUNK, size - done))
            if not chunk:
                raise EOFError(f"{size - done} bytes are missing") from None
            target.write(chunk)
            done += len(chunk)
    target.seek(0, os.SEEK_END)


_SPEECH = ("tokenizer", "special_tokens_map.json", "added_tokens.json", "vocab.", "merges.txt", "chat_template")
_SPEECH_SUFFIXES = (".model", ".tiktoken")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".gguf", ".index.json")
_NOT_OURS = ("README.md", "config.json")
_TEMPLATES = "additional_chat_templates"


def require_writable_target(target: Path, size: int) -> None:
    """Raise unless a model of `size` bytes can be written to `target`, which must not exist.

    Raises:
        InputError: it exists.
        MachineError: no room, or not writable.
    """
    require_absent(target)
    require_writable(target)
    existing = next(parent for parent in target.absolute().parents if parent.exists())
    what, remedy = f"the merged model needs {format_bytes(size)}", "free space, or put --to on another disk"
    require_free_space(existing, size, what, remedy=remedy)


def require_absent(target: Path) -> None:
    """Raises:
    InputError: `target` exists.
    """
    if target.exists() or target.is_symlink():
        raise InputError(
            "the target exists already",
            code="path-exists",
            remedy="choose another --to, or remove it first",
            where=target,
        )


@contextmanager
def claimed_target(target: Path) -> Iterator[Path]:
    """A directory beside `target` that is renamed at the end; if killed, `target` is absent or complete.

    Raises:
        InputError: another process is writing the same target.
        MachineError: the disk is full or cannot be written.
    """
    target = target.absolute()
    temporary = target.with_name(f".{target.name}.merging")
    lock = target.with_name(f".{target.name}.lock")
    with translated_disk_errors(target, "writing the merged model"):
        target.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(lock, wait=False) as is_ours, translated_disk_errors(target, "writing the merged model"):
        if not is_ours:
            raise InputError(
                "another process is writing there",
                code="target-in-use",
                remedy="wait for it, or choose another --to",
                where=target,
            )
        # Another process may have finished it since the check.
        require_absent(target)
        try:
            with appearing(target, temporary):
                yield temporary
        finally:
            lock.unlink(missing_ok=True)


def write_model(plan: MergePlan, directory: Path, progress: Progress) -> None:
    """Write weights, index and config, and the other files of a model, into `directory`."""
    # Imported here: a target that cannot be written is reported before torch is imported.
    from ascendtune.merge.arithmetic import Merger

    _copy_companions(plan, directory)
    if plan.config is plan.base.config:
        shutil.copyfile(plan.base.directory / "config.json", directory / "config.json")
    else:
        write_json(directory / "config.json", plan.config)
    done, total, merger = 0, plan.size, Merger(plan.layout)
    for name, outputs in plan.shards.items():
        with (directory / name).open("wb") as file:
            header = ((each.name, each.dtype, each.shape, each.size) for each in outputs)
            write_header(file, header, plan.base.files[name].metadata)
            for begin, end in _runs(outputs):
                _write(outputs[begin:end], file, merger)
                done += sum(each.size for each in outputs[begin:end])
                progress("merging, MiB", done >> 20, total >> 20)
    if plan.base.index is not None:
        metadata = {**plan.base.index.get("metadata", {}), "total_size": total}
        where = {each.name: name for name, outputs in plan.shards.items() for each in outputs}
        write_json(directory / INDEX, {"metadata": metadata, "weight_map": dict(sorted(where.items()))})


def _write(outputs: list[Output], file: IO[bytes], merger: Merger) -> None:
    from ascendtune.merge.arithmetic import as_bytes, is_finite

    first = outputs[0]
    if first.is_changed:
        merged = merger.compute(first)
        if not is_finite(merged):
            raise InputError(
                f"{first.name} of base plus adapter has numbers that are too large for {first.dtype}, or not finite",
                code="weights-not-finite",
                remedy="give the adapter a smaller weight, or merge onto a copy of the base in bf16 or fp32",
                where=first.source[0].path,
            )
        file.write(as_bytes(merged))
        return
    source, name = first.source
    with source.path.open("rb") as opened:
        copy_bytes(opened, source.tensors[name].begin, sum(each.size for each in outputs), file)


def _runs(outputs: list[Output]) -> Iterator[tuple[int, int]]:
    """Slices: each changed tensor by itself, adjacent copied ones together."""
    begin = 0
    for at in range(1, len(outputs) + 1):
        if at == len(outputs) or not _follows(outputs[at - 1], outputs[at]):
            yield begin, at
            begin = at


def _follows(first: Output, second: Output) -> bool:
    if first.is_changed or second.is_changed or first.source[0] is not second.source[0]:
        return False
    before, after = (each.source[0].tensors[each.source[1]] for each in (first, second))
    return before.begin + before.size == after.begin


def _copy_companions(plan: MergePlan, directory: Path) -> None:
    """Tokenizer and template from one place, the adapter's if it has them; everything else from the base."""
    base = plan.base.directory
    candidates = (each.directory for each in plan.adapters if (each.directory / "tokenizer_config.json").is_file())
    tokenizer_source = next(filter(has_vocabulary, candidates), base)
    found = [path for path in base.iterdir() if _belongs(path.name) and not _is_speech(path.name)]
    found += [path for path in tokenizer_source.iterdir() if _is_speech(path.name)]
    for path in found:
        if path.is_file():
            shutil.copyfile(path, directory / path.name)
    # A folder that is a link is not copied: it could lead to any one of this machine.
    if not (tokenizer_source / _TEMPLATES).is_symlink() and (
        named := sorted((tokenizer_source / _TEMPLATES).glob("*.jinja"))
    ):
        (directory / _TEMPLATES).mkdir()
        for path in named:
            if path.is_file():
                shutil.copyfile(path, directory / _TEMPLATES / path.name)
    if tokenizer_source != base:
        add_stop_ids(directory)


def _is_speech(name: str) -> bool:
    return name.startswith(_SPEECH) or name.endswith(_SPEECH_SUFFIXES)


def _belongs(name: str) -> bool:
    return not (name.startswith(".") or name.endswith(_WEIGHTS) or name in _NOT_OURS)
