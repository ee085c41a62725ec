"""The check of hubs, on loopback alone."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

import pytest

from ascendtune.check.doctor.check import examine
from ascendtune.check.doctor.system import NETWORK_SECONDS, System
from ascendtune.check.finding import Finding

Lay = Callable[..., System]


@pytest.fixture
def listening() -> Iterator[str]:
    """The address of something that takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def closed() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


def _ask(lay: Lay, **env: str) -> list[Finding]:
    return list(examine(lay("healthy-910b4", HF_HUB_OFFLINE="", **env), ["network"]).findings)


def test_a_mirror_that_answers(lay: Lay, listening: str, closed: str) -> None:
    (found,) = _ask(lay, HF_ENDPOINT=listening, MODELSCOPE_DOMAIN=closed)
    assert found.status == "ok" and found.measured == f"{listening} can be reached"


@pytest.mark.parametrize("env", [{"HF_HUB_OFFLINE": "True"}, {"HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": "1"}])
def test_variable_that_forbids_the_network_is_named(lay: Lay, env: dict[str, str], closed: str) -> None:
    asked = lay("healthy-910b4", HF_ENDPOINT=closed, MODELSCOPE_DOMAIN=closed, **env)
    (found,) = examine(asked, ["network"]).findings
    assert found.status == "ok" and found.measured.startswith(f"{next(name for name in env if env[name])} is set: ")


def test_closed_port_is_unknown_and_called_offline(lay: Lay, closed: str) -> None:
    began = time.monotonic()
    (found,) = _ask(lay, HF_ENDPOINT=closed, MODELSCOPE_DOMAIN=closed)
    assert found.status == "unknown" and "offline" in found.measured
    assert time.monotonic() - began < NETWORK_SECONDS + 3


def test_a_proxy_that_has_gone(lay: Lay, listening: str, closed: str) -> None:
    (found,) = _ask(
        lay, HF_ENDPOINT=listening, MODELSCOPE_DOMAIN=closed, https_proxy=f"{closed[:7]}me:secret@{closed[7:]}"
    )
    assert found.status == "warning" and closed[7:] in found.measured and "secret" not in str(found)


def test_a_proxy_that_a_mirror_goes_past(lay: Lay, listening: str, closed: str) -> None:
    (found,) = _ask(lay, HF_ENDPOINT=listening, MODELSCOPE_DOMAIN=listening, https_proxy=closed, no_proxy="127.0.0.1")
    assert found.status == "ok" and found.measured == f"{listening} and {listening} can be reached"


def test_proxy_variables_that_differ_are_a_warning(lay: Lay, listening: str) -> None:
    found = _ask(
        lay, HF_ENDPOINT=listening, MODELSCOPE_DOMAIN=listening, https_proxy=listening, HTTPS_PROXY="http://x:1"
    )
    assert [each.status for each in found] == ["warning", "ok"] and "differ" in found[0].measured
