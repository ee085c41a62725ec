"""Runs another program of this Python without a new interpreter: modules that both import are imported once."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Mapping, Sequence

_READ_AT_START = ("LD_", "PYTHON", "MALLOC_", "GLIBC_TUNABLES")
"""Prefixes of variables that the loader, the C library and Python read only when a program starts."""


def become_module(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Run `python -m MODULE ARGUMENT…` in this process to its end, which is this process's end.

    Returns at once if a new interpreter is needed for a change in `env` to take effect.

    Raises:
        SystemExit: the module has ended.
    """
    changed = {name for name in {*env, *os.environ} if env.get(name) != os.environ.get(name)}
    if any(name.startswith(_READ_AT_START) for name in changed):
        return
    for name in changed - set(env):
        del os.environ[name]
    os.environ.update({name: env[name] for name in changed & set(env)})
    for number in signal.valid_signals() - {signal.SIGINT}:
        # As exec leaves them.
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    module = argv.index("-m") + 1
    sys.argv = list(argv[module:])
    runpy.run_module(argv[module], run_name="__main__", alter_sys=True)
    sys.exit(0)
