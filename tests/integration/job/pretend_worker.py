"""A program that acts as a worker without torch: writes run.json, stops on signals, or fails on request."""

import os
import signal
import sys
import time

how, asked = sys.argv[2], []


def stop(number, frame):
    asked.append(number)


for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN if how == "deaf" else stop)
# As the training process: a job of which it is a part may hold SIGINT back until here.
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

from ascendtune.core.rundir import RunDir  # noqa: E402  # it takes a moment, in which a signal may come

run = RunDir(sys.argv[1])
rank, last = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")) - 1
if rank == 0:
    run.begin_attempt({})
print(f"out {rank}", flush=True)
print(f"err {rank} {sys.stderr.fileno()}", file=sys.stderr, flush=True)
places = [os.environ.get(name, "-") for name in ("RANK", "WORLD_SIZE", "GLOO_SOCKET_IFNAME")]
(run.path / f"seen_{rank}").write_text(" ".join(places))
(run.path / f"pid_{rank}").write_text(str(os.getpid()))

if how == "fail" and rank == 1:
    time.sleep(0.5)
    run.end_attempt("failed", {"what": "the loss is not a number", "remedy": "lower it", "exit_code": 1, "rank": 1})
    sys.exit(1)
if how == "talk" and rank == 0:
    # More than a pipe holds, a byte that is no text, and an end without a newline.
    for number in range(20_000):
        print(f"line {number}")
    sys.stdout.flush()
    os.write(1, b"\xff the end")
if how == "flood":
    # More than is kept for somebody who does not read; each line has 100 bytes.
    for number in range(120_000 if rank == 0 else 60_000):
        print(f"{number:099}")
if how.endswith("-once"):
    # Each rank notes that it was here; the second time all of them finish.
    been = run.path / f"been_{rank}"
    how = "finish" if been.exists() else how.removesuffix("-once")
    been.touch()
if how == "die" and rank == last:
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
if how in ("wait", "deaf", "fail", "die", "chat"):
    for _ in range(600):
        time.sleep(0.05)
        if how == "chat":
            print("chat " * 20_000, flush=True)
        if asked:
            (run.path / f"stopped_{rank}").write_text(str(asked[0]))
            if rank == 0 and how in ("wait", "chat"):
                run.end_attempt("stopped", {"what": "stopped", "remedy": "", "exit_code": 128 + asked[0], "rank": 0})
            sys.exit(128 + asked[0])
if rank == 0:
    run.end_attempt("finished")
