"""Whether the hubs can be reached, directly or through the proxy."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import wait
from functools import partial
from urllib.parse import urlsplit

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.system import NETWORK_SECONDS, System
from ascendtune.check.finding import Finding, ok, unknown, warning
from ascendtune.core.threads import run_in_daemon_thread
from ascendtune.hub.download import offline_variable

NETWORK = "network"

_PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}


def _look(system: System) -> Iterator[Finding]:
    env = system.env
    if variable := offline_variable(env):
        yield ok(NETWORK, say("{variable} is set: models are loaded from local directories only", variable=variable))
        return
    hubs = [env.get("HF_ENDPOINT") or "https://huggingface.co", _modelscope(env)]
    proxy = _proxy(env)
    addresses = {name: address_to_test(name, env) for name in hubs}
    answers = reachable(set(addresses.values()))
    yield from _contradictions(env)
    if proxy and proxy in addresses.values() and not answers[proxy]:
        yield warning(
            NETWORK,
            say(
                "the proxy {proxy} does not answer within {network_seconds:g} s",
                proxy=without_password(proxy),
                network_seconds=NETWORK_SECONDS,
            ),
            expected=say("a proxy that accepts connections"),
            remedy=say("correct https_proxy, or unset it: unset http_proxy https_proxy all_proxy"),
        )
        return
    reached = [hub for hub in hubs if answers[addresses[hub]]]
    if not reached:
        why = say(
            "neither {hub} nor {other} answers within {seconds:g} s: the machine may be offline",
            hub=hubs[0],
            other=hubs[1],
            seconds=NETWORK_SECONDS,
        )
        remedy = say("use local models, or set HF_ENDPOINT to a mirror, or https_proxy")
        yield unknown(NETWORK, why, remedy=remedy)
    else:
        by = (
            say(" through the proxy {proxy}", proxy=without_password(proxy))
            if proxy and proxy in addresses.values()
            else ""
        )
        yield ok(NETWORK, say("{names} can be reached{by}", names=" and ".join(reached), by=by))


def _modelscope(env: Mapping[str, str]) -> str:
    domain = env.get("MODELSCOPE_DOMAIN") or "www.modelscope.cn"
    return domain if "://" in domain else f"https://{domain}"


def _value(env: Mapping[str, str], name: str) -> str | None:
    """Value of a variable; the lower-case name takes precedence, as in Python's HTTP libraries."""
    return env.get(name) or env.get(name.upper()) or None


def _proxy(env: Mapping[str, str]) -> str | None:
    return _value(env, "https_proxy") or _value(env, "all_proxy")


def address_to_test(address: str, env: Mapping[str, str]) -> str:
    """`address`, or the proxy for connections to it."""
    proxy = _proxy(env)
    return proxy if proxy and not _bypasses(urlsplit(address).hostname or "", _value(env, "no_proxy")) else address


def _bypasses(host: str, no_proxy: str | None) -> bool:
    names = [name.strip().lstrip(".") for name in (no_proxy or "").split(",") if name.strip()]
    return any(name == "*" or host == name or host.endswith(f".{name}") for name in names)


def _contradictions(env: Mapping[str, str]) -> Iterator[Finding]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        lower, upper = env.get(name), env.get(name.upper())
        if lower and upper and lower != upper:
            yield warning(
                NETWORK,
                say("{name} and {upper} differ; programs differ in which one they use", name=name, upper=name.upper()),
                expected=say("one value"),
                remedy=say('export {upper}="${name}"', upper=name.upper(), name=name),
            )


def reachable(addresses: set[str]) -> dict[str, bool]:
    """Whether each address accepts a connection within the limit, name resolution included."""

    def connects(address: str) -> bool:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        try:
            port = parts.port or _PORTS.get(parts.scheme, 443)
            with socket.create_connection((parts.hostname or "", port), timeout=NETWORK_SECONDS):
                return True
        except (OSError, ValueError):
            return False

    answers = {address: run_in_daemon_thread(partial(connects, address)) for address in addresses}
    answered, _ = wait(answers.values(), NETWORK_SECONDS)
    return {address: each in answered and each.result() for address, each in answers.items()}


def without_password(address: str) -> str:
    parts = urlsplit(address if "://" in address else f"http://{address}")
    return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)


NETWORK_CHECK = Check(
    NETWORK,
    what="Opens a connection to the hub (HF_ENDPOINT, else huggingface.co) and to ModelScope, through the proxy if one "
    "is set, 1.5 s at most. No data is sent.",
    why="Without access to the network, the first download waits for minutes and then fails with a retry error. An "
    "outdated proxy in ~/.bashrc also blocks mirrors that could be reached directly.",
    fix="Set HF_ENDPOINT to a mirror or https_proxy to a working proxy; list mirrors of your own network in no_proxy. "
    "With local models and HF_HUB_OFFLINE=1 no network is needed.",
    look=_look,
)
