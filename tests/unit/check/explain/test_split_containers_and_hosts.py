"""Containers and the hosts below them: a claim about a container needs a sign of one, and the error number decides."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_MUNGE = 'srun: error: Munge encode failed: Failed to {} "/run/munge/munge.socket.2": {}\n'
_NO_NAME = "/usr/bin/id: cannot find name for user ID 7777\n"
_NO_NAME_OF_PYTHON = "KeyError: 'getpwuid(): uid not found: 7777'\n"
_DENIED = "moon: cannot open /tide/sun.yaml: Permission denied\n"
_SYSTEMD = (
    "Sep 17 09:50:19 moon systemd[1]: tide.service: Control process exited, code=exited, status=1/FAILURE\n"
    "Sep 17 09:50:19 moon systemd[1]: tide.service: Failed with result 'exit-code'.\n"
    "Sep 17 09:50:19 moon systemd[1]: Failed to start The tide.\n"
)
_OCI = (
    'docker: Error response from daemon: OCI runtime create failed: container init caused \\"running prestart hook 1 '
    'caused \\\\\\"error running hook: exit status 1, stderr: exec command: [/usr/bin/nvidia-container-cli]\\\\\\\\n'
    'nvidia-container-cli: requirement error: unsatisfied condition: cuda >= 7.7\\\\\\\\n\\\\\\"\\"": unknown.\n'
)


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_MUNGE.format("access", "Permission denied"), "munge-socket-denied"),
        (_MUNGE.format("connect to", "Permission denied"), "munge-socket-denied"),
        (_MUNGE.format("access", "No such file or directory"), "munge-not-running"),
        (_MUNGE.format("connect to", "Connection refused"), "munge-not-running"),
        ("$ docker run -it moon\n" + _MUNGE.format("access", "No such file or directory"), "munge-not-in-container"),
        ("Apptainer> sinfo\n" + _MUNGE.format("access", "No such file or directory"), "munge-not-in-container"),
        ("$ srun --pty bash\n" + _NO_NAME, "uid-unknown-on-node"),
        ("$ srun --container-image=moon.sqsh id\n" + _NO_NAME, "uid-without-passwd"),
        ("$ docker run --user 7777 moon\n" + _NO_NAME_OF_PYTHON, "uid-without-passwd"),
        (_NO_NAME_OF_PYTHON, "uid-without-name"),
        ('munged: Error: Keyfile is insecure: invalid ownership of "/moon" (uid=7)\n', "munged-path-insecure"),
        (
            'moon munged[7]: munged: Error: Logfile is insecure: "/moon.log" should be owned by UID 7\n',
            "munged-file-insecure",
        ),
        (
            'moon munged[7]: munged: Error: Failed to check keyfile "/moon/munge.key": Permission denied\n' + _SYSTEMD,
            "munged-key-missing",
        ),
        ("Sep 17 09:50:19 moon tide[7]: error: the tide could not rise above the moon\n" + _SYSTEMD, "error-line"),
        (_SYSTEMD, "systemd-unit-failed"),
        (
            "slurmd: error: Couldn't find the specified plugin name for jobcomp/mysql looking at all files\n",
            "slurm-plugin-mysql",
        ),
        ("slurmctld: error: cannot find auth plugin for auth/munge\n", "slurm-plugin-absent"),
        (
            "slurmd: error: Couldn't find the specified plugin name for cgroup/v2 looking at all files\n",
            "slurm-cgroup-plugin",
        ),
        (
            "slurmd: error: cgroup_dbus_attach_to_scope: cannot connect to dbus system daemon: Moon\n"
            "slurmd: error: Couldn't load specified plugin name for cgroup/v2: Plugin init() callback failed\n"
            "slurmd: error: Unable to initialize cgroup plugin\n",
            "slurm-cgroup-dbus",
        ),
        (
            "slurmd: error: memory cgroup controller is not available.\n"
            "slurmd: error: cannot create cgroup context for cgroup/v2\n",
            "slurm-cgroup-controller",
        ),
        (
            "srun: error: s_p_parse_file: cannot stat file /moon/topology.conf: Permission denied, retrying\n",
            "slurm-conf-denied",
        ),
        (_DENIED + "$ ls -ld /tide\ndrwx------. 2 moon moon 77 Aug 22 22:55 /tide\n", "directory-closed"),
        (_DENIED + "$ ls -ld /tide\ndrwxr-xr-x. 2 moon moon 77 Aug 22 22:55 /tide\n", "permission"),
        ('[7.7] overlayfs: unrecognized mount option "tide=on" or missing value\n', "mount-parameter-unknown"),
        ('EXT4-fs (sda1): Unrecognized mount option "tide" or missing value\n', "mount-parameter-unknown"),
        (
            "INFO:    fakeroot command not found\n"
            "FATAL:   While performing build: while running engine: exit status 1\n",
            "apptainer-fakeroot-missing",
        ),
        ("pyxis:     mkdir: cannot create directory '/tide': Permission denied\n", "enroot-top-directory-denied"),
        ("pyxis:     mkdir: cannot create directory '/tide/moon': Permission denied\n", "enroot-disk-directory-denied"),
        ("cuda runtime error (8) : invalid device function\n", "cuda-invalid-device-function"),
        ("HIP error: invalid device function\n", "rocm-no-kernel"),
        ("/bin/sh: ./tide: cannot execute binary file: Exec format error\n", "program-of-other-processor"),
        (
            "/bin/sh: 1: ../host/tide: Exec format error\nmake[2]: *** [Makefile:7: tide.h] Error 2\n",
            "built-helper-for-target",
        ),
        (_OCI, "driver-too-old-for-image"),
        (
            "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
            "Offending ECDSA key in /home/moon/.ssh/known_hosts:7\n"
            "Host key for [moon7]:2222 has changed and you have requested strict checking.\n"
            "Host key verification failed.\n",
            "ssh-key-changed-named",
        ),
    ],
)
def test_entry(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_index_and_python_of_the_log_stand_in_the_answer(explained: Explained) -> None:
    log = "ERROR: Could not find a version that satisfies the requirement tide (from versions: none)\n"
    explanation = explained(f"Looking in indexes: https://moon.example/npu\n{log}Python version: 3.9.19\n")

    assert entry_of(explanation) == "pip-no-wheel-for-python"
    assert "3.9.19" in explanation.headline()
    assert "https://moon.example/npu/tide/" in explanation.remedies()[0]
    assert "pip index versions tide`" in explained(log).remedies()[0]
