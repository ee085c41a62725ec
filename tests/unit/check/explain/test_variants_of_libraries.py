"""Messages of libraries and command lines: the value at fault is named, and the direction only where the log has it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.facts.facts import of_message, statement, told

Explained = Callable[..., Explanation]


def _raised(file: str, function: str, code: str, exception: str) -> str:
    return f'Traceback (most recent call last):\n  File "{file}", line 7, in {function}\n    {code}\n{exception}\n'


_USAGE = "Usage: tide [OPTIONS] COMMAND [ARGS]...\nTry 'tide --help' for help.\n\n"
_NO_LOSS = (
    "ValueError: The model did not return a loss from the inputs, only the following keys: logits. For reference, the "
)
_TIED = "KeyError: 'lm_head.weight'"
_PADDED = (
    "You are attempting to perform batched generation with padding_side='right' this may lead to unexpected behaviour\n"
)
_NO_HELPERS = "ImportError: cannot import name 'helpers' from 'megatron.data' (/x/megatron/data/__init__.py)\n"
_RENAMED = "'/x/tmp-checkpoint-7' -> '/x/checkpoint-7'"
_PRODUCT = "RuntimeError: mat1 and mat2 shapes cannot be multiplied ({} and {})"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (f"{_USAGE}Error: No such command 'ebb'.\n", "command-without-subcommand"),
        ("╭─ Error ─────╮\n│ No such command 'ebb'. │\n╰─────╯\n", "subcommand-unknown"),
        ("moon | No such command 'ebb'.\n", "subcommand-unknown"),
        ("tide.py: error: unrecognized arguments: --moon 7\n", "argument-unrecognized"),
        ("tide.py: error: unrecognized arguments: --local-rank=0\n", "local-rank-with-dash"),
        (
            "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--local-rank=1']\n",
            "local-rank-unrecognized",
        ),
        ("tide.py: error: the following arguments are required: --moon\n", "argument-required"),
        ("tide: error: argument --moon: expected one argument\n", "argument-without-value"),
        (
            "ValueError: Some keys are not used by the HfArgumentParser: ['moon_len']\n",
            "hf-arguments-unknown",
        ),
        (_NO_LOSS + "inputs it received are input_ids,attention_mask\n", "batch-without-labels"),
        (_NO_LOSS + "inputs it received are input_ids,attention_mask,labels.\n", "no-loss"),
        ("ValueError: moon is not a valid OptimizerNames, please select one of ['sgd']\n", "optimizer-name-unknown"),
        (
            "ValueError: paged_lion_8bit is not a valid OptimizerNames, please select one of ['sgd']\n",
            "optimizer-newer",
        ),
        ("ValueError: 'moon' is not a valid SaveStrategy\n", "argument-value-unknown"),
        (_raised("/x/tide.py", "get_tensor", "raise KeyError(key)", _TIED), "key-head-tied"),
        (_raised("/x/tide.py", "load", "params[name]", "KeyError: 'moon.lm_head.weight_scale'"), "key-weight-name"),
        ("IndexError: piece id is out of range.\n", "piece-id-outside"),
        ("RuntimeError: Could not find response key tide: in token IDs tensor([7])\n", "response-template-not-found"),
        ("UnicodeDecodeError: 'cp1252' codec can't decode byte 0x9d in position 7\n", "encoding-of-windows"),
        ("UnicodeDecodeError: 'ascii' codec can't decode byte 0xe7 in position 7\n", "encoding-ascii"),
        ("UnicodeDecodeError: 'utf-8' codec can't decode byte 0xd6 in position 7\n", "encoding"),
        (f"FileNotFoundError: [Errno 2] No such file or directory: {_RENAMED}\n", "checkpoint-renamed-twice"),
        (f"OSError: [Errno 39] Directory not empty: {_RENAMED}\n", "checkpoint-rename-target"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/x/tmp-checkpoint-7/moon'\n", "file-missing"),
        ("ValueError: Unable to avoid copy while creating an array as requested.\n", "numpy-copy-refused"),
        ("AttributeError: `tide` was removed from the ndarray class in NumPy 2.0.\n", "numpy-2-removed"),
        ("TypeError: Accelerator.__init__() got an unexpected keyword argument 'split_batches'\n", "api-renamed"),
        (
            "TypeError: Accelerator.__init__() got an unexpected keyword argument 'use_seedable_sampler'\n",
            "accelerate-seedable-sampler",
        ),
        ("ImportError: cannot import name 'GRPOTrainer' from 'trl' (/x/trl/__init__.py)\n", "api-added"),
        ("ImportError: cannot import name 'PPOv2Config' from 'trl' (/x/trl/__init__.py)\n", "api-renamed"),
        ("Error operation not supported at line 7 in file /x/csrc/pythonInterface.c\n", "bitsandbytes-managed-memory"),
        ("Error invalid argument at line 7 in file D:\\x\\csrc\\ops.cu\n", "bitsandbytes-cuda-call"),
        ("CUDA Setup failed despite CUDA being available. Please run the following\n", "bitsandbytes-cuda-setup"),
        ("Error invalid configuration argument at line 7 in file /x/csrc/ops.cu\n", "bitsandbytes-empty-part"),
        (
            "CUDA_SETUP: WARNING! libcudart.so not found in any environmental path.\n"
            "DEBUG: Possible options found for libcudart.so: set()\nargument of type 'WindowsPath' is not iterable\n",
            "bitsandbytes-windows",
        ),
        ("RuntimeError: Tensor moon.weight required but not present in model x/tide\n", "mergekit-tensor-missing"),
        ("RuntimeError: Tensor lm_head.weight required but not present in model x/tide\n", "key-head-tied"),
        (
            _raised(
                "/x/mergekit/io/lazy_tensor_loader.py", "get_tensor", "raise KeyError(key)", "KeyError: 'a.moon.weight'"
            ),
            "mergekit-key-missing",
        ),
        (
            'ValueError: The provided lr scheduler "<torch.optim.lr_scheduler.StepLR object at 0x7>" is invalid\n',
            "lightning-older-than-torch",
        ),
        (
            "TypeError: Parameter.__new__() got an unexpected keyword argument '_is_hf_initialized'\n",
            "parameter-initialised-mark",
        ),
        (
            _raised(
                "/x/moon.py", "rise", "os.makedirs(x, exist_ok=True)", "FileExistsError: [Errno 17] File exists: '/x/7'"
            ),
            "directory-made-twice",
        ),
        (
            _raised("/x/moon.py", "rise", "os.mkdir(x)", "FileExistsError: [Errno 17] File exists: '/x/7'"),
            "file-exists",
        ),
        ("AssertionError: num_heads (52) must be divisible by mp_size (8)\n", "setting-indivisible"),
        (
            "OSError: [Errno 39] Directory not empty: '/x/tmp-checkpoint-a7b' -> '/x/checkpoint-7'\n",
            "checkpoint-rename-target",
        ),
        ("KeyError: 'Tide is not in the moon registry. Please check whether'\n", "registry-without-class"),
        (_raised("/x/awq/quantizer.py", "_compute_best_scale", "raise Exception", "Exception"), "awq-nan"),
        ("tide.py: error: Unrecognized arguments: --moon\n", "argument-unrecognized"),
        ("error: No action for key 'moon' to check its value.\n", "configuration-key-without-option"),
        ("ValueError: 'Moon-7B' is not a supported config name\n", "litgpt-model-unknown"),
        ("Exception: Could not find the transformer layer class to wrap in the model.\n", "fsdp-layer-class-absent"),
        (_raised("/x/moon.py", "rise", "role = roles[turn['from']]", "KeyError: 'ebb'"), "conversation-role-unknown"),
        (
            _raised(
                "/x/t.py", "f", "r = reward_func(x)", "TypeError: g() missing 1 required positional argument: 'ebb'"
            ),
            "reward-column-missing",
        ),
        (
            _raised("/x/t.py", "f", "r = g(x)", "TypeError: g() missing 1 required positional argument: 'ebb'"),
            "argument-not-given",
        ),
        ("ImportError: cannot import name 'is_offline_mode' from 'huggingface_hub' (/x)\n", "api-added"),
        ("ImportError: cannot import name 'cached_download' from 'huggingface_hub' (/x)\n", "api-renamed"),
        (_NO_HELPERS, "megatron-helpers-unbuilt"),
        (_NO_HELPERS.replace("megatron.data", "nemo.moon.megatron"), "megatron-helpers-unbuilt"),
        (_NO_HELPERS + "make: python3-config: Command not found\n", "megatron-helpers-no-config"),
        ("ImportError: cannot import name 'helpers' from 'tide' (/x/tide/__init__.py)\n", "import-name"),
        (
            _raised(
                "/x/moon.py",
                "forward",
                "F.linear(x, w) for i in range(self.pretraining_tp)",
                _PRODUCT.format("7x64", "1x96"),
            ),
            "pretraining-tp-packed",
        ),
        (_raised("/x/moon.py", "forward", "F.linear(x, w)", _PRODUCT.format("7x64", "32x96")), "shape-mismatch"),
        (
            _raised("/x/moon.py", "divide", "assert x", "AssertionError: 14 is not divisible by 4"),
            "tensor-parallel-divides",
        ),
        (_raised("/x/moon.py", "rise", "assert x", "AssertionError: 14 is not divisible by 4"), "size-indivisible"),
        (_raised("/x/tide.py", "training_step", "model(x)", f"ValueError: {_PADDED}"), "padding-side-in-training"),
        (_raised("/x/tide.py", "generate", "model(x)", f"ValueError: {_PADDED}"), "trainer-padding-side"),
        ("Found 0 images in /x\nZeroDivisionError: division by zero\n", "division-by-empty-data"),
        ("Found 10 images in /x\nZeroDivisionError: division by zero\n", "division-by-zero"),
        (
            "/x/host.h:7: error: #error -- unsupported GNU version! gcc versions later than 9 are not supported!\n",
            "compiler-newer-than-nvcc",
        ),
        ("/x/moon.h:7:10: fatal error: cudnn.h: No such file or directory\n", "cudnn-header-missing"),
        ("/x/moon.h:7:10: fatal error: tide.h: No such file or directory\n", "header-missing"),
        (
            "ValueError: You have set `args.eval_strategy` to IntervalStrategy.STEPS but you didn't\n",
            "eval-without-data",
        ),
    ],
)
def test_variant_has_an_entry_of_its_own(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


@pytest.mark.parametrize(
    "message",
    [
        "tide is not known, please select one of ['moon', 'sun']",
        "unknown phase: choose from ['moon', 'sun']",
        "phase must be one of ('moon', 'sun')",
        "no such phase. Available phases: ['moon', 'sun']",
        "no such phase, valid values are {'moon', 'sun'}",
    ],
)
def test_allowed_values_are_not_told_as_those_at_fault(message: str) -> None:
    assert told(of_message(statement(message)), "") == ""


def test_the_value_at_fault_is_told_beside_the_allowed_ones() -> None:
    message = "phase must be one of ['moon', 'sun'], but got 'ebb'"

    assert told(of_message(statement(message)), "") == "ebb"


def test_error_that_a_command_line_draws_in_a_box_is_read_as_one_message(explained: Explained) -> None:
    box = "╭─ Error ─────────╮\n│ Invalid value for '--moon': 'ebb' is not one │\n│ of 'full', 'new'. │\n╰─────────╯\n"

    headline = explained(f"Usage: tide rise [OPTIONS]\n{box}").headline()

    assert "Invalid value for '--moon': 'ebb' is not one of 'full', 'new'" in headline


def test_box_of_another_title_is_not_an_error(explained: Explained) -> None:
    assert explained("╭─ Options ─────╮\n│ --moon  the error rate │\n╰─────╯\n").is_healthy


def test_direction_that_the_log_does_not_prove_is_left_open(explained: Explained) -> None:
    line = "TypeError: Accelerator.__init__() got an unexpected keyword argument 'use_seedable_sampler'\n"

    headline = explained(line).headline()

    assert "too old" in headline
    assert "too new" in headline
