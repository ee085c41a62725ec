from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from ascendtune.core.errors import InputError, MachineError
from ascendtune.job.command import checked_port, command
from ascendtune.job.spec import JobSpec, NodePlace

GOLDEN = Path(__file__).parents[2] / "golden" / "torchrun_argv.txt"


def _spec(nproc: int, *, is_foreign: bool = False) -> JobSpec:
    argv = (sys.executable, "-m", "ascendtune.train.worker", "runs/a")
    return JobSpec(argv, Path("runs/a"), nproc=nproc, kind="cpu", is_foreign=is_foreign)


def test_one_process_is_the_program_itself() -> None:
    assert command(_spec(1), {"MASTER_PORT": "nonsense"}) == [sys.executable, "-m", "ascendtune.train.worker", "runs/a"]


def test_several_processes_are_torchruns() -> None:
    assert _lines(command(_spec(8), {"MASTER_PORT": "nonsense"})) == GOLDEN.read_text(), "they need no port"


def test_a_program_of_the_users_meets_its_ranks_at_a_loopback_address() -> None:
    argv = command(_spec(8, is_foreign=True), {})
    assert argv[argv.index("--rdzv-backend") :][:4] == ["--rdzv-backend", "address", "--rdzv-endpoint", "127.0.0.1:0"]


def test_an_ipv6_address_of_node_0_is_in_brackets() -> None:
    assert "[fd00::1]:29500" in command(_spec(8), {}, NodePlace(2, 1, "fd00::1", 29500, "fd00::2", "eth1"))


def test_a_node_among_several_meets_the_others_at_node_0() -> None:
    place = NodePlace(4, 2, "node0", 29500, "192.168.1.7", "eth1")
    golden = GOLDEN.with_name("torchrun_argv_node.txt")
    assert _lines(command(_spec(8), {"MASTER_PORT": "nonsense"}, place)) == golden.read_text()
    assert "--nproc-per-node" in command(_spec(1), {}, place), "one device on each node is a job of several ranks"


def _lines(argv: list[str]) -> str:
    return "".join(f"{'python' if word == sys.executable else word}\n" for word in argv)


def test_a_free_master_port_is_used() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert f"127.0.0.1:{port}" in command(_spec(2, is_foreign=True), {"MASTER_PORT": str(port)})


def test_a_taken_master_port_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(MachineError) as raised:
            command(_spec(2, is_foreign=True), {"MASTER_PORT": str(port)})
        assert raised.value.code == "port-unavailable" and str(port) in raised.value.what
    assert raised.value.exit_code == 3


@pytest.mark.parametrize("given", ["http", "0", "65536", "-1"])
def test_a_master_port_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(InputError) as caught:
        command(_spec(2, is_foreign=True), {"MASTER_PORT": given})
    assert caught.value.code == "invalid-node-variable"


@pytest.mark.parametrize("given", ["", "0", "65536", "-1", "1.5", "²", "port", "9" * 5000])
def test_master_port_that_is_not_a_port_is_refused(given: str) -> None:
    with pytest.raises(InputError) as caught:
        checked_port(given, "127.0.0.1")
    assert caught.value.code == "invalid-node-variable"
