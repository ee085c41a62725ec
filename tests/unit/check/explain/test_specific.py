"""The most informative line precedes lines that only report a failure."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_CALLED = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 12, in step\n    moon(batch)\n'
_SPECIFIC = "2026-01-05 15:48:00.728392 error 70 pid[70] [MOON rise.cpp:373] no room for 4096 tides\n"


def _line(explanation: Explanation) -> str:
    assert explanation.verdict.first is not None
    return explanation.verdict.first.text


@pytest.mark.parametrize("vague", ["Run task error!", "The moon's initialization failed.", "Engine is dead"])
def test_an_exception_that_names_nothing_gives_way_to_what_was_said_before(explained: Explained, vague: str) -> None:
    assert "4096 tides" in _line(explained(f"{_SPECIFIC}step 1\n{_CALLED}RuntimeError: {vague}\n"))


@pytest.mark.parametrize("specific", ["tide 7 is higher than 6", "no such moon: 'full'", "phase=new"])
def test_an_exception_that_names_something_does_not(explained: Explained, specific: str) -> None:
    assert specific in _line(explained(f"{_SPECIFIC}step 1\n{_CALLED}RuntimeError: {specific}\n"))


def test_the_heading_of_a_traceback_is_not_the_error(explained: Explained) -> None:
    """Not even where the exception itself is the echo of another rank's end."""
    log = (
        f"ERROR 07-10 17:40:09 worker.py:348] Error executing the method moon_7.\n{_CALLED}"
        "RuntimeError: [gloo/transport/tcp/pair.cc:525] Read error [10.0.0.7]:50407: Connection reset by peer\n"
    )

    assert "Connection reset by peer" in _line(explained(log))


def test_a_code_of_cann_goes_before_the_exception_that_follows_it(explained: Explained) -> None:
    log = (
        "EK0001: Path [/data/mond] for [profilerResultPath] is invalid or does not exist.\n\n"
        f"{_CALLED}RuntimeError: moon/profiling.cc:79 InitProfiling] Failed to call the function.\n"
    )

    assert _line(explained(log)).startswith("EK0001")


def test_other_programs_errors_are_not_exceptions_of_python(explained: Explained) -> None:
    log = "/src/moon.cpp:17:49: error: 'tide_t' was not declared\nError: building at STEP 3: exit status 2\n"

    assert "tide_t" in _line(explained(log))


@pytest.mark.parametrize(
    "line",
    [
        "CMake Error at moon/CMakeLists.txt:20 (message):",
        "Lmod has detected the following error: The following module(s) are unknown:",
    ],
)
def test_an_error_that_says_only_where_is_shown_with_what_follows(explained: Explained, line: str) -> None:
    log = f"-- Configuring\n{line}\n\n  the phase is not known\n"

    assert line in _line(explained(log))
    assert "the phase is not known" in _line(explained(log))


@pytest.mark.parametrize(
    "line",
    [
        "03:08:57.858 [I] Unable to initialize backend 'moon': No module named 'moon'",
        "INFO:2026-06-03 03:08:57,858:moon:925: libmoon.so: cannot open shared object file: No such file or directory",
        "[2025-12-31 01:40:03] Ignore import error when loading moon: No module named 'moon'",
        "the sun is not there: No module named 'sun', falling back to the moon",
    ],
)
def test_news_and_ignored_errors_are_not_failures(explained: Explained, line: str) -> None:
    assert explained(f"{line}\nstep 1 loss 2.0\n").is_healthy


def test_an_exception_goes_before_a_line_that_tells_of_one(explained: Explained) -> None:
    told = "Encountered exception while importing moon: No module named 'moon'\n"

    assert _line(explained(f"{told}{_CALLED}ImportError: No module named 'm'\n")).startswith("ImportError")
    assert not explained(told).is_healthy


