from __future__ import annotations

import os
from pathlib import Path

import pytest

from ascendtune.core.errors import InputError
from ascendtune.job.nodes.cluster_spec import TargetHost, hosts_of


def test_names_are_taken_as_ssh_takes_them() -> None:
    assert hosts_of("node1, root@10.0.0.7") == (TargetHost("node1"), TargetHost("root@10.0.0.7"))
    assert hosts_of("fd00::1, [fd00::2],root@[fd00::3]") == (
        TargetHost("fd00::1"),
        TargetHost("fd00::2"),
        TargetHost("root@fd00::3"),
    )


def test_a_file_names_hosts_and_how_many_processes_each_takes(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# the rack\nnode1 slots=8\n\nnode2   # spare\n")
    assert hosts_of(str(path)) == (TargetHost("node1", 8), TargetHost("node2"))


def test_a_file_of_windows_or_a_pipe_names_hosts(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_bytes(b"\xef\xbb\xbfnode1\r\nnode2\r\n")
    assert hosts_of(str(path)) == (TargetHost("node1"), TargetHost("node2"))
    reading, writing = os.pipe()
    os.write(writing, b"node1\nnode2\n")
    os.close(writing)
    # What a shell makes of <(scontrol show hostnames).
    assert hosts_of(f"/dev/fd/{reading}") == (TargetHost("node1"), TargetHost("node2"))
    os.close(reading)


@pytest.mark.parametrize(
    ("text", "code", "named"),
    [
        ("node1,node1", "duplicate-host", "node1"),
        ("[fd00::1],fd00::1", "duplicate-host", "fd00::1"),
        ("[fd00::1]:2222", "invalid-host-name", "[fd00::1]:2222"),
        ("node1:8,node2:8", "invalid-host-name", "node1:8"),
        ("10.0.0.1:22", "invalid-host-name", "10.0.0.1:22"),
        ("node1,[fe80::1%eth0]", "link-local-host", "[fe80::1%eth0]"),
        ("2", "invalid-host-name", "'2'"),
        ("node1,,node2", "invalid-host-name", "''"),
        ("-oProxyCommand=rm", "invalid-host-name", "-oProxyCommand=rm"),
        ("no/such/file", "path-missing", "no/such/file"),
    ],
)
def test_invalid_host_list_is_refused(text: str, code: str, named: str) -> None:
    with pytest.raises(InputError) as caught:
        hosts_of(text)
    assert caught.value.code == code and named in caught.value.what


@pytest.mark.parametrize(
    ("text", "code", "named"),
    [
        ("node1 gpus=8", "invalid-host-line", "gpus=8"),
        ("node1 slots=0", "invalid-host-line", "slots=0"),
        ("#\n", "empty-host-file", ""),
    ],
)
def test_a_line_that_is_not_understood_is_named(tmp_path: Path, text: str, code: str, named: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(InputError) as raised:
        hosts_of(str(path))
    assert raised.value.code == code and named in raised.value.what
    assert raised.value.where is not None and raised.value.where.startswith(str(path))
