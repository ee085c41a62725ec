"""A hub on loopback that speaks Hugging Face's and ModelScope's protocol, with faults on request."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit

from loopback import serving_on_loopback

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """What the server holds, what it does wrong, and what it saw.

    Attributes:
        breaks_after: per file, the bytes after which each connection is reset, as often as the number beside it says.
        wrong: content that is sent in place of the right one, as often as the number beside it says.
        statuses: error statuses for the next requests of a file.
        listing_statuses: error statuses for the next requests of anything else.
        listing_cuts: how the connection ends during the next answers to these: "cut" after half of the body, "closed"
            before the answer.
        trickle: bytes per second of every file; 0: at once.
        before_piece: called with the name of a file before each piece of it.
        sent: body bytes of files that left the server, per file.
        private: whether the repository of uploads, `o/m`, is private; None: it does not exist.
        stored: large objects by their hash; they stay where a commit does not follow.
        commits: the names of the files of each commit of an upload.
        refuses_commits: error statuses for the next commits.
    """

    files: dict[str, bytes]
    large: frozenset[str] = frozenset()
    breaks_after: dict[str, list[int]] = field(default_factory=dict)
    wrong: dict[str, list[bytes]] = field(default_factory=dict)
    statuses: dict[str, list[int]] = field(default_factory=dict)
    listing_statuses: list[int] = field(default_factory=list)
    listing_cuts: list[str] = field(default_factory=list)
    trickle: float = 0.0
    before_piece: Callable[[str], None] = lambda name: None
    knows_ranges: bool = True
    redirects_to: str | None = None
    page: int = 1000
    sent: dict[str, int] = field(default_factory=dict)
    tokens: list[str | None] = field(default_factory=list)
    endpoint: str = ""
    chunk: int = 1 << 14
    private: bool | None = None
    stored: dict[str, bytes] = field(default_factory=dict)
    commits: list[list[str]] = field(default_factory=list)
    refuses_commits: list[int] = field(default_factory=list)


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub behind an endpoint, until the block ends."""

    class Handler(_Handler):
        held = hub

    with serving_on_loopback(Handler) as hub.endpoint:
        yield hub


