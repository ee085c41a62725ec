"""Failures around models, adapters and data sets with the same words and another cause, told apart by frame or line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_TRACE = 'Traceback (most recent call last):\n  File "{file}", line 7, in {function}\n    {code}\n{error}\n'
_CUT = 'Traceback (most recent call last):\n  File "/x/moon.py", line 7, in rise\n    '
_ARGUMENT = "TypeError: TideConfig.__init__() got an unexpected keyword argument '{}'"
_PACKED = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (7x768 and 1x294912)"
_GZIP = "UnicodeDecodeError: 'utf-8' codec can't decode byte 0x8b in position 1: invalid start byte"
_NAN = "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"
_DEVICES = "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, {}!"
_SIZES = "RuntimeError: The size of tensor a (77) must match the size of tensor b (70) at non-singleton dimension 3"
_NONE = "AttributeError: 'NoneType' object has no attribute 'get'"
_SHARED = "RuntimeError: Some tensors share memory, this will lead to duplicate memory on disk: [{{{}}}]"
_INTEGER = "RuntimeError: Only Tensors of floating point and complex dtype can require gradients"
_FORKED = "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, use spawn"
_BAD_ADDRESS = "OSError: [Errno 14] Bad address"
_NO_GROUPS = "AssertionError: model parallel group is not initialized"
_FAIRSCALE = "/x/fairscale/nn/model_parallel/layers.py"
_LLAMA = (
    f'moon()\n  File "/x/site-packages/llama/model.py", line 7, in tide\n    t()\n  File "{_FAIRSCALE}", line 7, in t'
)
_BAR = "Loading checkpoint shards: {share:3}%|     | {done}/7 [00:00<?, ?it/s]\n"
_KEY = 'Exception: Error converting the state dict. Found unexpected key: "{}". Please look at it.\n'
_CODE = "ValueError: The repository for a/tide contains custom code which must be executed to correctly load the {}."
_PIP = "ERROR: Could not find a version that satisfies the requirement {} (from versions: 2.1.0, 2.5.0)\n"


def _raised(error: str, code: str = "moon(tide)", file: str = "/x/moon.py", function: str = "rise") -> str:
    return _TRACE.format(file=file, function=function, code=code, error=error)


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (
            _raised("AttributeError: 'list' object has no attribute 'get_seq_length'"),
            "plain-cache-in-newer-transformers",
        ),
        (_raised("AttributeError: 'list' object has no attribute 'tides'"), "several-values-attribute"),
        (_raised(_ARGUMENT.format("dtype"), file="/x/peft/peft_model.py"), "loading-argument-in-adapter-config"),
        (_raised(_ARGUMENT.format("tide"), file="/x/peft/peft_model.py"), "adapter-of-newer-peft"),
        (_raised(_PACKED, file="/x/peft/tuners/lora.py", function="forward"), "lora-of-older-peft-on-packed-weight"),
        (_raised(_PACKED, file="/x/peft/tuners/lora/layer.py", function="forward"), "bitsandbytes-packed-weight"),
        (_raised(_NONE, 'if metadata.get("format") == "pt":'), "safetensors-without-metadata"),
        (_raised(_NONE, 'if moon.get("tide"):'), "none-used"),
        (_raised("ValueError: Feature type 'Tide' not found. Available: ['Value']"), "dataset-of-newer-datasets"),
        (_raised(_GZIP, file="/x/datasets/load.py", function="dataset_module_factory"), "gzip-of-dataset-script"),
        (_raised(_GZIP), "gzip-as-text"),
        ("moon.py --wbits 4 --load tide.pt\n" + _raised(_NAN, function="sample"), "generate-nan-of-quantised"),
        (_raised(_NAN, function="sample"), "generate-nan"),
        ("known: ['awq', 'gptq']\n" + _raised(_NAN, function="sample"), "generate-nan"),
        (
            _raised(_DEVICES.format("npu:1 and npu:0"), file="/x/accelerate/hooks.py", function="new_forward"),
            "devices-of-spread-model",
        ),
        (
            _raised(_DEVICES.format("npu:1 and cpu"), file="/x/accelerate/hooks.py", function="new_forward"),
            "device-mix-named",
        ),
        (_raised(_DEVICES.format("npu:1 and npu:0")), "mix-two-cards"),
        (_raised(_SIZES, "moon = moon + causal_mask"), "mask-of-other-length"),
        (_raised(_SIZES, "moon = moon + tide"), "shape-mismatch"),
        (_raised("ValueError: Can't merge qlora if loaded in 8bit"), "axolotl-qlora-quantisation"),
        (_raised("TypeError: must be real number, not NoneType", file="/x/mergekit/t.py"), "mergekit-weight-none"),
        (_raised("TypeError: must be real number, not NoneType"), "none-used"),
        (_raised("TypeError: must be real number, not str"), "operand-types"),
        (_raised("TypeError: expected str, bytes or os.PathLike object, not NoneType"), "path-option-none"),
        (_raised(_SHARED.format("'moon.embed_tokens.weight', 'lm_head.weight'")), "tied-head-saved-twice"),
        (_raised(_SHARED.format("'moon.weight', 'tide.weight'")), "shared-tensors"),
        (_raised(_INTEGER, file="/x/bitorch_engine/moon.py"), "integer-gradient-of-bitorch"),
        (_raised(_INTEGER), "integer-gradient"),
        (
            _raised(_FORKED, file="/x/accelerate/utils/launch.py", function="__call__"),
            "fork-after-device-in-notebook",
        ),
        (_raised(_FORKED, file="/tmp/ipykernel_7/moon.py"), "fork-after-npu"),
        (_raised(_FORKED), "fork-after-npu"),
        (
            _KEY.format("tok_embeddings.weight") + "  _component_: x.FullModelHFCheckpointer\n",
            "torchtune-meta-checkpoint-as-hf",
        ),
        (_KEY.format("tok_embeddings.weight"), "torchtune-checkpoint-format"),
        (
            _KEY.format("model.tide.weight") + "  _component_: x.FullModelHFCheckpointer\n",
            "torchtune-checkpoint-format",
        ),
        (_PIP.format("tide>=2.7.1; extra == 'moon' (from moon[tide])"), "pip-newer-than-index"),
        (_PIP.format("tide>=2.7,<3"), "pip-other-versions"),
        (_PIP.format("tide==2.3.1"), "pip-other-versions"),
        (
            _raised(_CODE.format("dataset")),
            "dataset-script-not-trusted",
        ),
        (
            _raised(_CODE.format("model")),
            "remote-code",
        ),
        (_raised("RuntimeError: context has already been set"), "start-method"),
        (
            "        An attempt has been made to start a new process before the\n        current process\n",
            "spawn-without-main-guard",
        ),
        (_raised("AttributeError: module 'distutils' has no attribute 'version'"), "distutils-version-by-setuptools"),
        (_raised("AttributeError: module 'distutils' has no attribute 'tide'"), "module-attribute"),
        (_raised("ModuleNotFoundError: No module named 'math_verify'"), "known-package-missing"),
    ],
)
def test_same_words_of_another_cause_are_told_apart(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_text_in_quotes_at_the_end_of_a_cut_log_is_the_message(explained: Explained) -> None:
    log = _CUT + '"Cannot re-initialize CUDA in forked subprocess. To u'

    assert entry_of(explained(log)) == "fork-after-npu"
    assert (
        "the tide is no longer"
        in explained(log.replace("Cannot re-initialize CUDA", "the tide is no longer")).headline()
    )


def test_line_of_code_with_a_short_text_is_not_the_message(explained: Explained) -> None:
    log = _CUT + '"tide": moon(7),'

    assert entry_of(explained(log)) == "traceback-cut-off"


def test_exception_without_a_traceback_counts(explained: Explained) -> None:
    assert (
        "the tide of moon 7 is not known"
        in explained("Exception: the tide of moon 7 is not known\nmoon: 7\n").headline()
    )


_STDERR = "2024-06-28 10:01:5{} | ERROR | stderr | {}\n"


def test_redirected_stderr_is_not_an_error_by_itself(explained: Explained) -> None:
    assert explained("".join(_STDERR.format(at, f"moon: step {at}") for at in range(4))).is_healthy


def test_exception_in_redirected_stderr_is_found_with_its_frame(explained: Explained) -> None:
    rows = _raised("ValueError: tide 7 is too high").splitlines()
    explanation = explained("".join(_STDERR.format(at, row) for at, row in enumerate(rows)))

    assert entry_of(explanation) == "python-exception"
    assert explanation.verdict.first is not None
    assert explanation.verdict.first.trace is not None
    assert explanation.verdict.first.trace.place == ("/x/moon.py", 7, "rise")
    assert explanation.verdict.echoes == ()


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_raised(_BAD_ADDRESS, file="vllm/kv/shared_offload_region.py"), "vllm-offload-region"),
        (_raised(_BAD_ADDRESS, file="vllm/kv/moon_region.py"), "python-exception"),
        (_raised(_NO_GROUPS, file=_FAIRSCALE), "fairscale-groups-missing"),
        (_raised(_NO_GROUPS, code=_LLAMA, file=_FAIRSCALE), "llama-package-mixed"),
        (_raised(_NO_GROUPS, file="megatron/mpu/initialize.py"), "parallel-state"),
        (_BAR.format(done=0, share=0) + "PS C:\\moon>\n", "ended-while-loading-shards"),
        (_BAR.format(done=2, share=28) + "\n(base) tide@moon:~/seas$ \n", "ended-while-loading-shards"),
        (_BAR.format(done=2, share=28) + "Killed\ntide@moon:~$ \n", "killed-while-weights-load"),
        (_BAR.format(done=7, share=100) + "PS C:\\moon>\n", None),
        (_BAR.format(done=2, share=28), None),
        (_BAR.format(done=0, share=0) + "step 1 loss 2.0\ntide@moon:~$ \n", None),
    ],
)
def test_loading_and_making_of_models_are_told_apart(explained: Explained, log: str, entry: str | None) -> None:
    assert entry_of(explained(log)) == entry


def test_region_that_shared_memory_has_no_room_for_is_named(explained: Explained) -> None:
    created = "INFO Created mmap file /dev/shm/vllm_offload_7.mmap (7.1 GB)\n"
    explanation = explained(created + _raised(_BAD_ADDRESS, file="/x/shared_offload_region.py"))

    assert "(7.1 GB)" in explanation.headline() and "/dev/shm/vllm_offload_7.mmap" in explanation.headline()
