"""Refusals of ssh, a shell and Kubernetes: none is a file's permission or a mistake in an argument."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        ("tide7: Permission denied, please try again.\nm@tide7: Permission denied (publickey).\n", "ssh-denied"),
        ("ssh: Could not resolve hostname tide7: Name or service not known\n", "ssh-host-name"),
        ("RuntimeError: Using hostfile at /x but host=tide7 was not reachable via ssh.\n", "ssh-unreachable"),
        (
            "train.py: error: the following arguments are required: --up\nrun.sh: line 2: --up: command not found\n",
            "backslash-missing",
        ),
        ("ValueError: invalid literal for int() with base 10: 'tcp://10.0.0.7:80'\n", "kubernetes-service-variable"),
        (
            "x Failed to build `moon-attn==2.8`\nModuleNotFoundError: No module named 'torch'\n",
            "torch-hidden-from-build",
        ),
        (
            "ModuleNotFoundError: No module named 'torch'\n\n"
            "hint: This error likely indicates that `moon-attn@2.8` depends on `torch`, but does not declare it.\n",
            "torch-hidden-from-build",
        ),
        (
            "vllm 0.7 requires tide>=4, but you have tide 3 which is incompatible.\n"
            "vllm 0.7 requires torch==2.7.0, but you have torch 2.6.0 which is incompatible.\n",
            "pip-torch-pin",
        ),
        ("cp: cannot create '/moon/x': Permission denied\n", "permission-to-create"),
    ],
)
def test_refusal_is_named_by_what_refused(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_unknown_host_name_is_not_explained_by_keys(explained: Explained) -> None:
    explanation = explained("ssh: Could not resolve hostname tide7: Name or service not known\n")

    assert "getent hosts tide7" in explanation.remedies()[0]
    assert not any("ssh-copy-id" in remedy for remedy in explanation.remedies())


def test_other_failure_in_the_log_may_say_why(explained: Explained) -> None:
    quoted = "I get: ModuleNotFoundError: No module named 'torch_npu'\n"

    assert explained(quoted).sureness == "likely: no other line of the log says why it failed"
    both = explained(f"{quoted}  x Failed to build `moon-attn==2.8`\n").sureness
    assert both == "likely: the line is quoted or logged, not raised"
