"""`doctor --lang zh`: every sentence of the doctor has a Chinese one with the same names."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ascend_node.node import Cann, Node
from ascend_node.scenarios import HEALTHY
from ascendtune.check.doctor import CHECKS, DEEP_CHECKS, NODE_CHECKS, bundle, container, disk
from ascendtune.check.doctor import language as doctor_language
from ascendtune.check.doctor.check import examine, get_check, verdict
from ascendtune.check.doctor.install_plan import make_install_plan
from ascendtune.check.doctor.language import say
from ascendtune.check.doctor.required_versions import known_combinations
from ascendtune.check.doctor.system import System
from ascendtune.check.table import as_text
from ascendtune.cli.env import _plan_lines
from ascendtune.core import language

_ROOM = Path(bundle.__file__).parent
_CLI = _ROOM.parents[1] / "cli"
_NAMES = re.compile(r"\{(\w+)(?![^}]*\|)")
_COMMAND = re.compile(r"(?:export|unset|pip|sudo|ulimit|source|-v) |-\w+$")
"""What is typed is the same in every language."""
_PROSE = re.compile(r"[A-Za-z]+ [a-z]+ [a-z]+")
_HAN = re.compile("[\u4e00-\u9fff]")


def _said() -> Iterator[str]:
    for path in (*sorted(_ROOM.glob("*.py")), *(_CLI / f"{each}.py" for each in ("doctor", "env", "env_machine"))):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "say":
                strings = (each.value for each in ast.walk(node.args[0]) if isinstance(each, ast.Constant))
                yield from (each for each in strings if isinstance(each, str))


def test_every_sentence_of_the_doctor_has_a_translation_with_the_same_names() -> None:
    said = {*_said(), *disk._ELSEWHERE, *disk._ELSEWHERE.values(), *(each.breaks for each in known_combinations())}
    said |= {*bundle._KINDS.values(), *doctor_language._COUNTED.values()}
    said |= {get_check(code).what for code in (*CHECKS, *DEEP_CHECKS, *NODE_CHECKS)}
    said |= {why for _, why in (*container._MOUNTS.values(), container._TOOL)}

    assert sorted(each for each in said - say.chinese.keys() if not _COMMAND.match(each)) == []
    for english, translated in say.chinese.items():
        assert sorted(_NAMES.findall(english)) == sorted(_NAMES.findall(translated)), english


@pytest.mark.parametrize(
    "node",
    [
        replace(HEALTHY, packages={}, cann=(Cann("8.2.RC1"),)),
        replace(HEALTHY, packages={}, cann=(Cann("7.0.0"),)),
        replace(HEALTHY, cann=(Cann("8.2.RC1"),)),
    ],
    ids=["bare", "old-cann", "as-it-is"],
)
def test_install_plan_has_no_line_of_english_prose(lay: Callable[..., System], node: Node) -> None:
    with language.using("zh"):
        lines = [line for line in _plan_lines(make_install_plan(lay(node)), "python") if " -m pip " not in line]

    assert [line for line in lines if _PROSE.search(line) and not _HAN.search(line)] == []
    assert _HAN.search(lines[0])


def test_findings_are_chinese_and_keep_commands(lay: Callable[..., System]) -> None:
    system = lay("card-alarmed", HCCL_IF_IP="10.9.9.9")
    with language.using("zh"):
        examination = examine(system)
        text = as_text(verdict(examination, system), examination.findings, columns=100, paint=lambda text, _: text)
    assert text.startswith("本机可以训练，设备：7/8 NPU (910B4)，不含 NPU 7；但 NPU 7 报告 Alarm，故障码 80E01801")
    assert "export ASCEND_RT_VISIBLE_DEVICES=0,1,2,3,4,5,6" in text and "HCCL_IF_IP=10.9.9.9 不是本机的地址" in text
    assert not re.search(r"^\w*(?:expected|do|seen): ", text, re.MULTILINE)


@pytest.mark.parametrize("machine", ["card-missing", "driver-not-loaded", "no-torch-npu", "healthy-910b4"])
def test_numbers_of_things_are_counted_in_chinese(lay: Callable[..., System], machine: str) -> None:
    system = lay(machine)
    with language.using("zh"):
        examination = examine(system)
        said = [verdict(examination, system)]
    said += [each.measured for each in examination.findings if each.code in ("npu_smi", "accelerators")]
    assert [each for each in said if re.search(r"[0-9] (?:NPUs|GPUs|chips?|NVIDIA)\b", each)] == []
    assert any(re.search(r"[0-9] 个(?:芯片| NPU)", each) for each in said)


def test_options_of_a_container_are_chinese(lay: Callable[..., System]) -> None:
    with language.using("zh"):
        found = examine(lay("container-privileged")).findings
    assert any("每张卡一个 --device=/dev/davinciN" in (each.expected or "") for each in found)


def test_open_device_files_are_chinese(lay: Callable[..., System]) -> None:
    with language.using("zh"):
        found = examine(lay("opened-without-npu-smi")).findings
    assert any("打开了 davinci0" in line for each in found for line in each.evidence)


def test_parts_of_a_sentence_are_joined_as_in_chinese(lay: Callable[..., System]) -> None:
    with language.using("zh"):
        measured = {each.code: each.measured for each in examine(lay("container-without-dcmi")).findings}
    assert "；/etc/ascend_install.info 不存在" in measured["container"]
    assert measured["cpu_governor"] == "4 个核为 performance"
    assert [each for each in measured.values() if "; " in each] == []
