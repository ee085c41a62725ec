"""npu-smi's error texts as findings.

The texts are printf formats of npu-smi's source (github.com/hicann/driver, npucli/src); causes are those that the
vendor's maintainers named in public threads. A text is recognised by its code, not by its sentence: spelling differs by
version ("module initialize failed" against "model initialized failed").
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ascendtune.machine.inventory import Trouble


class _Known(NamedTuple):
    pattern: re.Pattern[str]
    code: str
    what: str
    remedy: str
    blinding: bool = True


_KNOWN = (
    _Known(
        re.compile(r"ret is -8005\b"),
        "dcmi_not_initialized",
        "npu-smi cannot open the driver's management interface (-8005)",
        "check that this user is in group HwHiAiUser, that /dev/davinci*, davinci_manager and hisi_hdc are here (in a "
        "container: mapped), and that the host was restarted after its driver was installed",
    ),
    _Known(
        re.compile(r"ret is -8020\b"),
        "device_in_use",
        "the card is taken by another container (-8020)",
        "stop the other container, or let both share the card; check that /usr/local/dcmi is mounted",
    ),
    _Known(
        re.compile(r"ret is -9005\b"),
        "board_not_listed",
        "npu-smi cannot list the boards (-9005): usual in a container with a part of them, no proof of a broken card",
        "mount /usr/local/dcmi into the container; whether the card computes is a question for torch_npu",
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
        re.compile(
            r"(?:initiali[sz]ed? failed|Failed to execute npu-smi|get board type failed).*ret is (?!-8005|-8020|-9005)"
        ),
        "inner_error",
        "npu-smi failed within",
        "look up the code it gives; try as root; restart the driver if root fails too",
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
        "this device does not answer that question",
        "nothing: the chip or its driver has no such information",
        blinding=False,
    ),
    _Known(
        re.compile(r"Error parameter of|Command or option is not found"),
        "unknown_question",
        "this npu-smi does not know the question",
        "update the driver if the answer is needed",
        blinding=False,
    ),
)


def read_troubles(text: str) -> tuple[Trouble, ...]:
    """What npu-smi complains about in `text`, each kind once, with the line that says so."""
    found: dict[str, Trouble] = {}
    for line in text.splitlines():
        for known in _KNOWN:
            if known.pattern.search(line) and known.code not in found:
                found[known.code] = Trouble(known.code, known.what, known.remedy, line.strip(), known.blinding)
                break
    return tuple(found.values())
