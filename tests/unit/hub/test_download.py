"""Downloads run in processes of their own: huggingface_hub reads its variables once, when it is imported."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from ascendtune.core.errors import DataError, MachineError, RecipeError
from ascendtune.core.process import Finished, run
from ascendtune.hub import download
from ascendtune.hub.download import fetch_dataset, fetch_model, split_hub
from loopback import serving_on_loopback

_COMMIT = "0123456789abcdef0123456789abcdef01234567"
_EMPTY_WEIGHTS = (2).to_bytes(8, "little") + b"{}"
_MODEL = {
    "config.json": b'{"model_type": "qwen2"}',
    "tokenizer.json": b"{}",
    "model.safetensors": _EMPTY_WEIGHTS,
    "pytorch_model.bin": b"pickle",
    "original/params.json": b"{}",
}
_DATASET = {
    "README.md": b"# rows",
    "en/train.jsonl": b'{"prompt": "1", "completion": "2"}\n',
    "en/test.jsonl": b"{}\n",
    "zh/train.jsonl": b"{}\n",
    "de/train/data-00000-of-00001.arrow": b"rows",
}


_SUBSETS = {
    "README.md": b"---\nconfigs:\n- {config_name: main, data_files: [{split: train, path: data/train-*}]}\n"
    b"- {config_name: all, data_files: 'all/**'}\n---\n",
    "data/train-0.jsonl": b"{}\n",
    "data/test-0.jsonl": b"{}\n",
    "all/more/a.jsonl.gz": b"",
    "all/a.png": b"",
}
_ADAPTER = {
    "adapter_config.json": b'{"peft_type": "LORA", "task_type": "CAUSAL_LM"}',
    "adapter_model.safetensors": _EMPTY_WEIGHTS,
}
_REPOSITORIES = {
    "models/owner/whole": _MODEL,
    "models/owner/adapter": _ADAPTER,
    "datasets/owner/rows": _DATASET,
    "datasets/owner/subsets": _SUBSETS,
    "datasets/owner/picture": {"README.md": b"# none", "a.png": b"picture"},
    "datasets/owner/packed": {
        "README.md": b"---\nconfigs:\n- data_files: [rows/*.tar, rows/a.jsonl]\n"
        b"- {config_name: t, data_files: '*.tar'}\n---\n",
        "rows/a.jsonl": b"{}\n",
        "rows/a.tar": b"packed",
        "t.tar": b"packed",
        "t/b.jsonl": b"{}\n",
    },
}


class _Hub(BaseHTTPRequestHandler):
    """As much of the hub's protocol as a snapshot needs, over two repositories and two refusals."""

    requested: list[str]

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0].lstrip("/")
        self.requested.append(path)
        if "gated" in path:
            return self._send(403, b"", {"X-Error-Code": "GatedRepo"}, with_body)
        if "broken" in path:
            return self._send(500, b"", {}, with_body)
        for name, files in _REPOSITORIES.items():
            bare = name.removeprefix("models/")
            if path.startswith(f"api/{name}/revision/"):
                if not path.endswith("/main"):
                    return self._send(404, b"", {"X-Error-Code": "RevisionNotFound"}, with_body)
                info = {
                    "id": name.partition("/")[2],
                    "sha": _COMMIT,
                    "siblings": [{"rfilename": each} for each in files],
                }
                return self._send(200, json.dumps(info).encode(), {}, with_body)
            if path.startswith(f"api/{name}/tree/"):
                tree = [
                    {"type": "file", "path": each, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                    for each, content in files.items()
                ]
                return self._send(200, json.dumps(tree).encode(), {}, with_body)
            if path.startswith(f"{bare}/resolve/"):
                content = files[path.removeprefix(f"{bare}/resolve/").partition("/")[2]]
                headers = {"X-Repo-Commit": _COMMIT, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}
                return self._send(200, content, headers, with_body)
        return self._send(404, b"", {"X-Error-Code": "RepoNotFound"}, with_body)

    def _send(self, status: int, body: bytes, headers: dict[str, str], with_body: bool) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    _Hub.requested = []
    with serving_on_loopback(_Hub) as endpoint:
        yield endpoint


_ASK = """
import sys
from ascendtune.core.errors import AscendtuneError
from ascendtune.hub import download
from ascendtune.hub.download import fetch_dataset, fetch_model, split_hub
for call in sys.argv[1:]:
    try:
        print(eval(call))
    except AscendtuneError as error:
        print(type(error).__name__, error.exit_code, error)
"""


def _ask(home: Path, endpoint: str, *calls: str, **variables: str) -> Finished:
    kept = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    environment = {**kept, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", **variables}
    done = run([sys.executable, "-c", _ASK, *calls], timeout_seconds=60, env=environment)
    assert done.exit_code == 0, done.error
    return done


@pytest.mark.long
def test_a_model_is_downloaded_without_pickles_and_then_found_offline(hub: str, tmp_path: Path) -> None:
    _Hub.requested.clear()
    done = _ask(tmp_path, hub, "fetch_model('owner/whole')")
    assert "%" not in done.error, "a progress bar where there is no terminal"
    folder = Path(done.output.strip())
    assert sorted(entry.name for entry in folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (folder / "model.safetensors").read_bytes() == _EMPTY_WEIGHTS
    assert not [path for path in _Hub.requested if path.endswith(".bin") or "original" in path]

    asked_before = len(_Hub.requested)
    offline = _ask(tmp_path, hub, "fetch_model('owner/whole')", "fetch_model('owner/other')", HF_HUB_OFFLINE="1")
    found, missing = offline.output.strip().split("\n", 1)
    assert Path(found) == folder
    assert missing.startswith("MachineError 3") and "HF_HUB_OFFLINE is set" in missing
    older = _ask(tmp_path, hub, "fetch_model('owner/other')", HF_HUB_OFFLINE="", TRANSFORMERS_OFFLINE="1").output
    assert older.startswith("MachineError 3") and "TRANSFORMERS_OFFLINE is set" in older
    assert len(_Hub.requested) == asked_before


def test_a_server_that_is_not_a_hub_is_named(tmp_path: Path) -> None:
    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None: ...

    with serving_on_loopback(Proxy) as proxy:
        answer = _ask(tmp_path, proxy, "fetch_model('owner/whole')").output
    assert answer.startswith("MachineError 3") and "the answer is not from a hub" in answer


@pytest.mark.long
def test_an_adapter_is_downloaded_for_commands_that_use_or_merge_weights(hub: str, tmp_path: Path) -> None:
    imports = "__import__('ascendtune.{0}', fromlist=['x'])"
    chat, merge = imports.format("infer.engine"), imports.format("merge.source")
    calls = (f"{chat}.find_weights('owner/adapter')", f"{merge}.find_sources(['hf:owner/adapter=0.5'])")
    answers = _ask(tmp_path, hub, *calls).output
    # Both have the adapter's own files before them, and miss what an adapter without a name of its base lacks.
    assert answers.count("the adapter does not name its base model") + answers.count("contains no weights") == 2, (
        answers
    )


def test_only_the_split_and_subset_of_a_data_set_are_downloaded(hub: str, tmp_path: Path) -> None:
    folder = Path(_ask(tmp_path, hub, "fetch_dataset('owner/rows', split='train', subset='en')").output.strip())
    assert sorted(str(file.relative_to(folder)) for file in folder.rglob("*.*")) == ["README.md", "en/train.jsonl"]


@pytest.mark.parametrize(
    ("asked", "files"),
    [
        ("'subsets'", ["data/train-0.jsonl"]),
        ("'subsets', subset='all'", ["all/more/a.jsonl.gz"]),
        # Files that are not read are not downloaded, and the card names no others of this subset.
        ("'packed'", ["rows/a.jsonl"]),
        ("'packed', subset='t'", ["t/b.jsonl"]),
    ],
)
def test_the_files_that_its_card_names_are_downloaded(hub: str, tmp_path: Path, asked: str, files: list[str]) -> None:
    folder = Path(_ask(tmp_path, hub, f"fetch_dataset('owner/' {asked})").output.strip())
    assert sorted(str(file.relative_to(folder)) for file in folder.rglob("*.*")) == ["README.md", *files]


def test_a_data_set_is_said_to_be_looked_for_once(hub: str, tmp_path: Path) -> None:
    told = _ask(
        tmp_path, hub, "__import__('ascendtune.core.log').core.log.set_up()", "fetch_dataset('owner/rows')"
    ).error
    assert told.count("looking for the data set owner/rows in the cache and on http://") == 1


def test_a_data_set_without_data_is_named(hub: str, tmp_path: Path) -> None:
    answer = _ask(tmp_path, hub, "fetch_dataset('owner/picture')").output
    assert answer.startswith("DataError 2 the data set owner/picture has no data file")


def test_a_data_set_whose_card_is_not_in_the_cache_is_found_offline(hub: str, tmp_path: Path) -> None:
    cached = _ask(tmp_path, hub, "download._download('owner/rows', 'dataset', None, ['*.jsonl', '*.arrow'], [])").output
    calls = ("fetch_dataset('owner/rows')", "fetch_dataset('owner/subsets')")
    found, missing = _ask(tmp_path, hub, *calls, HF_HUB_OFFLINE="1").output.split("\n", 1)
    assert found == cached.strip()
    assert missing.startswith("MachineError 3 the data set owner/subsets is neither a local path nor complete")


def test_a_data_set_of_which_only_the_card_is_in_the_cache_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """huggingface_hub 1 gives the directory of a snapshot that is not whole."""
    (tmp_path / "README.md").write_text("# rows")
    monkeypatch.setattr(download, "_download", lambda *_, **__: tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(MachineError) as caught:
        fetch_dataset("owner/rows")
    assert caught.value.code == "hub-offline" and "HF_HUB_OFFLINE" in caught.value.remedy


def test_data_sets_of_save_to_disk_are_downloaded(hub: str, tmp_path: Path) -> None:
    folder = Path(_ask(tmp_path, hub, "fetch_dataset('owner/rows', subset='de')").output.strip())
    assert sorted(file.name for file in folder.rglob("*.*")) == ["README.md", "data-00000-of-00001.arrow"]


def test_a_split_without_files_is_named(hub: str, tmp_path: Path) -> None:
    answer = _ask(tmp_path, hub, "fetch_dataset('owner/rows', split='dev')").output
    assert answer.startswith("DataError 2 the data set owner/rows has no data file named after dev")


def test_a_hub_in_trouble_is_told_apart_from_a_wrong_name(hub: str, tmp_path: Path) -> None:
    answer = _ask(tmp_path, hub, "fetch_model('owner/broken')").output
    assert answer.startswith("MachineError 3") and "(500)" in answer


def test_refusals_of_the_hub_say_what_to_do(hub: str, tmp_path: Path) -> None:
    answers = _ask(
        tmp_path,
        hub,
        "fetch_model('owner/nothing')",
        "fetch_dataset('owner/nothing')",
        "fetch_model('owner/whole', 'v9')",
        "fetch_model('owner/gated')",
    ).output
    assert answers.startswith("RecipeError 2 there is no model owner/nothing on http://127.0.0.1")
    assert "DataError 2 there is no data set owner/nothing" in answers
    assert "RecipeError 2 owner/whole has no revision 'v9'" in answers
    assert "RecipeError 2 the model owner/gated is gated" in answers and "HF_TOKEN" in answers
    assert answers.count("   do: ") == 4


def test_a_hub_that_cannot_be_reached_is_a_fault_of_the_machine(tmp_path: Path) -> None:
    # Port 9 (discard) is closed everywhere.
    answer = _ask(tmp_path, "http://127.0.0.1:9", "fetch_model('owner/whole')").output
    assert answer.startswith("MachineError 3") and "set HF_ENDPOINT to a mirror" in answer


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("base-model", "did you mean the path 'experiments/first/base-model'? If not: unset HF_HUB_OFFLINE"),
        ("first/base-model", "did you mean the path 'experiments/first/base-model'? If not: unset HF_HUB_OFFLINE"),
        ("other", "if it is a path: it starts at the working directory; else: unset HF_HUB_OFFLINE"),
        # Data files are not models.
        ("rows", "if it is a path: it starts at the working directory; else: unset HF_HUB_OFFLINE"),
        ("owner/none", "unset HF_HUB_OFFLINE"),
        ("hf:first/base-model", "unset HF_HUB_OFFLINE"),
    ],
)
def test_path_that_looks_like_a_hub_id_is_suggested_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, remedy: str
) -> None:
    def refuse(*_: object) -> None:
        raise MachineError("not in the cache", code="hub-offline", remedy="unset HF_HUB_OFFLINE")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(download, "_download_from_hub", refuse)
    (tmp_path / "experiments" / "first" / "base-model").mkdir(parents=True)
    (tmp_path / "rows.jsonl").touch()
    with pytest.raises(MachineError) as raised:
        fetch_model(text)
    assert raised.value.remedy == remedy


@pytest.mark.parametrize("text", ["./model", "/no/such/model", "~/no-such-model", "a/b/c", "models/qwem", "two words"])
def test_path_like_name_is_refused_without_network(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "qwen").mkdir(parents=True)
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("connects"))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("asks for an address"))
    with pytest.raises(RecipeError) as raised:
        fetch_model(text)
    assert raised.value.code == "path-missing"
    if text == "models/qwem":
        assert raised.value.remedy == "did you mean 'models/qwen'?"


