"""`devices --lang zh`: every sentence about what is here has a Chinese one with the same names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ascendtune.cli import devices
from ascendtune.core import language
from ascendtune.core.errors import MachineError
from ascendtune.machine import language as machine_language
from ascendtune.machine.free_devices import pick_free
from ascendtune.machine.inventory import Accelerator
from ascendtune.machine.language import say
from ascendtune.machine.npu import trouble
from ascendtune.machine.npu.topology import LINKS

_ROOM = Path(machine_language.__file__).parent
_NAMES = re.compile(r"\{(\w+)(?![^}]*\|)")


def _said() -> Iterator[str]:
    for path in (*sorted(_ROOM.glob("**/*.py")), _ROOM.parent / "cli" / "devices.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "say":
                yield from (each.value for each in ast.walk(node.args[0]) if isinstance(each, ast.Constant))


def test_every_sentence_about_devices_has_a_translation_with_the_same_names() -> None:
    known = {sentence for each in trouble._KNOWN for sentence in (each.what, each.remedy)}
    known |= {*devices._COLUMNS, *LINKS.values()}

    assert sorted({*_said(), *known} - say.chinese.keys()) == []
    for english, translated in say.chinese.items():
        assert sorted(_NAMES.findall(english)) == sorted(_NAMES.findall(translated)), english


def test_troubles_are_told_in_the_chosen_language() -> None:
    with language.using("zh"):
        (found,) = trouble.read_troubles("dcmi module initialize failed. ret is -8020")
    assert found.what == "该卡被另一个容器占用（-8020）" and "{{.Name}}" in found.remedy


def test_too_few_free_devices_are_told_in_chinese_alone() -> None:
    gpus = [Accelerator("cuda", logical_id=0, memory_used_bytes=0, memory_total_bytes=1 << 30)]
    for count, told in ((2, "需要 2 个空闲设备，1 个中有 1 个空闲"), (9, "需要 9 个空闲设备，1 个中有 1 个空闲")):
        with language.using("zh"), pytest.raises(MachineError) as caught:
            pick_free(gpus, count, {})
        assert caught.value.what == told
