"""Downloads by the real modelscope_hub from a test server with ModelScope's answers."""

from __future__ import annotations

import errno
import hashlib
import json
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from importlib import import_module
from pathlib import Path

import pytest

from ascendtune.core.errors import DataError, MachineError, RecipeError
from ascendtune.hub.download import fetch_dataset, fetch_model
from loopback import serving_on_loopback

MODEL = {"config.json": b'{"model_type": "qwen2"}', "tokenizer.json": b"{}", "pytorch_model.bin": b"a pickle"}
ROWS = {"train.jsonl": b'{"text": "a"}\n', "README.md": b"of no use"}


class _Hub(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        url = urllib.parse.urlparse(self.path)
        query = urllib.parse.parse_qs(url.query)
        files = {"models": MODEL, "datasets": ROWS}.get(url.path.split("/")[3], {}) if "/org/there/" in url.path else {}
        if url.path.endswith(("/repo/files", "/repo/tree")) and files:
            self._answer(
                json.dumps({"Code": 200, "Success": True, "Data": {"Files": [*map(_entry, files.items())]}}).encode()
            )
        elif url.path.endswith("/repo") and query["FilePath"][0] in files:
            self._answer(files[query["FilePath"][0]])
        else:
            self._answer(b"", 404)

    def _answer(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def _entry(file: tuple[str, bytes]) -> dict[str, object]:
    name, content = file
    return {
        "Path": name,
        "Name": name,
        "Size": len(content),
        "Type": "blob",
        "Sha256": hashlib.sha256(content).hexdigest(),
        "Revision": "abc",
    }


def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client waits between its tries, in newer versions for an event."""
    monkeypatch.setattr("time.sleep", lambda _: None)
    control = import_module("modelscope_hub._download_control")
    monkeypatch.setattr(control._DownloadControl, "sleep", lambda *_: None)


@pytest.fixture
def hub(clients: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("USE_MODELSCOPE_HUB", "1")
    monkeypatch.setenv("MODELSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TQDM_DISABLE", "1")
    with serving_on_loopback(_Hub) as endpoint:
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", endpoint)
        yield endpoint


def test_a_model_and_a_data_set_come_from_it(hub: str) -> None:
    model = fetch_model("org/there", weights_needed=False)
    assert (model / "config.json").read_bytes() == MODEL["config.json"]
    # Pickled weights are never wanted.
    assert not (model / "pytorch_model.bin").exists()
    data = fetch_dataset("org/there")
    assert sorted(path.name for path in data.iterdir()) == ["README.md", "train.jsonl"]


def test_cache_alone_is_used_where_the_network_is_forbidden(hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = fetch_model("org/there", weights_needed=False)
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert fetch_model("org/there", weights_needed=False) == model
    with pytest.raises(MachineError) as caught:
        fetch_model("org/absent")
    assert caught.value.code == "hub-offline"

    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error", "somewhere")

    monkeypatch.setattr(import_module("modelscope_hub.compat.snapshot_download"), "snapshot_download", fails)
    with pytest.raises(MachineError) as caught:
        fetch_model("org/there")
    assert caught.value.code == "input-output-error", "a disk that fails is no cache without the model"


@pytest.mark.long
def test_cached_model_is_used_while_modelscope_cannot_be_reached(
    hub: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = fetch_model("org/there", weights_needed=False)
    fetch_dataset("org/there")
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", "http://127.0.0.1:9")
    _without_pauses(monkeypatch)
    assert fetch_model("org/there", weights_needed=False) == model
    assert "taken from the cache" in caplog.text
    # Nothing tells whether that of a data set is whole.
    with pytest.raises(MachineError, match="cannot be used"):
        fetch_dataset("org/there")


def test_files_that_modelscope_does_not_give_are_access_denied(hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = _Hub._answer
    monkeypatch.setattr(
        _Hub, "_answer", lambda each, body, status=200: answer(each, b"", 403) if body == b"{}" else answer(each, body)
    )
    with pytest.raises(RecipeError, match="refuses access") as caught:
        fetch_model("org/there", "gated", weights_needed=False)
    assert caught.value.code == "hub-access-denied"


def test_missing_model_or_data_set_on_modelscope_is_refused(hub: str) -> None:
    with pytest.raises(RecipeError, match=r"there is no model org/absent on http://127\.0\.0\.1"):
        fetch_model("org/absent")
    with pytest.raises(DataError, match="there is no data set org/absent"):
        fetch_dataset("org/absent")


@pytest.mark.long
def test_unreachable_modelscope_raises_machine_error(hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", "http://127.0.0.1:9")
    _without_pauses(monkeypatch)
    with pytest.raises(MachineError, match="cannot be used"):
        fetch_model("org/new")


def test_missing_modelscope_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setenv("USE_MODELSCOPE_HUB", "1")
    for name in ("modelscope_hub", "modelscope_hub.compat", "modelscope_hub.compat.snapshot_download"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MachineError) as caught:
        fetch_model("org/there")
    assert caught.value.code == "package-missing"
    assert "pip install" in (caught.value.remedy or "")
