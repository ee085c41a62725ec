"""Python imports this first: a process whose program is the measured one notes the time, and has nothing more to do."""

import os
import sys
import time

words = sys.orig_argv[1:3]
if words == ["-m", "ascendtune.train.worker"] or words[1:] == [os.environ.get("WORKER")]:
    with open(os.environ["BEGINNINGS"], "a") as file:  # noqa: PTH123  # pathlib takes time to import
        file.write(f"{time.time()}\n")
    os._exit(0)
