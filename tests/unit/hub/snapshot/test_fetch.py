"""Fetches from real HTTP servers on loopback that fail as hubs and networks do."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ascendtune.core.errors import InputError, MachineError, RecipeError
from ascendtune.core.http import Fault
from ascendtune.hub.snapshot import hub_client, transfer
from ascendtune.hub.snapshot.fetch import FetchResult, Mirrors, SnapshotRequest, _Count, fetch, list_files, verify
from ascendtune.hub.snapshot.hub_client import HubClient, HuggingFace, ModelScope, RemoteFile, choose_hubs, is_safe_path
from ascendtune.hub.snapshot.manifest import Manifest
from ascendtune.hub.snapshot.script import shell_script
from hub_server import COMMIT, Hub, serving

_FILES = {
    "config.json": b'{"model_type": "qwen2"}',
    "model-00001.safetensors": random.Random(1).randbytes(3_000_000),
    "model-00002.safetensors": random.Random(2).randbytes(1_500_000),
    "sub/merges.txt": b"a b\n" * 1000,
    "pytorch_model.bin": b"a pickle",
}
_LARGE = frozenset({"model-00001.safetensors", "model-00002.safetensors"})
_WANTED = {name: content for name, content in _FILES.items() if name != "pytorch_model.bin"}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub(_FILES, _LARGE)) as held:
        yield held


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascendtune.hub.snapshot.fetch._LONGEST_WAIT_SECONDS", 0.01)


def _fetched(directory: Path, *hubs: Hub, least_speed: float = 0, pinned: Manifest | None = None) -> FetchResult:
    request = SnapshotRequest("o/m", "model", directory)
    mirrors = Mirrors([HuggingFace(each.endpoint) for each in hubs])
    return fetch(request, mirrors, least_speed=least_speed, progress=lambda *_: None, pinned=pinned)


def _content(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file() and transfer.STATE not in path.parts)
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_files_arrive_with_their_hashes_and_pickles_stay_away(hub: Hub, tmp_path: Path) -> None:
    hub.page = 2
    done = _fetched(tmp_path, hub)
    assert _content(tmp_path) == _WANTED
    assert done.manifest.commit == COMMIT and done.arrived_bytes == sum(map(len, _WANTED.values()))
    assert not list((tmp_path / transfer.STATE).glob("*.part"))


def test_a_second_fetch_reads_nothing_again(hub: Hub, tmp_path: Path) -> None:
    _fetched(tmp_path, hub)
    before = dict(hub.sent)
    assert _fetched(tmp_path, hub).already_here == len(_WANTED) and hub.sent == before


def test_a_dead_mirror_is_left(hub: Hub, tmp_path: Path) -> None:
    _fetched(tmp_path, Hub({}, endpoint="http://127.0.0.1:9"), hub)
    assert _content(tmp_path) == _WANTED


def test_a_mirror_that_dies_in_mid_file_is_continued_by_the_next(hub: Hub, tmp_path: Path) -> None:
    name = "model-00001.safetensors"
    with serving(Hub(_FILES, _LARGE, breaks_after={name: [1_000_000, *[0] * 99]})) as first:
        _fetched(tmp_path, first, hub)
        assert first.sent[name] == 1_000_000
    assert _content(tmp_path) == _WANTED and hub.sent[name] == len(_FILES[name]) - 1_000_000


@pytest.mark.long
def test_a_slow_mirror_is_left_for_a_faster_one(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PACE_SECONDS", 0.5)
    with serving(Hub(_FILES, _LARGE, trickle=50_000, chunk=5_000)) as slow:
        began = time.monotonic()
        _fetched(tmp_path, slow, hub, least_speed=500_000)
    assert _content(tmp_path) == _WANTED and time.monotonic() - began < 20
    assert 0 < slow.sent["model-00001.safetensors"] < 200_000


def test_mirrors_get_no_token_unless_the_user_set_them() -> None:
    hubs = choose_hubs([], {"HF_TOKEN": "secret", "HF_ENDPOINT": "https://own.example/"})
    assert [(each.endpoint, bool(each.headers())) for each in hubs] == [
        ("https://own.example", True),
        ("https://huggingface.co", True),
        ("https://hf-mirror.com", False),
    ]


def test_modelscope_is_never_mixed_with_another_hub() -> None:
    with pytest.raises(InputError) as caught:
        choose_hubs(["modelscope", "hf"], {})
    assert caught.value.code == "conflicting-options"


@pytest.mark.parametrize(
    ("named", "endpoint"),
    [
        ("", "https://www.modelscope.cn"),
        ("own.example", "https://own.example"),
        ("http://own.example:8080/", "http://own.example:8080"),
    ],
)
def test_modelscope_endpoint_may_lack_its_scheme(named: str, endpoint: str) -> None:
    [client] = choose_hubs(["modelscope"], {"MODELSCOPE_ENDPOINT": named})
    assert client.endpoint == endpoint


def test_wrong_modelscope_endpoint_is_named_by_its_variable() -> None:
    with pytest.raises(InputError) as caught:
        choose_hubs(["modelscope"], {"MODELSCOPE_ENDPOINT": "http://own.example:port"})
    assert caught.value.code == "invalid-option-value" and caught.value.what.startswith("MODELSCOPE_ENDPOINT ")


def test_modelscope_is_fetched_by_its_own_protocol(hub: Hub, tmp_path: Path) -> None:
    hubs: list[HubClient] = [ModelScope(hub.endpoint)]
    fetch(SnapshotRequest("o/m", "dataset", tmp_path), Mirrors(hubs), least_speed=0, progress=lambda *_: None)
    assert _content(tmp_path) == _FILES


def test_a_file_in_the_way_is_never_overwritten(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("mine")
    with pytest.raises(RecipeError) as caught:
        _fetched(tmp_path, hub)
    assert caught.value.code == "file-differs" and (tmp_path / "config.json").read_text() == "mine"
    assert "model-00001.safetensors" not in hub.sent


def test_a_full_disk_is_found_before_the_first_byte(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 1_000_000})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(MachineError) as caught:
        _fetched(tmp_path, hub)
    assert caught.value.code == "disk-space-missing" and not hub.sent


def test_two_fetches_into_one_directory_exclude_each_other(hub: Hub, tmp_path: Path) -> None:
    from ascendtune.core.locks import file_lock

    (tmp_path / transfer.STATE).mkdir()
    with file_lock(tmp_path / transfer.STATE / "lock", wait=False), pytest.raises(MachineError) as caught:
        _fetched(tmp_path, hub)
    assert caught.value.code == "fetch-in-progress"


def test_a_pinned_fetch_asks_for_no_listing(hub: Hub, tmp_path: Path) -> None:
    manifest = _fetched(tmp_path / "a", hub).manifest
    hub.tokens.clear()
    _fetched(tmp_path / "a", hub, pinned=manifest)
    assert not hub.tokens, "everything is here: nothing is asked"
    _fetched(tmp_path / "b", hub, pinned=manifest)
    assert _content(tmp_path / "b") == _WANTED


def test_verify_names_what_changed_since(hub: Hub, tmp_path: Path) -> None:
    _fetched(tmp_path, hub)
    manifest = Manifest.read(tmp_path)
    assert manifest is not None and verify(tmp_path, manifest, lambda *_: None) == []
    (tmp_path / "sub/merges.txt").unlink()
    path = tmp_path / "model-00001.safetensors"
    content = bytearray(path.read_bytes())
    content[1_234_567] ^= 1
    path.write_bytes(content)
    assert [line.split()[0] for line in verify(tmp_path, manifest, lambda *_: None)] == [
        "model-00001.safetensors",
        "sub/merges.txt",
    ]


@pytest.mark.parametrize(
    "path",
    [
        *("../x", "/etc/x", "a/../../x", "a\\b", "~/x", "", "a\nb", ".ascendtune-fetch/lock"),
        *("./.ascendtune-fetch/lock", "a//b", "model.bin/", ".git/config", "a/.GIT/hooks/post-checkout"),
    ],
)
def test_paths_that_leave_the_directory_are_refused(path: str, tmp_path: Path) -> None:
    assert not is_safe_path(path)
    with serving(Hub({path: b"x"})) as hub, pytest.raises(MachineError):
        _fetched(tmp_path / "in", hub)
    assert not list(tmp_path.glob("*x*"))


@pytest.mark.parametrize("listing", [b"[]", b"{}", b"nonsense", b'{"sha": 5}', b"[" * 100_000])
def test_listings_of_another_form_end_in_a_message(
    listing: bytes, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hub_server._Handler._json", lambda self, _: self._answer(200, listing, {}))
    with pytest.raises(MachineError) as caught:
        list_files(SnapshotRequest("o/m", "model", tmp_path), Mirrors([HuggingFace(hub.endpoint)]))
    assert caught.value.code == "hub-unreachable"


def test_an_unknown_repository_is_told_from_a_hub_in_trouble(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        list_files(SnapshotRequest("o/other", "model", tmp_path), Mirrors([HuggingFace(hub.endpoint)]))
    assert caught.value.code == "not-on-hub"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_script_brings_the_same_files_and_continues(hub: Hub, tmp_path: Path) -> None:
    request = SnapshotRequest("o/m", "model", tmp_path / "a b")
    mirrors = Mirrors([HuggingFace(hub.endpoint)])
    script = tmp_path / "fetch.sh"
    script.write_text(shell_script(request, list_files(request, mirrors), mirrors.current()))
    for _ in range(2):
        done = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert _content(tmp_path / "a b") == _WANTED
    assert hub.sent["model-00001.safetensors"] == len(_FILES["model-00001.safetensors"])
    # A kill between the end of a download and the name: nothing is sent again.
    (tmp_path / "a b/config.json").rename(tmp_path / "a b/config.json.part")
    assert subprocess.run(["bash", str(script)], capture_output=True, check=False).returncode == 0
    assert _content(tmp_path / "a b") == _WANTED and hub.sent["config.json"] == len(_FILES["config.json"])
    (tmp_path / "a b/config.json").write_text("mine")
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "config.json exists with other content" in done.stderr
    assert (tmp_path / "a b/config.json").read_text() == "mine", "nothing is overwritten"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_script_brings_files_whose_names_look_like_options_or_commands(tmp_path: Path) -> None:
    files = {"-x.txt": b"x", "--help/a b.txt": b"y", "$(exit 1).txt": b"z"}
    with serving(Hub(files)) as hub:
        request, mirrors = SnapshotRequest("o/m", "model", tmp_path / "m"), Mirrors([HuggingFace(hub.endpoint)])
        script = shell_script(request, list_files(request, mirrors), mirrors.current())
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert _content(tmp_path / "m") == files


@pytest.mark.parametrize("name", ["x\ntouch marked #", "--help"])
def test_the_script_reads_the_name_of_a_directory_as_such(hub: Hub, tmp_path: Path, name: str) -> None:
    """A list of others names it, and a line break ends a comment."""
    request, mirrors = SnapshotRequest("o/m", "model", Path(name)), Mirrors([HuggingFace(hub.endpoint)])
    head = shell_script(request, list_files(request, mirrors), mirrors.current()).partition("get ./")[0]
    done = subprocess.run(["bash", "-c", f"{head}pwd"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / name}\n"), done.stderr
    assert not (tmp_path / "marked").exists()


def test_progress_names_the_whole_and_each_file(hub: Hub, tmp_path: Path) -> None:
    told: list[tuple[str, int, int, str]] = []
    mirrors = Mirrors([HuggingFace(hub.endpoint)])
    fetch(SnapshotRequest("o/m", "model", tmp_path), mirrors, least_speed=0, progress=lambda *each: told.append(each))
    assert {each[0] for each in told} == {"MiB of o/m"} and told[-1][3] == ""
    shares = re.findall(r"model-00001\.safetensors (\d+)%", " ".join(each[3] for each in told))
    assert shares and all(0 <= int(each) < 100 for each in shares)


def test_files_that_have_come_are_not_looked_at_again() -> None:
    """A data set of ten thousand files took as many seconds of the processor to count."""
    files = [RemoteFile(f"{number}.parquet", 2 << 20) for number in range(20_000)]
    told: list[tuple[str, int, int, str]] = []
    parts = {file.path: 0 for file in files} | {"0.parquet": 1 << 20}
    count = _Count("MiB of o/d", 40_000, lambda *each: told.append(each), parts)
    began = time.process_time()
    count.add(files[0], 1 << 19)
    for file in files[1:]:
        count.add(file, 2 << 20)
    assert time.process_time() - began < 3
    assert told[0] == ("MiB of o/d", 1, 1, "0.parquet 75%")
    assert told[-1] == ("MiB of o/d", 39_999, 1, "0.parquet 75%")
    # What came was wrong, and is fetched again.
    count.add(files[1], -(2 << 20))
    assert told[-1][1:] == (39_997, 1, "0.parquet 75%, 1.parquet 0%") and count.arrived == (39_998 << 20) + (1 << 19)


@pytest.mark.parametrize("url", ["http://[", "http://127.0.0.1:99999", "http://host:port", "ftp://host", "http://", ""])
def test_address_that_is_not_a_hub_is_refused(url: str) -> None:
    with pytest.raises(InputError) as caught:
        choose_hubs([url], {})
    assert caught.value.code == "invalid-option-value" and caught.value.what.startswith("--from ")


@pytest.mark.parametrize("page", [[], [{"type": "directory", "path": "sub"}]], ids=["empty", "directories"])
@pytest.mark.parametrize("cursors", ["same", "new"])
def test_list_of_files_that_does_not_end_is_a_fault(
    page: list[object], cursors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def answered(url: str, _: object) -> tuple[object, dict[str, str]]:
        asked.append(url)
        cursor = 1 if cursors == "same" else len(asked)
        return ({"sha": COMMIT} if "/revision/" in url else page), {"Link": f'<x?cursor={cursor}>; rel="next"'}

    monkeypatch.setattr(hub_client, "get_json", answered)
    monkeypatch.setattr(hub_client, "_MOST_PAGES", 50)
    with pytest.raises(Fault, match="does not end"):
        HuggingFace("http://127.0.0.1").listing("o/m", "model", None)
    assert len(asked) <= 51


def test_next_page_with_an_address_that_cannot_be_parsed_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    link = {"Link": '<http://[::1>; rel="next"'}
    monkeypatch.setattr(hub_client, "get_json", lambda url, _: ({"sha": COMMIT} if "/revision/" in url else [], link))
    with pytest.raises(Fault, match="next page"):
        HuggingFace("http://127.0.0.1").listing("o/m", "model", None)


def test_list_of_files_that_arrives_too_slowly_is_a_fault(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascendtune.core.http._MOST_JSON_SECONDS", 0.0)
    with pytest.raises(Fault, match="takes longer"):
        HuggingFace(hub.endpoint).listing("o/m", "model", None)


@pytest.mark.parametrize("planted", ["link", "pipe", "longer"])
def test_part_that_another_program_left_is_made_anew(planted: str, hub: Hub, tmp_path: Path) -> None:
    elsewhere, directory = tmp_path / "elsewhere", tmp_path / "m"
    elsewhere.write_bytes(b"mine")
    file = next(each for each in HuggingFace(hub.endpoint).listing("o/m", "model", None).files if each.size < 100)
    part = transfer.part_of(directory, file)
    part.parent.mkdir(parents=True)
    if planted == "link":
        part.symlink_to(elsewhere)
    elif planted == "pipe":
        os.mkfifo(part)
    else:
        part.write_bytes(bytes(file.size + 1))
    _fetched(directory, hub)
    assert _content(directory) == _WANTED and elsewhere.read_bytes() == b"mine"
