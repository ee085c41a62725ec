"""Prints a program's view of itself as JSON; by its first argument it first starts or becomes this program again."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

if sys.argv[1] == "start":
    environment = {**os.environ, "DEPTH": "2"}
    sys.exit(
        subprocess.run([sys.executable, "-u", __file__, "tell"], env=environment, start_new_session=True).returncode
    )
if sys.argv[1] == "become":
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    leaking = os.open(os.devnull, os.O_RDONLY)
    os.execve(sys.executable, [sys.executable, __file__, "tell"], {**os.environ, "DEPTH": "2"})
if sys.argv[1] == "copies":
    import preloaded

    one, other = preloaded._import_ours(), preloaded._import_ours()
    assert not [each for each in sys.modules if each.split(".")[0] == "ascendtune"]
    assert set(one) == set(other) and {"ascendtune", "ascendtune.cli.train", "ascendtune.core.log"} < set(one)
    assert not {"ascendtune.__main__", "ascendtune.train.worker", "ascendtune.job.torchrun"} & set(one)
    for copy in (one, other):
        for name, module in copy.items():
            parent, _, last = name.rpartition(".")
            # A package may have a function with the name of one of its modules.
            found = getattr(copy[parent], last) if parent else module
            assert module.__name__ == name and (found is module or not isinstance(found, type(sys)))
        # What a module took from another is of the same copy.
        assert copy["ascendtune.core.config"].RecipeError is copy["ascendtune.core.errors"].RecipeError
    assert not {id(each) for each in one.values()} & {id(each) for each in other.values()}
    print("checked")
    sys.exit()
if sys.argv[1] == "become, ours":
    from ascendtune.cli import commands

    commands.GROUPS["marked"] = "MARKED"
    os.execv(sys.executable, [sys.executable, "-m", "ascendtune", "--help"])
if sys.argv[1] == "become, blocked":
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.execv(sys.executable, [sys.executable, __file__, "interrupt when unblocked"])
if sys.argv[1] == "interrupt when unblocked":
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.1)
    print("went on while blocked", flush=True)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        time.sleep(10)
    except KeyboardInterrupt:
        sys.exit(5)
if sys.argv[1] == "host":
    told = {
        "pid": os.getpid(),
        "name": os.uname().nodename,
        "interfaces": sorted(each for _, each in socket.if_nameindex()),
        "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "mounts": Path("/proc/self/mounts").read_text(),
        "has torch": "torch" in sys.modules,
    }
    Path(sys.argv[2]).with_suffix(".new").write_text(json.dumps(told))
    Path(sys.argv[2]).with_suffix(".new").rename(sys.argv[2])
    time.sleep(60)
proc = Path("/proc/self")
handlers = {
    each.name: str(signal.getsignal(each)).split(" at ")[0]
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGPIPE)
}
json.dump(
    {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "cmdline": (proc / "cmdline").read_bytes().decode().split("\0"),
        "environ": sorted(each for each in (proc / "environ").read_bytes().decode().split("\0") if each),
        "os.environ": sorted(f"{name}={value}" for name, value in os.environ.items()),
        "directory": str(Path.cwd()),
        "path": sys.path[:1],
        "leads": (os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()),
        "descriptors": sorted(int(each.name) for each in (proc / "fd").iterdir())[:3],
        "count of descriptors": len(list((proc / "fd").iterdir())),
        "handlers": handlers,
        "umask": os.umask(0o22),
        "name": __name__,
        "streams": [(each.encoding, each.errors, each.line_buffering) for each in (sys.stdin, sys.stdout, sys.stderr)],
        "ours": [each for each in sys.modules if each.split(".")[0] == "ascendtune"],
        "temporary": tempfile.gettempdir(),
        "zone": time.tzname,
        "core": resource.getrlimit(resource.RLIMIT_CORE),
    },
    sys.stdout,
)
sys.exit({"tell": 7}.get(sys.argv[1], 0))
