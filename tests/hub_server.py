"""A hub on loopback that speaks Hugging Face's and ModelScope's protocol, with faults on request."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """What the server holds, what it does wrong, and what it saw.

    Attributes:
        breaks_after: per file, the bytes after which each connection is reset, as often as the number beside it says.
        wrong: content that is sent in place of the right one, as often as the number beside it says.
        statuses: error statuses for the next requests of a file.
        trickle: bytes per second of every file; 0: at once.
        sent: body bytes of files that left the server, per file.
    """

    files: dict[str, bytes]
    large: frozenset[str] = frozenset()
    breaks_after: dict[str, list[int]] = field(default_factory=dict)
    wrong: dict[str, list[bytes]] = field(default_factory=dict)
    statuses: dict[str, list[int]] = field(default_factory=dict)
    trickle: float = 0.0
    knows_ranges: bool = True
    redirects_to: str | None = None
    page: int = 1000
    sent: dict[str, int] = field(default_factory=dict)
    tokens: list[str | None] = field(default_factory=list)
    endpoint: str = ""
    chunk: int = 1 << 14


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub behind an endpoint, until the block ends."""

    class Handler(_Handler):
        held = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    held: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        hub, url = self.held, urlsplit(self.path)
        hub.tokens.append(self.headers.get("Authorization"))
        path, query = unquote(url.path), parse_qs(url.query)
        resolve = f"/o/m/resolve/{COMMIT}/"
        if path.startswith("/api/v1/"):
            self._modelscope(path, query)
        elif path in ("/api/models/o/m/revision/main", f"/api/models/o/m/revision/{COMMIT}"):
            self._json({"sha": COMMIT})
        elif path.startswith(f"/api/models/o/m/tree/{COMMIT}"):
            self._tree(int(query.get("cursor", ["0"])[0]))
        elif path.startswith(resolve) and hub.redirects_to:
            self._answer(302, b"", {"Location": f"{hub.redirects_to}{self.path}"})
        elif path.startswith(resolve):
            self._file(path.removeprefix(resolve))
        else:
            self._answer(404, b"{}", {})

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
            self.wfile.write(piece)
            hub.sent[name] = hub.sent.get(name, 0) + len(piece)
            if hub.trickle:
                time.sleep(len(piece) / hub.trickle)
        if stop < len(body):
            self.close_connection = True
            self.connection.close()

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
