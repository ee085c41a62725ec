"""Scans C++, CUDA, CMake, shell, YAML, Dockerfiles and requirements line by line; comments are ignored."""

from __future__ import annotations

import re
from pathlib import Path

from ascendtune.check.migrate.rules import PACKAGES, Hit
from ascendtune.core.units import count_of

_CUDA_SOURCES = (".cu", ".cuh")
_CPP = (".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".hh")
_SETTINGS = (".json", ".yaml", ".yml", ".env", ".cfg", ".ini")
_SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch", ".yaml", ".yml", ".cmake")
_NAMED = ("Dockerfile", "Makefile", "CMakeLists.txt")
_PIECE, _OVERLAP = 4000, 400
_REQUIREMENTS = re.compile(
    r"(requirements.*\.(txt|in)|constraints.*\.txt|environment.*\.ya?ml|pyproject\.toml|setup\.cfg)"
)

_IN_CPP = (
    (r"#\s*include\s*[<\"](cuda|cublas|cudnn|cufft|curand|cusparse|nccl|thrust/|cub/)", "cuda-kernels"),
    (r"#\s*include\s*[<\"](c10/cuda/|ATen/cuda/|torch/csrc/cuda/)", "cuda-kernels"),
    (r"\bcuda[A-Z]\w+\s*\(|<<<|__global__\b|at::cuda::|c10::cuda::|\.is_cuda\(\)", "cuda-kernels"),
    (r"(\.|->)cuda\(|\bnccl[A-Z]\w+\s*\(|\bncclComm_t\b|\btorch::cuda::|[\"']cuda(:\d+)?[\"']", "cuda-kernels"),
    (r"\bkCUDA\b|DispatchKey::CUDA\b|\bCUDAGuard\b|TORCH_LIBRARY_IMPL\([^)]*\bCUDA\b", "cuda-kernels"),
)
_IN_SETTINGS = (
    (r"\b(CUDA_(?!HOME\b)|NCCL_|TORCH_NCCL_|PYTORCH_CUDA_)[A-Z0-9_]+[\"']?\s*[:=]", "cuda-variables"),
    (r"\b(backend|dist_backend|ddp_backend|distributed_backend)\b[\"']?\s*[:= ]\s*[\"']?nccl\b", "moves-by-itself"),
    (r"\b(load_in_[48]bit|quantization_bit|quant_bits)[\"']?\s*[:= ]\s*[\"']?(true|True|[48])\b", "bitsandbytes"),
    (r"\boptim(izer)?[\"']?\s*[:= ]\s*[\"']?(paged_\w+|\w+_8bit|\w+_bnb\w*)\b", "bitsandbytes"),
    (r"\badapter[\"']?\s*[:= ]\s*[\"']?qlora\b", "bitsandbytes"),
)
_IN_SCRIPTS = (
    *_IN_SETTINGS,
    (r"\bnvidia-smi\b|\bnvidia/cuda\b|\bnvcr\.io/|\bnvidia\.com/gpu\b|--gpus\b|\bnvcc\b", "nvidia-tools"),
    (r"download\.pytorch\.org/\S*\bcu\d{2,3}\b|\btorch\S*\+cu\d{2,3}\b", "cuda-wheels"),
    (r"\bfind_package\s*\(\s*CUDA|\benable_language\s*\(\s*CUDA|\bLANGUAGES\b[^)]*\bCUDA\b", "cuda-extension"),
)
_IN_REQUIREMENTS = (
    *((rf"(^|[\s\"'-]){name.replace('-', '[-_]')}(?![\w-])", code) for name, code in PACKAGES.items()),
    (r"(^|[\s\"'-])(nvidia-(?!ml-py)\w[\w-]*|cupy-cuda\w+)", "cuda-wheels"),
    (r"download\.pytorch\.org/\S*\bcu\d{2,3}\b|\btorch\S*\+cu\d{2,3}\b", "cuda-wheels"),
)


def kind_of(path: Path) -> str | None:
    """python, notebook, or the name of the rules for this file; None for files that are not scanned."""
    suffix, name = path.suffix.lower(), path.name
    if suffix in (".py", ".pyi"):
        return "python"
    if suffix == ".ipynb":
        return "notebook"
    if suffix in _CUDA_SOURCES:
        return "cuda"
    if suffix in _CPP:
        return "cpp"
    if _REQUIREMENTS.fullmatch(name):
        return "requirements"
    if suffix in _SCRIPTS or name.startswith(_NAMED):
        return "script"
    return "settings" if suffix in _SETTINGS else None


def find_in_text(kind: str, text: str) -> list[Hit]:
    """The hits in a file of this kind, sorted by line."""
    if kind == "cuda":
        return [Hit("cuda-kernels", 1, f"{count_of(text.count(chr(10)) + 1, 'line')} of CUDA")]
    if kind == "cpp":
        lines = _without_c_comments(text)
    else:
        lines = [re.sub(r"(^|\s)#.*", "", line) for line in text.splitlines()]
    return [
        Hit(code, number, line.strip()[:200])
        for number, line in enumerate(lines, 1)
        for code in dict.fromkeys(
            code for pattern, code in _RULES[kind] if any(pattern.search(piece) for piece in _pieces(line))
        )
    ]


def _pieces(line: str) -> list[str]:
    """A very long line in overlapping pieces: patterns that are tried at each beginning take quadratic time."""
    return [line[at : at + _PIECE] for at in range(0, max(1, len(line) - _OVERLAP), _PIECE - _OVERLAP)]


def _without_c_comments(text: str) -> list[str]:
    """Replace block comments by their line breaks, so that line numbers do not change."""
    text = re.sub(r"/\*.*?(?:\*/|\Z)", lambda match: "\n" * match.group().count("\n"), text, flags=re.DOTALL)
    return [line.partition("//")[0] for line in text.splitlines()]


_RULES = {
    kind: [(re.compile(pattern), code) for pattern, code in rules]
    for kind, rules in {
        "cpp": _IN_CPP,
        "settings": _IN_SETTINGS,
        "script": _IN_SCRIPTS,
        "requirements": _IN_REQUIREMENTS,
    }.items()
}
