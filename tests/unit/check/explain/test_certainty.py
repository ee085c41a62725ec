"""The certainty of an answer, the precedence of failures, and the advice where nothing is known.

The messages are those of the programs named; names and numbers in them are invented.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]
_STEPS = "step 1 loss 2.0\nstep 2 loss 1.9\n"
_TRACEBACK = 'Traceback (most recent call last):\n  File "/moon/serve.py", line 5, in warm_up\n    call()\n'


# https://github.com/sgl-project/sglang/issues/14159
@pytest.mark.parametrize(
    ("failure", "entry"),
    [
        ("AssertionError: call aclnnInplaceCopy failed, AclNN_Parameter_Error(EZ1001): too many dimensions", "EZ1001"),
        ("ValueError: the tide of May is 7", "python-exception"),
    ],
)
def test_killed_after_a_failure_is_not_the_cause(explained: Explained, failure: str, entry: str) -> None:
    explanation = explained(f"{_STEPS}{_TRACEBACK}{failure}\n\nKilled\n")

    assert entry_of(explanation) == entry


@pytest.mark.parametrize(
    "doing",
    [
        "Map (num_proc=77):   7%| 700/9999\n",
        "Loading checkpoint shards:   7%| 1/14\n",
        "Adam Optimizer #0 is created with\n",
    ],
)
def test_the_activity_at_a_kill_is_not_the_cause_after_a_failure(explained: Explained, doing: str) -> None:
    alone = explained(f"{doing}Killed\n")
    after = explained(f"{doing}{_TRACEBACK}ValueError: the tide of May is 7\n\nKilled\n")

    assert str(entry_of(alone)).startswith("killed-w")
    assert entry_of(after) == "python-exception"


def test_killed_without_a_failure_before_is_the_answer(explained: Explained) -> None:
    assert entry_of(explained(f"{_STEPS}Killed\n")) == "killed"
    assert entry_of(explained(f"{_STEPS}[1]    4711 killed     python train.py\n")) == "killed"


def test_line_that_has_only_words_of_an_entry_is_likely(explained: Explained) -> None:
    known = explained("curl: (56) Recv failure: Connection reset by peer\n")
    other = explained("ERROR: IncompleteRead while the gardener carried seventeen lanterns uphill\n")

    assert (entry_of(known), known.sureness) == (
        "curl-connection-cut",
        "certain what broke; why: one of several known causes",
    )
    assert entry_of(other) == "download-failed"
    assert other.sureness == "likely: the line has words of this kind of failure, and says more than they do"


def test_advice_of_an_unknown_message_is_the_first_remedy(explained: Explained) -> None:
    explanation = explained("RuntimeError: the tide table of 1870 is too old. Please try to update the almanac.\n")

    assert explanation.remedies()[0] == "the message itself advises: Please try to update the almanac."


def test_unknown_message_without_advice_has_none(explained: Explained) -> None:
    explanation = explained("RuntimeError: the tide table used here is of 1870\n")

    assert not any("advises" in remedy for remedy in explanation.remedies())


def test_reason_in_json_ends_where_its_line_does(explained: Explained) -> None:
    message = r'{"message":"EZ1001: The moon cannot be larger than 8 tides.\n","type":"MoonError","code":500}'

    assert explained(f"AssertionError: {message}\n").headline().endswith("The moon cannot be larger than 8 tides")


# https://github.com/vllm-project/vllm-ascend/issues/7792
def test_missing_buffer_goes_before_the_transfer_that_it_broke(explained: Explained) -> None:
    explanation = explained(
        "ascend_direct_transport.cpp:1] Transfer slice failed with status: 503900\n"
        "[ERROR] HCCL(9,python3):2026-01-05-14:13:43.932.181 [one_sided.cc:1] Can't find remoteBuffer by key\n"
    )

    assert entry_of(explanation) == "kv-remote-buffer"
    assert "no registered buffer of its peer" in explanation.headline()


# https://github.com/vllm-project/vllm-ascend/issues/7871
def test_error_of_a_counter_is_explained_by_the_load_that_failed_before(explained: Explained) -> None:
    explanation = explained(
        "[scheduler.py:1] Failing 2 request(s) due to KV load failure (failure_policy=fail, 5 tokens affected)\n"
        "ValueError: Counters can only be incremented by non-negative amounts.\n"
    )

    assert entry_of(explanation) == "kv-load-failed"


# https://github.com/hiyouga/LlamaFactory/issues/6694
def test_reason_why_no_kernel_was_found_goes_before_that_none_was(explained: Explained) -> None:
    explanation = explained(
        "engine [AIcoreEngine] is unsupported. Reason: data type DT_BFLOAT16 of input [x] is not supported. "
        "All supported data type and format of tensor input0.x is: Data Type: {DT_FLOAT16,DT_INT8}Format:{ND}.\n"
        "        No supported Ops kernel and engine are found for [Moon3D1], optype [Moon3D].\n"
    )

    assert entry_of(explanation) == "npu-operator-dtype"
    assert "DT_BFLOAT16 (its input x)" in explanation.headline()


# https://github.com/ECNU-ICALK/EduChat/pull/10
def test_library_that_a_tokenizer_requires_is_named(explained: Explained) -> None:
    explanation = explained(
        "ImportError: \nMoonTokenizer requires the SentencePiece library but it was not found in your environment.\n"
    )

    assert explanation.headline() == "a Python package is not installed here: SentencePiece"


_CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
_DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"


def test_general_exception_that_says_nothing_quotes_its_direct_cause(explained: Explained) -> None:
    explanation = explained(
        f"{_TRACEBACK}pyarrow.lib.ArrowNotImplementedError: Cannot write struct type 'tide' with no child\n{_CAUSED}"
        f"{_TRACEBACK}datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset\n"
    )

    assert entry_of(explanation) == "dataset-schema"
    assert explanation.headline().endswith("Cannot write struct type 'tide' with no child")


def test_exception_of_the_program_goes_before_the_plain_mistake_that_it_handles(explained: Explained) -> None:
    explanation = explained(
        f"{_TRACEBACK}KeyError: 40123\n{_DURING}{_TRACEBACK}ValueError: tides.bin holds 40123 ids >= vocab_size 32000\n"
    )

    assert explanation.headline() == "Python failed with ValueError: tides.bin holds 40123 ids >= vocab_size 32000"


def test_traceback_that_a_message_quotes_says_what_failed(explained: Explained) -> None:
    explanation = explained(
        f"{_TRACEBACK}moon.SetupError: Failed to set up the environment.\nThe actor could not be created.\n"
        f"{_TRACEBACK}ValueError: directory /x/project is 812.4 MiB, the limit is 512 MiB\n"
    )

    assert "812.4 MiB" in explanation.headline()


@pytest.mark.parametrize(
    "message",
    [
        "accelerate.errors.ConfigError: `min_num_params` has to be greater than 0, got 0 in accelerate_config.yaml",
        "ValueError: layers_to_transform [40] is outside of the 32 layers of the base",
        "OSError: /data/part-00007.parquet has shrunk from 104857600 to 52428800 bytes",
        "RuntimeError: cu_seqlens_q has 17 entries, and the batch 15",
        "AssertionError: micro_batch_size * data_parallel_size = 48 does not divide global_batch_size = 128",
        "AssertionError: hybrid_cp_algo requires ulysses_degree_in_cp, but it is None",
        "AssertionError: session_len 40960 + max_new_tokens 4096 exceeds 300 blocks of 64",
        "__main__.BadShard: shard /data/s3/shard-0012.tar has 993 samples, the index says 1000",
    ],
)
def test_headline_of_an_unknown_exception_has_its_whole_reason(explained: Explained, message: str) -> None:
    explanation = explained(f"{_TRACEBACK}{message}\n")

    assert explanation.headline() == f"Python failed with {message}"
    assert explanation.sureness.startswith("likely: the message itself names what failed")


def test_missing_program_is_explained_by_the_directory_that_slurm_could_not_enter(explained: Explained) -> None:
    explanation = explained(
        "slurmstepd-node03: error: couldn't chdir to `/moon/job7': No such file or directory: going to /tmp instead\n"
        "python: can't open file '/tmp/train.py': [Errno 2] No such file or directory\n"
        "srun: error: node03: task 0: Exited with exit code 2\n"
    )

    assert entry_of(explanation) == "slurm-directory"
    assert entry_of(explained("python: can't open file '/x/train.py': [Errno 2] No such file\n")) == "script-not-found"


@pytest.mark.parametrize(
    ("line", "sureness"),
    [
        ("make: *** No rule to make target 'tide'.  Stop.\n", "certain what broke; why: one of several known causes"),
        ("ValueError: Please specify the ZeRO optimization config in the DeepSpeed config.\n", "certain"),
    ],
)
def test_sentence_that_names_several_reasons_is_not_certain_of_one(
    explained: Explained, line: str, sureness: str
) -> None:
    assert explained(line).sureness == sureness


def test_one_of_several_tasks_that_failed_is_the_cause_of_the_group(explained: Explained) -> None:
    # https://docs.python.org/3/library/exceptions.html#exception-groups
    log = (
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "/moon/serve.py", line 9, in <module>\n'
        "  |     asyncio.run(main())\n"
        "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n"
        "  +-+---------------- 1 ----------------\n"
        "    | Traceback (most recent call last):\n"
        '    |   File "/moon/serve.py", line 3, in rise\n'
        '    |     raise ValueError("the tide of May is 7")\n'
        "    | ValueError: the tide of May is 7\n"
        "    +------------------------------------\n"
    )

    assert "the tide of May is 7" in explained(log).headline()


@pytest.mark.parametrize(
    ("needed", "said", "code"),
    [
        (
            "HCCL_SOCKET_IFNAME=moon7",
            "HCCL function error: HcclGetRootInfo(&moon), error code is 6",
            "hccl-ifname-of-another-host",
        ),
        ("CUDA_VISIBLE_DEVICES=0,1", "RuntimeError: CUDA error: invalid device ordinal", "cuda-id-not-visible"),
        ("CapEff:\t0000000000000000", "set_mempolicy: Operation not permitted", "capabilities-dropped"),
    ],
)
def test_fact_of_another_log_makes_an_answer_likely(
    explained: Callable[..., Explanation], needed: str, said: str, code: str
) -> None:
    apart = explained(host1=f"{needed}\nstep 1\n", host2=f"step 1\n{said}\n")
    together = explained(host1="step 1\n", host2=f"{needed}\nstep 1\n{said}\n")

    assert apart.findings()[0].code == together.findings()[0].code == code
    assert apart.sureness == "likely: what decides it stands in the log of another rank or host"
    assert together.sureness == explained(f"{needed}\nstep 1\n{said}\n").sureness != apart.sureness
