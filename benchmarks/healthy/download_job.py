"""Downloads from a hub on loopback that has faults and gets well: python download_job.py OUT WORD.

Words: well, busy (503), limited (429), slow (no answer within the time limit, once).
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_COMMIT = "0123456789abcdef0123456789abcdef01234567"
_FILES = {"config.json": b'{"model_type": "llama"}', "model.safetensors": random.Random(7).randbytes(3 << 20)}


class _Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    word = "well"
    asked = 0

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        content = _FILES.get(self.path.rpartition("/")[2])
        if content is None:
            self.send_error(404)
            return
        kind = type(self)
        is_large = len(content) > len(_FILES["config.json"])
        kind.asked += is_large
        is_early = is_large and kind.asked == 1
        if is_early and self.word in ("busy", "limited"):
            self.send_response(503 if self.word == "busy" else 429)
            self.send_header("Retry-After", "1")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if is_early and self.word == "slow":
            time.sleep(3)
        begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        piece = content[begin:]
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Content-Length", str(len(piece)))
        self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{len(content):040x}"')
        self.send_header("X-Repo-Commit", _COMMIT)
        self.end_headers()
        if with_body:
            self.wfile.write(piece)


def main(out: str, word: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    _Hub.word = word
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    os.environ.update(HF_ENDPOINT=endpoint, HF_HUB_DISABLE_XET="1", HF_HUB_OFFLINE="0")
    os.environ.update(HF_HUB_DOWNLOAD_TIMEOUT="1", HF_HUB_ETAG_TIMEOUT="1")
    from huggingface_hub import hf_hub_download

    for name in _FILES:
        print(hf_hub_download("o/m", name, local_dir=out))
    print("downloaded", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
