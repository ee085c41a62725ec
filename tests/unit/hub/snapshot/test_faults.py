"""Faults during a download, for both protocols: every file is right at the end, or the error names it."""

from __future__ import annotations

import random
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ascendtune.core.errors import AscendtuneError, MachineError
from ascendtune.hub.snapshot import transfer
from ascendtune.hub.snapshot.fetch import Mirrors, SnapshotRequest, fetch, list_files
from ascendtune.hub.snapshot.hub_client import HubClient, HuggingFace, ModelScope
from hub_server import Hub, serving

_FILES = {
    "config.json": b'{"model_type": "qwen2"}',
    "model-00001.safetensors": random.Random(1).randbytes(3_000_000),
    "model-00002.safetensors": random.Random(2).randbytes(1_500_000),
    "sub/merges.txt": b"a b\n" * 1000,
}
_LARGE = frozenset({"model-00001.safetensors", "model-00002.safetensors"})
Fetch = Callable[..., None]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving(Hub(_FILES, _LARGE)) as held:
        yield held


@pytest.fixture(params=[HuggingFace, ModelScope])
def protocol(request: pytest.FixtureRequest) -> Callable[..., HubClient]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def fetched(protocol: Callable[..., HubClient], monkeypatch: pytest.MonkeyPatch) -> Fetch:
    """Fetches from the hub into a directory, without pauses."""
    monkeypatch.setattr("ascendtune.hub.snapshot.fetch._LONGEST_WAIT_SECONDS", 0.01)

    def fetched(directory: Path, hub: Hub, *, least_speed: float = 0, token: str | None = None) -> None:
        mirrors = Mirrors([protocol(hub.endpoint, token)])
        fetch(SnapshotRequest("o/m", "model", directory), mirrors, least_speed=least_speed, progress=lambda *_: None)

    return fetched


def _content(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file() and transfer.STATE not in path.parts)
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_connections_that_break_continue_where_they_broke(fetched: Fetch, hub: Hub, tmp_path: Path) -> None:
    hub.breaks_after = {"model-00001.safetensors": [100_000, 700_000, 1, 900_000]}
    fetched(tmp_path, hub)
    assert _content(tmp_path) == _FILES
    assert hub.sent["model-00001.safetensors"] == len(_FILES["model-00001.safetensors"])


def test_a_server_without_ranges_starts_the_file_again(fetched: Fetch, hub: Hub, tmp_path: Path) -> None:
    hub.knows_ranges, hub.breaks_after = False, {"model-00001.safetensors": [1_000_000]}
    fetched(tmp_path, hub)
    assert _content(tmp_path) == _FILES


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_asked_again(status: int, fetched: Fetch, hub: Hub, tmp_path: Path) -> None:
    hub.statuses = {"model-00002.safetensors": [status] * 3}
    fetched(tmp_path, hub)
    assert _content(tmp_path) == _FILES


def test_wrong_content_is_thrown_away_and_fetched_again(fetched: Fetch, hub: Hub, tmp_path: Path) -> None:
    name = "model-00002.safetensors"
    hub.wrong = {name: [bytes(len(_FILES[name]))]}
    fetched(tmp_path, hub)
    assert _content(tmp_path) == _FILES


@pytest.mark.parametrize("content", [_FILES["config.json"][:-1], bytes(len(_FILES["config.json"]))])
def test_a_file_that_stays_too_short_or_wrong_is_named_and_never_gets_its_name(
    fetched: Fetch, hub: Hub, tmp_path: Path, content: bytes
) -> None:
    name = "config.json"
    hub.wrong = {name: [content] * 99}
    with pytest.raises(MachineError) as caught:
        fetched(tmp_path, hub)
    assert caught.value.code == "file-not-fetched" and name in caught.value.what
    assert not (tmp_path / name).exists()


