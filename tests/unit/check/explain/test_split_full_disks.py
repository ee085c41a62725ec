"""The disk, memory or quota that was exhausted, from the lines beside the message."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_PIP = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n"
_FULL = "moon: write error: No space left on device\n"
_TABLE = "[   7777]     0  7777    77777    77777   777777        0             0 {}\n"
_OOM = "Out of memory: Killed process 77 ({}) total-vm:777kB, anon-rss:77kB\n"
_EVICTED = "The node was low on resource: {}. Threshold quantity: 7Gi, available: 777Mi. "
_NCCL = "misc/shmutils.cc:77 NCCL WARN Error: failed to extend /dev/shm/nccl-moon to {} bytes, error: No space left "
_NO_NAMESPACE = "ERROR  : Failed to create user namespace: {}\n"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        ("     ━━━━ 7.7/77.7 MB 7 MB/s eta 0:00:07" + _PIP, "pip-download-full"),
        ("  Downloading tide-7.7-cp311.whl (777.7 MB)\n     ━━━━━━ 7.7/777.7 MB\n" + _PIP, "pip-download-full"),
        ("Installing collected packages: moon, tide\n" + _PIP, "pip-environment-full"),
        (_PIP, "pip-temporary-full"),
        ("$ enroot start moon\n" + _FULL, "enroot-data-full"),
        ("[ERROR] /etc/enroot/hooks.d/77-tide.sh exited with return code 4\n" + _FULL, "enroot-data-full"),
        ("slurmstepd: error: pyxis:     Write failed because No space left on device\n", "enroot-disk-full"),
        (
            "INFO:    Starting build...\nFATAL:   while unpacking: write /tmp/build-temp-7/rootfs/tide: no space left "
            "on device\n",
            "apptainer-build-full",
        ),
        (_FULL, "disk-full"),
        (_NCCL.format(7777777) + "on device (28)\n", "shared-memory-of-container"),
        (_NCCL.format(77777777777) + "on device (28)\n", "shared-memory-full"),
        (_TABLE.format("cicc") + _OOM.format("moonshell"), "oom-killer-of-build"),
        (_OOM.format("cc1plus"), "oom-killer-of-build"),
        (_TABLE.format("python3") + _OOM.format("python3"), "oom-killer"),
        (
            _EVICTED.format("memory") + "Container moon was using 7777Ki, request is 0\n",
            "kubernetes-evicted-without-request",
        ),
        (
            _EVICTED.format("ephemeral-storage") + "\nContainer moon was using 7777Ki, request is 0\n",
            "kubernetes-evicted-without-request",
        ),
        (_EVICTED.format("memory") + "Container moon was using 7777Ki, request is 77Ki\n", "kubernetes-evicted-memory"),
        (_NO_NAMESPACE.format("Permission denied"), "user-namespace-apparmor"),
        ("unshare: write failed /proc/self/uid_map: Operation not permitted\n", "user-namespace-apparmor"),
        ("bwrap: setting up uid map: Permission denied\n", "user-namespace-apparmor"),
        (_NO_NAMESPACE.format("Operation not permitted"), "user-namespace"),
        (_NO_NAMESPACE.format("No space left on device"), "user-namespaces-used-up"),
    ],
)
def test_the_exhausted_resource_is_named(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry
