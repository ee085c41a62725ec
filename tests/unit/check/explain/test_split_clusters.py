"""What container runtimes, Kubernetes, HAMi and Ray say, with the same words and another cause."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_CLI = "nvidia-container-cli: mount error: failed to add device rules: {}: unknown\n"
_SANDBOX = "Failed to create pod sandbox: rpc error: code = Unknown desc = {}\n"
_HAMI = "[HAMI-core ERROR (pid:7 thread=77 allocator.c:53)]: Device 0 OOM {} / 24146608128\n"
_MOUNT = 'MountVolume.SetUp failed for volume "moon" : mount failed: exit status 32\n'


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (
            _CLI.format("unable to generate new device filter program from existing programs: load program: invalid"),
            "nvidia-device-filter",
        ),
        (
            _CLI.format("bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted"),
            "nvidia-cgroup-rules",
        ),
        (_SANDBOX.format('RuntimeHandler "ascend" not supported'), "runtime-class-unknown"),
        (
            _SANDBOX.format('failed to get sandbox runtime: no runtime for "ascend" is configured'),
            "runtime-class-unknown",
        ),
        (
            _SANDBOX.format('failed to get sandbox runtime: no runtime for "nvidia" is configured'),
            "nvidia-runtime-unset",
        ),
        (_HAMI.format("27147995136"), "hami-share-full"),
        (_HAMI.format("18446744073707737660"), "hami-count-underflow"),
        (_MOUNT, "kubernetes-mount"),
        (
            _MOUNT + "Output: mount: /moon: bad option; for several filesystems (e.g. nfs, cifs) you might need a "
            "/sbin/mount.<type> helper program.\n",
            "nfs-helper-missing",
        ),
    ],
)
def test_container_or_pod(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry
