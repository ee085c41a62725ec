"""Directories of logs: which files are read, as one log or as several, and which are named as not read."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ascendtune.check.explain.answer.json_form import as_json
from ascendtune.check.explain.answer.report import as_text
from ascendtune.check.explain.explain import explain
from ascendtune.check.explain.log import compressed
from ascendtune.check.explain.log import directory as logs_module
from ascendtune.check.explain.log.directory import is_log, logs_in
from ascendtune.core.errors import InputError

_FAILURE = "OSError: [Errno 28] No space left on device: '/moon/7'\n"
_HEALTHY = "step 1 loss 2.0\n"


def _write(directory: Path, *files: tuple[str, str | bytes]) -> None:
    """The first file is the oldest."""
    for age, (name, content) in enumerate(files):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        os.utime(path, (1000 + age, 1000 + age))


def _text(directory: Path) -> str:
    return as_text(explain([str(directory)]), columns=999, paint=lambda text, _: text)


def test_binary_file_of_a_directory_is_left_out_and_named(tmp_path: Path) -> None:
    noise = bytes(range(256)) * 100
    _write(tmp_path, ("prof.log", noise), ("rank_3.log", _FAILURE))

    explanation = explain([str(tmp_path)])

    assert explanation.exit_code == 1 and explanation.verdict.rank == 3
    assert f"not read: {tmp_path / 'prof.log'} (not text)" in _text(tmp_path)
    assert json.loads(as_json(explanation))["unread"] == [{"name": str(tmp_path / "prof.log"), "why": "not text"}]
    (tmp_path / "rank_3.log").write_text(_HEALTHY)
    assert explain([str(tmp_path)]).exit_code == 0 and "not read: " in _text(tmp_path)
    (tmp_path / "rank_3.log").unlink()
    with pytest.raises(InputError) as caught:
        explain([str(tmp_path)])
    assert caught.value.code == "not-a-log"


@pytest.mark.parametrize("name", ["train.log.1", "train.log-20261129", "train.log.2026-11-29_10", "train.log.old"])
def test_failure_before_a_rotation_is_told_with_its_file(tmp_path: Path, name: str) -> None:
    _write(tmp_path, (name, f"begin\n{_FAILURE}"), ("train.log", "rotated\n"))

    explanation = explain([str(tmp_path)])
    content = json.loads(as_json(explanation))

    assert explanation.verdict.first is not None and explanation.verdict.first.where == f"{tmp_path / name}:2"
    assert content["first"]["file"] == str(tmp_path / name) and content["first"]["line_number"] == 2
    assert [(each["name"], each["earlier"]) for each in content["sources"]] == [
        (str(tmp_path / "train.log"), [str(tmp_path / name)])
    ]


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)])
def test_failure_before_a_rotation_is_told_where_it_was_compressed(
    tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    _write(tmp_path, (f"train.log.1{suffix}", pack(_FAILURE.encode())), ("train.log", "rotated\n"))
    assert f"train.log.1{suffix}:1" in _text(tmp_path)


def test_failure_long_before_healthy_parts_did_not_end_a_service(tmp_path: Path) -> None:
    steps = "".join(f"GET /v1/models 200 {number}\n" for number in range(4000))
    _write(tmp_path, ("serve.log.2", _FAILURE), ("serve.log.1", steps), ("serve.log", steps))

    explanation = explain([str(tmp_path)])

    assert explanation.exit_code == 0 and explanation.scans[0].lines == 8001
    assert explanation.scans[0].parts.where(4002) == f"{tmp_path / 'serve.log'}:1"


def test_traceback_continues_behind_a_rotation(tmp_path: Path) -> None:
    _write(
        tmp_path,
        ("train.log.1", 'Traceback (most recent call last):\n  File "/x/t.py", line 8, in go'),
        ("train.log", "    go()\nMoonError: the moon has 3 sides\n"),
    )
    first = explain([str(tmp_path)]).verdict.first
    assert first is not None and first.trace is not None and first.trace.place == ("/x/t.py", 8, "go")
    assert first.where == f"{tmp_path / 'train.log'}:2"


@pytest.mark.parametrize("names", [("job.log.0", "job.log.1", "job.log"), ("job.log", "job.log.1", "job.log.2")])
def test_logs_of_ranks_with_numbers_are_logs_of_their_own(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Those that were rotated have no number 0, and were written to one after the other."""
    _write(tmp_path, *((name, _HEALTHY) for name in names))
    assert len(logs_in(tmp_path)[0]) == 3


def test_parts_that_are_too_old_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path, ("a.log.2", _FAILURE * 9), ("a.log.1", _HEALTHY), ("a.log", _HEALTHY))
    monkeypatch.setattr(logs_module, "_MOST_EARLIER_BYTES", 2 * len(_HEALTHY))

    assert explain([str(tmp_path)]).exit_code == 0
    assert f"not read: {tmp_path / 'a.log.2'} (older than the earlier parts that are read)" in _text(tmp_path)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("slurm-77.out", True),
        ("job.err", True),
        ("nohup.out.1", True),
        ("train.o12345", True),
        ("workerlog.0", True),
        ("stdout", True),
        ("train_log", True),
        ("messages", True),
        ("train.log.rank3", True),
        ("a-json.log.2.gz", True),
        ("train.log.bak", True),
        ("CHANGELOG", False),
        ("catalog", False),
        ("train.log.swp", False),
        ("20260101.log.json", False),
        ("README.md", False),
        ("train.py", False),
        ("model.safetensors", False),
    ],
)
def test_logs_are_known_by_their_names(name: str, expected: bool) -> None:
    assert is_log(name) == expected


