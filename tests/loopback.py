"""A HTTP server on loopback, for as long as a test needs it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def serving_on_loopback(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Context with a server in threads, which do not keep the process alive; yields its endpoint, `http://…`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    # The server sees between two polls that it is to end; by default it would be asked for half a second.
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
