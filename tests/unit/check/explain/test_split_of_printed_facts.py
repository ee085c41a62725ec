"""Causes that a version, a system or a command in the log tells apart from others with the same message."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_TRACE = 'Traceback (most recent call last):\n  File "{file}", line 7, in {function}\n    {code}\n{error}\n'
_LIBRARY = "ImportError: {}: cannot open shared object file: No such file or directory"
_SITE = "/v/lib/python3.11/site-packages"
_MERGED = "AttributeError: 'MoonForCausalLM' object has no attribute 'merge_and_unload'"
_CRASH = (
    "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f77 (most recent call first):\n"
    '  File "<frozen importlib._bootstrap>", line 241 in _call_with_frames_removed\n'
    '  File "<frozen importlib._bootstrap_external>", line 1176 in create_module\n'
    '  File "/x/site-packages/torch/__init__.py", line 7 in <module>\n'
)


def _raised(error: str, file: str = f"{_SITE}/vllm/tide.py", function: str = "rise", code: str = "rise(tide)") -> str:
    return _TRACE.format(file=file, function=function, code=code, error=error)


_LINEAR = {"file": f"{_SITE}/torch/nn/modules/linear.py", "function": "forward", "code": "return F.linear(input)"}
_HALF = "RuntimeError: expected scalar type Half but found Float"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        # The CUDA of torch, and that of the library.
        ("python -m vllm torch2.7.7+cuda118\n" + _raised(_LIBRARY.format("libcudart.so.12")),
         "cuda-12-beside-torch-of-11"),
        ("torch==2.7.7+cu128\n" + _raised(_LIBRARY.format("libcublas.so.13")), "cuda-13-beside-torch-of-12"),
        ("torch==2.7.7+cu121\n" + _raised(_LIBRARY.format("libcudart.so.12")), "cuda-runtime-of-other-number"),
        (_raised(_LIBRARY.format("libcudart.so.12")), "cuda-runtime-of-other-number"),
        # The extension that was not built.
        (_LIBRARY.format("/h/.cache/torch_extensions/py310_cu117/fused_lion/fused_lion.so") + "\n",
         "deepspeed-extension-not-built"),
        (_LIBRARY.format("/h/.cache/torch_extensions/py310_cu117/moon_ext/moon_ext.so") + "\n", "extension-not-built"),
        # WSL.
        ("Windows 10 WSL Ubuntu 22.04\nLoading moon...\nKilled\n", "killed-on-wsl"),
        ("Ubuntu 22.04\nLoading moon...\nKilled\n", "killed"),
        # The script.
        (f"{_MERGED}\n\npython merge_tide.py \\\n--lora_model moon/tide\n", "peft-method-in-merge-script"),
        (_raised(_MERGED, "/x/tide.py"), "peft-method-of-plain-model"),
        # Libraries that were loaded before.
        (f"TensorFlow version 2.7.0 available.\n{_CRASH}", "crash-at-import-beside-tensorflow"),
        (_CRASH, "crash-at-import"),
        # The message before the end.
        ("INFO:     127.0.0.1:7 - GET /v1/models 200 OK\nAborted (core dumped)\n", "abort-without-message"),
        # The layer.
        (r"B:\lib\site-packages\torch\nn\modules\linear.py:7 in forward" f"\n7 │ rise()\n{_HALF}\n",
         "dtypes-of-layer-and-input"),
        (_raised(_HALF, "/x/tide.py"), "dtype-mix"),
        (_raised("RuntimeError: expected scalar type Long but found Float", **_LINEAR), "integers-expected"),
    ],
)  # fmt: skip
def test_cause_is_told_by_what_the_log_prints_besides(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_command_builds_the_extension_of_the_message(explained: Explained) -> None:
    log = _LIBRARY.format("/h/.cache/torch_extensions/py310_cu117/fused_lion/fused_lion.so") + "\n"

    assert "ALL_OPS['fused_lion'].load()" in explained(log).remedies()[0]


def test_vllm_without_sign_of_an_npu_is_told_of_gpus_first(explained: Explained) -> None:
    explanation = explained(_raised("RuntimeError: Failed to infer device type"))

    assert entry_of(explanation) == "vllm-no-device"
    assert explanation.remedies()[1].startswith("NVIDIA: ")
    assert "remove the first with pip" in explanation.remedies()[1]


def test_processor_that_is_not_found_is_loaded_alone_first(explained: Explained) -> None:
    explanation = explained("ValueError: Processor was not found, please check and update your model file.\n")

    assert "AutoProcessor.from_pretrained" in explanation.remedies()[0]
    assert "torchaudio" in explanation.remedies()[0]


_SYMBOL = "ImportError: {}: undefined symbol: _ZN3c104cuda9SetDeviceEi"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_raised(_SYMBOL.format(f"{_SITE}/vllm/_C.abi3.so")), "pinned-package-of-other-torch"),
        (_SYMBOL.format("/opt/dist-packages/torchaudio/lib/libtorchaudio.so") + "\n", "pinned-package-of-other-torch"),
        (_raised(_SYMBOL.format(f"{_SITE}/flash_attn_2_cuda.so")), "symbol-of-torch"),
        ("Error: pull model manifest: 412: The model that is pulled requires a newer version of Ollama.\n",
         "ollama-older-than-model"),
        ("Error: pull model manifest: file does not exist\n", "ollama-name-unknown"),
        ('Error: pull model manifest: Get "https://x/v2": dial tcp: i/o timeout\n', "ollama-registry-unreachable"),
        (_raised("RuntimeError: CUDA error: invalid device ordinal"), "cuda-invalid-device"),
        # Data, and what else is preprocessed.
        (_raised("ValueError: tide of row 7: ''", "/x/moon.py", "preprocess_rows"), "value-in-data"),
        (_raised("ValueError: tides must be positive", f"{_SITE}/peft/moon.py", "_preprocess_coeffs"), "value-refused"),
    ],
)  # fmt: skip
def test_first_remedy_is_for_the_package_or_server_of_the_message(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_requirement_of_the_message_is_in_the_command(explained: Explained) -> None:
    said = "ImportError: moon>=0.4,<=0.8 is required for a normal functioning of this module, but found moon==0.9.\n"

    assert "pip install --dry-run 'moon>=0.4,<=0.8'" in explained(said).remedies()[0]
    assert explained(said).headline() == "the framework wants moon>=0.4,<=0.8 and finds moon==0.9"
    unsafe = said.replace("moon>=0.4", "moon>=0.4;rm")
    assert ";rm" not in explained(unsafe).remedies()[0]
