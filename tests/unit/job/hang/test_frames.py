from __future__ import annotations

import pytest

from ascendtune.job.hang.stacks import Frame, is_in_collective, main_thread, may_wait_for_others, relevant_frame

OF_FAULTHANDLER = """\
Thread 0x00007f3b2d7fa6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f3ba2c55740 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3099 in all_reduce
  File "/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/me/a copy (2)/src/ascendtune/train/window.py", line 62 in read
  File "<frozen runpy>", line 88 in _run_code
"""
OF_PY_SPY = """\
Process 4711: python -m ascendtune.train.worker runs/a
Python v3.11.7 (/venv/bin/python3.11)

Thread 4711 (idle): "MainThread"
    sleep_a_while (/srv/hook.py:12)
    make (/home/me/src/ascendtune/train/batch.py:70)
    <module> (<frozen runpy>:88)
Thread 4720 (active): "Thread-1 (write)"
    wait (/usr/lib/python3.11/threading.py:331)
"""


def test_faulthandlers_main_thread_is_the_oldest() -> None:
    frames = main_thread(OF_FAULTHANDLER)
    assert [each.function for each in frames] == ["all_reduce", "wrapper", "read", "_run_code"]
    assert frames[2] == Frame("/home/me/a copy (2)/src/ascendtune/train/window.py", 62, "read")


def test_py_spys_main_thread_is_named() -> None:
    frames = main_thread(OF_PY_SPY)
    assert [(each.function, each.line) for each in frames] == [("sleep_a_while", 12), ("make", 70), ("<module>", 88)]


@pytest.mark.parametrize(
    "text", ["", "Error: Permission Denied (os error 1)\n", "Thread 0x1 (most recent call first):\n"]
)
def test_a_text_without_frames_has_none(text: str) -> None:
    assert main_thread(text) == () and relevant_frame(()) is None


def test_the_telling_frame_is_ours_or_a_librarys() -> None:
    assert (
        str(relevant_frame(main_thread(OF_FAULTHANDLER))) == "all_reduce at torch/distributed/distributed_c10d.py:3099"
    )
    assert str(relevant_frame(main_thread(OF_PY_SPY))) == "make at ascendtune/train/batch.py:70"
    assert (
        str(relevant_frame((Frame("/usr/lib/python3.11/threading.py", 5, "wait"),)))
        == "wait at python3.11/threading.py:5"
    )


def test_a_rank_in_a_collective_waits_for_others() -> None:
    assert may_wait_for_others(main_thread(OF_FAULTHANDLER)) and is_in_collective(main_thread(OF_FAULTHANDLER))
    assert not may_wait_for_others(main_thread(OF_PY_SPY))