def test_the_last_mirror_may_be_slow(fetched: Fetch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PACE_SECONDS", 0.2)
    small = {"config.json": b"{}" * 2_000}
    with serving(Hub(small, trickle=8_000, chunk=400)) as slow:
        fetched(tmp_path, slow, least_speed=1e9)
    assert _content(tmp_path) == small


def test_the_token_goes_to_the_hub_and_not_to_its_storage(fetched: Fetch, hub: Hub, tmp_path: Path) -> None:
    with serving(Hub(_FILES, _LARGE, redirects_to=hub.endpoint)) as front:
        fetched(tmp_path, front, token="secret")
    assert set(front.tokens) == {"Bearer secret"} and set(hub.tokens) == {None}
    assert _content(tmp_path) == _FILES


@pytest.mark.parametrize("status", [429, 503])
def test_list_of_files_of_a_busy_server_is_asked_for_again(
    status: int, fetched: Fetch, hub: Hub, tmp_path: Path
) -> None:
    hub.listing_statuses = [status] * 2
    fetched(tmp_path, hub)
    assert _content(tmp_path) == _FILES


@pytest.mark.parametrize("how", ["cut", "closed"])
def test_list_of_files_whose_connection_ends_early_is_asked_for_again(
    how: str, fetched: Fetch, hub: Hub, tmp_path: Path
) -> None:
    hub.listing_cuts = [how] * 2
    fetched(tmp_path, hub)
    assert _content(tmp_path) == _FILES


def test_list_of_files_that_is_always_cut_is_an_error_that_says_so(fetched: Fetch, hub: Hub, tmp_path: Path) -> None:
    hub.listing_cuts = ["cut"] * 99
    with pytest.raises(MachineError) as caught:
        fetched(tmp_path, hub)
    assert caught.value.code == "hub-unreachable" and "10 bytes before the end" in caught.value.what


@pytest.mark.parametrize("status", [429, 503, 403])
def test_server_that_stays_busy_is_named(status: int, fetched: Fetch, hub: Hub, tmp_path: Path) -> None:
    hub.listing_statuses = [status] * 99
    with pytest.raises(AscendtuneError) as caught:
        fetched(tmp_path, hub)
    assert str(status) in str(caught.value) or status == 403
    assert {429: "wait some minutes", 503: "try again later", 403: "check the spelling"}[status] in caught.value.remedy
    assert len(hub.listing_statuses) == (98 if status == 403 else 94) and not _content(tmp_path)


@pytest.mark.parametrize("status", [401, 403])
def test_gated_files_of_a_public_list_are_refused(status: int, fetched: Fetch, hub: Hub, tmp_path: Path) -> None:
    hub.statuses = {"config.json": [status] * 99}
    with pytest.raises(AscendtuneError) as caught:
        fetched(tmp_path, hub)
    assert caught.value.code == "hub-access-denied" and "HF_TOKEN" in caught.value.remedy
    assert "config.json" in caught.value.what and str(status) in caught.value.what


def test_server_that_is_dead_is_named_at_once(fetched: Fetch, tmp_path: Path) -> None:
    with pytest.raises(MachineError) as caught:
        fetched(tmp_path, Hub({}, endpoint="http://127.0.0.1:9"))
    assert caught.value.code == "hub-unreachable"


def test_server_that_dies_in_mid_file_names_the_file_and_the_next_fetch_continues(
    fetched: Fetch, hub: Hub, tmp_path: Path
) -> None:
    name = "model-00001.safetensors"
    hub.breaks_after = {name: [1_000_000, *[0] * 99]}
    with pytest.raises(MachineError) as caught:
        fetched(tmp_path, hub)
    assert caught.value.code == "file-not-fetched" and name in caught.value.what and not (tmp_path / name).exists()
    hub.breaks_after = {}
    fetched(tmp_path, hub)
    assert _content(tmp_path) == _FILES and hub.sent[name] == len(_FILES[name])


def test_file_that_cannot_grow_is_named_and_continued_later(fetched: Fetch, hub: Hub, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(MachineError) as caught:
            fetched(tmp_path / "m", hub)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.code == "file-too-large" and ".safetensors" in str(caught.value.where)
    fetched(tmp_path / "m", hub)
    assert _content(tmp_path / "m") == _FILES


def test_no_mirror_is_announced_behind_the_last_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dead = [HuggingFace(f"http://127.0.0.1:{port}") for port in (9, 7)]
    with pytest.raises(MachineError):
        list_files(SnapshotRequest("o/m", "model", tmp_path), Mirrors(dead))
    assert caplog.text.count("continuing with") == 1
