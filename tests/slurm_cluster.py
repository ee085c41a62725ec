"""Debian's Slurm on loopback: a controller, two nodes and munge, in a directory of their own, gone afterwards.

The nodes run on this machine, and are told to have more cores than it has, and accelerators. Nothing of a Slurm that
may be configured here is read or written. A job that queues again waits until the credentials of its first life have
expired: seconds here, two minutes elsewhere.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

NODES = (socket.gethostname().split(".")[0], "zzz")
"""The first is node 0, whose name the others look up; both are this machine."""

_MOST_JOBS = 20
"""That tests give one cluster."""

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "squeue", "sinfo")
_ADMIN_PATH = os.pathsep.join((os.environ["PATH"], "/usr/sbin", "/sbin"))
_CONFIGURATION = """\
ClusterName=test
FirstJobId={first_job}
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool-%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd-%n.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
GresTypes=gpu,npu
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SchedulerParameters=sched_interval=1,defer_batch,batch_sched_delay=0
KillWait=60
OverTimeLimit=0
NodeName=DEFAULT CPUs=64 Gres=gpu:8,npu:8 State=UNKNOWN
NodeName={nodes[0]} NodeAddr=127.0.0.1 Port={ports[1]}
NodeName={nodes[1]} NodeAddr=127.0.0.1 Port={ports[2]}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """Why there can be no cluster here, or None."""
    absent = [name for name in _PROGRAMS if shutil.which(name, path=_ADMIN_PATH) is None]
    if absent:
        return f"no {', '.join(absent)} (Debian: apt-get install slurm-wlm munge)"
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    try:
        socket.gethostbyname(NODES[0])
    except OSError:
        return f"this machine does not know its own name, {NODES[0]}"
    return None


class SlurmCluster:
    """Use as a context manager; `env` is what Slurm's commands need to find it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.env = {**os.environ, "SLURM_CONF": str(place / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> SlurmCluster:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def _start(self) -> None:
        (self.place / "state").mkdir(parents=True)
        for node in NODES:
            (self.place / f"spool-{node}").mkdir()
        key = self.place / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        with _free_port() as first, _free_port() as second, _free_port() as third:
            ports = (first, second, third)
        # A job of several nodes meets at a port that follows from its number: another cluster here has other numbers.
        first_job = _MOST_JOBS * (1 + secrets.randbelow(10_000 // _MOST_JOBS - 1))
        configuration = _CONFIGURATION.format(place=self.place, nodes=NODES, ports=ports, first_job=first_job)
        (self.place / "slurm.conf").write_text(configuration)
        for kind in ("gpu", "npu"):
            for number in range(8):
                (self.place / f"{kind}{number}").touch()
        (self.place / "gres.conf").write_text(
            f"Name=gpu File={self.place}/gpu[0-7]\nName=npu File={self.place}/npu[0-7]\n"
        )
        self._daemon("munged", "--foreground", "--force", *self._munge_files())
        wait_for((self.place / "munge.socket").exists, "munge's socket")
        self._daemon("slurmctld", "-D")
        for node in NODES:
            self._daemon("slurmd", "-D", "-N", node)
        wait_for(lambda: self.ask("sinfo", "--noheader", "--format=%T %D") == "idle 2", "two idle nodes")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError, subprocess.SubprocessError):
            for job in self.ask("squeue", "--noheader", "--format=%i").split():
                self.ask("scancel", "--signal=KILL", "--full", job)
                self.ask("scancel", job)
            wait_for(lambda: not self.ask("squeue", "--noheader"), "an empty queue", seconds=20)
        self._stop()

    def ask(self, *words: str) -> str:
        """A command of Slurm's; its output."""
        return subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=30).stdout.strip()

    def state(self, job: str) -> str:
        """PENDING, RUNNING, COMPLETED, CANCELLED, FAILED, …"""
        words = self.ask("scontrol", "--oneliner", "show", "job", job).split()
        return next((word.partition("=")[2] for word in words if word.startswith("JobState=")), "")

    def wait_for_state(self, job: str, *states: str, seconds: float = 120) -> str:
        wait_for(lambda: self.state(job) in states, f"job {job} being {' or '.join(states)}", seconds=seconds)
        return self.state(job)

    def _stop(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _munge_files(self) -> list[str]:
        names = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munge.pid", "seed-file": "munge.seed"}
        return [f"--{option}={self.place / name}" for option, name in names.items()]

    def _daemon(self, *words: str) -> None:
        log = (self.place / f"{words[0]}.out").open("ab")
        program = shutil.which(words[0], path=_ADMIN_PATH)
        assert program is not None
        with log:
            daemon = subprocess.Popen(
                [program, *words[1:]],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._daemons.append(daemon)


def wait_for(condition: Callable[[], object], what: str, *, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.1)


@contextmanager
def _free_port() -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield probe.getsockname()[1]
