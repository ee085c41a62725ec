"""Code that does not run on Ascend is found with its place; comments, docstrings and replaced code are not."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest

from ascendtune.check.finding import exit_code
from ascendtune.check.migrate.python_code import find_in_python
from ascendtune.check.migrate.rules import MODULES, PACKAGES, RULES, STRINGS, SUBMODULES
from ascendtune.check.migrate.scan import scan
from ascendtune.check.migrate.text import find_in_text
from ascendtune.core.errors import InputError, NoVerdict

# A line of Python -> the rules that must apply to it, and no others.
PYTHON = {
    "import bitsandbytes as bnb": {"bitsandbytes"},
    "from xformers.ops import memory_efficient_attention": {"xformers"},
    "from flash_attn.flash_attn_interface import flash_attn_func": {"flash-attn"},
    "from apex.normalization import FusedLayerNorm": {"apex"},
    "import triton.language as tl": {"triton"},
    "from deepspeed.ops.sparse_attention import SparseSelfAttention": {"deepspeed-ops"},
    "from deepspeed.ops.adam import DeepSpeedCPUAdam": set(),
    "import deepspeed": set(),
    "import transformer_engine.pytorch as te": {"cuda-libraries"},
    "from liger_kernel.transformers import apply_liger_kernel_to_llama": {"liger"},
    "import numba.cuda": {"cuda-libraries"},
    "from .apex import x": set(),
    "x.cuda()": {"moves-by-itself"},
    "import torch; torch.cuda.synchronize()": {"moves-by-itself"},
    "import torch as th; th.cuda.nvtx.range_push('a')": {"cuda-only-api"},
    "from torch import cuda; cuda.power_draw()": {"cuda-only-api"},
    "from torch.cuda import nccl": {"cuda-only-api"},
    "from torch.cuda.amp import autocast": set(),
    "import torch; torch.distributed.init_process_group('nccl')": {"moves-by-itself"},
    "import torch; x = torch.ones(2, device='cuda:0')": {"moves-by-itself"},
    "if x.device.type == 'cuda': pass": {"device-compare"},
    "y = backend in ('nccl', 'gloo')": {"device-compare"},
    "y = 'cuda' in str(x)": {"device-compare"},
    "import torch; x.to(torch.float64)": {"float64"},
    "x = x.double()": {"float64"},
    "import torch; m = torch.compile(m)": {"torch-compile"},
    "import torch; m = torch.compile(m, backend='aot_eager')": set(),
    "import torch; m = torch.compile(m, backend=npu_backend)": set(),
    "import torch; m = torch.compile(m, disable=True)": set(),
    "import torch\n@torch.compile\ndef f(x): pass": {"torch-compile"},
    "import torch\n@torch.jit.script\ndef f(x): pass": {"torch-jit"},
    "import torch; torch.backends.cudnn.benchmark = True": {"cuda-backends"},
    "import os; os.environ['CUDA_VISIBLE_DEVICES'] = '0'": {"cuda-variables"},
    "import os; os.environ.get('NCCL_DEBUG')": {"cuda-variables"},
    "from torch.utils.cpp_extension import CUDAExtension": {"cuda-extension"},
    "from torch.utils.cpp_extension import load; load('a', ['a.cpp', 'a.cu'])": {"cuda-extension"},
    "from torch.utils.cpp_extension import load; load('cuda_free', ['a.cpp'])": set(),
    "from transformers import BitsAndBytesConfig": {"bitsandbytes"},
    "M.from_pretrained(p, load_in_4bit=True)": {"bitsandbytes"},
    "M.from_pretrained(p, load_in_4bit=False)": set(),
    "T(optim='paged_adamw_8bit')": {"bitsandbytes"},
    "T(optim='adamw_torch', attn='flash_attention_2')": set(),
    "T(attn='flash_attention_3')": {"flash-attn"},
    "run('nvidia-smi --query-gpu=name')": {"nvidia-tools"},
    "# import bitsandbytes, x.cuda()": set(),
    '"""import xformers\n\nx.cuda()"""': set(),
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import flash_attn": set(),
    "import typing\nif typing.TYPE_CHECKING:\n    import flash_attn": set(),
    "from typing import TYPE_CHECKING\nif not TYPE_CHECKING:\n    import flash_attn": {"flash-attn"},
    "cuda_like = 'barracuda'": set(),
    "print(cuda for cuda in xs": {"not-readable"},
}


@pytest.mark.parametrize("code", PYTHON)
def test_facts_are_found_in_python_code(code: str) -> None:
    assert {hit.code for hit in find_in_python(code.encode())} == PYTHON[code]


def test_code_that_is_nested_deeper_than_python_recurses() -> None:
    branches = "".join(f"elif a == {number}:\n    pass\n" for number in range(500))
    found = find_in_python(f"import xformers\nif a:\n    pass\n{branches}".encode())

    assert {hit.code for hit in found} == {"xformers", "not-readable"}


TEXT = {
    ("cpp", "#include <cuda_runtime.h>"): {"cuda-kernels"},
    ("cpp", "#include <ATen/cuda/CUDAContext.h>"): {"cuda-kernels"},
    ("cpp", "  cudaMemcpy(a, b, n, kind);"): {"cuda-kernels"},
    ("cpp", "TORCH_LIBRARY_IMPL(mine, CUDA, m) {"): {"cuda-kernels"},
    ("cpp", "return a.cuda();"): {"cuda-kernels"},
    ("cpp", "return a->cuda(0);"): {"cuda-kernels"},
    ("cpp", "ncclAllReduce(a, b, n, type, op, comm, stream);"): {"cuda-kernels"},
    ("cpp", 'torch::Device d("cuda:0");'): {"cuda-kernels"},
    ("cpp", "torch::cuda::synchronize();"): {"cuda-kernels"},
    ("cpp", 'barracuda(); error("no cuda here");'): set(),
    ("cpp", "// cudaMalloc(a) /* #include <cuda.h> */"): set(),
    ("cpp", '#include <vector>\nm.def("f", &f, "fast (CUDA)");'): set(),
    ("cuda", "__global__ void f() {}"): {"cuda-kernels"},
    ("script", "export CUDA_VISIBLE_DEVICES=0,1"): {"cuda-variables"},
    ("script", "NCCL_DEBUG: INFO"): {"cuda-variables"},
    ("script", "# export NCCL_DEBUG=INFO; nvidia-smi"): set(),
    ("script", "nvidia-smi -l 1 &"): {"nvidia-tools"},
    ("script", "FROM nvidia/cuda:12.4.1-devel-ubuntu22.04"): {"nvidia-tools"},
    ("script", "        nvidia.com/gpu: 8"): {"nvidia-tools"},
    ("script", "docker run --gpus all image"): {"nvidia-tools"},
    ("script", "pip install torch==2.6.0+cu124"): {"cuda-wheels"},
    ("script", "project(x LANGUAGES CXX CUDA)"): {"cuda-extension"},
    ("script", "torchrun train.py --backend nccl"): {"moves-by-itself"},
    ("settings", '"load_in_4bit": true,'): {"bitsandbytes"},
    ("settings", "quantization_bit: 4"): {"bitsandbytes"},
    ("settings", "optim: paged_adamw_8bit"): {"bitsandbytes"},
    ("settings", '"optimizer": "adamw_bnb_8bit",'): {"bitsandbytes"},
    ("settings", "adapter: qlora"): {"bitsandbytes"},
    ("settings", "optimizer: adamw_torch_fused"): set(),
    ("script", "swift sft --quant_bits 4 --optim paged_adamw_32bit"): {"bitsandbytes"},
    ("settings", "export CUDA_HOME=/usr/local/cuda"): set(),
    ("requirements", "flash_attn>=2.5"): {"flash-attn"},
    ("requirements", '    "bitsandbytes>=0.43",'): {"bitsandbytes"},
    ("requirements", "nvidia-cublas-cu12==12.4"): {"cuda-wheels"},
    ("requirements", "nvidia-ml-py"): {"nvidia-tools"},
    ("requirements", "triton-ascend==3.2.1\ntorch==2.6.0  # not +cu124"): set(),
    ("requirements", "--extra-index-url https://download.pytorch.org/whl/cu121"): {"cuda-wheels"},
}


@pytest.mark.parametrize(("kind", "text"), TEXT)
def test_facts_are_found_in_scripts_and_requirements(kind: str, text: str) -> None:
    assert {hit.code for hit in find_in_text(kind, text)} == TEXT[kind, text]


def test_block_comments_keep_line_numbers() -> None:
    [hit] = find_in_text("cpp", "/* one\n   cudaMalloc(x)\n*/\nint a;\ncudaFree(x);\n")
    assert hit.line == 5


def _tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(dedent(text))
    return root


def test_scan_finds_cuda_code_in_scripts_and_notebooks(tmp_path: Path) -> None:
    notebook = {"cells": [{"cell_type": "code", "source": ["%pip install x\n", "import xformers\n"]}]}
    root = _tree(
        tmp_path,
        {
            "a/train.py": "import bitsandbytes\nx.cuda()\n",
            "b.py": """
                try:
                    import flash_attn
                except ImportError:
                    flash_attn = None
                """,
            "kernel.cu": "__global__ void f() {}\n",
            "look.ipynb": json.dumps(notebook),
            "Dockerfile.gpu": "FROM nvidia/cuda:12\n",
            ".git/hook.py": "import bitsandbytes",
            "env/pyvenv.cfg": "",
            "env/lib/x.py": "import bitsandbytes",
            "node_modules/x.py": "import bitsandbytes",
        },
    )
    (root / "binary.py").write_bytes(b"import bitsandbytes\0")
    (root / "large.py").write_bytes(b"import bitsandbytes\n" + b"#" * (5 << 20))
    (root / "link.py").symlink_to(root / "gone.py")
    seen: list[tuple[int, int]] = []
    found = scan(root, lambda what, done, total: seen.append((done, total)))
    by_code = {finding.code: finding for finding in found.findings}
    assert found.files == 6
    failing = {"bitsandbytes", "cuda-kernels", "xformers", "nvidia-tools"}
    assert set(by_code) == {*failing, "flash-attn", "not-readable", "moves-by-itself"}
    assert by_code["not-readable"].evidence == (f"{root}/binary.py:1: not text",)
    assert by_code["bitsandbytes"].evidence == (f"{root}/a/train.py:1: import bitsandbytes",)
    assert by_code["xformers"].evidence == (f"{root}/look.ipynb:2: import xformers",)
    # The code runs without an import whose failure is caught.
    assert by_code["flash-attn"].status == "warning" and "optional" in by_code["flash-attn"].evidence[0]
    assert by_code["bitsandbytes"].status == "failure" and by_code["moves-by-itself"].status == "ok"
    assert exit_code(found.findings) == 1
    assert found.verdict == "6 files read: 4 problems on Ascend, 2 warnings"
    assert seen[-1][0] == seen[-1][1]


def test_scan_without_findings_succeeds(tmp_path: Path) -> None:
    found = scan(_tree(tmp_path, {"x.py": "x.cuda()", "y.md": "import bitsandbytes"}))
    assert exit_code(found.findings) == 0 and "nothing found" in found.verdict
    with pytest.raises(InputError) as caught:
        scan(tmp_path / "gone")
    assert caught.value.code == "path-missing"


def test_no_code_is_not_a_verdict(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 9)
    for path in (tmp_path, tmp_path / "model.safetensors"):
        with pytest.raises(NoVerdict) as caught:
            scan(path)
        assert caught.value.code == "no-source-files"


def test_every_fact_names_a_rule_and_every_rule_but_the_good_one_has_a_remedy() -> None:
    named = {*MODULES.values(), *SUBMODULES.values(), *PACKAGES.values(), *(code for _, code in STRINGS)}
    assert named <= RULES.keys()
    assert all(rule.remedy for rule in RULES.values() if rule.status != "ok")
