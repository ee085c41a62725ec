"""Lines around a message: output of commands, frames of a launcher or destructor, joined lines.

Names and numbers are invented; the messages are those of the programs named.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.answer.report import as_text
from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.log.line import device_in, rank_in, time_of
from ascendtune.check.explain.package.distributions import named_for_pip

Explained = Callable[..., Explanation]
_TRACEBACK = 'Traceback (most recent call last):\n  File "/moon/serve.py", line 5, in warm_up\n    call()\n'
_DESTRUCTOR = (
    'Traceback (most recent call last):\n  File "/env/site-packages/deepspeed/ops/adam/cpu_adam.py", line 102, in '
    "__del__\n    self.ds_opt_adam.destroy_adam(self.opt_id)\n"
    "AttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'\n"
)
_NODES = "crw-rw---- 1 HwHiAiUser HwHiAiUser 236, 0 Jun  3 10:11 /dev/davinci0\n"
_DCMI = "dcmi model initialized failed, because the device is used. ret is -8020\n"
_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.00 GiB.\n"


def _seen(explanation: Explanation) -> str:
    lines = as_text(explanation, columns=400, paint=lambda text, _: text).splitlines()
    return next(line for line in lines if line.startswith("seen")).removeprefix("seen").strip()


@pytest.mark.parametrize(
    "reason",
    [
        "ImportError: /opt/conda/lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by cpu_adam.so)",
        "RuntimeError: the tide of May is 7",
        "OSError: libmoon.so: wrong ELF class: ELFCLASS32",
    ],
)
def test_destructor_after_a_failure_is_never_the_headline(explained: Explained, reason: str) -> None:
    explanation = explained(f"{_TRACEBACK}{reason}\n{_DESTRUCTOR}")

    assert explanation.verdict.first is not None
    assert explanation.verdict.first.text == reason


def test_interpreter_s_end_after_a_failure_is_never_the_headline(explained: Explained) -> None:
    explanation = explained(
        "ValueError: the tide of May is 7\nError in atexit._run_exitfuncs:\nTraceback (most recent call last):\n"
        '  File "/lib/python3.11/multiprocessing/util.py", line 300, in _run_finalizers\n    finalizer()\n'
        "OSError: [Errno 28] No space left on device\n"
    )

    assert explanation.headline() == "Python failed with ValueError: the tide of May is 7"


def test_destructor_alone_is_the_answer(explained: Explained) -> None:
    assert entry_of(explained(_DESTRUCTOR)) == "deepspeed-cpu-adam"


def test_import_error_without_its_values_leaves_no_placeholder(explained: Explained) -> None:
    explanation = explained(f"{_TRACEBACK}ImportError: cannot import name 'tide'\n")

    assert "{" not in " ".join((explanation.headline(), *explanation.remedies(), *explanation.verdict.first.causes))  # type: ignore[union-attr]


def test_value_that_a_command_lacks_is_in_capitals(explained: Explained) -> None:
    explanation = explained("[Errno 98] Address already in use\n")

    assert all("{" not in remedy and "grep :`" not in remedy for remedy in explanation.remedies())


@pytest.mark.parametrize(
    ("user", "entry"),
    [
        ("uid=1001(moon) gid=1001(moon) groups=1001(moon)", "device-nodes-denied"),
        ("uid=1001(moon) gid=1001(moon) groups=1001(moon),1000(HwHiAiUser)", "dcmi-8020"),
        ("uid=0(root) gid=0(root) groups=0(root)", "dcmi-8020"),
    ],
)
def test_modes_of_device_nodes_explain_a_refusal_to_users_outside_of_the_group(
    explained: Explained, user: str, entry: str
) -> None:
    assert entry_of(explained(f"{_NODES}{user}\n{_DCMI}")) == entry


def test_process_without_capabilities_explains_a_refused_call(explained: Explained) -> None:
    refused = "set_mempolicy: Operation not permitted\n"

    assert entry_of(explained(f"CapEff:\t0000000000000000\n{refused}")) == "capabilities-dropped"
    assert entry_of(explained(f"CapEff:\t00000000a80425fb\n{refused}")) == "numa-not-permitted"


def test_full_disk_while_an_image_is_pulled_is_that_of_the_images(explained: Explained) -> None:
    said = "failed to register layer: write /usr/lib/libmoon.so: no space left on device\n"

    assert entry_of(explained(said)) == "docker-disk-full"
    assert "quay.io/moon/tide:1" in explained(f"$ docker pull quay.io/moon/tide:1\n{said}").headline()


def test_step_that_waits_in_its_allocation_is_a_failure_only_at_the_end(explained: Explained) -> None:
    waits = "srun: Job 4711 step creation temporarily disabled, retrying (Requested nodes are busy)\n"
    on = "srun: Step created for job 4711\n" + "step 1 loss 2.0\n" * 30

    assert entry_of(explained(f"$ srun hostname\n{waits}{waits}")) == "slurm-step-waits"
    assert explained(f"{waits}{on}").is_healthy


@pytest.mark.parametrize("launcher", ["accelerate/commands/launch.py", "deepspeed/launcher/launch.py"])
def test_launcher_s_report_of_its_child_is_not_told_as_the_cause(explained: Explained, launcher: str) -> None:
    explanation = explained(
        f'Traceback (most recent call last):\n  File "/v/site-packages/{launcher}", line 5, in simple_launcher\n'
        "    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)\n"
        "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 2.\n"
    )

    assert entry_of(explanation) == "launcher-child"
    assert "exit status 2" in explanation.headline()
    assert explanation.sureness.startswith("unknown: this line reports only")


def test_line_of_the_launcher_is_not_quoted_as_the_program_s_words(explained: Explained) -> None:
    explanation = explained(
        "E0520 10:11:12.323000 140 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 2) "
        "local_rank: 0 (pid: 1234) of binary: /usr/bin/python3\n"
    )

    assert explanation.headline().startswith("a worker ended (exit code 2); the launcher")
    assert "binary" not in explanation.headline()


@pytest.mark.parametrize(
    ("frame", "code", "entry"),
    [
        ("torch/distributed/fsdp/_state_dict_utils.py in _full_pre_state_dict_hook", "unshard()", "oom-saving"),
        ("torch/nn/functional.py in cross_entropy", "return ce()", "oom-logits"),
        ("bitsandbytes/optim/optimizer.py in step", "self.init_state()", "oom-optimizer"),
        ("torch/_tensor.py in backward", "torch.autograd.backward(", "oom-backward"),
        ("transformers/trainer.py in training_step", "loss = self.compute_loss()", "oom-forward"),
        ("torch/nn/functional.py in softmax", "attn_weights = attn_weights / 8", "oom-attention"),
        ("torch/nn/parallel/distributed.py in __init__", "sync()", "oom-wrapping"),
    ],
)
def test_memory_that_is_used_up_is_told_with_its_stage(explained: Explained, frame: str, code: str, entry: str) -> None:
    file, _, function = frame.partition(" in ")
    text = f'Traceback (most recent call last):\n  File "/v/{file}", line 9, in {function}\n    {code}\n{_MEMORY}'

    assert entry_of(explained(text)) == entry


def test_line_that_is_shown_is_one_of_the_log(explained: Explained) -> None:
    explanation = explained(
        'Traceback (most recent call last):\n  File "/moon/tide.py", line 5, in rise\n    assert ebb == flow\n'
        "AssertionError\n"
    )

    assert "ebb == flow does not hold" in explanation.headline()
    assert _seen(explanation) == "assert ebb == flow ↵ AssertionError"


def test_exceptions_of_two_ranks_in_one_line_are_one(explained: Explained) -> None:
    header, frame = "Traceback (most recent call last):\n", '  File "/moon/train.py", line 31, in step\n'
    code = '    row = batch["tide"]\n'

    explanation = explained(f"{header}{header}{frame}{frame}{code}{code}KeyError: 'tide'KeyError\n: 'tide'\n")

    assert "tide'KeyError" not in explanation.headline()
    assert _seen(explanation) == "KeyError: 'tide'KeyError"


@pytest.mark.parametrize(
    "text",
    [
        "uncorrectable ECC error on device: 0000:10:00.0",
        "device: 1000:00:00.0 fell off the bus",
        "image cuda:12.4.1-devel",
        "GPU 80 GB",
        "device=0x10",
    ],
)
def test_address_size_or_version_is_not_a_device(text: str) -> None:
    assert device_in(text) is None


def test_device_is_read() -> None:
    assert [device_in(each) for each in ("tensor on npu:4.", "GPU 3; 10 GiB", "device_id=7, x", "cuda:0!")] == [
        4,
        3,
        7,
        0,
    ]


def test_several_devices_in_a_line_are_not_one_device() -> None:
    assert device_in("found at least two devices, npu:0 and npu:7!") is None
    assert device_in("npu:7 is not npu:7") == 7


def test_stamp_whose_month_has_one_digit_is_read() -> None:
    assert time_of("[E506 00:43:56.2 moon.cpp:7]") == time_of("[E0506 00:43:56.2 moon.cpp:7]")
    assert time_of("[W1106 00:43:56 moon.cpp:7]") == time_of("2027-11-06 00:43:56")


def test_rank_of_an_adapter_is_not_a_rank_of_a_process() -> None:
    assert rank_in("LoRA rank: 64") is None
    assert rank_in("failed on rank: 6") == 6


def test_pip_is_given_the_name_of_the_distribution() -> None:
    assert (
        named_for_pip("`python -m pip show swift`: is swift there?") == "`python -m pip show ms-swift`: is swift there?"
    )
    assert named_for_pip("pip install -U cv2; git") == "pip install -U opencv-python-headless; git"
    assert named_for_pip("pip install git+https://moon.example") == "pip install git+https://moon.example"


def test_bitsandbytes_without_its_library_is_a_failure_where_the_log_ends_with_it(explained: Explained) -> None:
    warning = (
        "WARNING:bitsandbytes.cextension:The installed version of bitsandbytes was compiled without GPU support.\n"
    )

    assert entry_of(explained(warning)) == "bitsandbytes-without-gpu"
    assert explained(warning + "step 1 loss 2.0\n" * 30).is_healthy


@pytest.mark.parametrize(
    ("message", "headline"),
    [
        ("Expected 5 fields in line 731, saw 8", "line 731 of a CSV file has 8 fields, the lines before it 5"),
        (
            "EOF inside string starting at row 1000",
            "a quoted field that begins in row 1000 of a CSV file is never closed",
        ),
    ],
)
def test_line_of_a_csv_file_is_named(explained: Explained, message: str, headline: str) -> None:
    explanation = explained(f"{_TRACEBACK}pandas.errors.ParserError: Error tokenizing data. C error: {message}\n")

    assert explanation.headline() == headline


def test_the_code_names_the_object_that_was_none(explained: Explained) -> None:
    explanation = explained(
        'Traceback (most recent call last):\n  File "/moon/a.py", line 5, in f\n'
        "    height = self.almanac.find(month).tide\nAttributeError: 'NoneType' object has no attribute 'tide'\n"
    )

    assert "(self.almanac.find(month))" in explanation.headline()


def test_guess_is_not_certain_and_one_proven_cause_is(explained: Explained) -> None:
    assert explained("Killed\n").sureness.startswith("likely")
    assert explained("pandas.errors.ParserError: EOF inside string starting at row 7\n").sureness == "certain"


def test_quoted_line_without_another_failure_is_only_likely(explained: Explained) -> None:
    said = "libascend_hal.so: cannot open shared object file: No such file or directory\n"

    assert explained(said).sureness == "likely: no other line of the log says why it failed"


@pytest.mark.parametrize(
    "last",
    [
        "Terminated",
        "srun: Force Terminated job 4711",
        "exit status 1",
        "npm ERR! code ELIFECYCLE",
        "AssertionError",
        "SystemExit: 1",
        "XLA: no devices found",
        "No GPU found. A GPU is needed for quantization.",
        "Out of memory",
        "The process will exit now.",
        "gzip: stdin: unexpected end of file",
        "Process finished with exit code 139 (interrupted by signal 11: SIGSEGV)",
        "The job exceeded its memory limit and was stopped",
        "Access to model moon/tide-7b is restricted and you are not in the authorized list.",
    ],
)
def test_log_that_ends_with_words_of_an_end_is_not_healthy(explained: Explained, last: str) -> None:
    assert not explained(f"step 1 loss 2.0\n{last}\n").is_healthy
    assert explained(f"{last}\n" + "step 1 loss 2.0\n" * 30).is_healthy


@pytest.mark.parametrize(
    "last",
    ["exit status 0", "Process finished with exit code 0", "SystemExit: 0", "no errors found.", "memory limit 3 GiB"],
)
def test_log_that_ends_well_is_healthy(explained: Explained, last: str) -> None:
    assert explained(f"step 1 loss 2.0\n{last}\n").is_healthy


# https://github.com/NVIDIA/pyxis/issues/101, /61, /107
@pytest.mark.parametrize(
    ("lines", "headline"),
    [
        (
            "slurmstepd: error: pyxis: container start failed with error code: 1\n"
            "slurmstepd: error: pyxis:     /usr/bin/enroot: line 44: HOME: unbound variable\n"
            "slurmstepd: error: pyxis:     [ERROR] Command not found: moon-cli\n"
            "slurmstepd: error: pyxis:     [ERROR] /etc/enroot/hooks.d/98.sh exited with return code 1\n"
            "srun: error: moon2: task 1: Exited with exit code 1\n",
            "enroot on this node lacks the program moon-cli, which one of its hooks calls",
        ),
        (
            "srun: error: Task launch for StepId=96.0 failed on node moon2: No such process\n"
            "srun: error: Application launch failed: Socket timed out on send/recv operation\nsrun: Job step aborted\n",
            "Slurm could not start the step on a node: No such process (host moon2)",
        ),
    ],
)
def test_step_that_slurm_could_not_start_is_told_with_its_reason(
    explained: Explained, lines: str, headline: str
) -> None:
    assert explained(lines).headline() == headline


def test_code_that_a_model_brings_is_held_against_the_installed_transformers(explained: Explained) -> None:
    explanation = explained(
        'Traceback (most recent call last):\n  File "/c/modules/transformers_modules/moon/modeling_moon.py", line 7, '
        "in get_masks\n    past = past_key_values[0][0].shape[2]\n"
        "AttributeError: 'NoneType' object has no attribute 'shape'\n"
    )

    assert entry_of(explanation) == "model-code-of-other-transformers"
    assert explanation.sureness.startswith("likely")


def test_operation_of_a_time_out_is_named_without_the_logger_s_words(explained: Explained) -> None:
    explanation = explained(
        "[rank3]:[E ProcessGroupNCCL.cpp:577] [Rank 3] Some NCCL operations have failed or timed out. Due to this.\n"
        "[rank3]:[E ProcessGroupNCCL.cpp:1414] [PG 0 Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=61, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600085 milliseconds before timing out.\n"
    )

    assert "ProcessGroupNCCL.cpp" not in explanation.headline()
    assert explanation.verdict.first is not None
    assert any("ALLREDUCE" in cause for cause in explanation.verdict.first.causes)


def test_command_that_was_not_found_is_named(explained: Explained) -> None:
    assert explained("bash: moonlet: command not found\n").headline().endswith(": moonlet")


def test_long_message_is_cut_at_the_end_of_a_sentence_or_not_at_all(explained: Explained) -> None:
    sizes = (
        "size mismatch for moon.layers.0.mlp.weight: copying a param with shape torch.Size([16, 4096]) from checkpoint"
    )
    message = f"{sizes}, the shape in current model is torch.Size([8, 4096]), and so on for all the {'other ' * 20}ones"
    lines = as_text(explained(f"{_TRACEBACK}RuntimeError: {message}\n"), columns=118, paint=lambda text, _: text)

    assert "".join(message.split()) in "".join(lines.split())


def test_message_that_the_headline_has_gives_way_to_the_remedies_on_a_narrow_terminal(explained: Explained) -> None:
    message = " ".join(f"the tide of day {day} is not in the almanac of moons," for day in range(5))
    shown = as_text(explained(f"{_TRACEBACK}ValueError: {message} so\n"), columns=40, paint=lambda text, _: text)

    assert "do " in shown
    assert "seen" not in shown


def test_versions_of_the_packages_of_a_failed_import_are_told(explained: Explained) -> None:
    failed = (
        'Traceback (most recent call last):\n  File "/v/site-packages/peft/tuners.py", line 7, in <module>\n'
        "    from transformers import Tide\nImportError: cannot import name 'Tide' from 'transformers' (/v/t.py)\n"
    )

    assert (
        explained(f"transformers==4.40.0\npeft==0.14.0\n{failed}")
        .headline()
        .endswith("(by the log: transformers 4.40.0, peft 0.14.0)")
    )
    assert "by the log" not in explained(f"transformers==4.40.0 transformers==4.41.0\n{failed}").headline()


def test_release_that_the_sentence_doubts_is_told_if_the_log_has_it(explained: Explained) -> None:
    missing = "/x/moon.h:9:10: fatal error: hccl/hccl.h: No such file or directory\n"

    assert explained(f"CANN Version: 8.5.0\n{missing}").headline().endswith("(by the log: CANN 8.5.0)")
    assert "by the log" not in explained("CANN Version: 8.5.0\nbash: moon: command not found\n").headline()
    assert "by the log" not in explained(f"CANN 8.5.0, CANN 8.3.0\n{missing}").headline()


@pytest.mark.parametrize(
    ("message", "end"),
    [
        (
            "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, npu:0 and "
            "cpu! (when checking argument)",
            ": npu:0 and cpu (device 0)",
        ),
        (
            "RuntimeError: Sizes of tensors must match except in dimension 1. Expected size 8 but got size 4 for "
            "tensor number 1 in the list.",
            "dimension 1: Expected size 8 but got size 4 for tensor number 1 in the list",
        ),
    ],
)
def test_values_of_a_message_are_in_the_headline(explained: Explained, message: str, end: str) -> None:
    assert explained(f"{_TRACEBACK}{message}\n").headline().endswith(end)


def test_host_is_named_once(explained: Explained) -> None:
    refused = "node7:1:2 [1] include/socket.h:403 NCCL WARN Connect to 10.0.0.7<56821> failed : Connection refused\n"

    assert explained(refused).headline().count("10.0.0.7") == 1
