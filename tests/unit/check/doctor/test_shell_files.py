"""`shell_files`: what the start files of the shell set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ascendtune.check.doctor.check import examine
from ascendtune.check.doctor.system import System
from ascendtune.check.finding import Finding

Lay = Callable[..., System]


def _ask(lay: Lay, home: Path, text: str) -> list[Finding]:
    (home / ".bashrc").write_text(text)
    return list(examine(lay("healthy-910b4", HOME=str(home)), ["shell_files"]).findings)


def test_a_variable_that_is_set_twice(lay: Lay, tmp_path: Path) -> None:
    (found,) = _ask(
        lay,
        tmp_path,
        "export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True\n"
        "export PYTORCH_NPU_ALLOC_CONF='max_split_size_mb:256'\n",
    )
    assert found.status == "warning" and found.measured.startswith("PYTORCH_NPU_ALLOC_CONF is set 2 times")
    assert found.evidence == ("~/.bashrc:1: expandable_segments:True", "~/.bashrc:2: max_split_size_mb:256")


@pytest.mark.parametrize(
    "text",
    [
        "export HCCL_CONNECT_TIMEOUT=1200\nexport HCCL_CONNECT_TIMEOUT=1200\n",
        "export ASCEND_CUSTOM_OPP_PATH=/a\nexport ASCEND_CUSTOM_OPP_PATH=/b:${ASCEND_CUSTOM_OPP_PATH}\n",
        "if true; then\n  export HF_ENDPOINT=https://a\nelse\n  export HF_ENDPOINT=https://b\nfi\n",
        "# export HF_HOME=/a\nexport HF_HOME=/b\n",
        "export EDITOR=vi\nexport EDITOR=emacs\n",
    ],
    ids=["same", "added", "branches", "comment", "another"],
)
def test_shell_files_that_agree_are_ok(lay: Lay, tmp_path: Path, text: str) -> None:
    assert [each.status for each in _ask(lay, tmp_path, text)] == ["ok"]


def test_secrets_are_not_shown(lay: Lay, tmp_path: Path) -> None:
    (found,) = _ask(lay, tmp_path, "export HF_TOKEN=hf_one\nexport HF_TOKEN=hf_two\n")
    assert "hf_" not in str(found)


def test_a_toolkit_that_has_gone_and_two_at_once(lay: Lay, tmp_path: Path) -> None:
    found = _ask(
        lay,
        tmp_path,
        "source /usr/local/Ascend/ascend-toolkit/8.0.RC3/set_env.sh\n. /usr/local/Ascend/cann-8.5.0/set_env.sh\n",
    )
    assert [each.status for each in found] == ["warning", "warning"]
    assert "ascend-toolkit/8.0.RC3/set_env.sh is sourced and does not exist" in found[0].measured
    assert found[1].measured == "every shell loads a mix of CANN 8.0.RC3 and 8.5.0"