def test_the_words_of_nccl_go_before_the_kind_of_call_that_failed(explained: Explained) -> None:
    log = (
        "n1:3:3 [0] misc/moon.cc:187 NCCL WARN moonGetHandleByPciBusId() failed: Not Found there\n"
        f"{_CALLED}RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)\n"
    )

    assert "moonGetHandleByPciBusId" in _line(explained(log))


@pytest.mark.parametrize(
    "line",
    [
        "E77777: 2025-03-18-09:02:18.501.341 the moon is required",
        ">     E77777: the moon is required",
        "F20251111 12:28:58.504206 214989 moon_service.cpp:37] Check that the moon is required",
        "CMake Error: the moon is required",
    ],
)
def test_unusual_error_prefix_is_recognised(explained: Explained, line: str) -> None:
    assert "the moon is required" in _line(explained(f"step 1\n{line}\nstep 2\n"))


def test_code_of_a_traceback_whose_beginning_is_lost_is_not_an_error(explained: Explained) -> None:
    prefix = "(Worker_TP5 pid=7129) ERROR 2025-11-25 15:18:55.343 [multiproc_executor.py:671] "
    log = f"{prefix}    logits = moon(batch)\n{prefix}RuntimeError: the moon is full\n"

    assert _line(explained(log)) == "RuntimeError: the moon is full"


def test_an_error_of_mindspores_cpp_code_outranks_the_exception_of_python(explained: Explained) -> None:
    log = (
        "[CRITICAL] DEVICE(7,fffd,python):2023-01-10-09:15:46.798.038 [mindspore/ccsrc/data_queue.cc:291] ParseType] "
        f"Got unsupported moon: -1\nstep 1\n{_CALLED}RuntimeError: Run task error!\n"
    )
    explanation = explained(log)

    assert explanation.headline().endswith("Got unsupported moon: -1")
    assert explanation.verdict.first is not None
    assert explanation.verdict.first.trace is not None
    assert explanation.verdict.first.trace.place == ("mindspore/ccsrc/data_queue.cc", 291, "ParseType")


def test_only_our_own_errors_have_a_remedy_below_them(explained: Explained) -> None:
    ours = "error: optim.learning_rate must be positive\n   do: give a positive number\nwhere: recipe.yaml:3\n"

    assert explained(ours).headline().startswith("ascendtune says: optim")
    assert explained(ours).remedies() == ("give a positive number",)
    wrapped = ours.replace("positive number\n", "positive\n       number\n")
    assert explained(wrapped).remedies() == ("give a positive number",)
    assert "ascendtune" not in explained("error: could not compile `moon`\nerror: exit status 1\n").headline()


def test_kernels_that_are_missing_go_before_the_class_of_their_code(explained: Explained) -> None:
    log = "call aclnnMoon failed, detail:EZ1001: [PID: 7] cannot open binary_info_config.json, file not found\n"

    assert "not installed" in explained(log).headline()


def test_a_kernel_compilers_error_outranks_its_failure(explained: Explained) -> None:
    log = (
        "triton.compiler.errors.MLIRCompilationError: \n[ConvertLinalgRToBinary] encounters error:\n"
        "bishengir-compile: for the --target option: Cannot find option named 'Moon7'!\n"
    )

    assert "does not know the chip Moon7" in explained(log).headline()


_INTERRUPT = f"{_CALLED}KeyboardInterrupt: the engine was ended\n"


def test_an_interrupt_after_a_failure_is_how_it_was_ended(explained: Explained) -> None:
    log = (
        f"EZ9999: [PID: 7] tide 7 is higher than 6[FUNC:Tide][FILE:tide.cpp][LINE:9]\nINFO: Shutting down\n{_INTERRUPT}"
    )

    assert "tide 7" in _line(explained(log))


@pytest.mark.parametrize("before", ["step 1 loss 2.0\n", "WARNING: retrying\n"])
def test_an_interrupt_of_a_job_that_ran_is_one(explained: Explained, before: str) -> None:
    assert "KeyboardInterrupt" in _line(explained(f"{before}{_INTERRUPT}"))