def test_a_missing_data_file_is_a_path_even_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "alpaca.jsonl").write_text("{}\n")
    with pytest.raises(DataError) as raised:
        fetch_dataset("alpaca.json")
    assert raised.value.code == "path-missing"
    assert raised.value.remedy == "did you mean 'alpaca.jsonl'?"
    assert fetch_dataset("alpaca.jsonl") == Path("alpaca.jsonl")


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("hf:Qwen/Qwen3-8B", ("hf", "Qwen/Qwen3-8B")),
        ("modelscope:Qwen/Qwen3-8B", ("modelscope", "Qwen/Qwen3-8B")),
        ("Qwen/Qwen3-8B", (None, "Qwen/Qwen3-8B")),
        ("/data/hf:x", (None, "/data/hf:x")),
    ],
)
def test_a_prefix_names_the_hub(text: str, split: tuple[str | None, str]) -> None:
    assert split_hub(text) == split


def test_a_prefix_without_an_id_is_refused() -> None:
    with pytest.raises(RecipeError) as caught:
        fetch_model("hf:../secret")
    assert caught.value.code == "invalid-hub-id"


def test_the_prefix_decides_whatever_the_variable_says(hub: str, tmp_path: Path) -> None:
    answer = _ask(tmp_path, hub, "fetch_model('hf:owner/whole')", USE_MODELSCOPE_HUB="1")
    assert answer.exit_code == 0, answer.error
