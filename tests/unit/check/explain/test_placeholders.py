"""Values of the log replace placeholders in commands: no PACKAGE, HOST or PORT for the reader to fill in."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_IN_PACKAGE = (
    "Traceback (most recent call last):\n"
    '  File "/x/train.py", line 3, in <module>\n    run()\n'
    '  File "/v/lib/python3.10/site-packages/moonlight/tide.py", line 7, in rise\n    x.numpy()\n'
)


@pytest.mark.parametrize(
    ("log", "command"),
    [
        (
            "ERROR: Could not build wheels for flash-attn, which is required to install",
            "--only-binary :all: flash-attn`",
        ),
        (
            "Building wheel for moon-attn (setup.py): started\n"
            "gcc: fatal error: Killed signal terminated program cc1plus",
            "pip install --no-build-isolation moon-attn",
        ),
        (
            "ImportError: /v/lib/python3.10/site-packages/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined "
            "symbol: _ZN3c105ErrorC2ENS_14SourceLocationESs",
            "--no-deps flash_attn",
        ),
        (
            "ImportError: /v/lib/python3.10/site-packages/moonlight/_C.abi3.so: undefined symbol: "
            "_ZN3c105ErrorC2ENS_14SourceLocationESs",
            "--no-deps moonlight",
        ),
        (f"{_IN_PACKAGE}TypeError: Got unsupported ScalarType BFloat16", "pip show moonlight"),
        (
            'Error from server (Forbidden): pods is forbidden: User "moon" cannot list resource "pods" in API group "" '
            'in the namespace "tide"',
            "--list -n tide`",
        ),
        ("Unable to connect to the server: dial tcp 10.7.7.7:6443: i/o timeout", "nc -vz 10.7.7.7 6443`"),
        ("moon: connect to 10.7.7.7: Network is unreachable", "ip route get 10.7.7.7; ping -c 2 10.7.7.7`"),
        ("ssh: connect to host 10.7.7.7 port 2222: No route to host", "10.7.7.7"),
        (
            "ERROR: Package 'moonlib' requires a different Python: 3.8.10 not in '>=3.11,<4'",
            "conda create -n NAME python=3.11`",
        ),
        (
            "ImportError: DeepSpeed version must be >= 7.9.3. Please update DeepSpeed.",
            "pip install 'deepspeed>=7.9.3'`",
        ),
        (
            "httpx.HTTPStatusError: Client error '404 Not Found' for url 'http://localhost:8000/chat/completions'",
            "curl -s http://localhost:8000/v1/models`",
        ),
        ("OSError: [Errno 107] Transport endpoint is not connected: '/mnt/tide/ckpt'", "findmnt -T /mnt/tide/ckpt; "),
        (
            "PermissionError: [Errno 13] Permission denied: '/root/.cache/huggingface/hub'",
            "ls -ld /root/.cache/huggingface/hub`",
        ),
        ('yaml.scanner.ScannerError: mapping values are not allowed here in "tide.yaml", line 7', "open('tide.yaml')"),
    ],
)
def test_command_has_what_the_log_names(explained: Explained, log: str, command: str) -> None:
    remedies = explained(f"step 1\n{log}\n").remedies()

    assert any(command in remedy for remedy in remedies), remedies


def test_command_without_a_name_in_the_log_keeps_the_placeholder(explained: Explained) -> None:
    own = 'Traceback (most recent call last):\n  File "/x/train.py", line 3, in <module>\n    x.numpy()\n'
    remedies = explained(f"{own}TypeError: Got unsupported ScalarType BFloat16\n").remedies()

    assert any("pip show PACKAGE" in remedy for remedy in remedies)
    # Two packages that were not built: which one is meant the log does not tell.
    two = (
        "ERROR: Failed building wheel for moon\nERROR: Failed building wheel for tide\ngcc: fatal error: Killed signal \
terminated program cc1plus\n"
    )
    assert not any("isolation moon" in remedy or "isolation tide" in remedy for remedy in explained(two).remedies())


def test_package_of_the_system_is_not_that_of_the_frame(explained: Explained) -> None:
    error = "OSError: libtide.so.1: cannot open shared object file: No such file or directory"

    assert not any("install -y moonlight" in remedy for remedy in explained(f"{_IN_PACKAGE}{error}\n").remedies())


def test_two_paths_in_a_message_are_not_told_apart(explained: Explained) -> None:
    error = "OSError: [Errno 107] Transport endpoint is not connected: '/mnt/moon/a' -> '/mnt/tide/b'"

    assert any("findmnt -T PATH" in remedy for remedy in explained(f"step 1\n{error}\n").remedies())


_RESUME = "slurmctld: error: Setting node {} state to INVAL with reason:Low TmpDisk\n"


@pytest.mark.parametrize(
    ("log", "command"),
    [
        (_RESUME.format("moon7"), "nodename=moon7 state=resume"),
        (_RESUME.format("moon7") + _RESUME.format("moon8"), "nodename=moon7 state=resume"),
        (_RESUME.format("moon[7-8]"), "nodename=NODE state=resume"),
        (
            "Submitted batch job 77\nsrun: error: moon7: task 3: Killed\n",
            "sacct -j 77 -o",
        ),
        (
            "Submitted batch job 77\nSubmitted batch job 78\nsrun: error: moon7: task 3: Killed\n",
            "sacct -j JOB -o",
        ),
        (
            "NVRM: Xid (PCI:0000:77:00): 109, pid=777, name=python, Ch 00000007, errorString CTX SWITCH TIMEOUT\n",
            "--pid 777",
        ),
    ],
)
def test_job_node_and_process_of_the_log_are_in_the_command(explained: Explained, log: str, command: str) -> None:
    assert command in "; ".join(explained(log).remedies())
