"""Why a run ended, in the language of the output."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from ascendtune.check.recorded_cause import cause_in_words
from ascendtune.core import language
from ascendtune.core.errors import CheckFailed
from ascendtune.core.exit_cause import CauseKind, exit_cause

SEEN: dict[CauseKind, str] = {
    "stop": "收到 SIGINT 而停止",
    "hang": "训练卡住：rank 3, 5 与其他 rank 不同",
    "exit": "node2 上的 rank 3 出错退出",
    "signal": "node2 上的 rank 3 被 SIGKILL 终止",
    "launcher": "worker 没有启动成功，或彼此断开了连接",
}


def _cause(kind: CauseKind, **changes: Any) -> dict[str, Any]:
    error = CheckFailed("an English sentence", code="any", remedy="an English remedy")
    fields = exit_cause(kind, error, rank=3, host="node2", signal_name="SIGKILL")
    return {**fields, "exit_code": 130, "odd_ranks": [3, 5], **changes}


@pytest.mark.parametrize("kind", get_args(CauseKind))
def test_english_sentences_are_those_of_the_record(kind: CauseKind) -> None:
    assert cause_in_words(_cause(kind)) == ("an English sentence", "an English remedy")


@pytest.mark.parametrize(("kind", "said"), SEEN.items())
def test_how_processes_ended_is_told_in_chinese(kind: CauseKind, said: str) -> None:
    with language.using("zh"):
        what, remedy = cause_in_words(_cause(kind))
    assert what == said and "English" not in remedy


def test_message_of_an_error_is_quoted() -> None:
    with language.using("zh"):
        assert cause_in_words(_cause("exception")).what == "ascendtune 报告：an English sentence"


def test_torchrun_without_a_host_and_a_cause_without_a_sentence() -> None:
    with language.using("zh"):
        assert cause_in_words(_cause("signal", rank=None, host=None)).what == "torchrun 被 SIGKILL 终止"
        assert cause_in_words({"kind": "stop"}) == ("没有记录原因", "")
