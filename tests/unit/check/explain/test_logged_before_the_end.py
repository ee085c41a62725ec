"""A failure that was only logged, and the exception that ended the program later: which is the cause?"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ascendtune.check.explain.answer.report import as_text
from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_HEAD = "Traceback (most recent call last):\n"
_OUT_OF_MEMORY = (
    "2026-03-01 07:12:53,451 ERROR autotune: batch size 64 does not fit: CUDA out of memory. Tried to allocate "
    "20.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 11.69 GiB is free.\n"
)
_UPLOAD = (
    "2026-03-01 07:12:53,451 - upload - ERROR - upload failed\n"
    f'{_HEAD}  File "/x/upload.py", line 9, in send\n    s.connect(address)\n'
    "PermissionError: [Errno 13] Permission denied: '/root/.cache/tide'\n"
)
_THREAD = (
    "Exception in thread Thread-3 (heartbeat):\n"
    f'{_HEAD}  File "/usr/lib/python3.11/threading.py", line 1038, in _bootstrap_inner\n    self.run()\n'
    '  File "/x/heartbeat.py", line 9, in run\n    requests.post(url)\n'
    "requests.exceptions.ConnectionError: HTTPConnectionPool(host='10.0.0.1', port=80): Max retries exceeded with "
    "url: /beat (Caused by NewConnectionError('<urllib3.connection.HTTPConnection object at 0x7f>: Failed to establish "
    "a new connection: [Errno 111] Connection refused'))\n"
)
_NEWS = "2026-03-01 07:12:54,000 INFO data: 100 rows\n"


def _raised(message: str, code: str = "main()") -> str:
    return f'{_HEAD}  File "/x/train.py", line 7, in <module>\n    {code}\n{message}\n'


_SHAPES = _raised("RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x5 and 4x2)")
_NONE = _raised("AttributeError: 'NoneType' object has no attribute 'generate'", "model.generate(ids)")
_MISSING = _raised("FileNotFoundError: [Errno 2] No such file or directory: 'data/train.json'", "open(path)")


def _first(explanation: Explanation) -> str:
    assert explanation.verdict.first is not None
    return explanation.verdict.first.hit.entry.id


@pytest.mark.parametrize("logged", [_OUT_OF_MEMORY, _UPLOAD, _THREAD])
@pytest.mark.parametrize("between", ["", _NEWS * 3])
@pytest.mark.parametrize("rank", ["", "[rank1]: "])
def test_exception_with_a_known_cause_goes_before_what_was_logged(
    explained: Explained, logged: str, between: str, rank: str
) -> None:
    end = "".join(rank + line for line in _SHAPES.splitlines(keepends=True))

    explanation = explained(logged + between + end)

    assert _first(explanation) == "shape-mismatch"
    assert explanation.verdict.rival is None and "certain" in explanation.sureness
    assert "follow" not in as_text(explanation, columns=400, paint=lambda text, _: text, everything=True)


@pytest.mark.parametrize("end", [_NONE, _MISSING, _raised("ValueError: sample 17 has no labels that are not masked")])
@pytest.mark.parametrize("logged", [_OUT_OF_MEMORY, _UPLOAD, _THREAD])
def test_both_are_told_where_the_exception_may_follow(explained: Explained, logged: str, end: str) -> None:
    explanation = explained(logged + _NEWS + end)

    found = explanation.verdict
    assert found.first is not None and found.first.text in logged
    assert found.rival is not None and found.rival.text in end
    assert explanation.sureness.startswith("these two: one was logged, the other ended the program")
    assert f"\nor       {found.rival.meaning}" in as_text(explanation, columns=400, paint=lambda text, _: text)


def test_exception_that_came_much_later_does_not_follow(explained: Explained) -> None:
    assert _first(explained(_OUT_OF_MEMORY + _NEWS * 200 + _NONE)) == "none-used"


def test_first_of_several_logged_exceptions_is_told(explained: Explained) -> None:
    """A server logs the exceptions of all requests after the one that broke it."""
    later = "2026-03-01 07:12:55,000 - server - ERROR - request failed\n"

    assert _first(explained(_UPLOAD + _NEWS + later + _SHAPES)) == _first(explained(_UPLOAD))


def test_an_assertion_of_the_device_outranks_the_exception_that_reports_it(explained: Explained) -> None:
    printed = "Indexing.cu:7: indexSelectSmallIndex: block: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"

    explanation = explained(printed + _raised("RuntimeError: CUDA error: device-side assert triggered"))

    assert _first(explanation) == "embedding-index"


def test_logged_words_of_the_exception_itself_are_not_rivals(explained: Explained) -> None:
    message = "[Errno 28] No space left on device: '/x/tide.pt'"

    explanation = explained(f"ERROR: training failed: {message}\n" + _raised(f"OSError: {message}"))

    assert explanation.verdict.rival is None


_LOST = _raised(
    "RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:44418.", "all_reduce(x)"
)
_TIMED_OUT = (
    "[E419 10:42:28.858931807 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=4486, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600013 milliseconds before timing out.\n"
)
_FAILED = _raised("ValueError: sample 17 has no labels that are not masked")


def _prefixed(rank: int, text: str) -> str:
    return "".join(f"[rank{rank}]: {line}" for line in text.splitlines(keepends=True))


@pytest.mark.parametrize("logged", [_OUT_OF_MEMORY, _UPLOAD, _THREAD])
@pytest.mark.parametrize("waited", [_LOST, _TIMED_OUT])
@pytest.mark.parametrize("in_files", [True, False])
def test_rank_that_waited_after_what_it_logged_did_not_fail(
    explained: Explained, logged: str, waited: str, in_files: bool
) -> None:
    own = {1: logged + _NEWS + waited, 2: _FAILED}
    if in_files:
        found = explained(rank_1=own[1], rank_2=own[2]).verdict
    else:
        found = explained("".join(_prefixed(rank, text) for rank, text in own.items())).verdict

    assert found.rank == 2
    assert found.first is not None and found.first.text in _FAILED


def test_logged_exception_between_lines_of_another_rank_is_recognised(explained: Explained) -> None:
    heading, *rest = _UPLOAD.splitlines(keepends=True)
    lines = [_prefixed(0, heading), _prefixed(1, _NEWS), _prefixed(0, "".join(rest)), _prefixed(0, _SHAPES)]

    assert _first(explained("".join(lines))) == "shape-mismatch"


@pytest.mark.parametrize("logged", [_OUT_OF_MEMORY, _UPLOAD])
def test_few_losses_of_a_rank_that_has_its_own_log_show_that_it_continued(explained: Explained, logged: str) -> None:
    went_on = "step 7 loss 2.5\nstep 8 loss 2.4\n"

    found = explained(rank_1=f"{logged}{went_on}", rank_2=_FAILED).verdict

    assert found.rank == 2


def test_exception_of_a_thread_before_losses_is_not_taken_for_one_that_was_caught(explained: Explained) -> None:
    losses = "".join(f"step {step} loss {2 - step / 100}\n" for step in range(9))

    assert not explained(_THREAD + losses).is_healthy


def test_exception_that_says_the_logged_failure_again_is_not_a_rival(explained: Explained) -> None:
    again = _raised("datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset")

    explanation = explained(f"because column names don't match\n{again}")

    assert _first(explanation) == "dataset-columns"
    assert explanation.verdict.rival is None


def test_a_message_that_was_logged_and_raised_later_is_the_cause(explained: Explained) -> None:
    """transformers asks first, and raises what it had printed after nobody answered."""
    printed = "The repository tide contains custom code which must be executed to correctly load the model."
    link = "\nDuring handling of the above exception, another exception occurred:\n\n"
    raised = _raised("EOFError: EOF when reading a line", "input()") + link + _raised(f"ValueError: {printed}")

    assert _first(explained(f"{printed}\n{raised}")) == "remote-code"


def test_crash_of_another_rank_goes_before_what_a_rank_logged(explained: Explained) -> None:
    crashed = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n"

    assert explained(rank_1=_THREAD + _NEWS + _LOST, rank_2=crashed).verdict.rank == 2


def test_crash_of_a_child_is_not_only_logged(explained: Explained) -> None:
    assert _first(explained(f"Fatal Python error: Segmentation fault\n{_NEWS}{_SHAPES}")) == "sigsegv"


def _caught(message: str, heading: str = "") -> str:
    """As `traceback.print_exc` prints it: its outermost frame is the function that caught it."""
    return f'{heading}{_HEAD}  File "/x/train.py", line 54, in next_row\n    row["moon"]\n{message}\n'


@pytest.mark.parametrize("heading", ["", "2026-03-01 07:12:44,101 - job - ERROR - bad row\n"])
@pytest.mark.parametrize("code", ["batch['labels']", "row['labels']"])
def test_caught_exception_is_not_the_later_one_of_its_kind(explained: Explained, heading: str, code: str) -> None:
    explanation = explained(_caught("KeyError: 'moon'", heading) + _NEWS + _raised("KeyError: 'labels'", code))

    assert "'labels'" in explanation.headline()


def test_exception_that_the_program_printed_itself_gives_way(explained: Explained) -> None:
    assert _first(explained(_caught("ValueError: the tide of 7 o'clock is odd") + _NEWS + _SHAPES)) == "shape-mismatch"
    chain = "\nThe above exception was the direct cause of the following exception:\n\n"
    led_to = explained(_caught("KeyError: 'moon'") + chain + _SHAPES)
    assert "'moon'" in led_to.headline() or _first(led_to) == "shape-mismatch"


def test_printed_exception_before_losses_is_not_a_failure(explained: Explained) -> None:
    losses = "".join(f"step {step} loss {2 - step / 100}\n" for step in range(9))

    assert explained(_caught("KeyError: 'moon'") + losses).is_healthy
    assert not explained(_caught("KeyError: 'moon'")).is_healthy


@pytest.mark.parametrize("line", ["step {step} loss 2.{step}\n", "step {step}/7 (iter 7{step}) loss 2.5\n"])
def test_losses_of_three_steps_are_counted_once_a_step(explained: Explained, line: str) -> None:
    # Two ranks may report the same loss of a step.
    steps = [line.format(step=step) * 2 for step in range(3)]
    assert explained(_caught("KeyError: 'moon'") + "".join(steps)).is_healthy
    assert not explained(_caught("KeyError: 'moon'") + "".join(steps[:2])).is_healthy


@pytest.mark.parametrize("crash", ["Killed", "Segmentation fault (core dumped)"])
def test_crash_after_a_logged_error_is_told(explained: Explained, crash: str) -> None:
    logged = (
        "2026-03-01 07:12:44,101 - job - ERROR - HTTPSConnectionPool(host='moon.example', port=443): Read timed out.\n"
    )

    both = explained(f"step 1 loss 2.5\n{logged}{crash}\n").verdict
    assert both.first is not None and both.rival is not None and both.rival.text == crash
    went_on = explained(f"step 1 loss 2.5\n{logged}step 2 loss 2.4\n{crash}\n").verdict
    assert went_on.first is not None and went_on.first.text == crash


def test_mistake_of_code_after_a_logged_symptom_and_a_loss_is_told(explained: Explained) -> None:
    logged = "ERROR:train:metrics: POST http://moon:9091/push failed: Connection refused\n"

    assert _first(explained(logged + "step 7 loss 2.5\n" + _NONE)) == "none-used"


def test_prefix_of_torchrun_alone_and_with_that_of_torch_name_one_process(explained: Explained) -> None:
    logged = (
        "[default1]:2026-03-01 07:12:44,101 - job - ERROR - HTTPSConnectionPool(host='moon', port=443): timed out\n"
    )
    end = _prefixed(1, _NONE).replace("[rank1]", "[default1]:[rank1]")

    found = explained(f"{logged}[default1]:step 7 loss 2.5\n{end}").verdict

    assert found.first is not None and found.first.text in _NONE


def test_exception_without_the_rank_that_torch_puts_before_it_was_caught(explained: Explained) -> None:
    caught, losses = _raised("KeyError: 'moon'"), "".join(f"step {step} loss {2 - step / 100}\n" for step in range(9))

    assert "moon" not in explained(caught + losses + _prefixed(0, _LOST)).headline()
    assert "moon" in explained(caught + _prefixed(0, _LOST)).headline()
    assert "moon" in explained(caught + losses + _LOST).headline()


def test_exception_of_another_rank_goes_before_what_a_rank_logged_last(explained: Explained) -> None:
    """Its log may be cut off there."""
    logged = "step 7 loss 2.5\nERROR - HTTPSConnectionPool(host='moon', port=443): Read timed out.\n"

    assert explained(rank_1=logged, rank_2=_SHAPES).verdict.rank == 2
    assert explained(rank_1=logged, rank_2="step 7 loss 2.5\n").verdict.rank == 1


@pytest.mark.parametrize(
    "heading", ["Exception occurred during processing of request from ('127.0.0.1', 7)", "Error on request:"]
)
def test_exception_of_a_request_to_a_server_is_not_told_alone(explained: Explained, heading: str) -> None:
    """Of a server in a thread of the program; it prints no level."""
    request = f"{_HEAD}  File \"/x/lib/python3.11/socketserver.py\", line 7, in handle\n    r()\nKeyError: 'moon'\n"

    found = explained(f"{heading}\n{request}{'-' * 40}\n{_FAILED}").verdict

    assert found.rival is not None and found.rival.text in _FAILED


def test_frame_that_is_cut_off_before_its_function_is_told(explained: Explained) -> None:
    cut_off = f'{_HEAD}  File "/x/train.py", line 7, in main\n    run()\n  File "/x/train.py", line 9'

    assert "failed in … at /x/train.py:9" in explained(cut_off).headline()


_STEPS = "{'loss': 2.31, 'epoch': 0.01}\n{'loss': 2.11, 'epoch': 0.02}\n"


@pytest.mark.parametrize(
    ("between", "entry"),
    [(f"Trying batch size 16\n{_STEPS}", "shape-mismatch"), ("", "cuda-oom")],
)
def test_exception_without_frames_before_losses_was_printed_by_a_program_that_went_on(
    explained: Explained, between: str, entry: str
) -> None:
    printed = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.\n"

    explanation = explained(f"Trying batch size 32\n{printed}{between}{_SHAPES}")

    assert _first(explanation).startswith(entry)


def _of_rank(rank: int, time: str, message: str) -> str:
    return "".join(f"2026-03-01 {time},000 [rank{rank}] {line}\n" for line in _raised(message).splitlines())


@pytest.mark.parametrize(
    ("times", "rank"),
    [
        (("10:00:40", "10:00:05"), 3),  # rank 3 failed first, and its lines were written last
        (("10:00:05", "10:00:40"), 0),
        (("10:00:40", "02:00:05"), 0),  # a clock of another time zone
    ],
)
def test_ranks_whose_lines_were_merged_out_of_order_are_ordered_by_time(
    explained: Explained, times: tuple[str, str], rank: int
) -> None:
    shapes = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x5 and 4x2)"
    full = "OSError: [Errno 28] No space left on device: '/tide'"

    explanation = explained(_of_rank(0, times[0], shapes) + _of_rank(3, times[1], full))

    assert explanation.verdict.rank == rank
