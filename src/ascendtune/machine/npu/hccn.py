"""`hccn_tool`: the network port of an NPU. One parser for each query.

Formats are those of transcripts of the 910, 910B and 950 (manual and public logs); the 950 is queried by port and has
bus ports (UB) instead of RoCE. Values that an answer does not contain are None; a query that the chip does not support
returns only None. A last line without a newline was cut off: "link status: U" and "ipaddr:10.10.0.1" may be incomplete.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address

from ascendtune.machine.npu.number import natural, whole_lines, word


@dataclass(frozen=True)
class UdpSource:
    """UDP source port of RoCE. Switches choose a path by it: all flows from one port may use the same path."""

    mode: str | None
    """auto: spread over 4097-65535; custom: fixed; multi_qp: a list; code(…): chosen by HCCL."""
    port: int | None


@dataclass(frozen=True)
class LinkHistory:
    """Number of times that the link went down since the card started; `records` are (time, UP or DOWN), newest
    first."""

    down_count: int | None
    records: tuple[tuple[str, str], ...]


def read_link(text: str) -> str | None:
    """`-link`: UP or DOWN; `-ub_connect` of the 950 also PARTIAL LINK."""
    return _after(text, r"link status")


def read_health(text: str) -> str | None:
    """`-net_health`: whether the tested address answers: "Success", "Fault", "Unreachable", "Socket failed"…"""
    return _after(text, r"net health status")


def is_reachable(health: str) -> bool | None:
    """Whether the tested address answers; None: it is not set, or not tested yet.

    Source: github.com/hicann/driver, src/custom/network/hccn/ascend910B/hccn_tool/tool_ops.c, g_net_health_status.
    """
    return None if health in ("Init", "Detect ip set", "Unknown") else health == "Success"


def read_address(text: str) -> str | None:
    """`-ip`. A masked address is None."""
    return _address(_after(text, r"ipaddr"))


def read_netmask(text: str) -> str | None:
    """`-ip`: "255.255.255.0"."""
    return _address(_after(text, r"netmask"))


def read_gateway(text: str) -> str | None:
    """The default route of `-route`: the NPU's gateway."""
    route = re.search(r"^\s*default\s+(\S+)\s", whole_lines(text), re.MULTILINE)
    return _address(route[1]) if route else None


def is_unset(text: str) -> bool:
    """Whether an answer to `-ip` or `-gateway` reports that none was set; other errors do not imply it."""
    return re.search(r"\bno (?:ip|gateway) was preset", text) is not None


def has_routes(text: str) -> bool:
    """Whether an answer to `-route` contains the whole table, with or without a default route."""
    return text.endswith("\n") and re.search(r"^Destination\s", text, re.MULTILINE) is not None


def is_busy(text: str) -> bool:
    """Whether the tool did not answer because another process, or another call of ours, uses it."""
    return re.search(r"hccn_tool is busy|Get lock failed", text) is not None


def read_tls(text: str) -> bool | None:
    """`-tls`: whether it is enabled; all cards of a job must agree, or HCCL cannot connect them (EI0014)."""
    switch = re.search(r"tls switch\[([01])\]", whole_lines(text))
    return switch[1] == "1" if switch else None


def read_udp_source(text: str) -> UdpSource:
    """`-udp`. Source of the names: github.com/hicann/driver, src/custom/network/hccn/ascend910B/hccn_tool/tool_roce.c;
    https://www.hiascend.com/document/detail/zh/HDK/latest/A3/A3HCCN/hccntool_107.html and _108, _133.
    """
    text = whole_lines(text)
    mode = re.search(r"\bstatus\s*:\s*(auto|custom|multi_qp|code)\b(\(\w+\))?", text, re.IGNORECASE)
    port = re.search(r"\budp[_ ]port\s*:\s*([0-9]{1,5})(?![0-9,])", text, re.IGNORECASE)
    return UdpSource(mode[1].lower() + (mode[2] or "") if mode else None, natural(port[1]) if port else None)


def read_link_history(text: str) -> LinkHistory:
    """`-link_stat`: lines that begin with a device, or the 950's table."""
    text = whole_lines(text)
    records = re.findall(r"([A-Z][a-z]{2} [A-Z][a-z]{2}\s+[0-9]+ [0-9:]{8} [0-9]{4})\s+LINK (UP|DOWN)\b", text)
    if not records:
        rows = re.findall(r"\|\s*LINK_(UP|DOWN)\s*\|([^|]*)\|", text)
        records = [(time, state) for state, time in rows]
    times = tuple((" ".join(time.split()), state) for time, state in records)
    return LinkHistory(natural(_after(text, "link down count")), times)


def _after(text: str, name: str) -> str | None:
    """The value of the first line that begins with `name`, optionally after a device number."""
    pattern = rf"^\s*(?:\[dev(?:id|ice) [0-9]+\]\s*)?{name}\s*:[^\S\n]*(\S[^\n]*?)\s*$"
    line = re.search(pattern, whole_lines(text), re.MULTILINE)
    return word(line[1]) if line else None


def _address(text: str | None) -> str | None:
    try:
        return str(ip_address(text or ""))
    except ValueError:
        return None