@pytest.mark.parametrize("name", ["train", "job.123.node1", "worker-0", "日志", "a\nb.log"])
def test_files_without_a_suffix_are_read_where_no_other_is_a_log(tmp_path: Path, name: str) -> None:
    _write(tmp_path, (name, _FAILURE), ("LICENSE", "no error: none\n"), ("a.py", "raise OSError\n"))
    assert [log.name for log in logs_in(tmp_path)[0]] == [str(tmp_path / name)]


def test_file_without_a_suffix_beside_a_log_is_named(tmp_path: Path) -> None:
    _write(tmp_path, ("train", _FAILURE), ("a.log", _HEALTHY))
    assert f"not read: {tmp_path / 'train'} (not named like a log)" in _text(tmp_path)


def test_copies_of_an_editor_are_not_read_beside_their_log(tmp_path: Path) -> None:
    _write(tmp_path, ("a.log~", _FAILURE), ("b.log.bak", _FAILURE), ("a.log", _HEALTHY))
    logs, unread = logs_in(tmp_path)
    assert [Path(log.name).name for log in logs] == ["a.log", "b.log.bak"]
    assert [(Path(each.name).name, each.why) for each in unread] == [("a.log~", "a copy")]


def test_one_file_of_two_names_is_read_once_and_links_that_lead_out_are_named(tmp_path: Path) -> None:
    _write(tmp_path, ("logs/a.log", _HEALTHY), ("other/b.log", _FAILURE))
    (tmp_path / "logs" / "latest.log").symlink_to("a.log")
    (tmp_path / "logs" / "away").symlink_to(tmp_path / "other")

    logs, unread = logs_in(tmp_path / "logs")

    assert len(logs) == 1 and [each.why for each in unread] == ["a link to another directory"]
    assert "a link to another directory" in _text(tmp_path / "logs")


def test_log_that_cannot_be_read_gets_no_all_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path, ("a.log", _HEALTHY), ("b.log", _HEALTHY), ("c.log.zst", b"\x28\xb5\x2f\xfd moon"))
    real = Path.open

    def open_(path: Path, mode: str = "r") -> Any:
        if path.name == "b.log":
            raise PermissionError
        return real(path, mode)

    monkeypatch.setattr(Path, "open", open_)
    explanation = explain([str(tmp_path)])

    assert explanation.exit_code == 4 and json.loads(as_json(explanation))["certainty"] == "none"
    assert "b.log" in explanation.headline() and "c.log.zst could not be read" in explanation.headline()
    assert f"`zstd -dc {tmp_path / 'c.log.zst'} | ascendtune explain -`" in _text(tmp_path)
    with pytest.raises(PermissionError):
        explain([str(tmp_path / "b.log")])


def test_log_that_vanishes_while_the_others_are_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path, ("a.log", _HEALTHY), ("b.log", _HEALTHY))
    found = logs_in(tmp_path)
    monkeypatch.setattr("ascendtune.check.explain.reading.logs_in", lambda _: found)
    (tmp_path / "b.log").unlink()
    assert explain([str(tmp_path)]).exit_code == 4 and "b.log (the log cannot be read: No such file" in _text(tmp_path)


@pytest.mark.parametrize("pack", [lzma.compress, bz2.compress])
def test_logs_of_xz_and_bzip2_are_read_with_all_their_streams(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    steps = "".join(f"step {step} loss {step / 7}\n" for step in range(9000)).encode()
    log = tmp_path / "a"
    log.write_bytes(pack(steps) + pack(_FAILURE.encode()))

    explanation = explain([str(log)])

    assert explanation.verdict.first is not None and explanation.verdict.first.number == 9001
    log.write_bytes(pack(_FAILURE.encode() + steps)[:-9])
    assert explain([str(log)]).cut_off.startswith(f"the compressed file {log} is cut off or damaged")
    damaged = bytearray(pack(steps * 30))
    damaged[len(damaged) // 2] ^= 255
    log.write_bytes(damaged)
    assert explain([str(log)]).exit_code == 4


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress])
def test_compressed_log_is_read_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(compressed, "_LEAST_BOUND", 1 << 20)
    (tmp_path / "a.log").write_bytes(pack(_HEALTHY.encode() * 500_000))

    explanation = explain([str(tmp_path / "a.log")])

    assert explanation.exit_code == 4 and "holds more than a hundred times its size" in explanation.headline()
    assert explanation.scans[0].bytes < 3 << 20


@pytest.mark.parametrize(
    ("begin", "command"),
    [(b"\x28\xb5\x2f\xfd", "zstd -dc"), (b"\x04\x22\x4d\x18", "lz4 -dc"), (b"PK\x03\x04", "unzip")],
)
def test_the_remedy_for_a_compressed_log_names_the_program(tmp_path: Path, begin: bytes, command: str) -> None:
    (tmp_path / "a b.log").write_bytes(begin + bytes(99))
    with pytest.raises(InputError) as caught:
        explain([str(tmp_path / "a b.log")])
    assert caught.value.code == "log-compressed" and (caught.value.remedy or "").startswith(command)
    assert f"'{tmp_path / 'a b.log'}' | ascendtune explain -" in (caught.value.remedy or "")
