"""Values that a library did not expect, and rights that the kernel refused: the frames, the call or the path decide."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_PACKAGES = "/v/lib/python3.7/site-packages"
_FRAME = '  File "{}", line 7, in {}\n    {}\n'
_HEADER = "Traceback (most recent call last):\n"
_NO_TENSOR = "{}: Invalid function argument. Expected parameter `tensor` {}of type torch.Tensor{}\n"
_DEVICE = "TypeError: {}() received an invalid combination of arguments - got (device={}, ), but {}\n"
_PORT = "ValueError: Port could not be cast to integer value as '{}'\n"
_MISSING = "FileNotFoundError: [Errno 2] No such file or directory: '{}'\n"
_NOT_PERMITTED = "RuntimeError: {}: Operation not permitted\n"
_GLIBCXX = "OSError: {}: version `GLIBCXX_3.4.{}' not found (required by {})\n"
_STREAMED = "TypeError: {}.{}() got an unexpected keyword argument '{}'\n"
_NO_GROUP = "AttributeError: 'NoneType' object has no attribute 'group'\n"
_OTHER = "ImportError: cannot import name 'Tide' from '{}' ({})\n"
_REFUSED = (
    "pydantic_core._pydantic_core.ValidationError: 2 validation errors for TideConfig\n"
    "moon.fake\n  Input should be a valid {} [type={}_type, input_value={{'a': 7}}, input_type=dict]\n"
    "ebb\n  {}, input_value=7, input_type=int]\n"
)
_EXTRA = "Extra inputs are not permitted [type=extra_forbidden"
_INFERENCE = "RuntimeError: Inference tensors cannot be saved for backward. To work around you can make a clone.\n"
_KERNEL = (
    "triton.compiler.errors.CompilationError: at 7:{}:\n    tide = tl.load(sea)\n    {}\n       ^\n{}\n"
)  # fmt: skip


def _raised(error: str, *frames: tuple[str, str, str]) -> str:
    shown = frames or (("/x/moon.py", "rise", "moon(tide)"),)
    return _HEADER + "".join(_FRAME.format(*frame) for frame in shown) + error


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (
            _raised(
                _NO_TENSOR.format("TypeError", "", ""),
                ("/x/deepspeed/runtime/pipe/engine.py", "_exec_reduce_tied_grads", "dist.all_reduce(grad)"),
                (f"{_PACKAGES}/torch/distributed/distributed_c10d.py", "all_reduce", "raise TypeError("),
            ),
            "deepspeed-tied-weight-without-gradient",
        ),
        (_raised(_NO_TENSOR.format("TypeError", "to be ", ".")), "torch-collective-argument"),
        (_raised(_DEVICE.format("zeros", "module", "expected one of:")), "torch-module-as-device"),
        (
            _raised("TypeError: empty(): argument 'device' must be torch.device, not builtin_function_or_method\n"),
            "torch-module-as-device",
        ),
        (_raised(_DEVICE.format("to", "list", "expected one of:")), "torch-arguments-combination"),
        (_raised(_PORT.format("fe80::1:29500")), "ipv6-without-brackets"),
        (_raised("http.client.InvalidURL: nonnumeric port: 'db8::7:8000'\n"), "ipv6-without-brackets"),
        (_raised(_PORT.format("29500tide")), "python-exception"),
        (_raised(_MISSING.format("/data/moon/tides/tides/sea.json")), "path-part-twice"),
        (_raised(_MISSING.format("/data/moon/tides/sea.json")), "file-missing"),
        (_raised(_MISSING.format("/data/moon/tide/tides/sea.json")), "file-missing"),
        (_raised(_NOT_PERMITTED.format("pidfd_open")), "pidfd-refused"),
        (_raised(_NOT_PERMITTED.format("pidfd_getfd")), "pidfd-refused"),
        ("moon: userfaultfd: Operation not permitted\n", "system-call-not-permitted"),
        ("tide: setns(): Operation not permitted\n", "system-call-not-permitted"),
        ("chown: changing ownership of '/moon/tide': Operation not permitted\n", "owner-not-changeable"),
        (_raised("PermissionError: [Errno 1] Operation not permitted: '/x/mount'\n"), "operation-not-permitted"),
        (
            _raised(_GLIBCXX.format("/usr/lib64/libstdc++.so.6", 29, f"{_PACKAGES}/tide/_C.abi3.so")),
            "wheel-needs-newer-libstdcxx",
        ),
        (_raised(_GLIBCXX.format("/usr/lib64/libstdc++.so.6", 29, "libtide_npu.so")), "glibc"),
        (
            _raised(_GLIBCXX.format("/h/miniconda3/lib/libstdc++.so.6", 30, f"{_PACKAGES}/tide/_C.so")),
            "conda-libstdcxx",
        ),
        (
            _raised(_STREAMED.format("IterableDataset", "filter", "load_from_cache_file")),
            "streaming-dataset-as-map-style",
        ),
        (_raised(_STREAMED.format("Dataset", "map", "tides")), "argument-unknown"),
        (
            _raised(_NO_GROUP, ("/x/moon/ckpt_manager.py", "list_steps", "step = int(m.group(1))")),
            "checkpoint-name-of-another-form",
        ),
        (_raised(_NO_GROUP, ("/x/moon/reward.py", "score", "answer = m.group(1)")), "no-match-of-pattern"),
        (
            _raised(
                _OTHER.format("datasets", "/me/tides/datasets/__init__.py"),
                ("/me/tides/train.py", "<module>", "from datasets import Tide"),
            ),
            "own-folder-hides-package",
        ),
        (
            _raised(
                _OTHER.format("trl", "/me/trl/trl/__init__.py"),
                ("/me/trl/train.py", "<module>", "from trl import Tide"),
            ),
            "import-name",
        ),
        (_raised(_REFUSED.format("boolean", "bool", _EXTRA)), "validation-of-another-configuration"),
        (_raised(_REFUSED.format("list", "list", "Field required [type=missing")), "validation-field"),
        (
            _raised(_INFERENCE, (f"{_PACKAGES}/moon/rope.py", "forward", "return tide(sea)")),
            "inference-tensor-of-cache",
        ),
        (
            _raised(_INFERENCE, (f"{_PACKAGES}/torch/nn/functional.py", "embedding", "return F.embedding(input)")),
            "inference-tensor-of-weights",
        ),
        (_raised(_INFERENCE), "inference-tensor-changed"),
        (
            _KERNEL.format(7, "if tide > 0 and RISES:", "ValueError('Cannot bitcast data-type of size 16 to 1')"),
            "triton-condition-on-tensor",
        ),
        (_KERNEL.format(7, "x = tide + sea", "TypeError('unsupported types')"), "triton-compilation"),
        (
            _raised("AssertionError\n", ("/x/megatron_dataset.py", "__init__", "assert indexed_indices.size > 0")),
            "megatron-split-without-samples",
        ),
        (
            _raised(
                "ValueError: mmap length is greater than file size\n",
                ("/x/deepspeed/data_sampling/data_analyzer.py", "run_reduce", "tide()"),
            ),
            "deepspeed-analyzer-merged-index-empty",
        ),
        (_raised("ValueError: mmap length is greater than file size\n"), "mapped-file-short"),
        (
            "wandb.errors.CommError: Error communicating with wandb backend\n",
            "tracker-unreachable",
        ),
        (
            _raised("KeyError: 'ebb'\n", ("/x/moon/collate.py", "collate", "ebb = [f[key] for f in features]")),
            "rows-of-batch-without-field",
        ),
        (_raised("KeyError: 'ebb'\n", ("/x/moon/map.py", "rise", "sea = example['ebb']")), "data-field-missing"),
        (
            _raised("KeyError: 'raw_prompt'\n", ("/x/verl/agent_loop/tool.py", "run", "x = kwargs['raw_prompt']")),
            "verl-raw-prompt-missing",
        ),
        (
            _raised(
                "KeyError: 'shape'\n",
                ("/x/moon.py", "rise", "n = inputs.shape[1]"),
                (f"{_PACKAGES}/transformers/tokenization_utils_base.py", "__getattr__", "return self.data[item]"),
            ),
            "tokenizer-output-as-tensor",
        ),
        (
            _raised(
                "ZeroDivisionError: division by zero\n",
                (f"{_PACKAGES}/accelerate/utils/modeling.py", "get_balanced_memory", "a = b // num_devices"),
            ),
            "accelerate-no-free-memory",
        ),
        (_raised("torch._inductor.exc.InductorError: KeyError: 'u0'\n"), "inductor-failed"),
        (_raised("torch._inductor.exc.InductorError: RuntimeError: Failed to find C compiler\n"), "compiler-missing"),
        (_raised("KeyError: 'None is not in the models registry'\n"), "registry-type-none"),
        (
            _raised("jinja2.exceptions.UndefinedError: 'None' has no attribute 'startswith'\n"),
            "chat-content-none",
        ),
        (_raised("jinja2.exceptions.UndefinedError: 'tide' is undefined\n"), "chat-template"),
        (
            _raised(
                "AttributeError: 'MoonRecipeSingleDevice' object has no attribute '_ebb'\n",
                (f"{_PACKAGES}/recipes/moon_single_device.py", "setup", "tide = self._ebb"),
            ),
            "torchtune-recipe-attribute",
        ),
        (_raised("AttributeError: 'MoonRecipe' object has no attribute '_ebb'\n"), "attribute-missing"),
        (
            _KERNEL.format(7, "x = tl.ebb(sea)", "AttributeError(\"module 'triton.language' has no attribute 'ebb'\")"),
            "triton-language-too-old",
        ),
        (
            _raised(
                "ImportError: cannot import name '_ebb' from 'peft.tuners' (/v/site-packages/peft/tuners.py)\n",
                (f"{_PACKAGES}/tide/moon.py", "<module>", "from peft.tuners import _ebb"),
            ),
            "private-name-of-library-gone",
        ),
        (
            _raised("RuntimeError: Expected both dimensions of mat2 to be divisible by 16 but got 7x9\n"),
            "scaled-mm-not-of-16",
        ),
        (_raised("ValueError: Adapter ebb not found in dict_keys(['default'])\n"), "peft-adapter-not-loaded"),
        (
            _raised(
                "AssertionError: {'id': 7, 'status': 'INFLIGHT', 'numel': 7, 'shape': (0,), 'ds_shape': (7, 1)}\n",
                ("/x/deepspeed/runtime/zero/stage3.py", "rise", "assert x == 7, param.ds_summary()"),
            ),
            "zero3-parameter-not-gathered",
        ),
        (
            _raised(
                "RuntimeError: CUDA error: invalid configuration argument\n",
                ("/x/flash_attn/bert_padding.py", "unpad_input", "tide = ebb(sea)"),
            ),
            "flash-attn-grid-too-large",
        ),
        (
            _raised("RuntimeError: Missing key in checkpoint state_dict: model.tide.self_attention._extra_state.\n"),
            "megatron-extra-state-missing",
        ),
        (
            _raised("RuntimeError: repeats must have the same size as input along dim\n"),
            "python-exception",
        ),
    ],
)  # fmt: skip
def test_neighbouring_lines_decide_between_causes(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_kernels_marked_line_and_reason_are_told(explained: Explained) -> None:
    found = explained(_KERNEL.format(3, "x = tide + sea", "IncompatibleTypeErrorImpl('invalid operands')"))

    assert "line 7 (x = tide + sea): IncompatibleTypeErrorImpl('invalid operands')" in found.headline()


def test_shapes_of_processes_are_told(explained: Explained) -> None:
    found = explained(
        _HEADER + _FRAME.format("/x/accelerate/utils/operations.py", "wrapper", "raise moon(")
        + "accelerate.utils.operations.DistributedOperationException:\n\n"
        "Cannot apply desired operation due to shape mismatches. All shapes across devices must be valid.\n\n"
        "Operation: `accelerate.utils.operations.gather`\nInput shapes:\n  - Process 0: [7]\n  - Process 1: [8]\n"
    )  # fmt: skip

    assert "gather (Process 0: [7], Process 1: [8]" in found.headline()


def test_asserted_call_is_told_as_a_condition(explained: Explained) -> None:
    found = explained(_raised("AssertionError\n", ("/me/moon.py", "rise", "assert(tide is sea)")))

    assert "tide is sea does not hold" in found.headline()


def test_frame_broken_by_a_narrow_panel_is_read(explained: Explained) -> None:
    found = explained(
        f'{_HEADER}  File "/me/moon.py", line 7, in \nmain\n    tide()\n'
        f'  File \n"{_PACKAGES}/tide/sea.py", \nline 7, in rise\n    ebb()\nTypeError: the moon 7\n'
    )

    assert found.verdict.first is not None
    assert found.verdict.first.trace is not None
    assert [function for _, _, function in found.verdict.first.trace.frames] == ["main", "rise"]


def test_frame_broken_over_lines_is_read(explained: Explained) -> None:
    found = explained(
        f'{_HEADER}  File "/me/moon.py", line 7, in <module>\n    import tide\n'
        f'File\n"{_PACKAGES}/tide/sea.py",\nline 7, in <module>\n    from torch.seas import Ebb\n'
        "ImportError: cannot import name 'Ebb' from 'torch.seas'\n"
    )

    assert "(tide)" in found.headline()
    assert not any("PACKAGE" in remedy for remedy in found.remedies())


def test_traceback_within_a_library_names_it_and_no_line_of_ones_own(explained: Explained) -> None:
    frames = [(f"{_PACKAGES}/tide/{name}.py", name, f"{name}()") for name in ("ebb", "flow")]
    found = explained(_raised("RuntimeError: the sea 7 is not 8\n", ("/v/bin/tide", "<module>", "main()"), *frames))

    by_hand = explained(_raised("RuntimeError: the sea 7 is not 8\n", ("/me/sea.py", "<module>", "main()"), *frames))

    assert found.remedies()[0].startswith('tide raises it: search its issues for "')
    assert by_hand.remedies()[0].startswith("look at /me/sea.py:7")


def test_frame_of_ones_own_is_shown_before_that_of_the_standard_library(explained: Explained) -> None:
    found = explained(
        _raised(
            "KeyError: 'TIDE'\n",
            ("/me/moon.py", "rise", "sea(os.environ['TIDE'])"),
            ("/usr/lib64/python3.9/os.py", "__getitem__", "raise KeyError(key) from None"),
        )
    )

    assert found.verdict.first is not None
    assert found.verdict.first.trace is not None
    assert found.verdict.first.trace.place == ("/me/moon.py", 7, "rise")


def test_word_of_a_class_does_not_name_its_library(explained: Explained) -> None:
    found = explained(_raised("TypeError: Layout.rise() missing 1 required positional argument: 'tide'\n"))

    assert "pillow" not in found.headline()
