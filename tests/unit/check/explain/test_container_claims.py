"""Headlines of programs that ran on a host: whole sentences without the container."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.facts.facts import of_log
from ascendtune.core.language import Language, using

Explained = Callable[..., Explanation]

_ON_HOST = "slurmstepd: info: moon\n"


@pytest.mark.parametrize(
    ("language", "line", "headline"),
    [
        (
            "en",
            "Failed to get IB devices list: Function not implemented\n",
            "there is none, or its kernel modules are not loaded",
        ),
        (
            "en",
            "ptrace: Operation not permitted.\n",
            "it is another user's, or kernel.yama.ptrace_scope forbids it",
        ),
        ("zh", "ptrace: Operation not permitted.\n", "它属于另一个用户、kernel.yama.ptrace_scope 禁止"),
        (
            "zh",
            "ImportError: libhccl.so: cannot open shared object file: No such file or directory\n",
            "多半是这个 shell 或会话没有 source set_env.sh",
        ),
    ],
)
def test_headline_on_a_host_is_a_whole_sentence(
    explained: Explained, language: Language, line: str, headline: str
) -> None:
    explanation = explained(_ON_HOST + line)

    with using(language):
        assert headline in explanation.headline()


def test_container_stays_where_the_log_shows_one(explained: Explained) -> None:
    assert "container" in explained("$ docker run moon\nptrace: Operation not permitted.\n").headline()


@pytest.mark.parametrize(
    "sign",
    [
        "pyxis: imported moon image: tide",
        "ch-run ./moon -- tide",
        "shifter --image=moon tide",
        "sarus run moon tide",
        "/opt/nvidia/nvidia_entrypoint.sh: line 7: moon",
        "Container image Copyright (c) 2077, the moon",
    ],
)
def test_job_of_slurm_in_a_container_did_not_run_on_the_host(sign: str) -> None:
    assert of_log([f"{_ON_HOST}{sign}\n"])["inside_container"] == ("yes",)
