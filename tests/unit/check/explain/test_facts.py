"""Facts of logs and messages, and what they do: required by entries, told by headlines, held by JSON."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from ascendtune.check.explain.answer.json_form import as_json
from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.facts.facts import of_log, of_message, told


def test_variables_versions_ranks_and_ports_of_a_log() -> None:
    facts = of_log(
        [
            "export ASCEND_RT_VISIBLE_DEVICES=0,1,2,3\nMASTER_PORT=29501 torchrun --nproc_per_node 4 --nnodes 2 a.py",
            "- `transformers` version: 4.45.2\ntorch_npu==2.1.0.post6 CANN 8.0.RC2\nworld size: 1",
        ]
    )

    assert facts["variable.ASCEND_RT_VISIBLE_DEVICES"] == ("0,1,2,3",)
    assert facts["port"] == ("29501",)
    assert facts["asked"] == ("8",)
    assert facts["world_size"] == ("1",)
    assert facts["version.transformers"] == ("4.45.2",)
    assert facts["version.torch_npu"] == ("2.1.0.post6",)
    assert facts["version.cann"] == ("8.0.RC2",)


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("- **transformers version**: `4.45.2`", "transformers", "4.45.2"),
        ("deepspeed:0.9.0", "deepspeed", "0.9.0"),
        ("CANN版本： 5.1.RC1", "cann", "5.1.RC1"),
        ("torch version .................... 2.4.0", "torch", "2.4.0"),
        ("/usr/local/Ascend/ascend-toolkit/8.2.RC1/aarch64-linux/lib64/libmoon.so", "cann", "8.2.RC1"),
        ("docker run quay.io/ascend/cann:8.1.rc1-910b-ubuntu22.04-py3.10 bash", "cann", "8.1.rc1"),
        ("bash ./Ascend-cann-toolkit_8.0.0_linux-aarch64.run --install", "cann", "8.0.0"),
        ("source /opt/cann-8.5.0/set_env.sh", "cann", "8.5.0"),
        ("Name: transformers\nVersion: 4.44.2\nSummary: moons", "transformers", "4.44.2"),
        ("- PyTorch version (GPU?): 2.1.0+cu118 (True)", "torch", "2.1.0+cu118"),
        ("PyTorch version: 2.4.0+cu121\nIs debug build: False", "torch", "2.4.0+cu121"),
        ("[pip3] torch==2.4.0\n[conda] torch    2.4.0+cu121   pypi_0    pypi", "torch", "2.4.0+cu121"),
        (">>> torch.__version__\n'1.4.0'\n", "torch", "1.4.0"),
        ("In [2]: torch.__version__\nOut[2]: '2.0.1+cu117'\n", "torch", "2.0.1+cu117"),
        ('$ python -c "import torch; print(torch.__version__)"\n2.3.1+cu121\n', "torch", "2.3.1+cu121"),
        ("python serve.py vllm==0.2.2 torch2.1.0+cuda118", "torch", "2.1.0+cuda118"),
        ("INFO llm_engine.py:237] Initializing an LLM engine (v0.6.3.post1) with config: x", "vllm", "0.6.3.post1"),
        ("INFO api_server.py:712] vLLM API server version 0.9.1", "vllm", "0.9.1"),
        ("docker run vllm/vllm-openai:v0.5.4 --model x", "vllm", "0.5.4"),
        ("FROM pytorch/pytorch:2.1.0-cuda11.8-cudnn8-devel", "torch", "2.1.0"),
        ("Requirement already satisfied: numpy<2,>=1.22 in ./venv (from moon) (1.26.4)", "numpy", "1.26.4"),
        ('[[package]]\nname = "torch"\nversion = "2.1.0"\n', "torch", "2.1.0"),
        ("| transformers | 4.36.2 |", "transformers", "4.36.2"),
        ("my transformers version is 4.18.0", "transformers", "4.18.0"),
        ("torch版本为2.1.0", "torch", "2.1.0"),
        ("deepspeed info ................... 0.12.6, unknown, unknown", "deepspeed", "0.12.6"),
        ("Cuda compilation tools, release 11.8, V11.8.89", "cuda", "11.8"),
        ('  File "/v/lib/python3.8/site-packages/moon/tide.py", line 7, in rise', "python", "3.8"),
        ("pip install ./flash_attn-2.5.8+cu122-cp310-cp310-linux_x86_64.whl", "flash_attn", "2.5.8+cu122"),
        ("sentencepiece 0.1.92", "sentencepiece", "0.1.92"),
    ],
)
def test_version_is_read_in_each_way_of_writing_it(text: str, name: str, version: str) -> None:
    assert of_log([text])[f"version.{name}"] == (version,)


def test_versions_that_pip_installed_are_facts() -> None:
    facts = of_log(["Successfully installed numpy-2.0.2 torch-npu-2.7.1.dev20250724 tide-1.0"])

    assert facts == {"version.numpy": ("2.0.2",), "version.torch_npu": ("2.7.1.dev20250724",)}
    assert of_log(["Downloading numpy-2.0.2-cp310-cp310-manylinux.whl"]) == {}


@pytest.mark.parametrize(
    "text",
    [
        "moon 0.7.0 requires torch==2.7.0",
        "ERROR: Could not find a version that satisfies the requirement torch==1.4.0",
        "this model needs transformers 4.51.0",
        "it was removed in transformers v5.0.0",
        "PyTorch 2.4.0 or newer",
        "FROM nvcr.io/nvidia/pytorch:23.10-py3",
        "    Found existing installation: torch 2.3.0",
        " - numpy==2.0.0",
        "Torch: 2.5. CUDA: 8.0. CUDA Toolkit: 12.4.",
    ],
)
def test_version_that_is_asked_for_or_removed_is_not_a_fact(text: str) -> None:
    assert {name for name in of_log([text]) if name.startswith("version.")} <= {"version.torch"}
    assert not set(of_log([text]).get("version.torch", ())) - {"2.5"}


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("world_size:\n 4\nHCCL_A=123456789012", "world_size", ("4",)),
        ("HCCL_B=1\nHCCL_A=123456789012", "variable.HCCL_A", ("123456789012",)),
        ("nRanks 2, rankSize 4", "world_size", ("2", "4")),
        ("num_machines 2 --num_machines 3", "nnodes", ("3",)),
        ("--num_processes=4 --num_gpus 8", "nproc", ("8", "4")),
        ("[::]:29501 0.0.0.0:29502 127.0.0.1:29503 localhost:29504", "port", ("29501", "29502", "29503", "29504")),
        ("İ Python 3.11.4\nvllm_ascend-0.9 HUGGINGFACE_HUB==0.30", "version.huggingface_hub", ("0.30",)),
        ("None of the inputs have requires_grad=True", "checkpoint_inputs", ("requires_grad",)),
        ("world_size=4, worker_count=5", "joined", ("more",)),
    ],
)
def test_facts_of_each_kind_are_found_by_the_words_of_their_lines(
    text: str, name: str, values: tuple[str, ...]
) -> None:
    assert sorted(of_log([f"first line\n{text}\nlast line"])[name]) == sorted(values)


@pytest.mark.parametrize("text", ["a.WORLD_SIZE_OF_MOON=3", "step 12 loss 2.5 port of call", "$MASTER_PORT="])
def test_text_without_facts_has_none(text: str) -> None:
    assert of_log([text]) == {}


@pytest.mark.parametrize(
    ("message", "name", "values"),
    [
        ("mat1 and mat2 shapes cannot be multiplied (4x512 and 1024x10)", "shape", ("4x512", "1024x10")),
        ("copying a param with shape torch.Size([16, 4096]) from it", "shape", ("16, 4096",)),
        ("expected mat1 and mat2 to have the same dtype, but got: c10::Half != float", "dtype", ("Half",)),
        ("call aclnnAdd failed, error code is 561103", "operator", ("aclnnAdd",)),
        ("call aclnnAdd failed, error code is 561103", "error_code", ("561103",)),
        ("[Errno 28] No space left on device: '/data/out'", "errno", ("28 ENOSPC",)),
        ("connect to 10.0.0.7:29500 failed", "peer", ("10.0.0.7:29500",)),
        ("KeyError: 'gpt_oss'", "name", ("gpt_oss",)),
    ],
)
def test_numbers_and_names_of_a_message(message: str, name: str, values: tuple[str, ...]) -> None:
    assert of_message(message)[name] == values


def test_headline_does_not_repeat_what_the_sentence_says() -> None:
    message = of_message("no file '/data/model/config.json' here")

    assert told(message, "a file is missing") == "/data/model/config.json"
    assert told(message, "a file is missing: /data/model/config.json") == ""


@pytest.mark.parametrize("message", ["error in ../c10d/NCCLUtils.hpp:275", "tag 0x3000030", "ranks '3'"])
def test_headline_lacks_sources_and_addresses(message: str) -> None:
    assert told(of_message(message), "a call failed") == ""


def test_headline_of_a_general_entry_holds_the_facts_of_the_message(explained: Callable[..., Explanation]) -> None:
    said = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x512 and 1024x10)\n"

    assert explained(said).headline().endswith(": mat1 and mat2 shapes cannot be multiplied (4x512 and 1024x10)")


def test_headline_of_out_of_memory_holds_the_sums(explained: Callable[..., Explanation]) -> None:
    said = (
        "NPU out of memory. Tried to allocate 20.00 GiB (NPU 3; 60.96 GiB total capacity; 49.47 GiB already allocated; "
        "1.32 GiB free; 57.55 GiB reserved in total by PyTorch)\n"
    )

    assert "20.0 GiB asked for, 1.3 GiB of 61.0 GiB free" in explained(f"RuntimeError: {said}").headline()


def test_json_has_the_facts(explained: Callable[..., Explanation]) -> None:
    explanation = explained("HCCL_CONNECT_TIMEOUT=120\nIndexError: index 32000 is out of bounds for dimension 0\n")
    answer = json.loads(as_json(explanation))

    assert answer["facts"]["variable.HCCL_CONNECT_TIMEOUT"] == ["120"]
    assert answer["first"]["facts"]["number"] == ["32000", "0"]


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (
            'Traceback (most recent call last):\n  File "/x/t.py", line 7, in main\n    check()\n'
            "AssertionError: expected 8 ranks\n",
            "each process believes that it is alone: the world size is 1 although the code expects 8 processes",
        ),
        ("[INFO] step 7 loss 2.5\n", "no failure was found"),
    ],
)
def test_world_of_one_is_the_cause_where_the_error_misses_ranks(
    explained: Callable[..., Explanation], end: str, told: str
) -> None:
    start = "+ python t.py --nproc 8\n[INFO] Process rank: 0, n_gpu: 1, distributed training: False, world_size: 1\n"

    assert explained(start + end).headline().startswith(told)
