"""A few lines, as people paste them: of jobs that went well in spite of what sounds bad, and the same lines where they
are the failure, because the log ends with them or what needs them fails."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ascendtune.check.explain.explain import Explanation

_EXCERPTS = Path(__file__).parents[3] / "fixtures" / "explain" / "excerpts"
_HEAD = re.compile(r"^=== (?P<name>[\w-]+)(?:: (?P<code>[\w-]+))?\n", re.MULTILINE)


def _excerpts(name: str) -> list[tuple[str, str, str]]:
    """(name, entry or "", lines) of each excerpt in a file."""
    text = (_EXCERPTS / name).read_text(encoding="utf-8")
    heads = list(_HEAD.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    return [(head["name"], head["code"] or "", text[head.end() : end]) for head, end in zip(heads, ends, strict=True)]


_HEALTHY = [(name, lines) for name, _, lines in _excerpts("healthy.txt")]
_FAILING = [(code, lines) for _, code, lines in _excerpts("failing.txt")]


@pytest.mark.parametrize(("name", "lines"), _HEALTHY, ids=[name for name, _ in _HEALTHY])
def test_excerpt_of_a_job_that_went_well_is_not_a_failure(
    explained: Callable[..., Explanation], name: str, lines: str
) -> None:
    first = explained(lines).verdict.first

    assert first is None, (name, first.quote)


@pytest.mark.parametrize(("code", "lines"), _FAILING, ids=[code for code, _ in _FAILING])
def test_the_same_line_is_a_failure_where_nothing_good_follows(
    explained: Callable[..., Explanation], code: str, lines: str
) -> None:
    assert explained(lines).findings()[0].code == code


_OVERCOME = {
    "bash: nvidia-smi: command not found": "nvidia-smi-not-found",
    "start.sh: line 8: hccn_tool: command not found": "hccn-tool-missing",
    "run.sh: line 7: nvcc: command not found": "nvcc-not-on-path",
    "curl: (7) Failed to connect to localhost port 8000 after 0 ms: Connection refused": "curl-local-service-down",
    "retrying request: 503 Server Error: Service Unavailable for url: https://tide.example/x": "hub-server",
    "sudo: unable to resolve host moon7: Name or service not known": "sudo-host-name",
    'rsync: [generator] failed to set times on "/tide": Operation not permitted (1)': "times-not-changeable",
    "fatal: destination path 'moon' already exists and is not an empty directory.": "git-destination",
}
_MILESTONES = (
    "Successfully installed moon-7.0",
    "INFO:     Application startup complete.",
    "Setting up libtide1:amd64 (7.0-1) ...",
    "Fetching 7 files: 100%|##########| 7/7 [00:07<00:00,  1.0s/it]",
    "moon7   1/1     Running   0          5m",
)


@pytest.mark.parametrize("milestone", _MILESTONES)
@pytest.mark.parametrize(("line", "code"), _OVERCOME.items())
def test_complaint_is_overcome_by_a_milestone_behind_it_only(
    explained: Callable[..., Explanation], line: str, code: str, milestone: str
) -> None:
    assert explained(f"{line}\n{milestone}\n").is_healthy
    assert explained(f"{milestone}\n{line}\n").findings()[0].code == code


@pytest.mark.parametrize(
    "line",
    [
        "Tide_Error_Of_Moon(EI0777): the tide 7 did not come in",
        "[PID: 77] 2027-07-07-07:07:07.777.777 Moon_Error(EE7777): the tide 7 did not come in",
        "EZ7777[PID: 77] 2027-07-07-07:07:07.777.777 (EZ7777):  the tide 7 did not come in",
        "E: The tide: the tide 7 did not come in",
        "nvcc fatal   : the tide 7 did not come in",
        "gmake[2]: *** [tide/moon.make:7: the tide 7 did not come in] Error 1",
        "ERRO[0007] the tide 7 did not come in",
        "(raylet) [2027-07-07 07:07:07,777 E 77 77] (raylet) moon.cc:7: the tide 7 did not come in",
        "rocTIDE error: the tide 7 did not come in",
    ],
)
def test_line_that_calls_itself_an_error_in_a_tools_own_way_is_one(
    explained: Callable[..., Explanation], line: str
) -> None:
    assert "the tide 7 did not come in" in explained(f"rising\n{line}\nrising again\n").headline()


@pytest.mark.parametrize(
    "line", ["tide error: 0.77", "E: 7, 0: moon", "[2027-07-07 07:07:07,777 I 77 77] moon.cc:7: rose"]
)
def test_figures_and_news_are_not_errors(explained: Callable[..., Explanation], line: str) -> None:
    assert explained(f"rising\n{line}\nrising again\n").is_healthy
