"""Runs of other launchers, and of programs around trainings: downloads, installations, builds, tests, servers."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from healthy.case import BIN, Case, Chain, Place

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]
_DEEPSPEED = _ROOT / ".venv-deepspeed" / "packages"

_ACCELERATE: dict[str, tuple[str, str]] = {
    "plain": ("--num_processes 1", ""),
    "two": ("--num_processes 2", "clip"),
    "cpu-two": ("--num_processes 2", "workers generate"),
    "states": ("--num_processes 1", "states limit tensorboard"),
    "two-states": ("--num_processes 2", "states clip generate"),
    "debug": ("--num_processes 2 --debug", "debug workers"),
}


def accelerate(place: Place) -> Iterator[Chain]:
    for name, (options, words) in _ACCELERATE.items():
        out = place.directory / "out" / f"accelerate-{name}"
        start = [str(BIN / "accelerate"), "launch", "--cpu", "--num_machines", "1", "--mixed_precision", "no"]
        script = [str(_HERE / "accelerate_job.py"), str(place.model), str(place.rows / "chat.jsonl"), str(out)]
        argv = [*start, *options.split(), *script]
        first = Case(f"accelerate-{name}", [*argv, *words.split()])
        again = Case(f"accelerate-{name}-resumed", [*argv, "resumed"])
        yield [first, again] if "states" in words else [first]


_ON_DEEPSPEED: dict[str, tuple[str, str]] = {
    "0": ("--num_gpus 2", "0"),
    "1": ("--num_gpus 2", "1 save"),
    "2-offload": ("--num_gpus 2", "2 offload"),
    "3": ("--num_gpus 2", "3 save bf16"),
    "3-one": ("--num_gpus 1 --enable_each_rank_log {out}", "3"),
}


def deepspeed(place: Place) -> Iterator[Chain]:
    if not _DEEPSPEED.exists():
        return
    env = {"PYTHONPATH": str(_DEEPSPEED), "DS_ACCELERATOR": "cpu"}
    for name, (options, words) in _ON_DEEPSPEED.items():
        out = place.directory / "out" / f"deepspeed-{name}"
        stage, *others = words.split()
        start = [sys.executable, str(_DEEPSPEED / "bin" / "deepspeed"), *options.format(out=out).split()]
        start += ["--master_port", str(29511 + len(name) + int(stage))]
        yield [Case(f"deepspeed-{name}", [*start, str(_HERE / "deepspeed_job.py"), stage, str(out), *others], env)]
    yield [Case("deepspeed-report", [sys.executable, str(_DEEPSPEED / "bin" / "ds_report")], env)]


_WARNED = (
    "optional_imports",
    "probes",
    "caught",
    "of_thread",
    "of_pool",
    "of_asyncio",
    "of_destructor",
    "of_torch",
    "of_compile",
    "of_transformers",
    "of_peft",
    "of_tokenizers",
    "of_numpy",
    "of_figures",
    "of_datasets",
    "of_resources",
    "of_retries",
    "of_processes",
    "of_multiprocessing",
    "of_interrupt",
    "optional_imports of_torch of_numpy caught of_peft",
    "probes of_transformers of_datasets of_thread of_retries",
)


def warned(place: Place) -> Iterator[Chain]:
    script = [sys.executable, str(_HERE / "warned_job.py")]
    for words in _WARNED:
        name = words.replace("_", "-").replace(" ", "-")[:40]
        yield [Case(f"warned-{name}", [*script, *words.split()], {"MODEL": str(place.model)})]


def downloads(place: Place) -> Iterator[Chain]:
    for word in ("well", "busy", "limited", "slow"):
        out = place.directory / "out" / f"download-{word}"
        yield [Case(f"download-{word}", [sys.executable, str(_HERE / "download_job.py"), str(out), word])]


def commands(place: Place) -> Iterator[Chain]:
    """Commands of ours beside `train`."""
    ours, run = str(BIN / "ascendtune"), str(place.directory / "out" / "lora")
    recipe = [str(place.directory / "recipe.yaml"), "name=lora", "method.tuner=lora", "optim.max_steps=2"]
    merged = str(place.directory / "out" / "merged")
    yield [
        Case("command-train", [ours, "train", *recipe, "checkpoint.every_steps=1", "checkpoint.keep=1"]),
        Case("command-merge", [ours, "merge", run, "--to", merged]),
        Case("command-generate", [ours, "generate", run, "error: what is a traceback?"]),
        Case("command-runs", [ours, "runs", "list", str(place.directory / "out")]),
    ]
    for name, words in {
        "plan": f"plan {' '.join(recipe)}",
        "data": f"data show {' '.join(recipe)}",
        "comm-test": "comm test --devices 2",
        "devices": "devices",
        "launch": f"launch --devices 2 -- {sys.executable} {_HERE / 'torchrun_job.py'} noise=warn+counters+retry",
    }.items():
        yield [Case(f"command-{name}", [ours, *words.split()])]


_SETUP = """from setuptools import Extension, setup
setup(name="tide", version="1", py_modules=["tide"], ext_modules=[Extension("_tide", ["tide.c"])])
"""
_C = """#include <Python.h>
static int errors(void) { int unused; char small[2]; return sprintf(small, "%d", 7) + (unsigned)-1 > 3; }
static struct PyModuleDef tide = {PyModuleDef_HEAD_INIT, "_tide", 0, -1, 0};
PyMODINIT_FUNC PyInit__tide(void) { errors(); return PyModule_Create(&tide); }
"""
_CMAKE = """cmake_minimum_required(VERSION 3.5)
project(tide C)
include(CheckIncludeFile)
include(CheckSymbolExists)
check_include_file(no_such_header.h HAVE_IT)
check_symbol_exists(no_such_symbol stdio.h HAVE_THAT)
find_package(CUDAToolkit QUIET)
find_package(NoSuchPackage)
message(WARNING "could not find a GPU, building for the CPU only")
add_library(tide tide.c)
"""
_TESTS = """import logging, warnings, pytest
def test_error(caplog): logging.error("expected failure"); assert caplog.text
@pytest.mark.xfail
def test_fails(): assert 1 == 2, "mismatch"
@pytest.mark.skip(reason="CUDA is not available")
def test_cuda(): raise RuntimeError("CUDA error: out of memory")
def test_raises():
    warnings.warn("this will fail in release 9", FutureWarning)
    with pytest.raises(RuntimeError): raise RuntimeError("no")
