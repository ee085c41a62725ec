"""How the ranks of a job meet: between torchrun's agent, which decides it, and the ranks, which do it."""

from __future__ import annotations

import os

INIT_METHOD = "ASCENDTUNE_INIT_METHOD"
"""A URL for torch's `init_method`, set by `ascendtune.job.torchrun` for ranks of ours on one host."""


def init_method() -> str:
    """What the ranks of this job give to torch as `init_method`; torchrun's variables where none is set."""
    return os.environ.get(INIT_METHOD, "env://")


def is_on_one_host() -> bool:
    """Whether all ranks of this job are processes of this user on this machine."""
    return INIT_METHOD in os.environ
