"""wandb's offline runs: told apart by their files alone, and uploaded by wandb's client, for which a stand-in is used.

`offline_run.wandb` holds what the real client wrote (wandb 0.31.0, WANDB_MODE=offline, 20 steps), without the records
about the machine.
"""

from __future__ import annotations

import os
import shutil
import struct
import time
import zlib
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from ascendtune.core.errors import AscendtuneError
from ascendtune.train.report.offline_wandb import find_offline_runs, upload
from python_path import python_path
from wandb_server import MARKING, write_client

pytestmark = pytest.mark.long

_REAL = Path(__file__).with_name("offline_run.wandb")


def _run(place: Path, name: str, content: bytes, *, age_seconds: float = 0) -> Path:
    directory = place / f"wandb/offline-run-20260101_00000{name[0]}-{name}"
    directory.mkdir(parents=True)
    file = directory / f"run-{name}.wandb"
    file.write_bytes(content)
    then = time.time() - age_seconds
    os.utime(file, (then, then))
    return directory


def _log(*messages: bytes) -> bytes:
    """A file of messages that fit into its first block."""
    body = b":W&B\xe1\xbe\x00"
    for each in messages:
        body += struct.pack("<IHB", zlib.crc32(each, zlib.crc32(b"\x01")), len(each), 1) + each
    return body


def test_states_are_told_apart(tmp_path: Path) -> None:
    real = _REAL.read_bytes()
    half = len(real) // 2
    _run(tmp_path, "1new", real)
    _run(tmp_path, "2live", real[:half])
    _run(tmp_path, "3killed", real[:half], age_seconds=3600)
    _run(tmp_path, "4damaged", real[:half] + b"\x00" + real[half + 1 :], age_seconds=3600)
    _run(tmp_path, "5empty", real[:7], age_seconds=3600)
    _run(tmp_path, "6other", b"not wandb")
    (_run(tmp_path, "7done", real, age_seconds=10) / "run-7done.wandb.synced").touch()
    grown = _run(tmp_path, "8grown", real)
    (grown / "run-8grown.wandb.synced").touch()
    os.utime(grown / "run-8grown.wandb.synced", (1, 1))
    found = {each.run_id: each for each in find_offline_runs([tmp_path])}
    assert {name: each.state for name, each in found.items()} == {
        "1new": "new", "2live": "in_flight", "3killed": "new", "4damaged": "damaged", "5empty": "damaged",
        "6other": "damaged", "7done": "uploaded", "8grown": "new",
    }  # fmt: skip
    assert found["1new"].records == 66 and found["1new"].note is None
    assert "killed" in str(found["3killed"].note) and "byte" in str(found["4damaged"].note)


def test_runs_are_found_from_each_directory_that_leads_to_them(tmp_path: Path) -> None:
    run = _run(tmp_path, "1new", _REAL.read_bytes())
    for place in (tmp_path, tmp_path / "wandb", run):
        assert [each.directory for each in find_offline_runs([place])] == [run]
    assert len(find_offline_runs([tmp_path, run])) == 1


def test_messages_over_several_blocks_are_read(tmp_path: Path) -> None:
    message = b"\x0a\x80\x80\x04" + b"x" * 65536  # field 1, 65,536 bytes
    body, kinds, rest = b":W&B\xe1\xbe\x00", [2, 3, 4], message
    for kind in kinds:
        room = (32 << 10) - len(body) % (32 << 10) - 7
        part, rest = rest[:room], rest[room:]
        body += struct.pack("<IHB", zlib.crc32(part, zlib.crc32(bytes([kind]))), len(part), kind) + part
    assert rest == b""
    last = b"\x92\x01\x02\x10\x02"  # field 18: the exit
    body += struct.pack("<IHB", zlib.crc32(last, zlib.crc32(b"\x01")), len(last), 1) + last
    _run(tmp_path, "1", body)
    (found,) = find_offline_runs([tmp_path])
    assert (found.state, found.records) == ("new", 2)


def test_text_with_the_exits_tag_inside_is_not_an_exit(tmp_path: Path) -> None:
    _run(tmp_path, "1", _log(b"\x0a\x05\x92\x01\x02\x10\x02"))
    (found,) = find_offline_runs([tmp_path])
    assert found.state == "in_flight"


def test_link_to_a_run_elsewhere_is_not_followed(tmp_path: Path) -> None:
    run = _run(tmp_path / "theirs", "1new", _REAL.read_bytes())
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / run.name).symlink_to(run)
    (run / "run-2.wandb").symlink_to("/etc/passwd")
    assert find_offline_runs([tmp_path]) == []
    assert {each.run_id: each.state for each in find_offline_runs([run])} == {"1new": "new", "2": "damaged"}


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for wandb's command line: marks a run as synced, or fails where the file `down` is there."""
    down = f"if pathlib.Path({str(tmp_path / 'down')!r}).exists(): sys.exit('error: api_key=secret123 refused')\n"
    write_client(tmp_path / "client", f"import pathlib, sys\n{down}{MARKING}")
    monkeypatch.setenv("PYTHONPATH", python_path(tmp_path / "client"))
    return tmp_path / "down"


