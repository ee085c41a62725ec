"""What each card says of its own health."""

from __future__ import annotations

from collections.abc import Iterator

from ascendtune.check.doctor.check import Check
from ascendtune.check.doctor.outside import Outside
from ascendtune.check.finding import Finding, ok, unknown
from ascendtune.machine.inventory import Accelerator
from ascendtune.machine.npu.facts import read_facts

CODE = "health"

_ALARM_IS_NORMAL = ("310B",)
"""Developer boards report Alarm for parts that the board does not have (transcripts of 310B1 and 310B4)."""


def _look(outside: Outside) -> Iterator[Finding]:
    devices = outside.npu_smi[0].devices
    if not devices:
        if outside.has_npus:
            yield unknown(CODE, "npu-smi lists no card to ask", remedy="see the finding npu_smi")
        return
    sick = [device for device in devices if (device.health or "").upper() != "OK"]
    yield from (_finding(device, outside) for device in sick)
    if not sick:
        yield ok(CODE, f"all {len(devices)} chips say OK")


def _finding(device: Accelerator, outside: Outside) -> Finding:
    if device.health is None:
        return unknown(CODE, f"npu-smi says nothing about the health of {device.label}")
    facts = _details(device, outside)
    evidence = tuple(f"{name}: {value}" for name, value in facts.items() if value is not None)
    if device.health == "Alarm" and (device.name or "").startswith(_ALARM_IS_NORMAL):
        return ok(CODE, f"{device.label} ({device.name}) says Alarm, which is usual on such boards", evidence=evidence)
    mild = device.health.lower() == "warning"
    code = facts.get("error_code")
    return Finding(
        CODE,
        "warning" if mild else "failure",
        f"{device.label} says {device.health}" + (f", error code {code}" if code else ""),
        expected="OK",
        remedy=f"leave it out with ASCEND_RT_VISIBLE_DEVICES; look at `npu-smi info -t health -i {device.npu_id}`, "
        "look the code up in the vendor's fault list, restart the machine; if it stays, have the card replaced",
        evidence=evidence,
    )


def _details(device: Accelerator, outside: Outside) -> dict[str, object]:
    chip = ["-c", str(device.chip_id)] if device.chip_id is not None else []
    blocks = read_facts(outside.ask_npu_smi("info", "-t", "health", "-i", str(device.npu_id), *chip))
    return {name: blocks[0].facts.get(name) for name in ("error_code", "error_information")} if blocks else {}


CHECK = Check(
    CODE,
    what="Reads each chip's health from npu-smi, and its error codes where it is not OK.",
    why="One sick card stops the whole job: the others wait for it in a collective until the time-out, and the log "
    "then blames the network.",
    fix="Warning: training is possible, watch it. Alarm or Critical: take the card out with "
    "ASCEND_RT_VISIBLE_DEVICES, note the error code and restart; a card that stays so is replaced. On 310B "
    "developer boards Alarm is usual.",
    look=_look,
)
