"""Messages of container runtimes, Kubernetes, HAMi, Slurm and downloads with the same words and another cause."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_CLI = "nvidia-container-cli: mount error: failed to add device rules: {}: unknown\n"
_SANDBOX = "Failed to create pod sandbox: rpc error: code = Unknown desc = {}\n"
_BUILD = 'ERROR: failed to solve: process "/bin/sh -c make moon" did not complete successfully: exit code: {}\n'
_GLIBC = "/bin/bash: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found (required by {})\n"
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
        (
            'level=info msg="Error: error validating toolkit installation: exec: \\"nvidia-smi\\": executable file not '
            'found in $PATH"\n',
            "gpu-operator-toolkit",
        ),
        ("pdsh@moon: tide: rcmd: connect: Connection refused\n", "pdsh-rsh"),
        ("torch.distributed.elastic.rendezvous.api.RendezvousClosedError\n", "rendezvous-closed"),
        ("105 seconds elapsed: Waiting for GCS to be ready.\n", "kuberay-head-not-ready"),
        (_BUILD.format(1), "docker-build-step"),
        (_BUILD.format(137), "docker-build-killed"),
        (_GLIBC.format("/.singularity.d/libs/libmoon.so"), "apptainer-image-older-than-driver"),
        (_GLIBC.format("/tide/libmoon.so"), "glibc-older"),
        ("srun: error: timeout waiting for task launch, started 0 of 16 tasks\n", "slurm-launch-timeout"),
        ("curl: (60) SSL certificate problem: unable to get local issuer certificate\n", "curl-certificate"),
        (
            "Error: HTTP status client error (404 Not Found) for url (https://moon.example/api/xet-read-token/7a)\n",
            "hub-xet-through-mirror",
        ),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/dev/shm/torch_77_7_0'\n", "shared-tensor-gone"),
    ],
)
def test_cluster(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_rank_that_waits_for_an_address_of_a_proxy_names_it(explained: Explained) -> None:
    line = (
        "[W116 05:41:45.632092587 socket.cpp:929] [c10d] The server socket on [::ffff:198.18.0.1]:43195 has timed out, "
    )

    assert "198.18.0.1:43195" in explained(f"{line}will retry.\n" * 3).headline()


def test_address_that_answers_in_the_end_is_harmless(explained: Explained) -> None:
    line = (
        "[W116 05:41:45.632092587 socket.cpp:929] [c10d] The server socket on [::ffff:10.0.0.7]:43195 has timed out, "
    )
    steps = "".join(f"step {step} loss {7 / step:.3f}\n" for step in range(1, 78))

    assert explained(f"{line}will retry.\n{steps}").is_healthy


def test_head_that_a_worker_waited_for_is_harmless(explained: Explained) -> None:
    assert explained("105 seconds elapsed: Waiting for GCS to be ready.\nGCS is ready.\n").is_healthy
