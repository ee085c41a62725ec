from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ascendtune.core.errors import InputError, MachineError
from ascendtune.job.command import command
from ascendtune.job.nodes import manual_start
from ascendtune.job.nodes.manual_start import place_from_environment
from ascendtune.job.spec import ALONE, JobSpec, NodePlace

GIVEN = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_without_nnodes_a_node_is_alone() -> None:
    assert place_from_environment({"MASTER_ADDR": "node0", "NODE_RANK": "7"}) == ALONE
    assert place_from_environment({"NNODES": "1"}) == ALONE


def test_the_usual_variables_give_the_place_and_the_way() -> None:
    assert place_from_environment(GIVEN) == NodePlace(2, 1, "127.0.0.1", 29500, "127.0.0.1", "lo")


@pytest.mark.parametrize("name", ["NODE_RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_a_missing_variable_is_named(name: str) -> None:
    with pytest.raises(InputError) as caught:
        place_from_environment({key: value for key, value in GIVEN.items() if key != name})
    assert caught.value.code == "node-variable-missing" and name in caught.value.what


@pytest.mark.parametrize(
    ("name", "value"), [("NODE_RANK", "2"), ("NODE_RANK", "-1"), ("NNODES", "two"), ("MASTER_PORT", "0")]
)
def test_a_number_out_of_range_is_refused(name: str, value: str) -> None:
    with pytest.raises(InputError) as caught:
        place_from_environment(GIVEN | {name: value})
    assert caught.value.code == "invalid-node-variable" and f"{name}={value}" in caught.value.what


def test_a_master_that_has_no_address_is_refused() -> None:
    with pytest.raises(MachineError) as caught:
        place_from_environment(GIVEN | {"MASTER_ADDR": "nowhere.invalid"})
    assert caught.value.code == "no-route-to-host" and "cannot resolve nowhere.invalid: " in caught.value.what


def test_a_port_that_is_taken_is_refused_on_node_0_alone() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with pytest.raises(MachineError) as caught:
            place_from_environment(GIVEN | {"NODE_RANK": "0", "MASTER_PORT": port})
        assert caught.value.code == "port-unavailable" and str(port) in caught.value.what
        assert place_from_environment(GIVEN | {"MASTER_PORT": port}).master_port == int(port)


def test_an_address_of_ipv6_may_stand_in_brackets() -> None:
    place = place_from_environment(GIVEN | {"MASTER_ADDR": "[::1]"})
    assert (place.master_addr, place.address, place.interface) == ("::1", "::1", "lo")


def test_a_name_that_is_a_loopback_address_here_is_met_at_the_address_of_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ways = {"node0": "127.0.1.1", manual_start._ELSEWHERE: "127.0.0.1"}
    monkeypatch.setattr(manual_start, "source_address", ways.__getitem__)
    places = [place_from_environment(GIVEN | {"MASTER_ADDR": "node0", "NODE_RANK": rank}) for rank in ("0", "1")]
    assert {(place.master_addr, place.address, place.connect_to) for place in places} == {
        ("node0", "127.0.0.1", "127.0.0.1")
    }
    assert "127.0.0.1:29500" in command(JobSpec(("a",), Path("a"), 1, "cpu"), {}, places[1])
