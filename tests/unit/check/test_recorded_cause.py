"""Why a run ended, in the language of the output."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from ascendtune.check.recorded_cause import cause_in_words
from ascendtune.core import language
from ascendtune.core.errors import CheckFailed, Stopped
from ascendtune.core.exit_cause import CauseKind, exit_cause, stopped_at_once

SEEN: dict[CauseKind, str] = {
    "stop": "收到 SIGINT 后立即停止，没有写检查点",
    "hang": "训练在第 7 步卡住：rank 3, 5 与其他 rank 不同",
    "exit": "node2 上的 rank 3 以退出码 9 结束",
    "signal": "node2 上的 rank 3 被 SIGKILL 终止",
    "launcher": "worker 没有启动成功，或彼此断开了连接",
}


def _cause(kind: CauseKind, **changes: Any) -> dict[str, Any]:
    error = CheckFailed("an English sentence", code="any", remedy="an English remedy")
    fields = exit_cause(
        kind,
        error,
        rank=3,
        host="node2",
        signal_name="SIGKILL",
        step=7 if kind == "hang" else None,
        process_exit_code=9,
    )
    return {**fields, "exit_code": 130, "odd_ranks": [3, 5], **changes}


@pytest.mark.parametrize("kind", get_args(CauseKind))
def test_english_sentences_are_those_of_the_record(kind: CauseKind) -> None:
    assert cause_in_words(_cause(kind)) == ("an English sentence", "an English remedy")


@pytest.mark.parametrize(("kind", "said"), SEEN.items())
def test_how_processes_ended_is_told_in_chinese(kind: CauseKind, said: str) -> None:
    with language.using("zh"):
        what, remedy = cause_in_words(_cause(kind))
    assert what == said and "English" not in remedy


def test_stop_is_as_specific_in_chinese_as_in_english() -> None:
    def stopped(step: int | None, checkpoint_step: int | None) -> Stopped:
        return Stopped("a", remedy="b", signal_number=15, step=step, checkpoint_step=checkpoint_step)

    told = {
        stopped(20, 20): ("收到 SIGTERM，在第 20 步之后停止，已保存检查点", "再次执行同一命令，从第 20 步继续"),
        stopped_at_once([10, 20], 15): (
            "收到 SIGTERM 后立即停止，没有写检查点",
            "再次执行同一命令，从第 20 步继续",
        ),
        stopped_at_once([], 2): (
            "收到 SIGINT 后立即停止，没有写检查点",
            "再次执行同一命令；还没有检查点，将从头开始",
        ),
        stopped(0, None): (
            "在第一步之前收到 SIGTERM 而停止",
            "再次执行同一命令，如果有检查点，即从最新的检查点继续",
        ),
    }
    with language.using("zh"):
        for error, words in told.items():
            assert cause_in_words(exit_cause("stop", error)) == words


def test_message_of_an_error_is_quoted() -> None:
    with language.using("zh"):
        assert cause_in_words(_cause("exception")).what == "ascendtune 报告：an English sentence"


def test_torchrun_without_a_host_and_a_cause_without_a_sentence() -> None:
    with language.using("zh"):
        assert cause_in_words(_cause("signal", rank=None, host=None)).what == "torchrun 被 SIGKILL 终止"
        assert cause_in_words({"kind": "stop"}) == ("没有记录原因", "")
