"""The command line, with faulty ranks: `python command.py FAULT RANK ARGUMENT…`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ascendtune.check.comm import start
from ascendtune.cli.main import main

os.environ["FAULT"], os.environ["FAULTY_RANK"] = sys.argv[1:3]
faulty_worker = str(Path(__file__).with_name("faulty_worker.py"))
start.WORKER = (sys.executable, faulty_worker, "ascendtune.check.comm.worker")
start.STEP_WORKER = (sys.executable, faulty_worker, "ascendtune.check.comm.step_worker")
main(sys.argv[3:])