@pytest.mark.parametrize("error", ["timeout", "Killed", "ERROR: failed"])
def test_names(error): print(f"Error: {error}"); assert error
"""


_COMMIT = "git -c user.name=a -c user.email=a@b commit -m 'fix: error when the download failed'"


def tools(place: Place) -> Iterator[Chain]:
    project = place.directory / "project"
    project.mkdir(exist_ok=True)
    written = {"setup.py": _SETUP, "tide.c": _C, "tide.py": "", "CMakeLists.txt": _CMAKE, "test_tide.py": _TESTS}
    for name, text in written.items():
        (project / name).write_text(text)
    (project / "torch_extension.py").write_text(
        "import torch.utils.cpp_extension as c\n"
        'c.load_inline("tide_op", "int unused_error(int failed) { int fatal; return failed; }", '
        'functions="unused_error", verbose=True)\n'
    )
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    into, build = str(place.directory / "out" / "target"), str(place.directory / "out" / "build")
    python = [sys.executable, "-m"]
    for name, argv in {
        "pip-install": [*pip, "install", "--no-build-isolation", "--no-deps", "--target", into, str(project)],
        "pip-verbose": [*pip, "wheel", "-v", "--no-build-isolation", "--no-deps", "-w", build, str(project)],
        "pip-satisfied": [*pip, "install", "--dry-run", "torch", "transformers", "numpy"],
        "pip-list": [*pip, "list"],
        "setup-py": ["sh", "-c", f"cd {project} && {sys.executable} setup.py build_ext --inplace"],
        "cmake": ["cmake", "-S", str(project), "-B", build],
        "torch-extension": [sys.executable, str(project / "torch_extension.py")],
        "pytest": [*python, "pytest", "--rootdir", str(project), "-rA", "-v", "-s", str(project)],
        "pytest-quiet": [*python, "pytest", "--rootdir", str(project), "-q", str(project)],
        "unittest": [*python, "unittest", "-v", "test.test_errno", "test.test_traceback"],
        "git": ["sh", "-c", f"cd {project} && git init . && git add . && {_COMMIT} && git log && git status"],
        "collect-env": [*python, "torch.utils.collect_env"],
        "transformers-env": [str(BIN / "transformers"), "env"],
        "accelerate-test": [str(BIN / "accelerate"), "env"],
        "trl-env": [str(BIN / "trl"), "env"],
        "compileall": [*python, "compileall", "-f", str(project)],
        "torch-distributed-run-help": [str(BIN / "torchrun"), "--help"],
    }.items():
        yield [Case(f"tool-{name}", argv)]


_SERVER = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=0, bind='127.0.0.1')"
_SERVED_SECONDS = 15
_STOPPED = {"int": signal.SIGINT, "term": signal.SIGTERM}


def servers(place: Place) -> Iterator[Chain]:
    """Programs that serve until they are stopped."""
    logs = place.directory / "out" / "lora"
    for word, sign in _STOPPED.items():
        for name, argv in {
            "http": [sys.executable, "-u", "-c", _SERVER],
            "tensorboard": [str(BIN / "tensorboard"), "--logdir", str(logs), "--port", "0", "--host", "127.0.0.1"],
            "torchrun": [str(BIN / "torchrun"), "--nproc-per-node", "2", str(_HERE / "torchrun_job.py"), "steps=4000"],
            "trainer": [
                *[sys.executable, str(_HERE / "trainer_job.py"), "trainer", str(place.model)],
                *[str(place.rows / "chat.jsonl"), str(place.directory / "out" / f"stopped-{word}")],
                json.dumps({"max_steps": 4000}),
            ],
        }.items():
            case = f"stopped-{name}-{word}"
            log = place.logs / f"{case}.half"
            yield [Case(case, argv, {"PYTHONUNBUFFERED": "1"}, interrupt_at=log, after=_SERVED_SECONDS, by=sign)]