def test_an_interrupt_of_what_handled_an_exception_is_one(explained: Explained) -> None:
    link = "\nDuring handling of the above exception, another exception occurred:\n\n"

    assert "KeyboardInterrupt" in _line(explained(f"{_CALLED}_queue.EmptyError\n{link}{_INTERRUPT}"))


def test_packages_in_conflict_are_shown_by_name(explained: Explained) -> None:
    log = (
        "ERROR: Cannot install moon==7 and tide==6 because these package versions have conflicting dependencies.\n\n"
        "The conflict is caused by:\n    moon 7 depends on tide==7\n\n"
        "ERROR: ResolutionImpossible: for help visit https://pip.pypa.io/\n"
    )

    assert "moon==7 and tide==6" in _line(explained(log))


def test_a_library_that_is_found_elsewhere_is_not_missing(explained: Explained) -> None:
    searched = "CUDA_SETUP: WARNING! libmoon.so not found in any environmental path. Searching in backup paths...\n"
    found = "DEBUG: Possible options found for libmoon.so: {}\nstep 1 loss 2.0\n"

    assert explained(searched + found.format("{PosixPath('/usr/lib/libmoon.so')}")).is_healthy
    assert "libmoon.so" in explained(searched + found.format("set()")).headline()


def test_last_line_without_an_end_is_seen_from_the_line_above(explained: Explained) -> None:
    searched = "CUDA_SETUP: WARNING! libmoon.so not found in any environmental path. Searching in backup paths...\n"

    assert "libmoon.so" in explained(searched + "DEBUG: Possible options found for libmoon.so: set()").headline()


def test_a_bare_exception_is_known_by_who_raised_it(explained: Explained) -> None:
    assert (
        explained(f"{_CALLED}NotImplementedError\n").headline()
        == "Python failed with NotImplementedError (in step): moon(batch)"
    )
    assert explained("odd.OddError\n").headline() == "Python failed with odd.OddError"


@pytest.mark.parametrize(
    ("line", "entry"),
    [
        ("HBM MULTI BIT ECC, Uncorrectable ECC, device_id=3, event_id=0x80e01801, time us=67672363666.", "80e01801"),
        ("[ERROR] Fault RAS occurs in the system: [event_id:0x80E01801] Uncorrectable ECC", "80e01801"),
        ("ModuleNotFoundError: No module named 'mindspeed.core'", "module-of-vendor-missing"),
        ("ModuleNotFoundError: No module named 'yaml'", "module-of-other-package"),
        ("ModuleNotFoundError: No module named 'tempfile_x'", "module-missing"),
        ("ModuleNotFoundError: No module named 'deepspeed'", "known-package-missing"),
        (
            "RuntimeError: unable to open shared memory object </torch_1> in read-write mode: Permission denied (13)",
            "shared-memory-refused",
        ),
    ],
)
def test_catch_all_entries_are_split_by_what_the_line_says(
    explained: Callable[..., Explanation], line: str, entry: str
) -> None:
    assert entry_of(explained(line + "\n")) == entry


def test_no_vendor_module_is_to_be_installed_from_the_index(explained: Callable[..., Explanation]) -> None:
    remedies = " ".join(explained("ModuleNotFoundError: No module named 'acl'\n").remedies())

    assert "set_env.sh" in remedies and "pip install acl" not in remedies


