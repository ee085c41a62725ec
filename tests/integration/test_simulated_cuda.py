"""The tests for hardware, on a CUDA device that computes on the CPU; with Triton's kernels in its interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from simulated_cuda.build import why_not

ROOT = Path(__file__).parents[2]
TRITON = ROOT / ".venv-triton" / "packages"
"""What `make triton-env` fills."""

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


def environment(*, interpret: bool) -> dict[str, str]:
    path = [ROOT / "tests", *([TRITON] if TRITON.is_dir() else []), os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(map(str, path)), "TRITON_INTERPRET": "1" if interpret else "0"}
    return {**os.environ, **own}


def run_on_simulated_device(directory: Path, chosen: str, *files: str) -> None:
    # Without Triton AdamW's kernel is torch's own, as on a GPU.
    if not TRITON.is_dir():
        chosen = f"({chosen}) and not adamw"
    report = directory / "report.xml"
    argv = [
        sys.executable, "-m", "pytest", "-p", "simulated_cuda.plugin", "-p", "no:cacheprovider", "-n", "0",
        f"--basetemp={directory / 'tests'}", f"--junit-xml={report}", "-k", chosen,
        *(f"tests/hardware/{each}" for each in files),
    ]  # fmt: skip
    ended = subprocess.run(
        argv, cwd=ROOT, env=environment(interpret=True), capture_output=True, text=True, check=False
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-20_000:] + ended.stderr[-5_000:]
    cases = list(ElementTree.parse(report).iter("testcase"))
    skipped = [case.get("name") for case in cases if case.find("skipped") is not None]
    assert not skipped, skipped
    run = {str(case.get("classname")).rpartition(".")[2] + ".py" for case in cases}
    assert run == set(files)


_SAMPLE = {
    "test_operators.py": "",
    "test_after_training.py": "",
    "test_waits.py": "noise or fp16 or offloaded or fsdp or dpo or linear",
    "test_training.py": "kernel_of_adamw or accumulated or nf4-fsdp or fp16-full or fp16-fsdp or bit_by_bit",
}
"""File -> which of its tests; all where none is named."""


def test_training_on_cuda_is_that_of_the_cpu(tmp_path: Path) -> None:
    # In one process: what it imports takes 5 CPU seconds.
    chosen = (f"{Path(file).stem} and ({words})" if words else Path(file).stem for file, words in _SAMPLE.items())
    run_on_simulated_device(tmp_path, " or ".join(chosen), *_SAMPLE)


@pytest.mark.soak
@pytest.mark.parametrize("file", ["test_waits.py", "test_training.py"])
def test_all_of_training_on_cuda_is_that_of_the_cpu(file: str, tmp_path: Path) -> None:
    run_on_simulated_device(tmp_path, Path(file).stem, file)


_COMPILE = """
import itertools, sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from ascendtune.train.kernel.triton_adamw import _BLOCK, _WARPS, _adamw

for capability, dtype in itertools.product(map(int, sys.argv[1:]), ("fp32", "bf16")):
    kinds = {
        **dict.fromkeys(_adamw.arg_names, "fp32"),
        **dict.fromkeys(("parameter", "gradient", "exp_avg", "exp_avg_sq"), "*" + dtype),
        "step": "*fp32", "factor": "*fp32", "count": "i32", "BLOCK": "constexpr",
    }
    of_16 = [at for at, (name, kind) in enumerate(kinds.items()) if kind == "*" + dtype or name == "count"]
    aligned = {(at,): [["tt.divisibility", 16]] for at in of_16}
    source = ASTSource(fn=_adamw, signature=kinds, constexprs={"BLOCK": _BLOCK}, attrs=aligned)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": _WARPS})
    text = made.asm["ptx"]
    assert made.asm["cubin"][:4] == bytes([127]) + b"ELF"
    print(dtype, "wide" if "ld.global.v" in text or ".v4." in text else "narrow",
          "nearest" if "cvt.rn.bf16" in text else "cut", "spills" if ".local" in text else "registers")
"""


@pytest.mark.skipif(not TRITON.is_dir(), reason="Triton is not installed beside .venv: run make triton-env")
def test_kernel_of_adamw_compiles_for_a_gpu(tmp_path: Path) -> None:
    capabilities = ("80", "90", "100")
    own = {"TRITON_CACHE_DIR": str(tmp_path)}
    argv = [sys.executable, "-c", _COMPILE, *capabilities]
    ended = subprocess.run(
        argv, env={**environment(interpret=False), **own}, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    # Memory is what bounds it: 16 bytes at a time, and nothing of it is written and read again on the way.
    expected = ["fp32 wide cut registers", "bf16 wide nearest registers"]
    assert ended.stdout.splitlines() == expected * len(capabilities)
