"""Whether the hubs that models come from can be reached, directly or by the proxy."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import NETWORK_SECONDS, Outside
from ascendtune.check.finding import Finding, ok, unknown

NETWORK = "network"

_PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}


def _look(outside: Outside) -> Iterator[Finding]:
    env = outside.env
    if env.get("HF_HUB_OFFLINE") in ("1", "true", "TRUE", "ON", "YES"):
        yield ok(NETWORK, "HF_HUB_OFFLINE is set: nothing is downloaded, models come from local directories")
        return
    hubs = [env.get("HF_ENDPOINT") or "https://huggingface.co", _modelscope(env)]
    proxy = _value(env, "https_proxy") or _value(env, "all_proxy")
    asked = {name: name for name in hubs}
    if proxy:
        asked = dict.fromkeys(hubs, proxy) | {
            name: name for name in hubs if _bypasses(urlsplit(name).hostname or "", _value(env, "no_proxy"))
        }
    answers = _reach(set(asked.values()))
    yield from _contradictions(env)
    if proxy and proxy in asked.values() and not answers[proxy]:
        yield Finding(
            NETWORK,
            "warning",
            f"the proxy {_without_password(proxy)} does not answer within {NETWORK_SECONDS:g} s",
            expected="a proxy that takes connections",
            remedy="correct https_proxy, or unset it: unset http_proxy https_proxy all_proxy",
        )
        return
    reached = [hub for hub in hubs if answers[asked[hub]]]
    if not reached:
        why = f"neither {hubs[0]} nor {hubs[1]} answers within {NETWORK_SECONDS:g} s: this machine seems to be offline"
        remedy = "a local model needs no hub; else set HF_ENDPOINT to a mirror, or https_proxy"
        yield unknown(NETWORK, why, remedy=remedy)
    else:
        by = f" by the proxy {_without_password(proxy)}" if proxy and proxy in asked.values() else ""
        yield ok(NETWORK, f"{' and '.join(reached)} can be reached{by}")


def _modelscope(env: Mapping[str, str]) -> str:
    domain = env.get("MODELSCOPE_DOMAIN") or "www.modelscope.cn"
    return domain if "://" in domain else f"https://{domain}"


def _value(env: Mapping[str, str], name: str) -> str | None:
    """Lower case goes first, as in every HTTP library of Python."""
    return env.get(name) or env.get(name.upper()) or None


def _bypasses(host: str, no_proxy: str | None) -> bool:
    names = [name.strip().lstrip(".") for name in (no_proxy or "").split(",") if name.strip()]
    return any(name == "*" or host == name or host.endswith(f".{name}") for name in names)


def _contradictions(env: Mapping[str, str]) -> Iterator[Finding]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        lower, upper = env.get(name), env.get(name.upper())
        if lower and upper and lower != upper:
            yield Finding(
                NETWORK,
                "warning",
                f"{name} and {name.upper()} differ; programs do not agree on which one counts",
                expected="one value",
                remedy=f'export {name.upper()}="${name}"',
            )


def _reach(addresses: set[str]) -> dict[str, bool]:
    """Whether something takes a connection there; name look-up and connection together within the cap."""
    reached: dict[str, bool] = {}

    def knock(address: str) -> None:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        try:
            port = parts.port or _PORTS.get(parts.scheme, 443)
            with socket.create_connection((parts.hostname or "", port), timeout=NETWORK_SECONDS):
                reached[address] = True
        except (OSError, ValueError):
            reached[address] = False

    threads = [threading.Thread(target=knock, args=(address,), daemon=True) for address in addresses]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + NETWORK_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return {address: reached.get(address, False) for address in addresses}


def _without_password(address: str) -> str:
    parts = urlsplit(address if "://" in address else f"http://{address}")
    return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)


NETWORK_CHECK = Check(
    NETWORK,
    what="Opens a connection to the hub (HF_ENDPOINT, else huggingface.co) and to ModelScope, through the proxy if one "
    "is set, 1.5 s at most. Nothing is sent.",
    why="Behind a closed network the first download waits for minutes and then reports a retry error. A proxy that "
    "has gone, left over in ~/.bashrc, stops even mirrors that could be reached.",
    fix="Set HF_ENDPOINT to a mirror or https_proxy to a proxy that works; put mirrors in the own network into "
    "no_proxy. With local models and HF_HUB_OFFLINE=1 no network is needed.",
    look=_look,
)
