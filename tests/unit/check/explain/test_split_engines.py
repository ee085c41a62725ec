"""Failures of serving engines, and of what they share with training, with the same words and another cause."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]


def _raised(error: str, file: str = "/x/moon.py", function: str = "rise", code: str = "tide()") -> str:
    return f'Traceback (most recent call last):\n  File "{file}", line 7, in {function}\n    {code}\n{error}\n'


_TOO_FEW = "AssertionError: local_world_size (14) must be less than or equal to the number of visible devices ({})."
_STORAGE = (
    'RuntimeError: Attempted to set the storage of a tensor on device "{}" to a storage on different device "{}".  '
    "This is no longer allowed; the devices must match."
)
_NO_EXPERTS = "ValueError: num_moe_experts must be non None to use expert-parallel."
_UNREACHABLE = "OSError: We couldn't connect to 'https://huggingface.co' to load the files"
_OOM = (
    "RuntimeError: NPU out of memory. Tried to allocate 7.00 GiB (NPU 7; 28.00 GiB total capacity; 14.00 GiB already "
    "allocated; 3.00 GiB free; 14.00 GiB reserved in total by PyTorch)"
)
_REQUIRED = "ImportError: moon<=7.0 is required for a normal functioning of this module, but found moon==8.0."
_CONFLICT = (
    "ERROR: Cannot install sea and moon because these package versions have conflicting dependencies.\n"
    "The conflict is caused by:\n    moon 7 depends on tide==2.1.0\n    sea 7 depends on tide=={}\n"
)
_NO_OPEN = "{}: cannot open shared object file: No such file or directory"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_TOO_FEW.format(7), "tensor-parallel-over-devices"),
        ("ray::RayWorkerWrapper.rise()\n" + _TOO_FEW.format(7), "visible-too-few-ray"),
        ("ray::RayWorkerWrapper.rise()\n" + _TOO_FEW.format(0), "engine-sees-no-device"),
        (_raised(_STORAGE.format("npu:4", "npu:0")), "storage-device"),
        (_raised(_STORAGE.format("cpu", "npu:0")), "storage-of-cpu"),
        (_raised(_STORAGE.format("cpu", "meta")), "storage-device"),
        (_raised(_NO_EXPERTS), "experts-not-set"),
        (_raised(_NO_EXPERTS, function="_configure_image_encoder"), "experts-of-encoder"),
        (_raised(_UNREACHABLE), "hub-unreachable"),
        (_raised(_UNREACHABLE, "/x/vllm/config.py"), "hub-unreachable-vllm"),
        (_raised(_OOM), "npu-oom"),
        (_raised(_OOM, "/x/vllm/worker.py"), "serving-memory"),
        (_raised(_OOM, "/x/mindie_llm/tide.py"), "mindie-memory"),
        (_raised(_REQUIRED), "requirement-unsatisfied"),
        (_raised(_REQUIRED) + "or set `DISABLE_VERSION_CHECK=1` to skip this check.\n", "llamafactory-requirement"),
        (_CONFLICT.format("2.2.0"), "pip-conflict"),
        (_CONFLICT.format("2.1.0+cpu"), "pip-conflict-local-version"),
        (_raised("OSError: " + _NO_OPEN.format("libtide.so")), "shared-object"),
        (_raised("OSError: " + _NO_OPEN.format("/x/moon/libtide.so")), "shared-object-at-path"),
        (_raised("OSError: " + _NO_OPEN.format("/x/nnal/atb/libatb.so")), "libatb-missing"),
        ("/x/moon: error while loading shared libraries: " + _NO_OPEN.format("libtide.so"), "shared-object"),
        (_raised("AttributeError: 'MoonConfig' object has no attribute 'hidden_size'"), "config-attribute"),
        (_raised("AttributeError: 'MoonVLConfig' object has no attribute 'hidden_size'"), "config-text-part"),
        (_raised("AttributeError: 'MoonVLConfig' object has no attribute 'tide'"), "config-attribute"),
        (_raised("ModuleNotFoundError: No module named 'vllm_ascend'"), "vllm-ascend-missing"),
        (
            _raised("ModuleNotFoundError: No module named 'vllm_ascend'", "/x/trl/import_utils.py"),
            "vllm-ascend-of-trl",
        ),
        (_raised("AttributeError: 'device' object has no attribute 'index'"), "attribute-missing"),
        (
            _raised("AttributeError: 'device' object has no attribute 'index'", "/x/deepspeed/comm/torch.py"),
            "deepspeed-device-id",
        ),
        (_raised("KeyError: 7"), "key-missing"),
        (_raised("KeyError: 7", code="graph_params.events[num_tokens].append(7)"), "engine-token-count"),
        (_raised("AssertionError", code="assert input_tensor.shape[0] % world_size == 0"), "engine-token-count"),
        (_raised("AssertionError", code="assert tide.shape[0] % 7 == 0"), "python-exception"),
        (_raised("RuntimeError: shape '[7, -1]' is invalid for input of size 768"), "shape-mismatch"),
        (
            _raised("RuntimeError: shape '[7, -1]' is invalid for input of size 768", code="cos.view(num_tokens, -1)"),
            "engine-token-count",
        ),
        (
            "BackendCompilerFailed: backend='inductor' raised:\nKeyError: x2 + 7*y1 of the moon\n",
            "dynamo-backend-failed",
        ),
        (
            '  File "/x/torch_npu/_inductor/tide.py", line 7, in rise\n    moon()\n'
            "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nKeyError: x2 + 7*y1 of the moon\n",
            "npu-inductor-failed",
        ),
    ],
)
def test_same_words_with_another_cause(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_text_part_is_asked_of_the_package_that_reads_the_configuration(explained: Explained) -> None:
    explanation = explained(
        'Traceback (most recent call last):\n  File "/x/site-packages/moon/tide.py", line 7, in rise\n'
        "    tides = config.hidden_size\n"
        '  File "/x/site-packages/transformers/configuration_utils.py", line 7, in __getattribute__\n'
        "    return super().__getattribute__(key)\n"
        "AttributeError: 'MoonVLConfig' object has no attribute 'hidden_size'\n"
    )

    assert explanation.remedies()[0].startswith("code of a package (moon)")


def test_commit_that_vllm_does_not_know_is_not_a_failure(explained: Explained) -> None:
    said = "No module named 'vllm._version'\n  from vllm.version import __version__ as MOON\nINFO: the tide rises\n"

    assert explained(said).is_healthy
    assert entry_of(explained(said + _raised("OSError: " + _NO_OPEN.format("libatb.so")))) == "libatb-missing"


def test_buffer_that_hccl_needs_is_told_in_megabytes(explained: Explained) -> None:
    explanation = explained(
        "EZ9999: Inner Error!\nEZ9999[PID: 777] 2025-12-23-07:36:19.237.396 (EZ9999):  HCCL_BUFFSIZE is too SMALL, "
        "maxBs = 7, k = 8, NEEDED_HCCL_BUFFSIZE(((maxBs * tide * 2) + (maxBs * moon)) * 2) = 777MB, "
        "HCCL_BUFFSIZE=200MB.[FUNC:Tide][FILE:tide.cc][LINE:7]\n"
    )

    assert "777 MB" in explanation.headline() and "200 MB" in explanation.headline()
    assert explanation.remedies()[0].startswith("export HCCL_BUFFSIZE=777")


def test_last_of_several_compiled_ranges_is_the_limit(explained: Explained) -> None:
    explanation = explained(_raised("AssertionError: Shape: 777 out of considered ranges: [(1, 64), (65, 512)]"))

    assert "777 tokens" in explanation.headline() and "at most 512" in explanation.headline()


def test_sizes_of_collectives_that_differ_are_told(explained: Explained) -> None:
    explanation = explained(
        "  what():  [enforce fail at /x/gloo/transport/tcp/pair.cc:7]\nop.preamble.length <= op.nbytes. 28 vs 14.\n"
        "Received data size doesn't match expected size.\n"
    )

    assert "28 bytes" in explanation.headline() and "14" in explanation.headline()


@pytest.mark.parametrize(
    ("said", "entry"),
    [("characters tjgg9", "llama-ggml-file"), ("characters 'w'", "llama-magic"), ("characters vers", "llama-magic")],
)
def test_file_of_another_format_is_told_however_its_beginning_is_quoted(
    explained: Explained, said: str, entry: str
) -> None:
    failed = "llama_model_quantize: failed to quantize: llama_model_loader: failed to load model from ./moon.bin\n"

    assert entry_of(explained(f"gguf_init_from_file: invalid magic {said}\n{failed}")) == entry
