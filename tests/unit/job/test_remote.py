from __future__ import annotations

from ascendtune.job.remote import portable


def test_what_is_true_of_this_machine_stays_here() -> None:
    mine = {
        "HOME": "/root",
        "HCCL_IF_IP": "10.0.0.1",
        "SSH_CONNECTION": "a 1 b 22",
        "TMUX": "x",
        "TMUX_PANE": "%1",
        "DISPLAY": ":0",
    }
    theirs = {"LD_LIBRARY_PATH": "/usr/local/Ascend/lib", "HCCL_BUFFSIZE": "400", "HF_TOKEN": "s", "HOMEBREW": "1"}
    assert portable(mine | theirs) == theirs
