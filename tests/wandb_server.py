"""A wandb server on loopback: as much of its GraphQL and of its file stream as the real client (0.31) asks for."""

from __future__ import annotations

import gzip
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from loopback import serving_on_loopback

KEY = "wandb0key0that0nobody0may0read0000000000000"
"""Of more than 40 characters, as the client demands."""
_OPERATION = re.compile(r"(?:query|mutation)\s+(\w+)")


@dataclass
class WandbRun:
    """What the server has of one run; `rows` by their numbers in the file, so that a repeated row replaces itself."""

    project: str
    display_name: str = ""
    config: str = "{}"
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    summary: str = "{}"
    exit_code: int | None = None

    @property
    def last_step(self) -> int:
        return max((row["_step"] for row in self.rows.values()), default=-1)


@dataclass
class WandbServer:
    """What the server has received, and what it does wrong.

    Attributes:
        refuses: statuses for the next requests of a file stream; 0: the connection is cut instead of an answer.
        takes_rows: with so many rows `holds` is set, once.
        holds: while it is set, requests of a file stream get no answer.
        operations: the names of the GraphQL operations, in order.
        keys: the Authorization headers.
        stored: uploaded files, by name.
    """

    runs: dict[str, WandbRun] = field(default_factory=dict)
    refuses: list[int] = field(default_factory=list)
    takes_rows: int | None = None
    holds: threading.Event = field(default_factory=threading.Event)
    asked_for_rows: threading.Event = field(default_factory=threading.Event)
    operations: list[str] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)
    stored: dict[str, bytes] = field(default_factory=dict)
    endpoint: str = ""


@contextmanager
def serving_wandb(server: WandbServer) -> Iterator[WandbServer]:
    """The server behind an endpoint, until the block ends."""

    class Handler(_Handler):
        held = server

    with serving_on_loopback(Handler) as server.endpoint:
        try:
            yield server
        finally:
            server.holds.clear()


class _Handler(BaseHTTPRequestHandler):
    held: WandbServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        body = self._body()
        if self.path == "/graphql":
            self.held.keys.add(self.headers.get("Authorization"))
            request = json.loads(body)
            self._json({"data": self._answer(request["query"], request.get("variables") or {})})
        elif self.path.endswith("/file_stream"):
            self._file_stream(json.loads(body))
        else:
            # Telemetry.
            self._json({})

    def do_PUT(self) -> None:
        self.held.stored[self.path.removeprefix("/storage/")] = self._body()
        self._json({})

    def _answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        operation = _OPERATION.search(query)
        name = operation[1] if operation else ""
        self.held.operations.append(name)
        match name:
            case "Viewer" | "GetDefaultEntity":
                return {"viewer": {"id": "1", "entity": "me", "username": "me", "email": "", "flags": "{}",
                                   "teams": {"edges": []}}}  # fmt: skip
            case "RunResumeStatus":
                return {"model": {"id": "1", "name": variables["project"], "entity": _ENTITY,
                                  "bucket": self._bucket(variables["name"])}}  # fmt: skip
            case "UpsertBucket":
                return {"upsertBucket": self._upsert(variables)}
            case "CreateRunFiles":
                files = [
                    {"name": each, "uploadUrl": f"{self.held.endpoint}/storage/{each}"} for each in variables["files"]
                ]
                return {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": files}}
            case "Run" | "RunHistoryKeys":
                return {"project": {"run": self._public(variables["name"])}}
        return {}

    def _bucket(self, name: str) -> dict[str, Any] | None:
        run = self.held.runs.get(name)
        if run is None or not run.rows:
            return None
        # The client takes a run as one to be resumed where `wandbConfig` has `t`.
        last = [run.rows[number] for number in sorted(run.rows)][-1:]
        return {
            "id": "1", "name": name, "displayName": run.display_name, "summaryMetrics": json.dumps(last[0]),
            "logLineCount": 0, "historyLineCount": len(run.rows), "eventsLineCount": 0, "eventsTail": "[]",
            "historyTail": json.dumps([json.dumps(each) for each in last]), "config": run.config, "tags": [],
            "notes": None, "wandbConfig": json.dumps({"t": 1}),
        }  # fmt: skip

    def _upsert(self, variables: dict[str, Any]) -> dict[str, Any]:
        name, project = variables["name"], variables["project"]
        is_new = name not in self.held.runs
        run = self.held.runs.setdefault(name, WandbRun(project))
        run.display_name = variables["displayName"] or run.display_name
        run.config = variables["config"] or run.config
        bucket = {
            "id": "1", "name": name, "displayName": run.display_name, "description": "", "config": run.config,
            "sweepName": None, "historyLineCount": len(run.rows),
            "project": {"id": "1", "name": project, "entity": _ENTITY},
        }  # fmt: skip
        return {"bucket": bucket, "inserted": is_new}

    def _public(self, name: str) -> dict[str, Any] | None:
        run = self.held.runs.get(name)
        if run is None:
            return None
        return {
            "projectId": "1", "id": "1", "name": name, "displayName": run.display_name, "state": "finished",
            "config": run.config, "summaryMetrics": run.summary, "systemMetrics": "{}",
            "historyLineCount": len(run.rows),
            "user": {"name": "me", "username": "me"}, "historyKeys": {"lastStep": run.last_step},
        }  # fmt: skip

    def _file_stream(self, content: dict[str, Any]) -> None:
        self.held.asked_for_rows.set()
        while self.held.holds.is_set():
            threading.Event().wait(0.02)
        if self._client_has_gone():
            # What a killed client had sent would otherwise count when the next one asks.
            self.close_connection = True
            return
        if self.held.refuses:
            status = self.held.refuses.pop(0)
            if status:
                self._json({}, status)
            else:
                self.close_connection = True
                self.connection.close()
            return
        run, files = self.held.runs[self.path.split("/")[-2]], content.get("files", {})
        if summary := files.get("wandb-summary.json"):
            run.summary = summary["content"][-1]
        if history := files.get("wandb-history.jsonl"):
            rows = dict(enumerate(map(json.loads, history["content"]), history["offset"]))
            if (most := self.held.takes_rows) is not None and len(run.rows) + len(rows) > most:
                # The client sends them in as many requests as it likes.
                run.rows.update({number: row for number, row in rows.items() if number < most})
                self.held.takes_rows = None
                self.held.holds.set()
                return
            run.rows.update(rows)
        if content.get("complete"):
            run.exit_code = content.get("exitcode")
        self._json({})

    def _client_has_gone(self) -> bool:
        with suppress(BlockingIOError):
            return not self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        return False

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _json(self, content: object, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


_ENTITY = {"id": "1", "name": "me"}

MARKING = """
import pathlib, sys
pathlib.Path(sys.argv[-1]).with_suffix(".wandb.synced").touch()
"""
"""A client's command line that marks a run as uploaded, and sends nothing."""


def write_client(directory: Path, program: str) -> None:
    """Write a package `wandb` whose command line is `program`, and which knows no run on the server."""
    (directory / "wandb/apis").mkdir(parents=True)
    (directory / "wandb/apis/public.py").write_text("class RunNotFoundError(ValueError):\n    pass\n")
    (directory / "wandb/__main__.py").write_text(program)
    (directory / "wandb/__init__.py").write_text(
        "from wandb.apis.public import RunNotFoundError\n\n\nclass Api:\n    default_entity = 'me'\n\n"
        "    def __init__(self, timeout): ...\n\n    def run(self, path):\n        raise RunNotFoundError(path)\n"
    )