def test_shapes_of_an_adapter_tell_rank_from_base(explained: Callable[..., Explanation]) -> None:
    said = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    load()\n'
        "RuntimeError: Error(s) in loading state_dict for PeftModelForCausalLM:\n"
        "\tsize mismatch for base_model.model.h.0.q.lora_A.default.weight: copying a param with shape "
        "torch.Size([16, {wide}]) from checkpoint, the shape in current model is torch.Size([{rank}, 4096]).\n"
    )

    assert "rank 16, and the adapter is set up with rank 8" in explained(said.format(wide=4096, rank=8)).headline()
    assert "another base model" in explained(said.format(wide=5120, rank=16)).headline()


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (
            "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\n"
            "LoweringException: ImportError: cannot import name 'triton_key' from 'triton.compiler.compiler'\n",
            "api-renamed",
        ),
        (
            "slurmstepd: error: execve(): tide-train: Permission denied\n"
            "srun: error: moon7: task 0: Exited with exit code 13\n",
            "slurm-step-program",
        ),
        (
            "ValueError: The global train batch size (4 x 1) must be evenly divisible by the number of generations per "
            "prompt (1). Given the current train batch size, the valid values are: [2, 4].\n",
            "grpo-one-generation",
        ),
    ],
)
def test_the_reason_goes_before_what_reports_it(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


_IMPORT = 'Traceback (most recent call last):\n  File "{file}", line 2, in <module>\n    import {module}\n'


@pytest.mark.parametrize(
    ("module", "entry", "remedy"),
    [
        ("mindspeed", "module-of-vendor-missing", "git clone https://gitcode.com/Ascend/MindSpeed"),
        ("tbe", "module-of-cann-missing", "set_env.sh"),
        ("apex", "module-of-image-missing", "image of the vendor"),
        ("flash_attn", "flash-imported-by-script", "take the import out"),
    ],
)
def test_first_remedy_of_a_missing_module_is_that_of_the_module(
    explained: Callable[..., Explanation], module: str, entry: str, remedy: str
) -> None:
    raised = _IMPORT.format(file="/w/train.py", module=module) + f"ModuleNotFoundError: No module named '{module}'\n"
    explanation = explained(raised)

    assert entry_of(explanation) == entry
    assert remedy in explanation.remedies()[0]


def test_flash_attn_that_a_package_imports_is_asked_for_by_the_configuration(
    explained: Callable[..., Explanation],
) -> None:
    file = "/u/site-packages/transformers/modeling_utils.py"
    raised = _IMPORT.format(file=file, module="flash_attn") + "ModuleNotFoundError: No module named 'flash_attn'\n"

    assert entry_of(explained(raised)) == "flash-not-installed"


def test_more_processes_than_places_are_those_of_two_jobs(explained: Callable[..., Explanation]) -> None:
    line = "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. {}/8 clients joined.\n"

    assert entry_of(explained(line.format(16))) == "two-jobs-one-store"
    assert entry_of(explained(line.format(7))) == "store-clients-missing"


def test_headline_of_a_killed_rank_does_not_repeat_the_fields_of_torchrun(
    explained: Callable[..., Explanation],
) -> None:
    line = (
        "E1129 15:17:30.006000 11285 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: -9) "
        "local_rank: 1 (pid: 10715) of binary: /x/bin/python3.11\n"
    )

    assert explained(line).headline().endswith("because the host or container ran out of memory (rank 1)")


@pytest.mark.parametrize(
    ("line", "end"),
    [
        (
            "RuntimeError: Unsloth: quant method 'iq1_s' is an IQ low-bit quant that requires an importance matrix.",
            "and none was given (iq1_s)",
        ),
        ("ValueError: Invalid packing strategy 'moon_fit', must be one of ['tide'].", "does not know (moon_fit)"),
        # The entry's own example: its words are those of the message.
        (
            "RuntimeError: Unsloth: quant method 'iq2_xxs' is an IQ low-bit quant that requires an importance matrix.",
            "and none was given",
        ),
        # A name in C++.
        ("ValueError: Invalid packing strategy 'c10::Moon', must be one of ['tide'].", "does not know"),
    ],
)
def test_value_in_the_message_of_a_known_cause_is_in_the_headline(explained: Explained, line: str, end: str) -> None:
    assert explained(line + "\n").headline().endswith(end)
