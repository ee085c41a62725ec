"""Rights that are missing: who lacks them (a user, a service, a container), and for what."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_SYSTEMD = "Jul 07 07:07:07 moon systemd[1]: {}.service: Failed with result 'exit-code'.\n"
_MKDIR = "Jul 07 07:07:07 moon {}[77]: Error: could not create directory mkdir /var/lib/moon: permission denied\n"
_PYTHON = "PermissionError: [Errno 13] Permission denied: '/moon/tide'\n"
_CONTAINER_TOOLS = ("docker", "podman", "kubectl", "apptainer", "enroot", "compose")


@pytest.mark.parametrize(
    ("log", "entry", "told"),
    [
        (_MKDIR.format("moond") + _SYSTEMD.format("moond"), "permission-by-service", "moond.service"),
        (
            "Jul 07 07:07:07 moon tided[7]: open /etc/tided/tide.yaml: permission denied\n" + _SYSTEMD.format("tided"),
            "permission-by-service",
            "/etc/tided/tide.yaml",
        ),
        (_MKDIR.format("moond"), "permission-to-create", "/var/lib/moon"),
        ("Error: failed to write /moon/tide.json: permission denied\n", "permission-to-create", "/moon/tide.json"),
        ("could not open for writing: /moon/tide.log: Permission denied\n", "permission-to-create", "/moon/tide.log"),
        ("Error: fork/exec /opt/moon/tide: permission denied\n", "permission-to-execute", "/opt/moon/tide"),
        ("Error: spawn /opt/moon/tide EACCES\n", "permission-to-execute", ""),
        (_PYTHON, "permission", "/moon/tide"),
        ("$ docker run --rm moon\n" + _PYTHON, "permission-in-docker", "/moon/tide"),
        ("$ podman run --rm moon\nmkdir /moon/cache: permission denied\n", "permission-in-docker", "/moon/cache"),
        ("$ kubectl logs moon-7\n" + _PYTHON, "permission-in-pod", "/moon/tide"),
        ("$ apptainer run moon.sif\n" + _PYTHON, "permission-in-apptainer", "/moon/tide"),
    ],
)
def test_a_missing_right_is_told_of_whom_it_was_asked(explained: Explained, log: str, entry: str, told: str) -> None:
    found = explained(log)

    assert entry_of(found) == entry
    assert told in found.headline()


@pytest.mark.parametrize("log", [_PYTHON, _MKDIR.format("moond"), "Error: fork/exec /moon/tide: permission denied\n"])
def test_no_remedy_names_a_container_that_the_log_does_not_have(explained: Explained, log: str) -> None:
    remedies = " ".join(explained(log).remedies())

    assert [tool for tool in _CONTAINER_TOOLS if tool in remedies] == []
