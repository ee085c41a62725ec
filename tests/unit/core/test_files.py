from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
from importlib.resources import files
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from ascendtune.check.doctor.bundle import write_bundle
from ascendtune.core.directories import require_place_for
from ascendtune.core.errors import InputError, MachineError
from ascendtune.core.figure import write_figure
from ascendtune.core.files import appearing, is_endless, open_regular, probe_disk, walk
from ascendtune.core.locks import file_lock
from ascendtune.core.records import LineWriter, parsed_record, write_json


def test_devices_and_named_pipes_may_never_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    assert all(is_endless(path) for path in (tmp_path / "pipe", tmp_path / "link", Path("/dev/zero")))


@pytest.mark.parametrize("path", ["", "/"])
def test_path_without_a_name_is_a_directory(path: str) -> None:
    with pytest.raises(MachineError) as caught:
        write_json(Path(path), {})
    assert caught.value.code == "not-a-file"


def test_files_and_pipes_of_the_shell_end(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    reading, writing = os.pipe()
    try:
        assert not any(is_endless(path) for path in (tmp_path / "file", Path(f"/dev/fd/{reading}"), Path("/dev/null")))
    finally:
        os.close(reading)
        os.close(writing)


def test_a_file_larger_than_the_limit_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "from pathlib import Path; from ascendtune.core.files import write_atomically\n"
        "from ascendtune.core.errors import MachineError\n"
        "try: write_atomically(Path('f'), 'x' * 5000)\n"
        "except MachineError as error: print(error)\n"
    )
    # -B: it would write compiled modules of ascendtune that end after 1000 bytes.
    done = subprocess.run([sys.executable, "-B", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "largest size that is allowed while writing a file" in done.stdout
    assert "ulimit -f" in done.stdout


def test_no_link_leads_a_file_that_is_written_elsewhere(tmp_path: Path) -> None:
    """Who may write the directory can guess the name of the temporary file."""
    other, directory = tmp_path / "other", tmp_path / "shared"
    other.write_text("precious")
    directory.mkdir()
    for name in (f".note.json.{os.getpid()}", f".probe.{os.getpid()}", "note.json"):
        (directory / name).symlink_to(other)
    write_json(directory / "note.json", {})
    probe_disk(directory)
    assert other.read_text() == "precious" and not (directory / "note.json").is_symlink()


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_name_that_no_file_can_have_is_an_error_of_the_system(name: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no file can have this name"):
        open_regular(tmp_path / name)


def test_directory_that_another_user_has_prepared_is_not_written_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a directory like /tmp what another user made cannot be removed."""
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    (tmp_path / "mine").write_text("mine")
    (tmp_path / ".out.writing").mkdir()
    (tmp_path / ".out.writing" / "model").symlink_to(tmp_path / "mine")
    with pytest.raises(FileExistsError), appearing(tmp_path / "out", tmp_path / ".out.writing"):
        (tmp_path / ".out.writing" / "model").write_text("model")
    assert (tmp_path / "mine").read_text() == "mine" and not (tmp_path / "out").exists()


def test_a_file_name_that_is_not_utf8_can_be_noted(tmp_path: Path) -> None:
    write_json(tmp_path / "note.json", {"path": "rows-\udcff.json"})
    assert json.loads((tmp_path / "note.json").read_text(encoding="utf-8")) == {"path": "rows-\udcff.json"}


def test_lock_of_a_removed_file_is_not_a_lock(tmp_path: Path) -> None:
    """The last holder removes the file, while a second process waits and a third one makes the file anew."""
    path, taken, release = tmp_path / "lock", threading.Event(), threading.Event()

    def wait_for_it() -> None:
        with file_lock(path, wait=True):
            taken.set()
            release.wait(20)

    with file_lock(path, wait=False) as is_ours:
        assert is_ours
        second = threading.Thread(target=wait_for_it)
        second.start()
        while f":{path.stat().st_ino} " not in "".join(
            line for line in Path("/proc/locks").read_text().splitlines(keepends=True) if "->" in line
        ):
            assert second.is_alive()
        path.unlink()
    assert taken.wait(20)
    with file_lock(path, wait=False) as is_free:
        assert not is_free
    release.set()
    second.join()


def test_writer_notices_that_its_file_was_removed(tmp_path: Path) -> None:
    writer = LineWriter(tmp_path / "metrics.jsonl")
    writer.write({"step": 1})
    (tmp_path / "metrics.jsonl").unlink()
    with pytest.raises(MachineError) as caught:
        writer.write({"step": 2})
    assert caught.value.code == "file-removed"
    writer.close()


def test_walk_names_what_os_walk_names_and_follows_no_link(tmp_path: Path) -> None:
    for name in ("a/b/one", "a/two", "c/three"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "c" / "up").symlink_to(tmp_path)
    found = {place: (set(directories), set(others)) for place, directories, others in walk(tmp_path)}
    assert found == {
        tmp_path: ({"a", "c"}, set()),
        tmp_path / "a": ({"b"}, {"two"}),
        tmp_path / "a/b": (set(), {"one"}),
        tmp_path / "c": (set(), {"three", "up"}),
    }


def test_walk_visits_directories_that_the_caller_leaves_in_the_given_order(tmp_path: Path) -> None:
    for name in ("b", "a", "left-out"):
        (tmp_path / name).mkdir()
    visited = []
    for place, directories, _ in walk(tmp_path):
        visited.append(place.name)
        directories[:] = sorted(name for name in directories if name != "left-out")
    assert visited[1:] == ["a", "b"]


def test_walk_has_no_depth_at_which_it_ends(tmp_path: Path) -> None:
    deep = [Path(f"{tmp_path}{'/d' * level}") for level in range(1, 1201)]
    for path in deep:
        path.mkdir()
    try:
        assert sum(1 for _ in walk(tmp_path)) == 1201
    finally:
        # pytest would remove them level by level, in calls of calls.
        for path in reversed(deep):
            path.rmdir()


@pytest.mark.parametrize("digits", [400, 5000])
def test_record_with_a_number_that_no_float_holds_is_damaged(digits: int) -> None:
    for text in ('{"loss": 1%s}', '{"loss": [-1%s]}'):
        for record in (text % ("0" * digits), (text % ("0" * digits)).encode()):
            with pytest.raises(MachineError) as caught:
                parsed_record(record, "eval.jsonl:1")
            assert caught.value.code == "record-damaged"


def test_record_keeps_long_texts_of_digits_and_64_bits() -> None:
    record = {"seed": 2**64 - 1, "text": "7" * 5000, "loss": 1e300}
    assert parsed_record(json.dumps(record), "run.json") == record


def test_report_is_not_put_in_the_place_of_a_device_or_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (Path("/dev/null"), tmp_path / "pipe"):
        with pytest.raises(MachineError) as caught:
            require_place_for(path)
        assert caught.value.code == "not-a-regular-file"
    require_place_for(tmp_path / "report.html")


def test_only_files_that_a_command_wrote_are_overwritten(tmp_path: Path) -> None:
    bundle, page, picture = (tmp_path / name for name in ("report.tar.gz", "report.html", "links.png"))
    write_bundle(bundle, {"doctor.json": "{}"})
    page.write_bytes((files("ascendtune.check.align") / "report.html").read_bytes())
    write_figure(Figure(), picture)
    (tmp_path / "empty").touch()
    for path in (bundle, page, picture, tmp_path / "empty"):
        require_place_for(path)
    with tarfile.open(tmp_path / "data.tar.gz", "w:gz") as data:
        data.add(tmp_path / "empty")
    Figure().savefig(tmp_path / "mine.png")
    (tmp_path / "cut.tar.gz").write_bytes(bundle.read_bytes()[:5])
    (tmp_path / "recipe.yaml").write_text("model: {path: m}\n")
    for name in ("data.tar.gz", "mine.png", "cut.tar.gz", "recipe.yaml"):
        with pytest.raises(InputError) as caught:
            require_place_for(tmp_path / name)
        assert caught.value.code == "path-exists"
