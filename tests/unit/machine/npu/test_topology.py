from __future__ import annotations

from collections.abc import Callable

import pytest

from ascendtune.machine.npu.topology import cores_of, read_topology

Text = Callable[[str], str]


def test_full_mesh_has_a_link_for_every_pair(transcript: Text) -> None:
    found = read_topology(transcript("topo_910b1_hccs"))
    assert found is not None and found.npus == tuple(range(8))
    assert len(found.links) == 56 and set(found.links.values()) == {"HCCS"}
    assert found.cores == {
        0: "144-167",
        1: "0-23",
        2: "144-167",
        3: "0-23",
        4: "96-119",
        5: "48-71",
        6: "96-119",
        7: "48-71",
    }


def test_links_of_several_kinds_are_read(transcript: Text) -> None:
    found = read_topology(transcript("topo_950_ub"))
    assert found is not None
    assert {pair for pair, link in found.links.items() if link == "UB" and pair[0] < pair[1]} == {
        (0, 1),
        (2, 3),
        (4, 5),
        (6, 7),
    }
    assert found.cores[4] == "64-127,192-255"


def test_npus_that_are_not_numbered_without_gaps(transcript: Text) -> None:
    found = read_topology(transcript("topo_pix_phb"))
    assert found is not None and found.npus == (1, 3, 5, 7, 8, 9, 10, 11)
    assert found.links[3, 7] == "PIX" and found.links[11, 1] == "PHB" and found.links[8, 11] == "PIX"


def test_a_damaged_line_is_left_out(transcript: Text) -> None:
    text = transcript("topo_950_ub").replace("NPU2       SYS        SYS        X ", "NPU2       SYS        X ")
    found = read_topology(text)
    assert found is not None and (2, 3) not in found.links and found.links[3, 2] == "UB"


@pytest.mark.parametrize("text", ["", "This device does not support querying topo.", "| NPU0 | NPU1 |"])
def test_text_without_a_matrix_has_no_topology(text: str) -> None:
    assert read_topology(text) is None


def test_table_without_a_matrix_gives_none(transcript: Text) -> None:
    assert read_topology(transcript("info_910b4_25.2.0_process")) is None


def test_ranges_of_cores_are_parsed() -> None:
    assert cores_of("0-2,96\n") == {0, 1, 2, 96} and cores_of("") == set()
