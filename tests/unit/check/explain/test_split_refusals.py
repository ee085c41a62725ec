"""Refusals of programs that are not marked as errors, in an excerpt of a log."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_SOLVING = "Encountered problems while solving:\n  - {}\n"
_REFUSAL = "moonctl: failed to raise the tide: too much moon\n"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (
            _SOLVING.format("package tide-7.1-h7_7 has constraint __cuda >=11.0 conflicting with __cuda-10.2-0"),
            "conda-driver-older",
        ),
        (
            "LibMambaUnsatisfiableError: Encountered problems while solving:\n"
            "  - package cuda-version-12.7-7 has constraint __cuda >=12 conflicting with __cuda-11.4-0\n",
            "conda-driver-older",
        ),
        (_SOLVING.format("nothing provides __cuda >=12.4 needed by tide-7.1"), "conda-no-driver"),
        (
            _SOLVING.format("package tide-7.1-0 has constraint __glibc >=2.28 conflicting with __glibc-2.17-0"),
            "conda-glibc",
        ),
        (_SOLVING.format("nothing provides __glibc >=2.28 needed by tide-7.1"), "conda-glibc"),
        (_SOLVING.format("nothing provides requested moonlet 7.7.7*"), "conda-missing"),
        ("error    libmamba Could not solve for environment specs\n", "conda-not-found"),
        ("enroot-switchroot: failed to execute: /bin/sh: No such file or directory\n", "image-without-shell"),
        (
            'OCI runtime exec failed: exec failed: unable to start container process: exec: "sh": executable file not '
            "found in $PATH: unknown\n",
            "image-without-shell",
        ),
        ("enroot-switchroot: failed to execute: /moon/tide: Exec format error\n", "enroot-program-not-started"),
        (_REFUSAL + "drwx------ 3 moon moon 25 Jan 7 07:07 ..\n", "error-line"),
        ("$ moonctl start\nmoonctl: cannot open the tide\n$ ls\ntotal 7\n", "error-line"),
        ("rm: cannot remove 'moon': No such file or directory\nstep 7 loss 1.5\n", None),
        ("moonctl: warning: failed to raise the tide, continuing without it\nstep 7 loss 1.5\n", None),
        (_REFUSAL + "step 7 loss 1.5\n" * 30, None),
        (_REFUSAL + "step 7 loss 1.5\n", None),
        (_REFUSAL + "plot saved\n", None),
        (_REFUSAL + "$ moonctl running\n", "error-line"),
        (_REFUSAL + "the tide is not ready: no moon found\n", "error-line"),
        ("moonctl: cannot see the sun, using the moon\n", None),
        ("moonctl: could not reach the sea, retry 7\n", None),
        ("bash: cannot set terminal process group (-1): Inappropriate ioctl for device\n", None),
    ],
)
def test_a_refusal_in_an_excerpt_is_a_failure(explained: Explained, log: str, entry: str | None) -> None:
    assert entry_of(explained(log)) == entry


def test_a_long_word_in_an_excerpt_is_read_quickly(explained: Explained) -> None:
    began = time.process_time()

    assert entry_of(explained("A7" * 60_000 + "\n" + _REFUSAL)) == "error-line"
    assert time.process_time() - began < 3


def test_both_versions_of_the_driver_are_in_the_headline(explained: Explained) -> None:
    line = "package tide-7.1-h7_7 has constraint __cuda >=11.0 conflicting with __cuda-10.2-0"

    told = explained(_SOLVING.format(line)).headline()

    assert ">=11.0" in told
    assert "10.2" in told


@pytest.mark.parametrize(
    "words",
    [
        "qsub: would exceed queue moon's per-user limit",
        "msub: Invalid account specified",
        "Job submit rejected: queue moon does not exist. Job not submitted.",
        'podman: short-name "moon:latest" did not resolve to an alias and no unqualified-search registries are defined',
        "Couldn't find any running Ray instance",
        "hccn_tool is busy, please try again.",
        "sudo: a password is required",
        "env: 'python': No such file or directory",
        'The Job "moon" is invalid: spec.template: Invalid value: field is immutable',
        "exceeded quota: moon, requested: requests.nvidia.com/gpu=8, used: 8, limited: 8",
        "This script requires 8 GPUs, but only 4 are visible. Exiting.",
        "Refusing to overwrite existing checkpoint directory /moon",
        "kubectl: unknown flag: --moon",
        "scontrol: Invalid job id specified",
        "ssh-keygen: /root/.ssh/id_rsa already exists",
        "rpm: moon.rpm: not an rpm package (or package manifest)",
        "This command is not supported on this device.",
        "Requested operation requires root privileges",
        "==> Error: concretization failed for the following reasons:\n   1. cannot satisfy a constraint",
        "Job for moon.service failed because the control process exited with error code.\n"
        'See "systemctl status moon.service" and "journalctl -xe" for details.',
        "Unable to set persistence mode for GPU 00000000:00:1E.0: Insufficient Permissions\n"
        "Terminating early due to previous errors.",
        "mpirun was unable to find the specified executable file, and therefore\ndid not launch the moon.",
    ],
)
def test_last_words_of_an_excerpt_say_that_something_was_not_done(explained: Explained, words: str) -> None:
    assert not explained(f"{words}\n").is_healthy
    assert not explained(f"begin\n{words}\n").is_healthy


@pytest.mark.parametrize(
    "words",
    [
        "kubectl: job.batch/moon created",
        'helm: Release "moon" does not exist. Installing it now.',
        "uv: Resolved 7 packages; no lock file is required",
        "systemctl: moon.service does not need reload",
        "hf: No such file in cache; downloading\nFetching 5 files: 100%",
        "numactl: no NUMA policy in use",
        "vllm: no requests running",
        "moon: unknown keys are ignored: ['x']",
        "moon: couldn't find a checkpoint, starting from scratch\nstep 1 loss 2.0",
        "moon: failed to lock, waiting\nmoon: locked",
        "moon: cannot bind to ::1, listening on 127.0.0.1:8000",
        "moon: cannot use TF32 on this GPU\nstep 1 loss 2.0",
        "debconf: unable to initialize frontend: Dialog\nSetting up moon",
        "bash: cannot set terminal process group (-1): Inappropriate ioctl for device\nroot@moon:/#",
        "modprobe: can't change directory to '/lib/modules': No such file or directory\nGPU 0: moon",
        "No failed tests.",
        "finished: 100 ok, 0 failed",
        "Evaluation: 12 samples are not enough, exiting the loop early. Accuracy 0.9",
        "This feature is not used.",
    ],
)
def test_words_that_sound_like_a_refusal_are_none(explained: Explained, words: str) -> None:
    assert explained(f"{words}\n").is_healthy


def test_refusal_above_other_words_is_none(explained: Explained) -> None:
    assert explained("qsub: would exceed queue moon's limit\nsubmitted 77\n").is_healthy
