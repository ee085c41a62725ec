"""Two machines on this one: network namespaces on a bridge, each with a host name, a boot and an sshd of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from preloaded import Preloaded

_SSHD = "/usr/sbin/sshd"
_HOST_COMMAND = Path(__file__).with_name("host_command.py")


@dataclass
class Cluster:
    """`hosts`: name -> namespace; names are known to ssh alone, as aliases often are."""

    hosts: dict[str, str]
    path: Path
    addresses: dict[str, str] = field(default_factory=dict)
    """name -> IPv6 address, by which ssh reaches it, too."""
    boots: dict[str, list[str]] = field(default_factory=dict)
    """name -> the command that starts its sshd."""
    sshds: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    segments: set[Path] = field(default_factory=lambda: set(Path("/dev/shm").iterdir()))
    """Of shared memory, that were there before."""

    def boot(self, host: str) -> None:
        log = self.path / f"{host}.log"
        with log.open("wb") as stderr:
            self.sshds[host] = subprocess.Popen(self.boots[host], stderr=stderr)
        until(lambda: "Server listening" in log.read_text(), 10)

    def halt(self, host: str) -> None:
        """End everything on `host` at once, sshd too."""
        for pid in self._all_pids(host):
            os.kill(pid, signal.SIGKILL)
        self.sshds[host].wait(10)

    def pids(self, host: str) -> list[int]:
        """What runs on `host`, sshd itself and its children of a session aside."""
        return [pid for pid in self._all_pids(host) if "sshd" not in _name(pid)]

    def _all_pids(self, host: str) -> list[int]:
        listed = subprocess.run(["ip", "netns", "pids", self.hosts[host]], capture_output=True, text=True, check=True)
        return [int(pid) for pid in listed.stdout.split()]

    def everything(self) -> list[int]:
        return [pid for host in self.hosts for pid in self.pids(host)]

    def named(self, host: str, word: str) -> list[int]:
        """Pids on `host` whose command line has `word` in it."""
        return [pid for pid in self.pids(host) if any(word in part for part in _argv(pid))]

    def is_quiet(self) -> bool:
        """Whether no process, no listening port and no segment of shared memory of a job is left."""
        return not (self.everything() or self.ports() or set(Path("/dev/shm").iterdir()) - self.segments)

    def ports(self) -> list[str]:
        """Ports on which the hosts listen, sshd's aside; in the kernel's hexadecimal."""
        found = []
        for namespace in self.hosts.values():
            for table in ("tcp", "tcp6"):
                argv = ["ip", "netns", "exec", namespace, "cat", f"/proc/net/{table}"]
                lines = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()[1:]
                # The fourth column is the state, 0A means that it listens.
                found += [words[1] for line in lines if (words := line.split())[3] == "0A"]
        return [place for place in found if not place.endswith(":0016")]

    def slow_down(self, host: str, *, megabits: float | None) -> None:
        """Let what goes to `host` through a cable of that speed; None: as fast as before."""
        device = f"{self.hosts[host]}o"
        if megabits is None:
            _run(f"tc qdisc del dev {device} root")
        else:
            _run(f"tc qdisc add dev {device} root tbf rate {megabits}mbit burst 32kbit latency 400ms")

    def link(self, host: str, *words: str) -> None:
        """`ip link set` for the cable of `host`."""
        subprocess.run(["ip", "link", "set", f"{self.hosts[host]}o", *words], check=True)

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": f"{self.path / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


@contextmanager
def two_machines(
    path: Path, libraries: Preloaded | None = None, variables: Mapping[str, Mapping[str, str]] | None = None
) -> Iterator[Cluster]:
    """`nodea` and `nodeb`, to ssh `node1` and `node2`, too, with what they need in `path`.

    The test is skipped where they cannot be made.

    Args:
        libraries: forks the programs of ascendtune that ssh starts.
        variables: host -> what a login there has in its environment.
    """
    if os.getuid() != 0 or not shutil.which("ip") or not Path(_SSHD).exists():
        pytest.skip("needs root, iproute2 and openssh-server: two machines are made of network namespaces")
    # Other test workers, and other people, have machines of their own.
    prefix, net = f"at{os.getpid() % 100000}", f"10.93.{os.getpid() % 256}"
    net6 = f"fd93:{os.getpid() % 65536:x}:"
    cluster = Cluster({"nodea": f"{prefix}a", "nodeb": f"{prefix}b"}, path)
    bridge = f"{prefix}br"
    with removed_at_the_end(bridge, list(cluster.hosts.values())):
        _run(f"ip link add {bridge} type bridge")
        _run(f"ip addr add {net}.1/24 dev {bridge}")
        _run(f"ip addr add {net6}:1/64 dev {bridge} nodad")
        _run(f"ip link set {bridge} up")
        _prepare_ssh(path, net)
        if libraries:
            _fork_programs_of_ssh(path, libraries)
        for number, (host, namespace) in enumerate(cluster.hosts.items(), 2):
            _run(f"ip netns add {namespace}")
            _run(f"ip link add {namespace}o type veth peer name eth7 netns {namespace}")
            _run(f"ip link set {namespace}o master {bridge} up")
            cluster.addresses[host] = f"{net6}:{number}"
            _run(f"ip -n {namespace} addr add {net}.{number}/24 dev eth7")
            _run(f"ip -n {namespace} addr add {net6}:{number}/64 dev eth7 nodad")
            _run(f"ip -n {namespace} link set eth7 up")
            _run(f"ip -n {namespace} link set lo up")
            # A private mount: what host B finds there is not what the others see.
            hidden = path / "not-shared"
            hidden.mkdir(exist_ok=True)
            mount = f"mount -t tmpfs none {hidden} && " if host == "nodeb" else ""
            given = {"XDG_STATE_HOME": str(path / f"{host}-state"), **(variables or {}).get(host, {})}
            option = f" -o SetEnv='{' '.join(f'{name}={value}' for name, value in given.items())}'"
            addresses = f"-o ListenAddress={net}.{number} -o ListenAddress=[{net6}:{number}]"
            # A boot of its own, as by that machines are told apart.
            boot = path / f"{host}-boot"
            random = "/proc/sys/kernel/random"
            named = f"hostname {host} && cat {random}/uuid > {boot} && mount --bind {boot} {random}/boot_id"
            command = f"{named} && {mount}exec {_SSHD} -D -e -f {path}/sshd_config {addresses}{option}"
            cluster.boots[host] = ["ip", "netns", "exec", namespace, "unshare", "--uts", "sh", "-c", command]
            cluster.boot(host)
        try:
            yield cluster
        finally:
            for sshd in cluster.sshds.values():
                sshd.terminate()
                sshd.wait(10)


@contextmanager
def removed_at_the_end(bridge: str, namespaces: list[str]) -> Iterator[None]:
    """End what runs in the namespaces, then remove them and the bridge, also if this process is killed before."""
    removals = [
        f"ip netns pids {each} | xargs -r kill -9; ip netns del {each}; ip link del {each}o" for each in namespaces
    ]
    # In a session of its own: it outlives a signal to all processes of the tests. `read` ends when the pipe is closed.
    guard = ["sh", "-c", f"read -r _; {'; '.join(removals)}; ip link del {bridge}"]
    with subprocess.Popen(guard, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True):
        yield


def until(condition: Callable[[], bool], seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def _prepare_ssh(path: Path, net: str) -> None:
    for name in ("host_key", "user_key"):
        _run(f"ssh-keygen -q -t ed25519 -N '' -f {path / name}", shell=True)
    Path("/run/sshd").mkdir(exist_ok=True)
    (path / "sshd_config").write_text(
        f"Port 22\nHostKey {path}/host_key\nAuthorizedKeysFile {path}/user_key.pub\nStrictModes no\nUsePAM no\n"
        f"PermitRootLogin prohibit-password\nPidFile none\n"
    )
    (path / "ssh_config").write_text(
        f"Host nodea node1\n  HostName {net}.2\nHost nodeb node2\n  HostName {net}.3\nHost nodec\n  HostName {net}.4\n"
        f"Host *\n  IdentityFile {path}/user_key\n  UserKnownHostsFile /dev/null\n  StrictHostKeyChecking no\n"
        "  LogLevel ERROR\n"
    )
    (path / "bin").mkdir()
    ssh = path / "bin" / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {path}/ssh_config "$@"\n')
    ssh.chmod(0o755)


def _fork_programs_of_ssh(path: Path, libraries: Preloaded) -> None:
    libraries.listen(path / "libraries")
    with (path / "sshd_config").open("a") as config:
        config.write(f"ForceCommand exec {sys.executable} -I -S {_HOST_COMMAND} {path}/libraries\n")


def _run(command: str, *, shell: bool = False) -> None:
    subprocess.run(command if shell else command.split(), shell=shell, check=True)


def _name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.NoSuchProcess:
        return "sshd"


def _argv(pid: int) -> list[str]:
    try:
        return psutil.Process(pid).cmdline()
    except psutil.NoSuchProcess:
        return []
