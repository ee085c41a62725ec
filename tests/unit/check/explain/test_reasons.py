"""Messages whose innermost reason says more than the general entry that knows their outermost words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]
_OCI = "Error response from daemon: OCI runtime create failed: moon_linux.go:3: starting container process caused: "


def test_innermost_reason_of_a_general_entry_is_in_the_headline_and_only_likely(explained: Explained) -> None:
    explanation = explained(f"{_OCI}exec: the tide is out: unknown\n")

    assert entry_of(explanation) == "container-device"
    assert explanation.headline() == "the container could not be started: the tide is out"
    assert explanation.sureness.startswith("likely: this kind of failure has several causes")


def test_entry_that_knows_the_innermost_reason_goes_before_the_general_one(explained: Explained) -> None:
    explanation = explained(
        f"{_OCI}hook #1: initialization error: nvml error: driver/library version mismatch: unknown\n"
    )

    assert entry_of(explanation) == "nvml-mismatch"
    assert explanation.sureness.startswith("likely: the most frequent cause")


def test_code_of_cann_with_a_message_is_not_called_unexplained(explained: Explained) -> None:
    assert "the message itself says most" in explained("EI0020: The moon [7] is not a valid tide.\n").sureness


def test_io_error_of_a_lock_is_told_from_that_of_a_disk(explained: Explained) -> None:
    called = 'Traceback (most recent call last):\n  File "/v/site-packages/{}.py", line 4, in {}\n    call()\n'
    said = "OSError: [Errno 5] Input/output error\n"

    assert entry_of(explained(called.format("filelock/_unix", "_acquire") + said)) == "flock-refused"
    disk = explained(called.format("moon/tide", "write") + said)
    assert entry_of(disk) == "io-error"
    assert "df -h" in disk.remedies()[0]


def test_remedy_of_nccl_depends_on_how_the_connection_failed(explained: Explained) -> None:
    said = "n1:1:2 [0] include/socket.h:4 NCCL WARN {}\n"

    assert entry_of(explained(said.format("Bootstrap : no socket interface found"))) == "nccl-no-interface"
    refused = explained(said.format("Net : Connect to 10.0.0.9<5426> failed : No route to host"))
    assert entry_of(refused) == "nccl-no-route"
    assert "firewall" in " ".join(refused.remedies())
    assert entry_of(explained(said.format("Net : Connect to 10.0.0.9<5426> failed : moon"))) == "nccl-connect"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("RuntimeError: moon_impl: implementation for device npu:0 not found.", "NPU operators: moon is missing"),
        (
            "NotImplementedError: The operator 'aten::moon' is not currently implemented for the NPU device",
            "aten::moon",
        ),
        ("KeyError: 'optimizer'", "the checkpoint that is loaded has no 'optimizer'"),
        ("KeyError: 'moon'", "there is no 'moon' in a table"),
    ],
)
def test_headline_names_what_is_lacking(explained: Explained, line: str, said: str) -> None:
    assert said in explained(f"{line}\n").headline()


def test_installing_is_advised_only_where_the_message_speaks_of_it(explained: Explained) -> None:
    number = explained("RuntimeError: tide=8 is not within the required range of [1, 2] of the moon\n")
    package = explained("RuntimeError: the moon requires the package tidelib\n")

    assert "pip" not in " ".join(number.remedies())
    assert "pip show" in " ".join(package.remedies())


def test_memory_that_others_hold_is_the_cause_of_a_failed_allocation_of_mindspore(explained: Explained) -> None:
    said = (
        "[ERROR] DEVICE(1,f,python):2021-09-13-15:29:07.465.388 [mindspore/moon.cc:62] Malloc] Malloc device memory "
        "failed, size[7], ret[207001], Device 6 may be other processes occupying this card, check as: ps -ef\n"
        "[driver interface] halMemAlloc failed: device_id=6, size=7, type=2\n"
    )

    assert entry_of(explained(said)) == "mindspore-memory-shared"


_RULE = "\n" + "-" * 52 + "\n"


def test_frame_is_the_line_of_the_model_that_a_graph_names(explained: Explained) -> None:
    called = 'Traceback (most recent call last):\n  File "train.py", line 37, in train\n    run()\n'
    package = "In file /v/python3.7/site-packages/mindspore/nn/container.py(236)/        for cell in cells:/\n"
    shown = "{}In file /home/moon/net.py:47\n            x = self.tide(x)\n"
    for graph in (shown.format("# "), package + shown.format("")):
        heading = f"{_RULE}- The Traceback of Net Construct Code:{_RULE}\n"
        explanation = explained(f"{called}NameError: The moon 'x' is odd.\n{heading}{graph}")

        assert "look at /home/moon/net.py:47" in explanation.remedies()


def test_reason_of_a_data_set_is_read_below_the_exception(explained: Explained) -> None:
    heading = f"{_RULE}- Dataset Pipeline Error Message:{_RULE}"
    explanation = explained(f"RuntimeError: Exception thrown from the moon.\n{heading}[ERROR] Tide: 8 exceeds 3.\n")

    assert (
        explanation.headline() == "Python failed with RuntimeError: Exception thrown from the moon: Tide: 8 exceeds 3."
    )


@pytest.mark.parametrize(
    ("line", "end"),
    [
        (
            "[ERROR] ['python3', '--fp16', 'moon.json'" + 40 * ", '-u'" + "] exits with return code = -9",
            "out of memory",
        ),
        (
            "RuntimeError: Expected to mark a variable ready only once. This error is caused by `moon` functions.",
            "twice in one step",
        ),
        ("RuntimeError: call aclnnMoon failed, detail:EZ1001: self not implemented for DT_DOUBLE", "on this chip"),
        (
            "run `moon.tensor([1.0]).cuda()` where the tide is high: it returns **RuntimeError: CUDA error: "
            "no kernel image is available for execution on the device**",
            "code for this GPU",
        ),
    ],
)
def test_headline_does_not_end_in_code_advice_or_options(explained: Explained, line: str, end: str) -> None:
    assert explained(f"{line}\n").headline().endswith(end)


def test_headline_quotes_a_message_with_words_that_its_entry_does_not_have(explained: Explained) -> None:
    plain = "NCCL error in: /p/ProcessGroupNCCL.cpp:518, unhandled system error"

    assert "moonbeam" not in explained(f"RuntimeError: {plain}\n").headline()
    assert "moonbeam 7 is cut" in explained(f"RuntimeError: {plain}, moonbeam 7 is cut\n").headline()


def test_general_entry_gives_way_to_the_exception_that_it_led_to(explained: Explained) -> None:
    first = 'Traceback (most recent call last):\n  File "/v/datasets/table.py", line 4, in cast\n    raise\n'
    second = 'Traceback (most recent call last):\n  File "/v/datasets/builder.py", line 9, in prepare\n    raise\n'
    linked = "\nDuring handling of the above exception, another exception occurred:\n\n"
    columns = (
        "All the data files must have the same columns, but at some point there are 2 new columns ({'tide', 'moon'})"
    )
    log = f"{first}datasets.table.CastError: Couldn't cast\n{linked}{second}"
    log += (
        f"datasets.exceptions.DatasetGenerationCastError: An error occurred while generating the dataset\n\n{columns}\n"
    )

    assert entry_of(explained(log)) == "dataset-columns-named"
    assert "'tide', 'moon'" in explained(log).headline()


def test_message_without_a_traceback_is_read_on_where_its_line_breaks_off(explained: Explained) -> None:
    explanation = explained(
        "RuntimeError: Error(s) in loading state_dict for PeftModelForCausalLM:\n"
        "        size mismatch for h.0.attn.lora_A.default.weight: copying a param with shape torch.Size([32, 1024]) "
        "from checkpoint, the shape in\ncurrent model is torch.Size([16, 1024]).\n"
    )

    assert entry_of(explanation) == "adapter-rank"


def test_reason_below_an_exception_belongs_to_its_message(explained: Explained) -> None:
    explanation = explained("ValueError: the moon cannot rise\ntide: string\nbecause the tide 9 is out\n")

    assert "the moon cannot rise because the tide 9 is out" in explanation.headline()


def test_reason_below_the_next_traceback_is_not_taken(explained: Explained) -> None:
    explanation = explained(
        'ValueError: the moon cannot rise\nTraceback (most recent call last):\n  File "/v/a.py", line 1, in f\n'
        "    g()\nKeyError: 7\nbecause the tide 9 is out\n"
    )

    assert "tide" not in explanation.headline()


def test_prefix_of_a_line_of_plog_is_not_part_of_the_headline(explained: Explained) -> None:
    line = (
        "[ERROR] MOON(12,python):2024-05-08-10:21:33.120.551 [tide.cpp:2][12][Rise][Moon]the moon did not rise in 7 s"
    )

    assert explained(f"{line}\n").headline().endswith(": the moon did not rise in 7 s")


@pytest.mark.parametrize(
    ("code", "entry"),
    [
        ("classes = data.features[config.target]", "data-field-missing"),
        ('text = example["tide"]', "data-field-missing"),
        ('weight = state_dict["tide"]', "checkpoint-entry-missing"),
        ('phase = PHASES["tide"]', "key-missing"),
    ],
)
def test_code_of_the_innermost_frame_tells_what_lacks_the_key(explained: Explained, code: str, entry: str) -> None:
    called = f'Traceback (most recent call last):\n  File "/me/train.py", line 12, in step\n    {code}\n'

    assert entry_of(explained(f"{called}KeyError: 'tide'\n")) == entry


@pytest.mark.parametrize(
    ("reason", "package"),
    [
        ("Because there is no version of tide==3.2.1 and you require tide==3.2.1, we can conclude that", "tide==3.2.1"),
        ("Because tide was not found in the package registry and you require tide, we can conclude", "tide"),
        ("Because only tide<=3.2.0 is available and you require tide==3.2.1, we can conclude that", "tide==3.2.1"),
    ],
)
def test_reason_that_uv_draws_below_its_error_is_read(explained: Explained, reason: str, package: str) -> None:
    explanation = explained(f"  × No solution found when resolving dependencies:\n  ╰─▶ {reason}\n")

    assert explanation.headline() == f"the package index has no {package} that fits"


def test_request_to_report_a_bug_is_not_the_failure(explained: Explained) -> None:
    request = " and submit this information together with your error trace to: https://x.org/bitsandbytes/issues\n"

    assert explained(f"{request}step 1\n").is_healthy
