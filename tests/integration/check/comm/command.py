"""The command line, with faulty ranks: `python command.py FAULT RANK ARGUMENT…`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ascendtune.check.comm import start
from ascendtune.cli.main import main

os.environ["FAULT"], os.environ["FAULTY_RANK"] = sys.argv[1:3]
start.WORKER = (sys.executable, str(Path(__file__).with_name("faulty_worker.py")), *start.WORKER[3:])
main(sys.argv[3:])
