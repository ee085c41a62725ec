from __future__ import annotations

import pytest

from ascendtune.job.nodes.cluster_spec import TargetHost
from ascendtune.job.nodes.connection import module_on, portable_environment, why_ended


def test_variables_of_this_machine_are_not_forwarded() -> None:
    mine = {
        "HOME": "/root",
        "HCCL_IF_IP": "10.0.0.1",
        "SSH_CONNECTION": "a 1 b 22",
        "TMUX": "x",
        "TMUX_PANE": "%1",
        "DISPLAY": ":0",
    }
    theirs = {"LD_LIBRARY_PATH": "/usr/local/Ascend/lib", "HCCL_BUFFSIZE": "400", "HF_TOKEN": "s", "HOMEBREW": "1"}
    assert portable_environment(mine | theirs) == theirs


def test_ssh_command_line_holds_no_environment_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("PYTHONPATH", "/with space")
    *ssh, command = module_on(TargetHost("user@node1"), "some.module", "/opt/python")
    assert ssh[0] == "ssh" and "BatchMode=yes" in ssh and ssh[-1] == "user@node1"
    assert command == "exec env 'PYTHONPATH=/with space' /opt/python -P -m some.module"
    assert module_on(TargetHost("localhost"), "some.module", "/opt/python") == [
        "/opt/python",
        "-P",
        "-m",
        "some.module",
    ]


@pytest.mark.parametrize(
    ("code", "complaints", "said", "where"),
    [
        (127, [], "node1 has no /opt/python", "node1"),
        (
            1, ["/opt/python: No module named ascendtune"],
            "node1: /opt/python: No module named ascendtune", "node1:/opt/python",
        ),
        (
            255, ["Permission denied (publickey)."],
            "the connection to node1 has ended: Permission denied (publickey).", "node1",
        ),
        # Of a key that is not here, ssh complains so.
        (
            255, ["no such identity: /home/me/.ssh/id: No such file or directory", "Permission denied (publickey)."],
            "the connection to node1 has ended: no such identity: /home/me/.ssh/id: No such file or directory "
            "Permission denied (publickey).", "node1",
        ),
        (1, ["fish: /opt/python: No such file or directory"], "node1 has no /opt/python", "node1"),
        (None, [], "the connection to node1 has ended", "node1"),
    ],
)  # fmt: skip
def test_end_of_a_connection_is_explained_by_code_and_output(
    code: int | None, complaints: list[str], said: str, where: str
) -> None:
    error = why_ended(TargetHost("node1"), "/opt/python", code, complaints)
    assert (error.what, error.where) == (said, where)
