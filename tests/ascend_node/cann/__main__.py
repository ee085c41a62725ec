"""A shell, or a command, on a simulated Ascend node: `make ascend-sim`, `python -m ascend_node.cann COMMAND …`."""

from __future__ import annotations

import os
import sys

from ascend_node.cann.build import why_not
from ascend_node.cann.environment import WHAT, simulated_environment

if reason := why_not():
    sys.exit(f"error: {reason}")
print(WHAT, file=sys.stderr)
argv = sys.argv[1:] or [os.environ.get("SHELL", "/bin/sh")]
os.execvpe(argv[0], argv, simulated_environment({**os.environ, "PS1": "(SIMULATED ascend) \\w \\$ "}))
