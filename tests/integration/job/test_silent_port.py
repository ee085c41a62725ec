"""A program that listens where node 0 should, accepts, and says nothing."""

from __future__ import annotations

import socket
import sys

from ascendtune.core.process import run


def test_a_node_ends_in_a_message_where_the_port_of_node_0_stays_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        options = ["--rdzv-backend", "address", "--rdzv-endpoint", f"127.0.0.1:{port}"]
        options += ["--rdzv-conf", "rank=1,timeout=2", "--nnodes", "2", "--nproc-per-node", "1"]
        done = run([sys.executable, "-m", "ascendtune.job.torchrun", *options, "true"], timeout_seconds=120)
    assert done.exit_code == 3, done.error
    assert f"127.0.0.1:{port} accepts connections and does not answer" in done.error
