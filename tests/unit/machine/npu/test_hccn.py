from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ascendtune.machine.npu import hccn
from ascendtune.machine.npu.hccn import LinkHistory, UdpSource

Text = Callable[[str], str]


def test_port_of_the_910_is_read(transcript: Text) -> None:
    text = transcript("hccn_910")
    assert hccn.read_health(text) == "Init" and hccn.read_link(text) == "UP"
    assert hccn.read_tls(text) is False
    # Its author masked the address.
    assert hccn.read_address(text) is None
    assert hccn.read_link_history(text) == LinkHistory(
        None,
        (
            ("Tue Jun 6 16:32:12 2023", "UP"),
            ("Tue Jun 6 16:32:10 2023", "DOWN"),
            ("Tue Jun 6 16:31:55 2023", "UP"),
        ),
    )


def test_ports_of_the_950_are_read(transcript: Text) -> None:
    text = transcript("hccn_link_950")
    assert hccn.read_link(text) == "PARTIAL LINK"
    assert hccn.read_tls(transcript("hccn_tls_950")) is False
    history = hccn.read_link_history(transcript("hccn_link_stat_950"))
    assert history.down_count == 2
    assert history.records[1] == ("Mon Feb 9 21:45:47 2026", "DOWN") and len(history.records) == 4


def test_link_history_with_the_count_of_downs(transcript: Text) -> None:
    history = hccn.read_link_history(transcript("hccn_link_stat_down_count"))
    assert (history.down_count, len(history.records)) == (1, 3)


def test_empty_hccn_output_yields_none() -> None:
    for text in ("", "hccn_tool: command not found", "link status:\n", "ipaddr:\nnetmask:\n"):
        assert hccn.read_link(text) is None and hccn.read_health(text) is None and hccn.read_gateway(text) is None
        assert hccn.read_address(text) is None and hccn.read_tls(text) is None
        assert hccn.read_link_history(text) == LinkHistory(None, ())


def test_recorded_hccn_captures_are_read(shared: Path) -> None:
    ascend = shared / "fixtures" / "ascend"
    route = (ascend / "hccn_ip_route_910B1.txt").read_text()
    assert hccn.read_address(route) == "29.1.112.213"
    assert hccn.read_gateway(route) == "29.1.0.1"
    worker = (ascend / "faultdiag_worker0_npu_info_before.txt").read_text()
    answers = worker.split("-ip -g\n")[1:]
    assert [hccn.read_address(answer) for answer in answers] == [f"10.10.0.{10 + npu}" for npu in range(8)]
    before = (ascend / "faultdiag_npu_info_before.txt").read_text()
    assert hccn.read_health(before) == "Socket failed"


def test_udp_source_port_of_roce_is_read() -> None:
    assert hccn.read_udp_source("udp_port:4791\nstatus:auto\n") == UdpSource("auto", 4791)
    assert hccn.read_udp_source("udp_port:Unknown\nstatus:auto\n") == UdpSource("auto", None)
    assert hccn.read_udp_source("udp_port:5000,5001\nstatus:multi_qp\nqp_count:2\n") == UdpSource("multi_qp", None)
    assert hccn.read_udp_source("Unknown udp port\n") == UdpSource(None, None)
    assert hccn.read_udp_source("status: custom, udp port: 5000\n") == UdpSource("custom", 5000)
    assert hccn.read_udp_source("status:code(nslb_dp)\n") == UdpSource("code(nslb_dp)", None)
    assert hccn.read_udp_source("hccn_tool is busy, please try again") == UdpSource(None, None)


@pytest.mark.parametrize(
    "text",
    [
        "link status: DOWN\n",
        "link status : PARTIAL LINK\nport 4 : UP\nport 5 : DOWN\n",
        "net health status: Success\n",
        "ipaddr:10.10.0.15\nnetmask:255.255.0.0\n",
        "Destination     Gateway         Genmask\ndefault         29.1.0.1        0.0.0.0         UG\n",
        "dev_id:0, tls switch[1](0:disable, 1:enable), tls alarm time threshold[60]days\n",
        "status:code(nslb_dp)\nudp_port:4791\n",
        "[devid 0]link up count       : 21\n[devid 0]link down count     : 12\n[devid 0]link change records :\n"
        "[devid 0]    Sun Oct  5 10:13:51 2025    LINK UP\n[devid 0]    Sun Oct  5 10:13:50 2025    LINK DOWN\n",
    ],
)
def test_answers_that_are_cut_off_say_nothing_else_than_whole_ones(text: str) -> None:
    def facts(part: str) -> list[object]:
        udp, links = hccn.read_udp_source(part), hccn.read_link_history(part)
        single = [hccn.read_link(part), hccn.read_health(part), hccn.read_gateway(part)]
        return [*single, hccn.read_address(part), hccn.read_tls(part), udp.mode, udp.port, links.down_count]

    whole, records = facts(text), hccn.read_link_history(text).records
    assert any(fact is not None for fact in whole)
    for end in range(len(text)):
        cut = facts(text[:end])
        assert all(fact in (None, of_whole) for fact, of_whole in zip(cut, whole, strict=True)), text[:end]
        found = hccn.read_link_history(text[:end]).records
        assert found == records[: len(found)], text[:end]
