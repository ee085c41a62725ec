"""Posted lines in which only the person's words show the failure; programs that name an exception and continue."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_FRAMES = (
    '  File "/v/lib/python3.11/site-packages/moon/tide.py", line 7, in rise\n'
    "    store = ebb(moon)\n"
    '  File "/v/lib/python3.11/site-packages/moon/ebb.py", line 8, in ebb\n'
    "    return fall(moon)\n"
)


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (
            "[Bug] Error reported when the moon rises: RuntimeError: the tide 7 did not come in.\n\n"
            "Loading shards: 100% Completed\nweight end, size 7 GB\n",
            "the tide 7 did not come in",
        ),
        ("【问题】月亮升起：ValueError: the tide 7 did not come in\n\nOS: Ubuntu\n", "the tide 7 did not come in"),
        ("尝试月亮推理：RuntimeError: the tide 7 did not come in\n\nOS: Ubuntu\n", "the tide 7 did not come in"),
        ("[Bug]: RuntimeError: Expected all 7 moons to be found\n\nOS: Ubuntu\n", "Expected all 7 moons"),
        ("With two moons I get this: KeyError: 'the tide seven'\n\nUbuntu 22.04\n", "the tide seven"),
        (
            "Hello\nWith two moons I got this RuntimeError: the tide 7 did not come in\nbefore it was fine\n",
            "the tide 7 did not come in",
        ),
        (
            "The moon does not work\n`RuntimeError: the tide 7 did not come in`\nany idea?\n",
            "the tide 7 did not come in",
        ),
    ],
)
def test_exception_in_a_title_is_the_failure(explained: Explained, log: str, told: str) -> None:
    found = explained(log)

    assert told in found.headline()
    assert found.exit_code == 1


@pytest.mark.parametrize(
    "log",
    [
        "[Moon] could not import tide: ImportError: no module of that name\nServing on port 7777\n",
        "[Bug] fixed in 7.0: RuntimeError: the tide 7 did not come in\nstep 7 of 7\n",
        "Loading moon (on RuntimeError: message of the tide it is tried once more)\nserving moons\n",
        "加载月亮失败：RuntimeError: the tide 7 did not come in，使用默认值\nserving moons\n",
        "尝试月亮：RuntimeError: the tide 7 did not come in\n训练完成\n",
        "[Bug]: ValueError: moons are negative in the tide (#77)\nAuthor: moon\n 2 files changed\n",
        "2026-01-01 07:07:07 月亮没有升起：RuntimeError: the tide 7 did not come in\nserving moons\n",
        "# 月亮没有升起时：RuntimeError: the tide 7 did not come in\nmoon = rise()\n",
        "With two moons I get this: KeyError: 'the tide seven'\nsolved by one moon\nTraining finished\n",
    ],
)
def test_program_that_names_an_exception_and_continues_has_not_failed(explained: Explained, log: str) -> None:
    assert explained(log).is_healthy


@pytest.mark.parametrize("above", ["on two moons I got this error.\n\n", "两个月亮时报错：\n"])
def test_frames_that_a_person_calls_an_error_are_one(explained: Explained, above: str) -> None:
    found = explained(f"{above}{_FRAMES}\nanyone with the same problem?\nUbuntu 22.04\n")

    assert "the log ends before the exception" in found.headline()


@pytest.mark.parametrize(
    "log",
    [
        f"stack of the moment, as asked for:\n{_FRAMES}\nserving moons\n",
        f"stack of the moment, for 7 error counters of tides:\n{_FRAMES}\nserving moons\n",
        f"WARNING: an error of no weight, ignored\n{_FRAMES}\nserving moons\n",
        f"I got this error before:\n{_FRAMES}\nstep 1 loss 0.7\nstep 2 loss 0.6\n",
    ],
)
def test_frames_of_a_job_that_continues_are_not_failures(explained: Explained, log: str) -> None:
    assert explained(log).is_healthy


@pytest.mark.parametrize(
    "log",
    [
        "1. No error messages on node 1.\n2. Errors present on node 2:\n[Moon] 'tide 7' is not set, must be set here\n",
        "服务日志报错：\n[Moon] tide 7 does not match the moon of node 2\n\nUbuntu 22.04\n",
    ],
)
def test_reason_below_an_announcement_is_the_failure(explained: Explained, log: str) -> None:
    assert "tide 7" in explained(log).headline()


@pytest.mark.parametrize(
    "log",
    [
        "No errors:\n[Moon] tide 7 does not match the moon of node 2\nserving moons\n",
        "Errors of the last run:\nfailed: 0\nserving moons\n",
        "Errors are written to:\n/tide/moon/errors.log on each of the nodes\nserving moons\n",
        "Known failures:\nmoon does not match tide in test 7 (xfail)\n3 xfailed\n",
        "Known errors:\n[Moon] tide 7 does not match the moon of node 2\nTraining finished\n",
    ],
)
def test_heading_without_a_failure_below_is_none(explained: Explained, log: str) -> None:
    assert explained(log).is_healthy


_ASKS = "I get a problem with the moon of two nodes.\n"


@pytest.mark.parametrize(
    "line",
    [
        "tide-ctl: no ebb of the moon, exit code 7 of the worker",
        "moon-7  | TideError: The tide of 7 hours is higher than the wall (4 m)",
        "tide.cc:77 the moon (7) does not match its tide (8)",
        "WARNING: the platform of the moon does not match that of the tide",
    ],
)
@pytest.mark.parametrize("after", ["", "Any idea?\n", "\n```\nOS: Ubuntu 22.04\n"])
def test_worst_line_among_the_words_of_a_person_is_the_failure(explained: Explained, line: str, after: str) -> None:
    found = explained(f"{_ASKS}```\nrising moon 7\n{line}\n{after}")

    assert not found.is_healthy
    assert line.split()[-1].strip("()") in found.headline()


@pytest.mark.parametrize(
    "log",
    [
        # Nobody asks.
        "rising moon 7\ntide.cc:77 the moon (7) does not match its tide (8)\nrising moon 8\n",
        # It was overcome, or is solved.
        f"{_ASKS}tide.cc:77 the moon (7) does not match its tide (8)\nstep 1 loss 0.7\n",
        f"{_ASKS}tide.cc:77 the moon (7) does not match its tide (8)\nrising 8\nI have fixed it by one moon\n",
        f"{_ASKS}the size of the tide cannot be determined, using 1\nrising 8\n",
        # Figures, tables and lists.
        f"{_ASKS}failed tides:            0\nrising 8\n",
        f"{_ASKS}tide info ................... 0.7, unknown, unknown\nrising 8\n",
        f"{_ASKS}- tide config: not found\nrising 8\n",
        f"{_ASKS}   count    type    root     time   algbw   busbw  error\nrising 8\n",
        # A question that is not about a failure.
        "How can the moon rise faster?\ntide.cc:77 the moon (7) does not match its tide (8)\nrising 8\n",
    ],
)
def test_trouble_in_a_post_is_not_a_failure_where_it_was_overcome_or_is_a_figure(
    explained: Explained, log: str
) -> None:
    assert explained(log).is_healthy


@pytest.mark.parametrize("prompt", ["$ ", "root@moon[/]# ", "(tide) moon@n7:~/x$ ", ">>> ", "[moon@n7 ~]$ "])
def test_trouble_below_what_a_person_typed_is_the_failure(explained: Explained, prompt: str) -> None:
    session = f"{prompt}tidectl moon\nFailed to initialise the tide: moon mismatch\nlibrary of the moon: 7\n"

    assert "initialise the tide" in explained(session + f"{prompt}cat /proc/moon\nmoon 7\n").headline()
    assert explained(f"{session}{prompt}tidectl moon\nmoon is ready\n").is_healthy
    assert explained(session.replace(prompt, "")).is_healthy


def test_warning_that_a_person_asks_about_is_the_failure(explained: Explained) -> None:
    warning = "[WARNING] moon disabled: cannot import name '_tide' from 'torch.optim.optimizer' (/v/torch/optim/x.py)\n"

    found = explained(f"**Describe the bug**\nIt crashed on my machine.\n\n{warning}\nrising 7\nThanks in advance.\n")
    assert "_tide" in found.headline()
    assert explained(f"{warning}rising 7\n").is_healthy
    assert explained(f"It crashed on my machine.\n{warning}step 1 loss 0.7\n").is_healthy


@pytest.mark.parametrize("after", ["Any help?\n", "求大佬解答\n"])
def test_frames_without_an_exception_in_a_post_about_a_failure_are_it(explained: Explained, after: str) -> None:
    found = explained(f"It crashes on my machine.\n```\n{_FRAMES}```\n{after}")

    assert "the log ends before the exception" in found.headline()
    assert explained(f"It crashes on my machine.\n{_FRAMES}\nstep 1 loss 0.7\n{after}").is_healthy


def test_facts_after_a_quoted_import_in_a_post_are_not_progress(explained: Explained) -> None:
    quoted = "the moon could not be loaded: No module named 'tide'\n"

    assert not explained(f"Hello, I have a problem.\n{quoted}OS: Ubuntu\nMemory: 7 GB\nDisk: 7 TB\n").is_healthy
    assert explained(f"{quoted}rising 7\nrising 8\nrising 9\n").is_healthy


_FORM = "- OS (e.g., Linux): Moon 7\n- How you installed PyTorch: with pip\n"


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (f"moon runtime error (35) : tide is insufficient at x.cpp:7\n\n{_FORM}", "tide is"),
        (
            "python 7.7\n     raise RuntimeError(\n      RuntimeError: the tide 7 is only for seas.  Note: look\n"
            "      [end of output]\n",
            "the tide 7 is only",
        ),
        ("`tide = Moon('/x')`\n\n`Exception: data did not fit a tide at line 7`\n\n7\n", "a tide"),
        (
            "I start the moon:\n[Errno 2] No such file or directory: 'tide_7.pt'\nDoes anyone know what is wrong?\n",
            "tide_7.pt",
        ),
        (
            "[me@moon sea]# ./tide -g 8\ntest: Tide failure sea.cu:7 'no moon yet'\n\n######\nMore of it\n",
            "no moon yet",
        ),
        ("Events:\n  Warning  MoonFailed  8s (x5 over 15s)  kubelet, moon  tide 7 is not allowed\n", "tide 7 is not"),
        (
            'service "moon" didn\'t complete successfully: tide 7 was denied\nWhy does the moon fail here at night?\n',
            "tide 7 was denied",
        ),
    ],
)
def test_complaint_in_a_form_for_reports_or_among_events_is_the_failure(
    explained: Explained, log: str, told: str
) -> None:
    found = explained(log)

    assert told in found.headline()
    assert found.exit_code == 1


@pytest.mark.parametrize(
    "log",
    [
        "  Warning  MoonFailed  8s  kubelet  tide 7 is not allowed here\n  Normal  Started  7s  kubelet  up\n",
        f"{_FORM}moon runtime error: 0\nstep 7 loss 0.7\n",
        "PyTorch version: 7.7.0\nCUDA used to build PyTorch: 7.7\nOS: Ubuntu 7\nClang version: Could not collect\n",
    ],
)
def test_complaint_in_a_form_or_among_events_after_which_the_job_goes_on_is_none(
    explained: Explained, log: str
) -> None:
    assert explained(log).is_healthy
