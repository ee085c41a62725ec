"""Remedies hold where the job ran: no command of a system that the log rules out."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable

import pytest

from ascendtune.check.explain.answer.applicable_remedies import causes_here, fitted
from ascendtune.check.explain.answer.json_form import fields_of
from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.facts.facts import Facts, of_log
from ascendtune.check.explain.facts.job_environment import of_job_environment
from ascendtune.check.explain.knowledge.entries import entries, raised_entries, words_of
from ascendtune.core import language

Explained = Callable[..., Explanation]

_VALUES = {
    "os": ("windows", "mac", "rpm", "debian", "alpine"),
    "accelerator": ("nvidia", "amd", "ascend", "hygon"),
    "container": ("kubernetes", "apptainer", "docker", "none"),
    "scheduler": ("slurm",),
}


@pytest.mark.parametrize(
    ("line", "fact", "value"),
    [
        ('  File "E:\\moon\\tide.py", line 3, in rise', "os", "windows"),
        ("OSError: [WinError 126] The specified module could not be found", "os", "windows"),
        ('  File "/Users/moon/tide.py", line 3, in rise', "os", "mac"),
        ("ImportError: /usr/lib64/libstdc++.so.6: version `GLIBCXX_3.4.26' not found", "os", "rpm"),
        ("# dnf install -y gcc", "os", "rpm"),
        ('  File "/usr/lib/python3/dist-packages/tide.py", line 3, in rise', "os", "debian"),
        ("HIP error: invalid device function", "accelerator", "amd"),
        ("torch 2.6.0+rocm6.2.4", "accelerator", "amd"),
        ("GPU 0: NVIDIA L40S", "accelerator", "nvidia"),
        ("NVIDIA GeForce RTX 4090 with CUDA capability sm_89", "accelerator", "nvidia"),
        ("C:/Users/moon/tide.py", "os", "windows"),
        ("torch 2.4.1+das1.3", "accelerator", "hygon"),
        ('  File "/home/moon/miniconda3/envs/tide/lib/python3.10/tide.py"', "container", "none"),
        ('  File "/home/moon/tide/.venv/lib/python3.10/tide.py"', "container", "none"),
        ("/.singularity.d/actions/run: line 3: exec: tide", "container", "apptainer"),
        ("Error from server (NotFound): pods/tide-0 on Kubernetes", "container", "kubernetes"),
        ("srun: error: node7: task 3: Exited with exit code 1", "scheduler", "slurm"),
    ],
)
def test_a_line_shows_where_the_job_ran(line: str, fact: str, value: str) -> None:
    assert (fact, value) in set(of_job_environment(line, line.lower()))
    assert value in of_log([line]).get(fact, ())


@pytest.mark.parametrize(
    "line",
    [
        'message: "error:\\n  next line"',
        "step 100 of 800, loss 1.2, a100b, cannot, scan 910",
        "tokenizer.json, user:\\nassistant:\\n",
        '  File "/data/tide.py", line 3, in rise',
        "Found no NVIDIA driver on your system; nvidia-smi: command not found",
        "OSError: libcuda.so.1: cannot open shared object file: No such file or directory",
        "No such file or directory: '/usr/local/cuda/bin/nvcc'",
        "No ROCm runtime is found, using ROCM_HOME='/opt/rocm'",
        "    torch.xpu.empty_cache()",
        '  File "/home/ma-user/anaconda3/envs/tide/lib/python3.10/tide.py"',
        "You're on Linux, but moon only has wheels for `macosx_11_0_arm64`, `win_amd64`",
        "fork is unsafe on macOS and Windows",
        "cann not, canned, musafir, decude, containerised_model",
    ],
)
def test_a_line_without_such_signs_shows_nothing(line: str) -> None:
    assert not set(of_job_environment(line, line.lower()))


def test_signs_are_found_at_the_end_of_a_long_line_and_in_a_long_text_quickly() -> None:
    text = "a100 " * 20_000 + "GPU 0: NVIDIA L40S"
    began = time.process_time()

    assert ("accelerator", "nvidia") in set(of_job_environment(text, text.lower()))
    assert time.process_time() - began < 2


def _all_facts() -> list[Facts]:
    """Every fact alone, and drawn combinations of them."""
    draw = random.Random(20)
    single: list[Facts] = [{name: (value,)} for name, values in _VALUES.items() for value in values]
    some = [{name: (draw.choice(values),) for name, values in _VALUES.items() if draw.random() < 0.7} for _ in range(8)]
    return [*single, *some]


_EACH_VALUE_ONCE: list[Facts] = [
    *(
        {name: (values[number],) for name, values in _VALUES.items() if number < len(values) and name != "scheduler"}
        for number in range(5)
    ),
    {"scheduler": ("slurm",)},
]
"""What changes remedies changes them here, too: each fact takes out or replaces words of its own."""


def _is_whole(remedy: str) -> bool:
    """Whether no command and no bracket that was opened stays open."""
    text = re.sub(r"`[^`]*`", "", remedy)
    return bool(remedy.strip(" ;；,，:：")) and remedy.count("`") % 2 == 0 and "()" not in text.replace("_()", "")


@pytest.mark.long
@pytest.mark.parametrize("tongue", ["en", "zh"])
def test_remedies_stay_whole_wherever_the_job_ran(tongue: language.Language) -> None:
    with language.using(tongue):
        for entry in (*entries(), *raised_entries()):
            remedies = words_of(entry).remedies
            is_changed = any(fitted(remedies, entry, facts) != tuple(remedies) for facts in _EACH_VALUE_ONCE)
            for facts in _all_facts() if is_changed else ():
                found = fitted(remedies, entry, facts)
                assert bool(found) == bool(remedies), (entry.id, facts)
                for remedy in set(found) - set(remedies):
                    source = max(remedies, key=lambda each: len(set(each.split()) & set(remedy.split())))
                    assert _is_whole(remedy) or not _is_whole(source), (entry.id, facts, remedy)


def test_a_log_that_shows_nothing_leaves_the_remedies_as_they_are() -> None:
    assert all(fitted(entry.remedies, entry, {}) == entry.remedies for entry in (*entries(), *raised_entries()))


@pytest.mark.parametrize(
    ("remedy", "facts", "expected"),
    [
        (
            "`ulimit -u`: low: ulimit -u 65535; docker run --pids-limit=-1; Kubernetes: podPidsLimit",
            {"container": ("none",)},
            "`ulimit -u`: low: ulimit -u 65535",
        ),
        (
            "export TIDE=1 (docker run -e TIDE, sbatch --export=ALL)",
            {"container": ("none",)},
            "export TIDE=1 (sbatch --export=ALL)",
        ),
        ("fewer workers (Kubernetes: limits; Slurm: --mem)", {"scheduler": ("slurm",)}, "fewer workers (Slurm: --mem)"),
        (
            "fewer workers（Kubernetes：limits；Slurm：--mem）",
            {"container": ("none",)},
            "fewer workers（Slurm：--mem）",
        ),
        ("one card: CUDA_VISIBLE_DEVICES=0", {"accelerator": ("ascend",)}, "one card: ASCEND_RT_VISIBLE_DEVICES=0"),
        ("one card: CUDA_VISIBLE_DEVICES=0", {"accelerator": ("ascend", "nvidia")}, "one card: CUDA_VISIBLE_DEVICES=0"),
        ("`nvidia-smi -L; df -h`: none?", {"accelerator": ("amd",)}, "`rocm-smi; df -h`: none?"),
        ("nvidia-smi -pm 1", {"accelerator": ("amd",)}, "nvidia-smi -pm 1"),
        ("apt-get install -y g++ python3.10-dev", {"os": ("rpm",)}, "yum install -y gcc-c++ python3.10-devel"),
        (
            "sudo apt-get update && apt-get install moonlib7",
            {"os": ("rpm",)},
            "sudo apt-get update && apt-get install moonlib7",
        ),
        ("apt install linux-headers-$(uname -r)", {"os": ("rpm",)}, "yum install -y kernel-devel-$(uname -r)"),
        ("apt install -y g++", {"os": ("rpm", "debian")}, "apt install -y g++"),
        (
            "apt-get update && apt-get install -y tide (nc: netcat-openbsd; make: build-essential)",
            {"os": ("rpm",)},
            "yum install -y tide (nc: nmap-ncat; make: gcc gcc-c++ make)",
        ),
        ("apt install -y ffmpeg", {"os": ("rpm",)}, "apt install -y ffmpeg"),
        ("sudo apt install g++", {"os": ("rpm",)}, "sudo yum install -y gcc-c++"),
        ("sudo apt install g++", {"os": ("suse",)}, "sudo zypper install -y gcc-c++"),
        ("apt-get install --reinstall ca-certificates", {"os": ("suse",)}, "zypper install -f ca-certificates"),
        ("apt-get install -y build-essential python3-dev", {"os": ("alpine",)}, "apk add build-base python3-dev"),
        ("apt-get install -y libgl1", {"os": ("alpine",)}, "apt-get install -y libgl1"),
        ("apt install git (libmoon-dev)", {"os": ("rpm",)}, "apt install git (libmoon-dev)"),
        ("`nvidia-smi -L | wc -l`: fewer", {"accelerator": ("amd",)}, "`nvidia-smi -L | wc -l`: fewer"),
        ("`nvidia-smi nvlink -e`", {"accelerator": ("ascend",)}, "`nvidia-smi nvlink -e`"),
        ("nvidia-smi: its CUDA is older", {"accelerator": ("amd",)}, "nvidia-smi: its CUDA is older"),
        (
            "torch of cuda:0, CUDA_VISIBLE_DEVICES=0",
            {"accelerator": ("ascend",)},
            "torch of cuda:0, CUDA_VISIBLE_DEVICES=0",
        ),
        ("NPU, or unwanted: take it out", {"accelerator": ("nvidia",)}, "NPU, or unwanted: take it out"),
        ("on NPU or CPU: another build", {"os": ("mac",)}, "on NPU or CPU: another build"),
        ("m.eval() (docker run -e A, sudo -E)", {"container": ("none",)}, "m.eval() (sudo -E)"),
        ("x (docker run -e A, sbatch B, Ray: C, D)", {"container": ("none",)}, "x (sbatch B, Ray: C, D)"),
        ("x (Windows: set A, and B)", {"os": ("rpm",)}, "x"),
        ("in a container: a; b", {"os": ("mac", "debian")}, "in a container: a; b"),
    ],
)
def test_a_remedy_has_the_commands_of_the_system(remedy: str, facts: Facts, expected: str) -> None:
    assert fitted([remedy], None, facts) == (expected,)


def test_a_remedy_for_another_system_is_left_out_and_one_stays() -> None:
    assert fitted(["write elsewhere", "in a container: docker run -u 1000"], None, {"container": ("none",)}) == (
        "write elsewhere",
    )
    assert fitted(["`dmesg -T`: killed?", "a smaller batch"], None, {"os": ("windows",)}) == ("a smaller batch",)
    assert fitted(["in a container: a; not there either: b", "c"], None, {"container": ("none",)}) == ("c",)
    assert fitted(["in a container: --gpus all"], None, {"container": ("none",)}) == ("in a container: --gpus all",)


@pytest.mark.parametrize("command", ["`pip list | grep -i tide`: none?", "export TIDE=1"])
def test_on_windows_a_command_of_unix_stays_and_the_shell_that_has_it_is_told(command: str) -> None:
    assert fitted([command], None, {"os": ("windows",)})[0] == command
    assert "Git Bash" in fitted([command], None, {"os": ("windows",)})[1]
    assert fitted(["pip check"], None, {"os": ("windows",)}) == ("pip check",)


def test_what_the_failure_is_about_is_not_ruled_out() -> None:
    facts: Facts = {"container": ("none",), "scheduler": ("slurm",)}
    of_kubernetes = next(entry for entry in entries() if entry.id == "kubernetes-exit-137")

    assert fitted(of_kubernetes.remedies, of_kubernetes, facts) == of_kubernetes.remedies


@pytest.mark.parametrize(
    ("shown", "maker"),
    [("torch 2.6.0+rocm6.2.4\n", "AMD"), ("torch 2.4.1+das1.3\n", "Hygon"), ("", None), ("driver of NVIDIA\n", None)],
)
def test_a_build_of_the_accelerators_maker_is_not_replaced_by_that_of_pypi(
    explained: Explained, shown: str, maker: str | None
) -> None:
    log = shown + (
        "Traceback (most recent call last):\n"
        '  File "/me/site-packages/moon/tide.py", line 7, in rise\n    from triton.knobs import autotuning\n'
        "ModuleNotFoundError: No module named 'triton.knobs'\n"
    )

    first = explained(log).remedies()[0]

    assert ("it has to be a build of" in first) == (maker is not None)
    assert maker is None or maker in first


def test_a_cause_of_a_system_that_the_log_rules_out_is_left_out() -> None:
    found = {entry.id: entry for entry in entries()}
    entry = found["cuda-driver-old"]
    nowhere: Facts = {"container": ("none",)}

    assert causes_here(entry.causes, entry, {}) == entry.causes
    assert not any("container" in cause for cause in causes_here(entry.causes, entry, nowhere))
    assert causes_here(["a container"], None, nowhere) == ("a container",)
    assert causes_here(["the container or the shell", "moon"], None, nowhere) == ("the container or the shell", "moon")
    assert causes_here(["a container", "moon"], None, {"scheduler": ("slurm",)}) == ("a container", "moon")


def test_a_cause_of_what_the_failure_is_about_is_not_left_out() -> None:
    entry = next(entry for entry in entries() if entry.id == "kubelet-devices-unavailable")

    assert causes_here(entry.causes, entry, {"scheduler": ("slurm",)}) == entry.causes


_PTHREAD = "EE1021: The runtime module failed to create host thread through API pthread_create."


def test_a_program_is_told_the_remedies_and_causes_of_the_text(explained: Explained) -> None:
    slurm = "srun: error: node7: task 0: started\n"
    place = '  File "/home/moon/miniconda3/envs/tide/lib/python3.10/tide.py", line 7, in rise\n'
    anywhere, there = explained(f"step 1\n{_PTHREAD}\n"), explained(f"{slurm}{place}step 1\n{_PTHREAD}\n")

    assert "docker run" in fields_of(anywhere)["first"]["remedies"][0]
    assert "docker run" not in fields_of(there)["first"]["remedies"][0]
    for each in (anywhere, there):
        told = fields_of(each)
        assert tuple(told["remedies"]) == tuple(told["first"]["remedies"]) == each.remedies()


def test_other_failures_are_told_with_what_holds_where_the_job_ran(explained: Explained) -> None:
    place = '  File "/home/moon/miniconda3/envs/tide/lib/python3.10/tide.py", line 7, in rise\n'
    told = fields_of(explained(f"{place}{_PTHREAD}\ntorch.OutOfMemoryError: CUDA out of memory.\n"))
    of_threads = [each for each in (told["first"], *told["echoes"]) if each["id"] == "host-threads-of-cann"]

    assert of_threads and "docker run" not in of_threads[0]["remedies"][0]
