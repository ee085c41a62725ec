"""`hccn_tool`: the network port of an NPU. One reader for each question.

Forms are those of transcripts of the 910, 910B and 950 (manual and public logs); the 950 asks by port and has bus ports
(UB) instead of RoCE. What an answer does not say is None; a question that the chip does not know gives None throughout.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address

from ascendtune.machine.npu.number import decimal, natural, ratio, word


@dataclass(frozen=True)
class Address:
    address: str | None
    netmask: str | None


@dataclass(frozen=True)
class Tls:
    enabled: bool | None
    alarm_days: int | None
    """Days before a certificate's end at which the tool warns."""


@dataclass(frozen=True)
class UdpSource:
    """From which UDP port RoCE sends. Switches choose a path by it: flows from one port may all take the same."""

    mode: str | None
    """auto: spread over 4097-65535; custom: fixed; code(…): chosen by HCCL."""
    port: int | None


@dataclass(frozen=True)
class LinkHistory:
    """How often the link went up and down since the card started; `records` are (time, UP or DOWN), newest first."""

    up_count: int | None
    down_count: int | None
    records: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Ping:
    transmitted: int | None
    received: int | None
    loss_ratio: float | None


def read_link(text: str) -> str | None:
    """`-link`: UP or DOWN; `-ub_connect` of the 950 also PARTIAL LINK."""
    return _after(text, r"link status")


def read_ports(text: str) -> dict[int, str]:
    """`-ub_connect` of the 950: UP, DOWN or PARTIAL UP of each port."""
    found = re.finditer(r"^\s*port\s+([0-9]{1,4})\s*:\s*([A-Z ]*[A-Z])\s*$", text, re.MULTILINE)
    return {int(port[1]): port[2] for port in found}


def read_health(text: str) -> str | None:
    """`-net_health`: Success, Init, Fault, Socket failed: whether the detected address answers."""
    return _after(text, r"net health status")


def read_fec(text: str) -> str | None:
    """`-fec`: "rs FEC mode", "no FEC mode"."""
    return _after(text, r"fec mode")


def read_address(text: str) -> Address:
    """`-ip`. An address that the author masked is None."""
    return Address(_address(_after(text, r"ipaddr")), _address(_after(text, r"netmask")))


def read_gateway(text: str) -> str | None:
    """The default route of `-route`: the NPU's gateway."""
    route = re.search(r"^\s*default\s+(\S+)\s", text, re.MULTILINE)
    return _address(route[1]) if route else None


def read_tls(text: str) -> Tls:
    """`-tls`: all cards of a job must agree, or HCCL cannot connect them (EI0014)."""
    switch = re.search(r"tls switch\[([01])\]", text)
    days = re.search(r"alarm time threshold\[([0-9]+)\]", text)
    return Tls(switch[1] == "1" if switch else None, natural(days[1]) if days else None)


def read_udp_source(text: str) -> UdpSource:
    """`-udp`. No transcript of an answer is public: the names are those of the vendor's pages on setting it.

    Source: https://www.hiascend.com/document/detail/zh/HDK/latest/A3/A3HCCN/hccntool_107.html and _108, _133.
    """
    mode = re.search(r"\bstatus\s*:\s*(auto|custom|code)\b(\(\w+\))?", text, re.IGNORECASE)
    port = re.search(r"\budp[_ ]port\s*:\s*([0-9]{1,5})\b", text, re.IGNORECASE)
    return UdpSource(mode[1].lower() + (mode[2] or "") if mode else None, natural(port[1]) if port else None)


def read_link_history(text: str) -> LinkHistory:
    """`-link_stat`: lines with a device in front, or the 950's table."""
    records = re.findall(r"([A-Z][a-z]{2} [A-Z][a-z]{2}\s+[0-9]+ [0-9:]{8} [0-9]{4})\s+LINK (UP|DOWN)\b", text)
    if not records:
        rows = re.findall(r"\|\s*LINK_(UP|DOWN)\s*\|\s*([^|]*?)\s*\|", text)
        records = [(time, state) for state, time in rows]
    times = tuple((" ".join(time.split()), state) for time, state in records)
    return LinkHistory(natural(_after(text, "link up count")), natural(_after(text, "link down count")), times)


