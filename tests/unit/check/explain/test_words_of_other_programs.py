"""Words of a cluster's program, printed by another one: the program is named only if the log names it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]


@pytest.mark.parametrize(
    ("line", "entry"),
    [
        ("FATAL: remote tide is not allowed by configuration", "error-line"),
        ("moon: auth method tide is disallowed by configuration", None),
        ("[ERROR] File already exists: /moon/tide.parquet", "error-line"),
        ("[ERROR] Invalid image reference: moon", "error-line"),
        ("[ERROR] URL https://moon.example/tide.jar returned error code: 403", "error-line"),
        ("ERROR: tide: Download error (6) moon", "error-line"),
        ("error: Ingress Controller moon is not enabled!", "error-line"),
        ("Could not open stdout file /moon/x.log: Is a directory", None),
        ('error: PIDfile is insecure: "/moon/x.pid" should be owned by UID 7', "error-line"),
        ("rsync: protocol version mismatch -- is your shell clean?", None),
        ("slurmstepd: info: moon\nrsync: protocol version mismatch -- is your shell clean?", None),
        ("moon: error: failed to open persistent connection to tide:5432: no moon", "error-line"),
        ("moon[7]: mod_sql: mysql_real_connect failed: 2002 Can't connect to the tide", None),
        ("pam_mysql - mysql_real_connect failed: 1045 Access denied for user 'moon'@'tide'", None),
        ('Failed to open keyfile "/moon/tls.key": Permission denied (error 13)', "permission"),
        ("nvidia-smi: Failed to open /dev/nvidiactl: Permission denied", "nvidia-node-permission"),
        ("slurmd[7]: error: /etc/slurm/prolog.d/moon.sh: Permission denied", "permission"),
        ("slurmd: epilog failed status=0:0", None),
        ("slurmctld: job_submit.lua: 7 moons read", None),
    ],
)
def test_program_is_not_named_without_a_sign_of_it(explained: Explained, line: str, entry: str | None) -> None:
    assert entry_of(explained(f"{line}\n")) == entry


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        ("apptainer run x.sif\nFATAL: moon is not allowed by configuration\n", "apptainer-not-allowed"),
        ("enroot create moon\n[ERROR] File already exists: /moon.sqsh\n", "enroot-file-exists"),
        ("[2026-07-07T07:07:07.777] error: Controller tide is not enabled!\n", "slurm-cgroup-controller"),
        ("error: mysql_real_connect failed: 2002 Can't connect to the tide\n", "slurmdbd-database-down"),
        ("sbatch: error: job_submit/lua: the moon needs a tide\n", "slurm-submit-rule"),
    ],
)
def test_sign_may_be_on_another_line(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry
