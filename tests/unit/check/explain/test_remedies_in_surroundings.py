"""The remedies of all entries in the surroundings of other systems: no command that is not there, no step of a launcher
that the log does not show, no value left out, nothing deleted or ended before it was looked at."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from ascendtune.check.explain.answer.applicable_remedies import clauses_of, fitted
from ascendtune.check.explain.event.event import Event
from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.facts import facts as facts_of
from ascendtune.check.explain.knowledge.entries import KnownFailure, entries, raised_entries
from ascendtune.check.explain.knowledge.matcher import Hit

_MAC = "macOS 14.5\n/Users/moon/x/train.py\n/opt/homebrew/bin/python3\n"
_SERVER = "INFO 11-20 10:00:00 api_server.py:77] moon serves on port 8000\n"
_OF_LINUX = re.compile(r"`[^`]*(?<![\w-])(?:ss -[ltn]|free -[a-z]|ldd \S|dmesg(?: -T)? \|)[^`]*`")
_ON_LINUX = re.compile(
    r"linux|ldd|systemd|glibc|docker|slurm|kube|nvidia|cuda|npu|ascend|rocm|gpu|infiniband|\brdma|debian|ubuntu|proc/|"
    r"shm|ld_|\.so\b|dkms|kernel|mount|nfs|lustre|container|pod\b|srun|mpi|[nh]ccl|cann|acl",
)
_OF_LAUNCHER = re.compile(r"(?:torchrun|DeepSpeed|accelerate)\b")
_NAMES_LAUNCHER = re.compile(
    r"torchrun|deepspeed|launch|rank|elastic|train|zero|accelerat|megatron|[nh]ccl|gradient|tensor|model|optim|mpi|slurm|"
    r"fsdp|torch|cuda|interpreter|config|world|process|parallel"
)
_EMPTY = re.compile(r"(?<![\w=])[A-Z][A-Z0-9_]{3,}=(?=[`;,)；）。]|$)")
_ENDS_SOMETHING = re.compile(
    r"`?(?:sudo )?(?:rm -|kill |pkill |killall |reboot\b|scancel |docker rm|git reset|chmod -R 777)"
)


def _known() -> Iterator[KnownFailure]:
    return (entry for entry in (*entries(), *raised_entries()) if entry.kind in ("cause", "symptom"))


def _about(entry: KnownFailure) -> str:
    return " ".join((entry.id, entry.family, entry.what, *map(" ".join, entry.anchors), *entry.causes)).lower()


def _remedies(entry: KnownFailure) -> tuple[str, ...]:
    """As they are where the line has only the names of the pattern that it has to match."""
    names = dict.fromkeys(entry.pattern.names, "7") if entry.pattern is not None else {}
    event = Event("", "log", 1, 1, "", None, None, None, None, Hit(entry, 1, names))
    return event.remedies


@pytest.mark.long
def test_a_mac_is_not_asked_for_commands_of_linux() -> None:
    facts = facts_of.of_log([_MAC])
    for entry in _known():
        if not _ON_LINUX.search(_about(entry)):
            for remedy in fitted(entry.remedies, entry, facts):
                assert not _OF_LINUX.search(remedy), (entry.id, remedy)


@pytest.mark.long
def test_a_log_without_ranks_is_told_nothing_of_launchers() -> None:
    facts = facts_of.of_log([_SERVER])
    for entry in _known():
        if not _NAMES_LAUNCHER.search(_about(entry)):
            clauses = [
                clause.strip() for remedy in fitted(entry.remedies, entry, facts) for clause in clauses_of(remedy)
            ]
            assert not any(map(_OF_LAUNCHER.match, clauses)), (entry.id, clauses)


@pytest.mark.long
def test_no_command_lacks_its_value_and_nothing_is_ended_unseen() -> None:
    for entry in _known():
        remedies = _remedies(entry)
        assert not any(map(_EMPTY.search, remedies)), (entry.id, remedies)
        if entry.kind == "symptom" or entry.general:
            assert not _ENDS_SOMETHING.match(remedies[0]), (entry.id, remedies[0])


def test_ssh_without_a_training_has_no_step_of_a_launcher(explained: Callable[..., Explanation]) -> None:
    refused = "Ubuntu 22.04\nssh: connect to host tide7 port 22: Connection refused\n"

    assert "torchrun" not in " ".join(explained(refused).remedies())
    assert "DeepSpeed" not in " ".join(explained(refused).remedies())
    assert "torchrun" in " ".join(explained(f"deepspeed --hostfile hosts train.py\n{refused}").remedies())


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("kex_exchange_identification: Connection closed by 10.0.0.7 port 22", "ssh -v 10.0.0.7 true"),
        (
            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='moon.example', port=443): Max retries "
            "exceeded with url: /x (Caused by SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] "
            "certificate verify failed: certificate has expired (_ssl.c:1007)')))",
            "-connect moon.example:443",
        ),
    ],
)
def test_host_that_the_message_names_is_in_the_command(
    explained: Callable[..., Explanation], line: str, command: str
) -> None:
    assert command in explained(f"{line}\n").remedies()[0]


def test_host_of_a_proxy_stays_a_placeholder(explained: Callable[..., Explanation]) -> None:
    line = "fatal: unable to access 'https://moon.example/tide/': The requested URL returned error: 418\n"

    assert "https_proxy=http://HOST:PORT" in " ".join(explained(line).remedies())
