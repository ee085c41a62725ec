"""Whether the experiment trackers that this user has logged in to can be reached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.network import address_to_test, reachable, without_password
from ascendtune.check.doctor.system import NETWORK_SECONDS, System
from ascendtune.check.finding import Finding, ok, warning
from ascendtune.core.errors import MachineError
from ascendtune.core.files import open_regular

TRACKER = "tracker"

_MOST_BYTES = 64 << 10


@dataclass(frozen=True)
class _Service:
    package: str
    host_variable: str
    host: str
    key_variable: str
    key_file: str
    """Path, relative to the home directory, of a stored log-in."""
    mode_variable: str
    silent_modes: tuple[str, ...]
    offline: str


_SERVICES = (
    _Service(
        "wandb", "WANDB_BASE_URL", "https://api.wandb.ai", "WANDB_API_KEY", ".netrc", "WANDB_MODE",
        ("offline", "disabled", "dryrun"), "export WANDB_MODE=offline",
    ),
    _Service(
        "swanlab", "SWANLAB_API_HOST", "https://api.swanlab.cn", "SWANLAB_API_KEY", ".swanlab/.netrc", "SWANLAB_MODE",
        ("local", "offline", "disabled"), "export SWANLAB_MODE=offline",
    ),
)  # fmt: skip


def _look(system: System) -> Iterator[Finding]:
    used = [service for service in _SERVICES if _is_used(system, service)]
    hosts = {service: system.env.get(service.host_variable) or service.host for service in used}
    addresses = {service: address_to_test(host, system.env) for service, host in hosts.items()}
    answers = reachable(set(addresses.values()))
    for service in used:
        if not answers[addresses[service]]:
            yield warning(
                TRACKER,
                say(
                    "{tracker} at {host} does not answer within {seconds:g} s",
                    tracker=service.package,
                    host=without_password(hosts[service]),
                    seconds=NETWORK_SECONDS,
                ),
                expected=say("a connection: this user is logged in, and a job that starts a run waits for it"),
                remedy=service.offline,
            )
    if reached := [service.package for service in used if answers[addresses[service]]]:
        yield ok(TRACKER, say("{names} can be reached", names=", ".join(reached)))


def _is_used(system: System, service: _Service) -> bool:
    """Whether the package is installed, this user has logged in, and the mode does not disable uploads."""
    env = system.env
    if system.package(service.package) is None or env.get(service.mode_variable, "").lower() in service.silent_modes:
        return False
    return bool(env.get(service.key_variable)) or _has_login(env, service)


def _has_login(env: Mapping[str, str], service: _Service) -> bool:
    host, home = urlsplit(env.get(service.host_variable) or service.host).hostname, env.get("HOME")
    if not host or not home:
        return False
    try:
        with open_regular(Path(home) / service.key_file) as file:
            return host in file.read(_MOST_BYTES).decode(errors="replace")
    except (OSError, MachineError):
        return False


TRACKER_CHECK = Check(
    TRACKER,
    what="Where wandb or swanlab is installed and this user has logged in: opens a connection to its server "
    "(WANDB_BASE_URL, SWANLAB_API_HOST), through the proxy if one is set, 1.5 s at most. No data is sent.",
    why="A script that starts a run of a tracker which cannot be reached waits for minutes at its start, on every "
    "attempt, or stops.",
    fix="export WANDB_MODE=offline or SWANLAB_MODE=offline, and upload the run later from a machine with a connection "
    "(`wandb sync`, `swanlab sync`); or correct the proxy or the address of your own server.",
    look=_look,
)
