"""Servers that keep a client busy, or fill its memory, before their answer begins."""

from __future__ import annotations

import resource
import time
from http.server import BaseHTTPRequestHandler

import pytest

from ascendtune.core import http
from ascendtune.core.http import Fault, open_url
from loopback import serving_on_loopback

_MEGABYTE = bytes(1 << 20)


class _Server(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        try:
            if self.path == "/redirect":
                self._begin(302, Location="/file")
                for _ in range(600):
                    self.wfile.write(_MEGABYTE)
            elif self.path == "/file":
                self._begin(200)
                self.wfile.write(b"content")
            elif self.path == "/continue":
                while True:
                    self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                    time.sleep(0.05)
            elif self.path == "/letters":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
                while True:
                    self.wfile.write(b"x")
                    time.sleep(0.05)
        except OSError:
            pass
        self.close_connection = True

    def _begin(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


def test_the_body_of_a_redirect_is_not_read() -> None:
    with serving_on_loopback(_Server) as endpoint:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with open_url(f"{endpoint}/redirect", {}) as answer:
            assert answer.read() == b"content"
    # KiB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


@pytest.mark.parametrize("path", ["continue", "letters"])
def test_an_answer_that_never_begins_is_not_waited_for(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_OPENING_SECONDS", 0.3)
    with serving_on_loopback(_Server) as endpoint, pytest.raises(Fault, match="no answer in"):
        open_url(f"{endpoint}/{path}", {})
