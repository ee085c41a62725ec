"""Daemons of nodes: the socket, spool or setting that their message names, and the error number, decide."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_DIAL = 'E0707 main.go:7] err="rpc error: dial unix {}: connect: {}"\n'
_UNABLE = "docker: Error response from daemon: {}\n"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_DIAL.format("/var/run/crio/crio.sock", "permission denied"), "daemon-socket-denied"),
        (_DIAL.format("/run/cri-dockerd.sock", "connection refused"), "daemon-socket-absent"),
        ("slurmd[7]: error: chmod(/var/spool/moon, 0755): Permission denied\n", "slurm-spool-denied"),
        ("slurmctld: fatal: Can not open /var/moon/tide.log: No such file or directory\n", "slurm-spool-missing"),
        (
            "slurmdbd: error: mysql_real_connect failed: 1698 Access denied for user 'x'@'y'\n",
            "slurmdbd-database-denied",
        ),
        ("slurmdbd: error: mysql_real_connect failed: 2003 Can't connect to 'tide:3306'\n", "slurmdbd-database-down"),
        ("slurmdbd: fatal: slurmdbd.conf not owned by SlurmUser moon!=tide\n", "slurmdbd-conf-rights"),
        ("sacctmgr: error: moon: failed to open persistent connection to tide:6819: No route\n", "slurmdbd-down"),
        ("slurmd: fatal: Invalid user for SlurmUser moon\n", "slurm-user-unknown"),
        ("enroot-mount: failed to mount: /tide at /moon/sun: No such file or directory\n", "enroot-mount-refused"),
        ("slurmstepd: error: pyxis:     [ERROR] Could not acquire rootfs lock\n", "enroot-lock"),
        ("sbatch: unrecognized option '--container-mounts=/moon:/tide'\n", "pyxis-not-here"),
        ("srun: unrecognized option '--moon=7'\n", "error-line"),
        ("slurmstepd: error: pyxis: couldn't mkdir /moon/7: Read-only file system\n", "pyxis-runtime-denied"),
        ("FATAL: mount error: failed to mount squashfs filesystem: no such device\n", "apptainer-squashfs-module"),
        ("FATAL: mount error: failed to mount squashfs filesystem: invalid argument\n", "apptainer-image"),
        ("moon dockerd[7]: unable to configure the Docker daemon with file /x.json: EOF\n", "docker-daemon-json"),
        (_UNABLE.format("iptables failed: iptables --wait -t nat -A DOCKER: iptables: No chain"), "docker-iptables"),
        ("dockerd[7]: error initializing graphdriver: prior storage driver aufs failed\n", "docker-storage-driver"),
        ("Error: mkdir /run/user/7777: permission denied\n", "podman-no-session"),
        (_UNABLE.format("path /moon is mounted on /moon but it is not a shared or slave mount."), "mount-not-shared"),
        (
            _UNABLE.format("OCI runtime create failed: error setting rlimit type 7: operation not permitted: unknown."),
            "container-rlimit-refused",
        ),
        ("nvidia-container-cli: device error: unknown device id: 7\n", "nvidia-device-unknown"),
        ('Error: no subgid ranges found for user "moon" in /etc/subgid\n', "rootless-ids-missing"),
        ("scontrol: error: Protocol version mismatch with the moon\n", "slurm-versions-differ"),
        ("Access denied: user moon (uid=7) has no active jobs on this node.\n", "slurm-no-job-on-node"),
        (
            _UNABLE.format(
                'OCI runtime create failed: error mounting "/tide" to rootfs at "/x": operation not permitted'
            ),
            "runc-mount-refused",
        ),
        (_UNABLE.format("mkdir /sys/fs/cgroup/cpu/docker/7: permission denied"), "container-cgroup-not-writable"),
        ('munge: Error: Failed to connect to "/run/munge/munge.socket.2": Connection refused\n', "munge-not-running"),
        ("srun: error: Munge decode failed: Unauthorized credential for client UID=7\n", "slurm-munge"),
        ("slurmd: error: [job 7] epilog failed status=127:0\n", "slurm-prolog-status"),
        (
            "slurmd: error: [job 7] prolog failed status=126:0\n"
            "slurmd: error: pyxis:     mkdir: cannot create directory '/tide': Permission denied\n",
            "enroot-top-directory-denied",
        ),
        ("slurmstepd: error: Could not open stderr file /moon/7.err: Permission denied\n", "slurm-output-file"),
        ("srun: error: cli_filter/lua: the tide wants --account\n", "slurm-submit-rule"),
        ("slurmd: error: uid_to_string: could not resolve uid 7777\n", "uid-unknown-on-node"),
        ("nvidia-smi: Failed to open /dev/nvidiactl: No such device or address\n", "nvidia-node-without-driver"),
        (
            "slurmstepd: error: pyxis:     [ERROR] Could not process JSON input\n"
            "slurmstepd: error: pyxis:     curl: (60) SSL certificate problem: self-signed certificate\n",
            "curl-certificate",
        ),
    ],
)
def test_entry(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_unquoted_path_of_a_refusal_stands_in_the_command(explained: Explained) -> None:
    explanation = explained("moon: could not open image /tide/sun.sif: open /tide/sun.sif: permission denied\n")

    assert "namei -l /tide/sun.sif`" in explanation.remedies()[0]


@pytest.mark.parametrize(
    ("before", "is_told"),
    [
        ("", True),
        ("$ docker run moon\n", True),
        ("File /home/moon/miniconda3/envs/tide/lib/x.py\n", False),
        ("$ sbatch moon.sh\n", False),
    ],
)
def test_container_is_not_told_where_the_log_shows_a_host(explained: Explained, before: str, *, is_told: bool) -> None:
    explanation = explained(f"{before}set_mempolicy: Operation not permitted\n")

    assert entry_of(explanation) == "numa-not-permitted"
    assert ("container" in explanation.headline()) is is_told
