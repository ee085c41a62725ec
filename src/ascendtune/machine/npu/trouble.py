"""npu-smi's error texts as findings.

The texts are printf formats of npu-smi's source (github.com/hicann/driver, npucli/src), the codes those of the DCMI
manual ("return_codes" there); causes are those that maintainers named in public threads (-8005: vllm-ascend issue 2698,
HAMi ascend-device-plugin issue 23). A text is recognised by its code, not by its sentence: spelling differs by version
("module initialize failed" against "model initialized failed").
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ascendtune.machine.inventory import Trouble
from ascendtune.machine.language import say


class _Known(NamedTuple):
    pattern: re.Pattern[str]
    code: str
    what: str
    remedy: str
    blinding: bool = True


_CONTAINERS = (
    "docker ps -q | xargs docker inspect -f '{{.Name}} privileged={{.HostConfig.Privileged}} {{.HostConfig.Devices}}"
    '{{range .Config.Env}}{{if eq (index (split . "=") 0) "ASCEND_VISIBLE_DEVICES"}} {{.}}{{ end }}{{ end }}\' '
    "| grep -E '=true|davinci|ASCEND'"
)
"""Containers with cards: privileged, by --device, or by Ascend Docker Runtime, which reads ASCEND_VISIBLE_DEVICES
(hiascend.com, MindCluster, "Usage on the Docker Client") and leaves HostConfig.Devices empty."""
_KNOWN = (
    _Known(
        re.compile(r"ret is -8005\b"),
        "dcmi_not_initialized",
        "npu-smi cannot open the driver's management interface (-8005)",
        "in a container: on the host, find the container that holds the card with "
        f"`{_CONTAINERS}`, and stop it; check that "
        "`ls /dev/davinci*` lists a card, davinci_manager and hisi_hdc. On the host: `sudo npu-smi info`; if root "
        "sees the cards, `sudo usermod -aG HwHiAiUser $USER` and log in again; else restart the host once after a "
        "driver or firmware installation",
    ),
    _Known(
        re.compile(r"ret is -8020\b"),
        "device_in_use",
        "the card is taken by another container (-8020)",
        f"find it on the host with `{_CONTAINERS}`, and stop it or choose another card; check that "
        "/usr/local/dcmi is mounted",
    ),
    _Known(
        re.compile(r"ret is -9005\b"),
        "board_not_listed",
        "npu-smi cannot list the boards (-9005): usual in a container with some of them, and not a sign of a broken "
        "card",
        "mount /usr/local/dcmi into the container; `ascendtune doctor --deep` shows whether the cards compute",
    ),
    _Known(
        re.compile(r"ret is -8002\b"),
        "not_permitted",
        "this user may not query the driver (-8002)",
        "run `sudo npu-smi info`, or `sudo usermod -aG HwHiAiUser $USER` and log in again",
    ),
    _Known(
        re.compile(r"ret is -80(?:06|12|17)\b"),
        "device_not_ready",
        "the card does not answer yet: it is starting, busy or being upgraded (-8006, -8012, -8017)",
        "wait two minutes and run `npu-smi info` again; if the error persists, look at `dmesg | tail -50` and "
        "restart the host",
    ),
    _Known(
        re.compile(r"ret is -800[78]\b"),
        "device_absent",
        "the driver has no card of this number (-8007, -8008)",
        "compare `ls /dev/davinci*` with `lspci | grep -ci accelerators`; a card that is missing in both has fallen "
        "off the bus: power the host off and on",
    ),
    _Known(
        re.compile(r"error while loading shared libraries: \S+"),
        "library_missing",
        "npu-smi does not find its libraries",
        "add /usr/local/Ascend/driver/lib64/common and .../lib64/driver to LD_LIBRARY_PATH; in a container mount them",
    ),
    _Known(
        re.compile(r"There is no NPU card"),
        "no_npu",
        "the driver sees no NPU",
        "check `lspci | grep -i accelerators`, then the kernel log",
    ),
    _Known(
        re.compile(r"(?:initiali[sz]ed? failed|Failed to execute npu-smi|get board type failed).*ret is "),
        "inner_error",
        "npu-smi reports an internal error",
        "look up its code; run npu-smi as root; if root fails too, restart the driver",
    ),
    _Known(
        re.compile(r"driver package may not be completely installed"),
        "driver_incomplete",
        "npu-smi says that the driver is not completely installed",
        "install the driver again and restart",
        blinding=False,
    ),
    _Known(
        re.compile(r"\bdo(?:es)? not support\b"),
        "not_supported",
        "this device does not support the query",
        "no action: the chip or its driver does not have this value",
        blinding=False,
    ),
    _Known(
        re.compile(r"Error parameter of|Command or option is not found"),
        "unknown_question",
        "this version of npu-smi does not support the query",
        "update the driver if the value is needed",
        blinding=False,
    ),
)


def read_troubles(text: str) -> tuple[Trouble, ...]:
    """The error messages of npu-smi in `text`, each kind once, with its line."""
    found: dict[str, Trouble] = {}
    for line in text.splitlines():
        for known in _KNOWN:
            if known.pattern.search(line) and known.code not in found:
                what, remedy = say(known.what), say(known.remedy)
                found[known.code] = Trouble(known.code, what, remedy, line.strip(), known.blinding)
                break
    return tuple(found.values())