def read_counters(text: str) -> dict[str, int]:
    """`-stat` and `-hw_stats`: counter -> number. Names differ by generation and driver, so all are kept."""
    lines = re.finditer(r"^\s*(?:\[dev(?:id|ice) [0-9]+\]\s*)?([a-z]\w+)\s*:\s*([0-9]{1,20})\s*$", text, re.MULTILINE)
    return {line[1]: int(line[2]) for line in lines}


def read_optical(text: str) -> dict[str, float | str | None]:
    """`-optical`: the transceiver. Amounts carry their unit in the name: `tx_power0_milliwatts`."""
    found: dict[str, float | str | None] = {}
    for line in re.finditer(
        r"^\s*([A-Za-z][A-Za-z0-9 ]*?)\s*:\s*(.*?)\s*$", _section(text, "optical info"), re.MULTILINE
    ):
        name = "_".join(line[1].lower().split())
        amount = re.fullmatch(r"(\S+) (mW|mV|mA|C|dB|nm)", line[2])
        if amount:
            found[f"{name}_{_UNITS[amount[2]]}"] = decimal(amount[1])
        else:
            found[name] = None if line[2] == "not supported" else word(line[2])
    return found


_UNITS = {
    "mW": "milliwatts",
    "mV": "millivolts",
    "mA": "milliamperes",
    "C": "celsius",
    "dB": "decibels",
    "nm": "nanometres",
}


def read_lldp(text: str) -> dict[str, str]:
    """`-lldp`: the switch port at the other end, as {"Port ID": "400GE1/1/20:2", …}, by the names of the TLVs."""
    found: dict[str, list[str]] = {}
    name = None
    for line in text.splitlines():
        if title := re.fullmatch(r"(\S.*) TLV", line.strip()):
            name = None if title[1].startswith("End of") else title[1]
        elif name and line.strip():
            found.setdefault(name, []).append(re.sub(r"^(?:MAC|Ifname|IPv4|IPv6):\s*", "", line.strip()))
    return {title: " ".join(lines) for title, lines in found.items()}


def read_speed(text: str) -> int | None:
    """The port's speed in bit/s, from `-status`."""
    speed = re.search(r"Speed:\s*([0-9]{1,9})\s*Mb/s", text)
    return int(speed[1]) * 1_000_000 if speed else None


def read_ping(text: str) -> Ping:
    """`-ping`: whether another NPU can be reached."""
    told = re.search(r"([0-9]{1,9}) packets transmitted, ([0-9]{1,9}) received, (\S+)% packet loss", text)
    return Ping(int(told[1]), int(told[2]), ratio(told[3])) if told else Ping(None, None, None)


def read_configuration(text: str) -> dict[int, dict[str, str]]:
    """/etc/hccn.conf: device -> {"address": …, "netmask": …, "gateway": …, "tls_enable": …}."""
    found: dict[int, dict[str, str]] = {}
    for line in re.finditer(r"^\s*([A-Za-z_]+)_([0-9]{1,4})\s*=\s*(\S*)\s*$", text, re.MULTILINE):
        found.setdefault(int(line[2]), {})[line[1]] = line[3]
    return found


def _after(text: str, name: str) -> str | None:
    """The value of the first line that begins with `name`, a device number in front of it or not."""
    line = re.search(rf"^\s*(?:\[dev(?:id|ice) [0-9]+\]\s*)?{name}\s*:[^\S\n]*(\S[^\n]*?)\s*$", text, re.MULTILINE)
    return word(line[1]) if line else None


def _section(text: str, title: str) -> str:
    """From the line after `title:` to the next empty line; all of `text` when there is no such title."""
    _, found, rest = text.partition(f"{title}:")
    return re.split(r"\n\s*\n", rest if found else text)[0]


def _address(text: str | None) -> str | None:
    try:
        return str(ip_address(text or ""))
    except ValueError:
        return None
