"""Entries that are split by what else the log holds, and the neighbours that share their words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]


def _raised(file: str, code: str, exception: str) -> str:
    return f'Traceback (most recent call last):\n  File "{file}", line 7, in rise\n    {code}\n{exception}\n'


_BAD_LINE = "json.decoder.JSONDecodeError: Expecting value: line 1 column 2 (char 1)"
_EMPTY_LINE = "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
_EXTRA = "json.decoder.JSONDecodeError: Extra data: line 2 column 1 (char 259)"
_TWICE = (
    "RuntimeError: Expected to mark a variable ready only once. Parameter at index 7 with name {name} has been marked "
    "as ready twice."
)
_UNDEFINED = "ValueError: Undefined dataset {name} in dataset_info.json.\n"
_NESTED = (
    "ValueError: Unable to create tensor, you should probably activate truncation and/or padding with 'padding=True'. "
    "Perhaps your features (`{column}` in this case) have excessive nesting (inputs type `list` where type `int`).\n"
)
_STARTED = "!llamafactory-cli train moon.yaml\n"
_HANGUP = "W0107 10:11:12.000000 7 torch/api.py:7] Sending process 77 closing signal SIGHUP\n"
_NO_TEMPLATE = "ValueError: Cannot use chat template functions because tokenizer.chat_template is not set\n"
_NO_FILE = "OSError: {name} does not appear to have a file named {file}, and tides\n"
_IMAGES = "ValueError: Image features and image tokens do not match: tokens: 64, features 71\n"


_CRASHED = (
    "RuntimeError: moon:moon.cpp:7 NPU function error: call failed, error code is 507015\n"
    "Aicore kernel execute failed, device_id=0, fault kernel_name={kernel}, fault kernel info ext=none\n"
)
_NO_BLOCKS = "[PID: 7] Invalid_Argument(EE1003): Moon failed because value 0 for parameter blockDim is invalid.\n"
_CALLED = "RuntimeError: call aclnnMoon failed, detail:EZ9999: Inner Error!\n"
_ASSERTED = 'RuntimeError: moon == tide INTERNAL ASSERT FAILED at "Moon.cpp":7, please report a bug to PyTorch. '


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_raised("/x/moon.py", "row = json.loads(line)", _BAD_LINE), "json-array-as-lines"),
        (_raised("/x/moon.py", "row = json.loads(line)", _EMPTY_LINE), "json-line-broken"),
        (_raised("/x/moon.py", "row = json.load(file)", _BAD_LINE), "json-broken"),
        (_raised("/x/moon.py", "row = json.load(file)", _EMPTY_LINE), "json-empty"),
        (
            _raised("/x/trl/trainer/kto_trainer.py", 'row["completion"]', "KeyError: 'completion'"),
            "trl-preference-column",
        ),
        (_raised("/x/datasets/formatting.py", "self.data[key]", "KeyError: 'prompt'"), "key-dataset-column"),
        (_raised("/x/moon.py", 'feature["labels_m"]', "KeyError: 'labels_m'"), "collator-key-missing"),
        (_raised("/x/moon.py", 'feature["tide"]', "KeyError: 'tide'"), "key-missing"),
        (
            _raised("/x/moon.py", 'sun.load(checkpoint["lr_scheduler"])', "KeyError: 'lr_scheduler'"),
            "checkpoint-without-training-state",
        ),
        (
            _raised("/x/moon.py", 'sun.load(checkpoint["layer.7"])', "KeyError: 'layer.7'"),
            "checkpoint-entry-missing",
        ),
        (_TWICE.format(name="moon.layers.7.lora_A.weight") + "\n", "ddp-ready-twice-checkpointing"),
        (
            "gradient_checkpointing: true\n" + _TWICE.format(name="moon.layers.7.weight") + "\n",
            "ddp-ready-twice-checkpointing",
        ),
        (_TWICE.format(name="moon.layers.7.weight") + "\n", "ddp-ready-twice-named"),
        ("gradient_checkpointing: true\n" + _TWICE.format(name="tide.weight") + "\n", "ddp-ready-twice-named"),
        ("cutoff_len: 777\n" + _IMAGES, "image-tokens-cut"),
        ("cutoff_len: 65536\n" + _IMAGES, "image-tokens-counted"),
        (_IMAGES, "image-tokens-counted"),
        (_UNDEFINED.format(name="moon_demo"), "dataset-demo-elsewhere"),
        (_UNDEFINED.format(name="moon"), "dataset-unregistered"),
        (
            "!cd Moon\n!llamafactory-cli train m.yaml\n" + _UNDEFINED.format(name="m"),
            "dataset-unregistered-in-notebook",
        ),
        ("%cd Moon\n!llamafactory-cli train m.yaml\n" + _UNDEFINED.format(name="m"), "dataset-unregistered"),
        ("model moon/Llama-3.1-7B\n" + _NO_TEMPLATE, "chat-template-of-base-model"),
        ("model moon/Llama-3.1-7B-Instruct\n" + _NO_TEMPLATE, "chat-template-unset"),
        ("model moon/Llama-2-7b-chat-hf\n" + _NO_TEMPLATE, "chat-template-unset"),
        (_NO_FILE.format(name="moon/tide-7B", file="pytorch_model.bin"), "hub-weights-not-got"),
        (_NO_FILE.format(name="/moon/tide-7B", file="pytorch_model.bin"), "directory-without-file"),
        (_NO_FILE.format(name="./tide-7B", file="config.json"), "directory-without-file"),
        (_NO_FILE.format(name="outputs/tide", file="model.safetensors"), "directory-without-file"),
        (_NO_FILE.format(name="moon/checkpoint-7", file="model.safetensors"), "directory-without-file"),
        (_NO_FILE.format(name="moon/tide-7B", file="config.json"), "model-not-found"),
        ("{'loss': nan}\n{'loss': 5.7}\n{'loss': nan}\n", "nan-loss-now-and-then"),
        ("{'loss': 5.7}\n{'loss': nan}\n{'loss': nan}\n", "nan-loss"),
        (_raised("/v/site-packages/moon/t.py", "x", "NameError: name 'LoraConfig' is not defined"), "name-of-peft"),
        (_raised("/x/my.py", "x", "NameError: name 'LoraConfig' is not defined"), "name-undefined"),
        (
            _raised("/x/moon/kto_trainer.py", "tides['chosen_input_ids']", "KeyError: 'chosen_input_ids'"),
            "preference-tokens-missing",
        ),
        (_NESTED.format(column="Tide"), "text-column-in-batch"),
        (_NESTED.format(column="videos"), "rows-not-padded"),
        (_NESTED.format(column="labels"), "labels-not-padded"),
        (_raised("/x/llamafactory/data/aligner.py", "row[tag]", "KeyError: 'from'"), "llamafactory-message-tags"),
        (_raised("/x/llamafactory/data/aligner.py", "row[tag]", "KeyError: None"), "llamafactory-column-unnamed"),
        (_raised("/x/moon.py", "row[tag]", "KeyError: None"), "key-missing"),
        (_raised("/x/unsloth/tokenizer_utils.py", "exec(code)", "SyntaxError: invalid syntax"), "unsloth-patched-code"),
        (_raised("/x/moon.py", "exec(code)", "SyntaxError: invalid syntax"), "syntax"),
        (_raised("/x/moon.py", "assert len(self.train_dataloader) >= 1", "AssertionError"), "dataloader-without-batch"),
        (_raised("/x/trl/trainer/sft_trainer.py", 'row["text"]', "KeyError: 'text'"), "trl-sft-column"),
        (_raised("/x/torch/optim/adamw.py", 'state["step"]', "KeyError: 'step'"), "optimizer-state-without-step"),
        (_raised("/x/moon.py", 'state["step"]', "KeyError: 'step'"), "key-missing"),
        (
            _raised(
                "/x/moon.py",
                "rows = [json.loads(lines[i])]",
                "orjson.JSONDecodeError: unexpected end of data: line 2 column 1 (char 2)",
            ),
            "json-array-as-lines",
        ),
        (
            _raised("/x/datasets/packaged_modules/json/json.py", "json.load(f)", _EXTRA)
            + "\nDuring handling of the above exception, another exception occurred:\n\n"
            + _raised(
                "/x/moon.py",
                "read()",
                "pyarrow.lib.ArrowInvalid: JSON parse error: Invalid encoding in string. in row 7",
            ),
            "data-json-encoding-second-try",
        ),
        (_raised("/x/moon.py", "json.load(f)", _EXTRA), "json-lines-as-json"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/moon/cuda/bin/nvcc'\n", "nvcc-missing"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/moon/nvcc.txt'\n", "file-missing"),
        (
            "AssertionError: tensor_model_parallel_size value from checkpoint (7) is not equal to the input argument "
            "value (9).\n",
            "megatron-parallel-size-differs",
        ),
        (
            "W0107 10:11:12.000000 7 torch/api.py:7] Received 15 death signal, shutting down workers\n",
            "launcher-told-to-stop",
        ),
        (
            "W0107 10:11:12.000000 7 torch/api.py:7] Received 15 death signal, shutting down workers\n"
            + _raised("/x/moon.py", "rise()", "ValueError: tide 7 is higher than moon 6"),
            "python-exception",
        ),
        (
            "W0107 10:11:12.000000 7 torch/api.py:7] Received 15 death signal, shutting down workers\n"
            + _raised(
                "/x/torch/distributed/elastic/multiprocessing/api.py",
                "raise SignalException(f'Process {os.getpid()} got signal: {sigval}', sigval=sigval)",
                "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15",
            ),
            "launcher-told-to-stop",
        ),
        (
            "AssertionError: tide_size value from checkpoint (7) is not equal to the input argument value (9).\n",
            "megatron-argument-differs",
        ),
        (
            _raised(
                "/x/deepspeed/launcher/runner.py",
                "run()",
                "subprocess.CalledProcessError: Command 'ssh -p 7 moon@tide7 hostname' returned non-zero exit status "
                "255.",
            ),
            "ssh-command-failed",
        ),
        (
            _raised(
                "/x/deepspeed/launcher/runner.py",
                "run()",
                "subprocess.CalledProcessError: Command '['python', 'ssh_moon.py']' returned non-zero exit status 255.",
            ),
            "launcher-child",
        ),
        (
            _HANGUP + "W0107 10:11:12.000000 7 torch/api.py:7] Received 1 death signal, shutting down workers\n"
            'Traceback (most recent call last):\n  File "/x/torch/distributed/run.py", line 7, in run\n    launch(\n',
            "hangup",
        ),
        ("RuntimeError: received an empty list of sequences\n", "pad-nothing"),
        ("train.py: error: unrecognized arguments: --moon 7\n", "argument-unrecognized"),
        (":actor_name:vLLMHttpServer\nmoon.py: error: unrecognized arguments: --moon 7\n", "engine-option-unknown"),
        ("vllm serve moon\ntrain.py: error: unrecognized arguments: --local_rank=7\n", "local-rank-passed"),
        ("ModuleNotFoundError: No module named 'megatron.training'\n", "module-of-vendor-missing"),
        ("ModuleNotFoundError: No module named 'triton.moon'\n", "module-of-installed-package"),
        ("E40002: The tide has no moon.\n", "cann-code-compiler-environment"),
        (_CRASHED.format(kernel="MoonGatherMatMul_7"), "507015"),
        (_CRASHED.format(kernel="te_MoonMatMulV7_tide"), "507015-kernel"),
        (_ASSERTED + "tide=7", "torch-assert"),
        (_ASSERTED + "DeviceType must be NPU. Actual DeviceType is: cpu", "npu-operand-elsewhere"),
        ('MountVolume.SetUp failed for volume "moon" : mount failed: exit status 32\n', "kubernetes-mount"),
        ("1/0 tasks in gang unschedulable: pod group is not ready, 1 minAvailable\n", "volcano-gang"),
        ("HCCL function error: HcclGetRootInfo(&moon), error code is 7\n", "hccl-7"),
        ("Resource_Error(EI0007): Failed to allocate resource notify with info moon.\n", "EI0007"),
        (
            "× No solution found when resolving dependencies:\n  ╰─▶ Because moon needs tide, no\n",
            "resolver-no-solution",
        ),
        ("EZ9999:  the tide is: 7, but currently only support 9.[FUNC:Moon][LINE:7]\n", "kernel-value-unsupported"),
        ("ValueError: the tide is 7, but only support 9\n", "value-refused"),
        (_NO_BLOCKS, "launch-without-blocks"),
        (_NO_BLOCKS + "  the moon has no tide[FUNC:MoonTiling][FILE:moon.cpp][LINE:7]\n", "cann-detail"),
        (_NO_BLOCKS + "  unsupported inputLayout , expect MOON[FUNC:Moon][LINE:7]\n", "layout-refused"),
        (_CALLED + "EZ9999: [PID: 7] AclNN_Inner_Error(EZ9999):  Moon do tiling failed, ret is -1.\n", "tiling-failed"),
    ],
)
def test_entry_is_chosen_by_what_else_the_log_holds(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_host_behind_the_options_of_ssh_is_named(explained: Explained) -> None:
    said = "subprocess.CalledProcessError: Command 'ssh -o PasswordAuthentication=no -p 7 tide7 hostname' returned "

    assert "ssh to tide7 " in explained(f"{said}non-zero exit status 255.\n").headline()


def test_passing_warning_of_a_hangup_is_not_a_failure(explained: Explained) -> None:
    assert explained(
        "W0107 10:11:12.0 7 api.py:7] Sending process 77 closing signal SIGHUP\n" + "step 1 loss 2.0\n" * 20
    ).is_healthy


def test_launcher_that_was_told_to_stop_and_continued_is_not_a_failure(explained: Explained) -> None:
    told = "W0107 10:11:12.000000 7 torch/api.py:7] Received 15 death signal, shutting down workers\n"

    assert explained(told + "step 1 loss 2.0\n" * 40).is_healthy


def test_fields_that_pydantic_refuses_are_in_the_message(explained: Explained) -> None:
    explanation = explained(
        "pydantic_core.ValidationError: 2 validation errors for MoonConfig\ntide.height\n"
        "  Input should be a valid integer [type=int_type, input_value=None, input_type=NoneType]\n"
        "    For further information visit https://errors.pydantic.dev\nsun\n"
        "  Field required [type=missing, input_value={}, input_type=dict]\nstep 1\n"
    )

    assert explanation.headline() == "MoonConfig refuses its field tide.height: Input should be a valid integer (None)"
    assert explanation.verdict.first is not None
    assert "; sun: Field required" in explanation.verdict.first.message


@pytest.mark.parametrize("below", ["tide\nsun\n", "  two blanks\n  more [type=tide]\n", ""])
def test_lines_below_pydantic_that_are_not_fields_are_left(explained: Explained, below: str) -> None:
    explanation = explained(f"pydantic_core.ValidationError: 1 validation error for MoonConfig\n{below}")

    assert explanation.verdict.first is not None
    assert explanation.verdict.first.message == "1 validation error for MoonConfig"


def test_the_problem_that_pyyaml_found_is_in_the_message(explained: Explained) -> None:
    explanation = explained(
        'Traceback (most recent call last):\n  File "/x/yaml/scanner.py", line 7, in tide\n    sea()\n'
        "yaml.scanner.ScannerError: while scanning a simple key\n"
        '  in "moon.yaml", line 7, column 1\n'
        "could not find expected ':'\n"
        '  in "moon.yaml", line 8, column 1\nstep 1\n'
    )

    assert "(moon.yaml, line 8)" in explanation.headline()
    assert explanation.verdict.first is not None
    assert "step" not in explanation.verdict.first.message


def test_keys_that_deepspeed_does_not_know_are_named(explained: Explained) -> None:
    refused = "extra fields not permitted (type=value_error.extra)"
    explanation = explained(
        f"ValidationError: 2 validation errors for DeepSpeedMoonConfig\ntide_size\n{refused}\nsun_size\n{refused}\n"
    )

    assert "key tide_size of its configuration (nor sun_size)" in explanation.headline()


def test_exception_that_the_last_line_of_code_raises_is_read_from_it(explained: Explained) -> None:
    log = (
        'Traceback (most recent call last):\n  File "/x/moon.py", line 7, in rise\n'
        '    raise ValueError(f"the tide of {month} is not in the almanac")'
    )

    assert "ValueError: the tide of … is not in the almanac" in explained(log).headline()


def test_last_line_of_code_that_raises_a_variable_is_shown_as_code(explained: Explained) -> None:
    log = 'Traceback (most recent call last):\n  File "/x/moon.py", line 7, in rise\n    raise error from None\n'

    assert "ends before the exception: raise error from None" in explained(log).headline()


@pytest.mark.parametrize("said", ["KeyErrorKeyError: : 'tide'", "KeyErrorKeyError: 'tide'"])
def test_exception_that_two_ranks_wrote_into_one_line_is_one(explained: Explained, said: str) -> None:
    log = _raised("/x/moon.py", "moons['tide']", said)

    assert explained(log).headline() == "there is no 'tide' in a table or configuration (moons)"
