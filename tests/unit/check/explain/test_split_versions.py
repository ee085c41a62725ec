"""Packages that do not fit each other, files that are not there: the frame, the path or a line beside decides."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_TRACE = 'Traceback (most recent call last):\n  File "{file}", line 7, in rise\n    {code}\n{error}\n'
_PACKAGES = "/v/lib/python3.7/site-packages"
_UNKNOWN = "TypeError: Trainer.__init__() got an unexpected keyword argument '{}'"
_NO_NAME = "NameError: name 'Tide' is not defined"
_OLD_NAME = (
    "ImportError: cannot import name '{}' from 'transformers.modeling_moon' ({}/transformers/modeling_moon.py)\n"
)
_NO_FILE = "FileNotFoundError: [Errno 2] No such file or directory: '{}'\n"
_NO_MODULE = "ModuleNotFoundError: No module named 'moon.tide.ebb'"
_PANEL = (
    "AttributeError                            Traceback (most recent call last)\n"
    "/x/transformers_modules/moon.py in rise(self)\n"
    "   1291             tide = 7\n"
    "-> 1292             tide = past_key_values.{}()\n"
)
_XFORMERS = (
    "xFormers can't load C++/CUDA extensions. xFormers was built for:\n"
    "    PyTorch 2.7.7+cu777 with CUDA 7777 (you have 2.8.8+cu777)\n"
)
_CHILD = (
    'Traceback (most recent call last):\n  File "/v/accelerate/commands/launch.py", line 7, in simple_launcher\n'
    "    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)\n"
    "subprocess.CalledProcessError: Command '['python', 'moon.py']' {}.\n"
)
_LOADS = "Loading checkpoint shards:  {}%|  | {}/14\n"


def _raised(error: str, file: str = "/x/moon.py", code: str = "moon(tide)") -> str:
    return _TRACE.format(file=file, code=code, error=error)


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_raised(_UNKNOWN.format("tokenizer"), f"{_PACKAGES}/trl/trainer/moon.py"), "trl-passes-tokenizer"),
        (_raised(_UNKNOWN.format("tokenizer")), "api-renamed"),
        (_raised(_UNKNOWN.format("processing_class")), "api-added"),
        (_raised(_NO_NAME, f"{_PACKAGES}/unsloth/kernels/moon.py"), "name-missing-in-unsloth"),
        (_raised(_NO_NAME, "/home/me/unsloth/moon.py"), "name-undefined"),
        (_OLD_NAME.format("TideModel", "/e/transformers-2.7.0-py3.7.egg"), "transformers-before-4-too-old"),
        (_OLD_NAME.format("TIDE_ARCHIVE_MAP", "/e/transformers-3.7.0-py3.7.egg"), "transformers-name-gone"),
        (_OLD_NAME.format("TideModel", "/e"), "transformers-name-gone"),
        (_NO_FILE.format(f"{_PACKAGES}/moon/tide/height.txt"), "package-file-missing"),
        (_NO_FILE.format("/data/moon/height.txt"), "file-missing"),
        (_raised(_NO_MODULE, "/home/me/moon/scripts/sea.py"), "module-not-in-checkout"),
        (
            _raised("ModuleNotFoundError: No module named 'torch_npu._C'", "/me/torch_npu/sea.py"),
            "torch-npu-source-imported",
        ),
        (_raised(_NO_MODULE, "/home/me/sun/sea.py"), "module-of-installed-package"),
        (_raised(_NO_MODULE, f"{_PACKAGES}/moon/sea.py"), "package-lacks-own-part"),
        ("AttributeError: 'DynamicCache' object has no attribute 'get_max_length'\n", "cache-without-max-length"),
        ("AttributeError: 'DynamicCache' object has no attribute 'seen_tokens'\n", "api-renamed"),
        ("AttributeError: 'DynamicCache' object has no attribute 'moons'\n", "cache-class-changed"),
        (_PANEL.format("get_max_length"), "cache-without-max-length-cut-off"),
        (_PANEL.format("rise"), "python-exception"),
        (
            _raised("TypeError: Accelerator.unwrap_model() got an unexpected keyword argument 'keep_tide'"),
            "accelerate-older-than-code",
        ),
        ("ImportError: cannot import name 'is_moon_available' from 'accelerate.utils'\n", "accelerate-older-than-code"),
        ("ImportError: cannot import name 'is_tpu_available' from 'accelerate.utils'\n", "api-renamed"),
        ("Please install xformers separately first.\n" + _XFORMERS, "xformers-needed-for-other-torch"),
        (_XFORMERS, None),
        (_CHILD.format("died with <Signals.SIGKILL: 9>"), "sigkill"),
        (_CHILD.format("died with <Signals.SIGSEGV: 11>"), "launcher-child-signal"),
        (_CHILD.format("returned non-zero exit status 7"), "launcher-child"),
        (
            _LOADS.format(7, 1) + _CHILD.format("died with <Signals.SIGKILL: 9>"),
            "sigkill-while-weights-load",
        ),
        (
            _LOADS.format(7, 1) + _LOADS.format(100, 14) + _CHILD.format("died with <Signals.SIGKILL: 9>"),
            "sigkill",
        ),
        (
            _raised("TypeError: __init__() got an unexpected keyword argument 'enable_lora'", "/v/peft/config.py"),
            "adapter-of-older-peft",
        ),
        (
            _raised("TypeError: __init__() got an unexpected keyword argument 'tide'", "/v/peft/config.py"),
            "adapter-of-newer-peft",
        ),
        (
            "ValueError: Cannot instantiate this tokenizer from a slow version. If it's based on sentencepiece, make "
            "sure you have sentencepiece installed.\n",
            "fast-tokenizer-needs-sentencepiece",
        ),
        ("AttributeError: type object 'PreTrainedModel' has no attribute 'generate'\n", "api-removed"),
        ("AttributeError: type object 'PreTrainedModel' has no attribute 'tide'\n", "attribute-missing"),
        ("moon.c:7:10: fatal error: Python.h: No such file or directory\n", "python-header-missing"),
    ],
)
def test_cause_is_told_by_what_stands_beside_the_words(explained: Explained, log: str, entry: str | None) -> None:
    assert entry_of(explained(log)) == entry


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (
            "ValueError: `num_tides` must be divisible by `num_shards` (got `num_tides`: 77 and `num_shards`: 4\n",
            ("num_tides is 77", "4 shards"),
        ),
        (
            "ValueError: `num_tides` must be divisible by `moons` (got `num_tides`: 77 and `moons`: 4\n",
            ("`num_tides` must be divisible by `moons` (got `num_tides`: 77 and `moons`: 4",),
        ),
        (_raised(_NO_MODULE, "/home/me/moon/scripts/sea.py"), ("/home/me/moon runs", "tide.ebb")),
        (_OLD_NAME.format("TideModel", "/e/transformers-2.7.0-py3.7.egg"), ("2.7.0", "no TideModel yet")),
        (_raised(_NO_NAME, f"{_PACKAGES}/moon/tide.py"), ("in the code of moon",)),
        (_PANEL.format("rise"), ("tide = past_key_values.rise()",)),
        ("Please install xformers separately first.\n" + _XFORMERS, ("2.7.7+cu777", "2.8.8+cu777")),
        (
            "Failed to load JSON from file '/moon/sea.jsonl' with error x: JSON parse error: Missing a tide. in row 7",
            ("Missing a tide in row 7", "/moon/sea.jsonl"),
        ),
    ],
)
def test_headline_has_the_values_of_the_log(explained: Explained, log: str, words: tuple[str, ...]) -> None:
    headline = explained(log).headline()

    assert [each for each in words if each not in headline] == []


def test_version_that_the_headline_has_is_not_repeated(explained: Explained) -> None:
    log = _OLD_NAME.format("TideModel", "/e/transformers-2.7.0-py3.7.egg")

    assert explained(log).headline().count("2.7.0") == 1


_NO_SPACE = (
    "Fetching 7 files:   0%|  | 0/7 [00:00<?, ?it/s]/v/huggingface_hub/file_download.py:7: UserWarning: Not enough "
    "free disk space to download the file. The expected file size is: 777.00 MB. The target location /moon/blobs only "
    "has 7.70 MB free disk space.\n  warnings.warn(\n"
)


def test_cache_that_is_too_small_is_told_where_the_log_ends_with_it(explained: Explained) -> None:
    explanation = explained(_NO_SPACE + "README.md: 100%\n" * 7)

    assert entry_of(explanation) == "hub-disk-space"
    assert "777.00 MB" in explanation.headline()
    assert explained(_NO_SPACE + "step 7 loss 1.7\n" * 30).is_healthy


def test_conditions_count_for_the_summary_of_the_launcher(explained: Explained) -> None:
    summary = (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n====\nmoon.py FAILED\n----\n"
        "Root Cause (first observed failure):\n[0]:\n  host      : node7\n  rank      : 3 (local_rank: 3)\n"
        "  exitcode  : -9 (pid: 77)\n  traceback : Signal 9 (SIGKILL) received by PID 77\n====\n"
    )

    assert entry_of(explained(summary)) == "sigkill"
    assert entry_of(explained(_LOADS.format(7, 1) + summary)) == "sigkill-while-weights-load"
    assert explained(_LOADS.format(7, 1) + summary).verdict.rank == 3
