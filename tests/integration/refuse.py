"""Gives the command line one bad case after another, in one process that cannot import torch; answers in JSON.

python refuse.py CASES.json    [{"directory": …, "words": […]}, …] -> [{"code", "out", "err", "cpu_seconds"}, …]
"""

import contextlib
import io
import json
import os
import sys
import time
from pathlib import Path

from ascendtune.cli.main import main
from ascendtune.core import process


def started(argv, env):
    print("a worker would be started")
    sys.exit(99)


# A case that is let through must not replace this process.
process.replace = started
answers = []
with Path(sys.argv[1]).open() as file:
    cases = json.load(file)
for case in cases:
    os.chdir(case["directory"])
    out, err, code = io.StringIO(), io.StringIO(), None
    began = time.process_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(case["words"])
        except SystemExit as left:
            code = left.code
    seconds = time.process_time() - began
    answers.append({"code": code, "out": out.getvalue(), "err": err.getvalue(), "cpu_seconds": seconds})
json.dump(answers, sys.stdout)