@pytest.mark.long
def test_upload_continues_where_it_ended_and_shows_no_secret(tmp_path: Path, client: Path) -> None:
    _run(tmp_path, "1new", _REAL.read_bytes())
    (found,) = find_offline_runs([tmp_path])
    client.touch()
    with pytest.raises(AscendtuneError) as caught:
        upload(found, os.environ)
    assert caught.value.code == "upload-failed" and "secret123" not in str(caught.value)
    assert find_offline_runs([tmp_path])[0].state == "new"
    client.unlink()
    upload(found, os.environ)
    assert find_offline_runs([tmp_path])[0].state == "uploaded"


def test_client_that_reports_success_without_its_mark_is_not_believed(tmp_path: Path, client: Path) -> None:
    directory = _run(tmp_path, "1new", _REAL.read_bytes())
    (found,) = find_offline_runs([tmp_path])
    shutil.move(directory / "run-1new.wandb", tmp_path / "aside")
    with pytest.raises(AscendtuneError) as caught:
        upload(found, os.environ)
    assert caught.value.code == "upload-failed"


def test_mark_of_a_client_that_told_of_an_error_is_removed(tmp_path: Path, client: Path) -> None:
    program = tmp_path / "client/wandb/__main__.py"
    told = "print('wandb: ERROR [p/1] Fatal error while uploading data. api_key=secret123')\n"
    program.write_text(program.read_text() + told)
    _run(tmp_path, "1new", _REAL.read_bytes())
    (found,) = find_offline_runs([tmp_path])
    with pytest.raises(AscendtuneError) as caught:
        upload(found, {**os.environ, "WANDB_SILENT": "true"})
    assert caught.value.code == "upload-failed" and "Fatal error" in str(caught.value)
    assert "secret123" not in str(caught.value) and find_offline_runs([tmp_path])[0].state == "new"


def test_run_that_cannot_be_marked_is_not_uploaded(tmp_path: Path, client: Path) -> None:
    program = tmp_path / "client/wandb/__main__.py"
    program.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    _run(tmp_path, "1new", _REAL.read_bytes())
    (found,) = find_offline_runs([tmp_path])
    with pytest.raises(AscendtuneError) as caught:
        upload(replace(found, directory=Path("/proc/self")), os.environ)
    assert caught.value.code != "upload-failed" and not (tmp_path / "ran").exists()


def test_run_whose_name_looks_like_an_error_is_uploaded(tmp_path: Path, client: Path) -> None:
    program = tmp_path / "client/wandb/__main__.py"
    program.write_text(program.read_text() + "print('wandb: Syncing: https://wandb.ai/me/p/runs/ERROR ... done.')\n")
    _run(tmp_path, "1new", _REAL.read_bytes())
    (found,) = find_offline_runs([tmp_path])
    upload(found, os.environ)
    assert find_offline_runs([tmp_path])[0].state == "uploaded"


def test_client_that_prints_when_the_interpreter_ends_does_not_hide_the_answer(tmp_path: Path, client: Path) -> None:
    program = tmp_path / "client/wandb/__main__.py"
    program.write_text(program.read_text() + "import atexit\natexit.register(print, 'wandb: bye')\n")
    _run(tmp_path, "1new", _REAL.read_bytes())
    (found,) = find_offline_runs([tmp_path])
    assert upload(found, os.environ).rows > 0


@pytest.mark.skipif(find_spec("wandb") is not None, reason="wandb is installed here")
def test_missing_client_is_named(tmp_path: Path) -> None:
    _run(tmp_path, "1new", _REAL.read_bytes())
    (found,) = find_offline_runs([tmp_path])
    with pytest.raises(AscendtuneError) as caught:
        upload(found, os.environ)
    assert caught.value.code == "package-missing"


def test_endless_message_of_empty_parts_is_read_in_linear_time(tmp_path: Path) -> None:
    # 700 KiB; a list that is copied for each part takes the square of 100,000.
    part = struct.pack("<IHB", zlib.crc32(b"\x03"), 0, 3)
    blocks = (part * 4681 + b"\0") * 22
    _run(tmp_path, "1long", b":W&B\xe1\xbe\x00" + blocks[7:], age_seconds=3600)
    (found,) = find_offline_runs([tmp_path])
    assert (found.state, found.records) == ("damaged", 0)


def test_module_in_the_working_directory_is_not_run(
    tmp_path: Path, client: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "-project"
    (place / "wandb").mkdir(parents=True)
    (place / "wandb/__init__.py").touch()
    (place / "wandb/__main__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(place)
    _run(Path(), "1new", _REAL.read_bytes())
    (found,) = find_offline_runs([Path()])
    upload(found, os.environ)
    assert not (tmp_path / "ran").exists() and (found.directory / "run-1new.wandb.synced").exists()


def test_newline_in_a_directory_name_makes_no_line_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ascendtune.cli.track import sync

    _run(tmp_path, "1new", _REAL.read_bytes()).rename(tmp_path / "wandb/offline-run-x\nerror: fake")
    sync([tmp_path], dry_run=True)
    assert r"offline-run-x\nerror: fake" in capsys.readouterr().out
