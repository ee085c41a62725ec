"""Causes behind general lines of trainers, servers, containers and builds, told from their neighbours."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_SITE = "/x/lib/python3.11/site-packages"
_WORK = "(SeqNum={}, OpType=ALLGATHER, ..., Timeout(ms)=777000) ran for 777007 milliseconds before   timing out."
_UNSET = "UnboundLocalError: cannot access local variable '{}' where it is not associated with a value"
_NO_STRING = "TypeError: 'in <string>' requires string as left operand, not NoneType"
_TOO_MANY = "TypeError: {}() takes 2 positional arguments but 3 were given"
_GAI = "socket.gaierror: [Errno -2] Name or service not known"
_NOT_SUBSCRIPTABLE = "TypeError: 'NoneType' object is not subscriptable"
_CUDA_11 = "/usr/local/cuda-11.7/include/cuda.h:7: note: tide\n"
_GIN = '[GIN] 2026/04/07 - 07:07:07 | 500 |          1m0s |       10.0.0.7 | POST     "/api/chat"\n'
_CLOSED = 'time=2026-04-07T07:07:07 level=INFO source=moon.go:7 msg="aborting completion request due to client closing the connection"\n'  # noqa: E501
_BUILD = "[TRT-LLM] [I] [MemUsage] Rank 0 Engine build starts - Allocated Memory: Host 77.7 (GiB) Device 7.7 (GiB)\n"
_KILLED = "build.sh: line 7:   777 Killed                  python moon.py --tides ./moon/tide.npz\n"
_WHEEL = "  Downloading moon-7.7.0-py3-none-any.whl (777.7 MB)\n     ━━━━━╸ 776.7/777.7 MB 7.7 MB/s eta 0:00:01\n"
_HOOK = "docker: Error response from daemon: OCI runtime create failed: error running hook #7: error running hook: "
_NO_COMMAND = "/moon/{}.sh: line 7: exec: {}: not found\n"
_NO_SYMBOL = "{}: undefined symbol: opal_moon\n"
_SEGFAULT = "Segmentation fault (core dumped)\n"
_IN = "python: can't open file '{}': [Errno 2] No such file or directory\n"


def _raised(error: str, file: str = "/x/moon.py", function: str = "rise", code: str = "tide()") -> str:
    return f'Traceback (most recent call last):\n  File "{file}", line 7, in {function}\n    {code}\n{error}\n'


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (f"WorkNCCL{_WORK.format(7)}\n", "watchdog"),
        (f"WorkHCCL{_WORK.format(7)}\n", "watchdog"),
        (_WORK.format(7)[10:] + "\n", "watchdog"),
        (f"WorkNCCL{_WORK.format(1)}\n", "watchdog-first-collective"),
        ("ProcessGroup created WorkNCCL(SeqNum=7, OpType=ALLGATHER, Timeout(ms)=777000)\n", None),
        (_raised(_UNSET.format("tide"), f"{_SITE}/moon/seas.py"), "local-name-unset-in-package"),
        (_raised(_UNSET.format("tide")), "local-name-unset"),
        (_raised(_UNSET.format("loss"), f"{_SITE}/moon/seas.py"), "loop-over-no-batch"),
        (_raised(_NO_STRING), "substring-is-none"),
        (_raised(_NO_STRING, f"{_SITE}/unsloth/tokenizer_utils.py"), "unsloth-token-none"),
        (_raised(_TOO_MANY.format("Moon.rise")), "own-call-with-more-arguments"),
        (_raised(_TOO_MANY.format("Moon.rise"), f"{_SITE}/moon/seas.py"), "too-many-arguments"),
        (_raised(_TOO_MANY.format("Moon.compute_loss")), "compute-loss-of-older-trainer"),
        (_raised(_GAI), "host-name-unknown"),
        (_raised(_GAI) + "wandb: Network error (ConnectionError), entering retry loop.\n", "wandb-host-unresolved"),
        (_raised("KeyError: torch.float8_e7m7fn", f"{_SITE}/safetensors/torch.py"), "safetensors-lacks-dtype"),
        (_raised("KeyError: 'tide'", f"{_SITE}/safetensors/torch.py"), "key-missing"),
        (
            _raised(
                _NOT_SUBSCRIPTABLE, f"{_SITE}/trl/trainer/sft_trainer.py", "compute_loss", "outputs.logits[..., 1:]"
            ),
            "trl-sft-without-logits",
        ),
        (_raised(_NOT_SUBSCRIPTABLE), "none-used"),
        (_raised("AttributeError: can't set attribute 'pad_token'"), "token-is-fixed-property"),
        (_raised("AttributeError: property 'bos_token' of 'Moon' object has no setter"), "token-is-fixed-property"),
        (_raised("AttributeError: module 'bitsandbytes' has no attribute 'optim'"), "bitsandbytes-without-own-module"),
        (_raised("AttributeError: module 'bitsandbytes' has no attribute 'tide'"), "module-attribute"),
        (_raised("ImportError: cannot import name 'tide' from 'bitsandbytes'"), "import-name"),
        (_raised("DPOTrainer.__init__() got an unexpected keyword argument 'gamma'"), "argument-of-trl-fork"),
    ],
)
def test_cause_behind_a_general_exception(explained: Explained, log: str, entry: str | None) -> None:
    assert entry_of(explained(log)) == entry


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_CLOSED, "ollama-client-closed"),
        (_GIN + _CLOSED, "ollama-client-timeout"),
        (
            f"{_CUDA_11}/tmp/moon/cuda_utils.c:7:7: error: unknown type name 'CUtensorMap'\n",
            "triton-helper-with-old-cuda",
        ),
        (_KILLED, "killed"),
        (_BUILD + _KILLED, "killed-while-engine-is-built"),
        (_WHEEL + "Killed\n", "killed-while-pip-downloads"),
        (f"{_WHEEL}Installing collected packages: moon\n{_KILLED}", "killed"),
        (_HOOK + "exit status 7\n", "hook-failed-without-words"),
        (_HOOK + "exit status 7, stdout: , stderr: Auto-detected mode as 'csv'\n", "hook-directly-in-csv-mode"),
        (_NO_COMMAND.format("entrypoint", "tritonserver"), "image-without-tritonserver"),
        (_NO_COMMAND.format("docker-entrypoint", "tidal"), "command-of-entrypoint-not-found"),
        (
            f"python: symbol lookup error: {_NO_SYMBOL.format('/usr/lib/openmpi/mca_tide.so')}",
            "openmpi-plugin-left-over",
        ),
        (f"python: symbol lookup error: {_NO_SYMBOL.format('/usr/lib/libmoon.so')}", "undefined-symbol"),
        (f"/moon: symbol lookup error: {_NO_SYMBOL.format('/moon')}", "program-lacks-symbol"),
        (_SEGFAULT, "sigsegv"),
        (f"[moonvGPU Msg(7:7:libvgpu.c:7)]: Initializing...\n{_SEGFAULT}", "crash-below-vgpu-library"),
        (_IN.format("/srv/moon/../tide/main.py"), "program-of-sibling-project"),
        (_IN.format("/srv/moon/tide/main.py"), "script-not-found"),
        ("E: Version '7.7-1' for 'libtide7' was not found\n", "apt-version-not-there"),
        ("E: Unable to locate package libtide7\n", "apt-locate"),
        ("llama_model_load: error loading model: missing tensor 'output.weight'\n", "gguf-output-tied"),
        ("llama_model_load: error loading model: missing tensor 'blk.7.tide.weight'\n", "gguf-tensor-missing"),
        ("./moon.sh: line 7: 777 Aborted                 (core dumped) python moon.py --tides 7\n", "sigabrt"),
    ],
)
def test_cause_behind_a_general_line(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


@pytest.mark.parametrize(
    "line",
    [
        " [WARNING]  async_io requires the dev libaio .so object and headers but these were not found.",
        "2026-07-07 07:07:07.777777: E external/local_xla/xla/stream_executor/moon.cc:7] failed call to cuInit: "
        "INTERNAL: CUDA error: Failed call to cuInit: UNKNOWN ERROR (303)",
    ],
)
def test_an_optional_part_that_is_missing_is_not_a_failure(explained: Explained, line: str) -> None:
    assert explained(f"{line}\nstep 7 loss 1.5\n").is_healthy


def test_a_command_that_the_shell_repeats_is_not_in_the_headline(explained: Explained) -> None:
    headline = explained(_KILLED).headline()

    assert "tide" not in headline
    assert "build.sh" not in headline


def test_a_program_of_a_package_is_not_the_place_of_a_failure(explained: Explained) -> None:
    first = explained(
        f'Traceback (most recent call last):\n  File "/x/bin/moon", line 8, in <module>\n    sys.exit(main())\n'
        f'  File "{_SITE}/moon/seas.py", line 7, in main\n    ebb(tide)\n{_UNSET.format("tide")}\n'
    ).verdict.first

    assert first is not None
    assert first.trace is not None
    assert first.trace.place == (f"{_SITE}/moon/seas.py", 7, "main")


_IN_USE = "Error: listen tcp 0.0.0.0:{}: bind: address already in use\n"
_LSOF = "moond  777 tide  3u  IPv4  37563  0t0  TCP localhost:{} (LISTEN)\n"
_SS = 'LISTEN 0 511 0.0.0.0:{} 0.0.0.0:* users:(("{}",pid=777,fd=6))\n'


@pytest.mark.parametrize(
    ("log", "entry", "told"),
    [
        (_IN_USE.format(8077) + _LSOF.format(8077), "port-held-by", "moond with pid 777 listens on it (user tide)"),
        (_IN_USE.format(8077) + _SS.format(8077, "moond"), "port-held-by", "moond with pid 777"),
        (
            "OSError: [Errno 98] Address already in use: ('0.0.0.0', 8077)\n"
            "tcp6  0  0 :::8077  :::*  LISTEN  777/moond\n",
            "port-held-by",
            "moond",
        ),
        (_IN_USE.format(8077) + _LSOF.format(9077), "port-of-program-taken", "port 8077"),
        (_IN_USE.format(8077) + _SS.format(8077, "docker-proxy"), "port-held-by-container", "docker-proxy"),
        (_IN_USE.format(11434), "ollama-runs-already", "Ollama"),
        (_IN_USE.format(11434) + _SS.format(11434, "ollama"), "ollama-runs-already-as", "pid 777"),
        (_IN_USE.format(11434) + _SS.format(11434, "moond"), "port-held-by", "moond"),
        (
            "2026-07-07 07:07:07 # listening socket *:6377: bind: Address already in use\n",
            "port-of-program-taken",
            "6377",
        ),
        (
            "nginx: [emerg] bind() to 0.0.0.0:80 failed (98: Address already in use)\n",
            "port-of-program-taken",
            "port 80,",
        ),
        ("Error: listen EADDRINUSE: address already in use :::3077\n", "port-of-program-taken", "3077"),
        (
            "[W socket.cpp:7] [c10d] The server socket has failed to bind to [::]:27777 (errno: 98 - Address already "
            "in use).\n",
            "port-taken",
            "27777",
        ),
    ],
)
def test_the_process_that_listens_on_a_taken_port_is_named(
    explained: Explained, log: str, entry: str, told: str
) -> None:
    found = explained(log)

    assert entry_of(found) == entry
    assert told in found.headline()


def test_a_program_that_is_not_a_training_is_not_told_of_torchrun(explained: Explained) -> None:
    remedies = " ".join(explained(_IN_USE.format(8077)).remedies())

    assert "torchrun" not in remedies
    assert "8077" in remedies


_EXPORTER = 'time="2026-07-07T07:07:07Z" level={} msg="{}: Profiling is not supported for this group of GPUs or GPU"\n'


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_EXPORTER.format("fatal", "Error watching fields"), "dcgm-profiling-not-supported"),
        (
            "Error: Unable to watch fields. Return: Profiling is not supported for this group of GPUs or GPU\n",
            "dcgm-profiling-not-supported",
        ),
        (_EXPORTER.format("info", "Not collecting DCP metrics: Error getting supported metrics"), None),
    ],
)
def test_profiling_that_a_gpu_lacks_is_named(explained: Explained, log: str, entry: str | None) -> None:
    assert entry_of(explained(log)) == entry