class _Handler(BaseHTTPRequestHandler):
    held: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        hub, url = self.held, urlsplit(self.path)
        hub.tokens.append(self.headers.get("Authorization"))
        # The repository is a model and a data set.
        path = unquote(url.path).replace("/api/datasets/", "/api/models/").replace("/datasets/o/m/", "/o/m/")
        query = parse_qs(url.query)
        resolve = f"/o/m/resolve/{COMMIT}/"
        is_file = path.startswith(resolve) or path.endswith("/repo")
        if hub.listing_statuses and not is_file:
            self._answer(hub.listing_statuses.pop(0), b"", {"Retry-After": "0"})
        elif hub.listing_cuts and not is_file:
            self._break_off(hub.listing_cuts.pop(0))
        elif is_file and hub.redirects_to:
            self._answer(302, b"", {"Location": f"{hub.redirects_to}{self.path}"})
        elif path in ("/openapi/v1/models/o/m", "/api/v1/models/o/m"):
            found = {"id": "o/m", "private": hub.private}
            self._answer(404 if hub.private is None else 200, json.dumps({"success": True, "data": found}).encode(), {})
        elif path.startswith("/api/v1/"):
            self._modelscope(path, query)
        elif path in ("/api/models/o/m", "/api/models/o/m/revision/main") and hub.private is not None:
            self._json({"id": "o/m", "sha": f"{len(hub.commits):040x}", "private": hub.private, "tags": []})
        elif path == "/api/models/o/m":
            self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif path in ("/api/models/o/m/revision/main", f"/api/models/o/m/revision/{COMMIT}"):
            self._json({"id": "o/m", "sha": COMMIT})
        elif path.startswith(f"/api/models/o/m/tree/{COMMIT}"):
            self._tree(int(query.get("cursor", ["0"])[0]))
        elif path.startswith(resolve):
            self._file(path.removeprefix(resolve))
        else:
            self._answer(404, b"{}", {})

    def do_POST(self) -> None:
        hub, path = self.held, urlsplit(self.path).path
        hub.tokens.append(self.headers.get("Authorization"))
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not self.headers.get("Authorization"):
            self._answer(401, b"{}", {})
        elif path == "/api/repos/create":
            asked = json.loads(body)
            # huggingface_hub 1 has `private`, 2 `visibility`.
            hub.private = asked.get("private", asked.get("visibility") == "private")
            self._json({"url": f"{hub.endpoint}/o/m", "id": "o/m", "name": "o/m"})
        elif path == "/api/v1/models" and hub.private is not None:
            self._answer(400, b'{"Message": "the repository already exists"}', {})
        elif path == "/api/v1/models":
            hub.private = json.loads(body)["Visibility"] == 1
            self._json({"Code": 200, "Data": {"Path": "o", "Name": "m"}})
        elif path == "/api/v1/repos/models/o/m/info/lfs/objects/batch":
            self._json({"Data": {"objects": [*map(self._action, json.loads(body)["objects"])]}})
        elif path == "/api/v1/repos/models/o/m/commit/master" and not hub.refuses_commits:
            self._commit_of_modelscope(json.loads(body)["actions"])
        elif path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif path == "/api/models/o/m/preupload/main":
            self._json({"files": [self._mode(each["path"]) for each in json.loads(body)["files"]]})
        elif path == "/o/m.git/info/lfs/objects/batch":
            self._answer(200, json.dumps({"objects": [*map(self._action, json.loads(body)["objects"])]}).encode(), {})
        elif path in ("/api/models/o/m/commit/main", "/api/v1/repos/models/o/m/commit/master") and hub.refuses_commits:
            self._answer(hub.refuses_commits.pop(0), b"{}", {})
        elif path == "/api/models/o/m/commit/main":
            self._commit([json.loads(line) for line in body.splitlines()])
        else:
            self._answer(404, b"{}", {})

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        oid = hashlib.sha256(body).hexdigest()
        if self.path == f"/lfs/{oid}":
            self.held.stored[oid] = body
        self._answer(200 if self.path == f"/lfs/{oid}" else 400, b"", {})

    def _mode(self, name: str) -> dict[str, object]:
        is_large, content = name.endswith(".safetensors"), self.held.files.get(name)
        oid = None
        if content is not None:
            oid = hashlib.sha256(content).hexdigest() if is_large else git_sha1(content)
        return {"path": name, "uploadMode": "lfs" if is_large else "regular", "shouldIgnore": False, "oid": oid}

    def _action(self, wanted: dict[str, object]) -> dict[str, object]:
        upload = {"upload": {"href": f"{self.held.endpoint}/lfs/{wanted['oid']}"}}
        return {**wanted, **({} if wanted["oid"] in self.held.stored else {"actions": upload})}

    def _commit(self, lines: list[dict[str, dict[str, str]]]) -> None:
        hub, values = self.held, [line["value"] for line in lines]
        for kind, value in zip((line["key"] for line in lines), values, strict=True):
            if kind == "lfsFile":
                hub.files[value["path"]] = hub.stored[value["oid"]]
            elif kind == "file":
                hub.files[value["path"]] = base64.b64decode(value["content"])
        hub.commits.append([value["path"] for value in values if "path" in value])
        self._json({"commitUrl": f"{hub.endpoint}/o/m/commit/1", "commitOid": f"{len(hub.commits):040x}"})

    def _commit_of_modelscope(self, actions: list[dict[str, str]]) -> None:
        for each in actions:
            content = self.held.stored[each["sha256"]] if each["type"] == "lfs" else base64.b64decode(each["content"])
            self.held.files[each["path"]] = content
        self.held.commits.append([each["path"] for each in actions])
        self._json({"Code": 200, "Success": True, "Data": {}})

    def _tree(self, begin: int) -> None:
        entries = []
        for name, content in list(self.held.files.items())[begin : begin + self.held.page]:
            entry: dict[str, object] = {"type": "file", "path": name, "size": len(content), "oid": git_sha1(content)}
            if name in self.held.large:
                entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content)}
                entry["oid"] = git_sha1(b"a pointer")
            entries.append(entry)
        end = begin + self.held.page
        link = (
            {"Link": f'<https://elsewhere.invalid/tree?cursor={end}>; rel="next"'} if end < len(self.held.files) else {}
        )
        self._answer(200, json.dumps([{"type": "directory", "path": "d"}, *entries]).encode(), link)

    def _modelscope(self, path: str, query: dict[str, list[str]]) -> None:
        if path.endswith("/repo"):
            self._file(query["FilePath"][0])
            return
        files = [
            {"Path": name, "Size": len(content), "Type": "blob", "Sha256": hashlib.sha256(content).hexdigest()}
            for name, content in self.held.files.items()
        ]
        self._json({"Code": 200, "Data": {"Files": files}})

    def _file(self, name: str) -> None:
        hub = self.held
        if name not in hub.files or hub.statuses.get(name):
            status = hub.statuses[name].pop(0) if name in hub.files else 404
            self._answer(status, b"", {"Retry-After": "0"})
            return
        content = hub.wrong[name].pop(0) if hub.wrong.get(name) else hub.files[name]
        begin = 0
        if hub.knows_ranges and (asked := self.headers.get("Range")):
            begin = int(asked.removeprefix("bytes=").rstrip("-"))
        body = content[begin:]
        stop = hub.breaks_after[name].pop(0) if hub.breaks_after.get(name) else len(body)
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(body)))
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        for at in range(0, min(stop, len(body)), hub.chunk):
            piece = body[at : min(at + hub.chunk, stop)]
            hub.before_piece(name)
            self.wfile.write(piece)
            hub.sent[name] = hub.sent.get(name, 0) + len(piece)
            if hub.trickle:
                time.sleep(len(piece) / hub.trickle)
        if stop < len(body):
            self.close_connection = True
            self.connection.close()

    def _break_off(self, how: str) -> None:
        if how == "cut":
            self.send_response(200)
            self.send_header("Content-Length", "20")
            self.end_headers()
            self.wfile.write(b'{"sha": "0')
        self.close_connection = True

    def _json(self, content: object) -> None:
        self._answer(200, json.dumps(content).encode(), {})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def git_sha1(content: bytes) -> str:
    """The name of git's object of a file with this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
