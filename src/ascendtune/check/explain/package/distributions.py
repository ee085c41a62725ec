"""Names of modules' distributions for pip, if they differ from the modules' names."""

from __future__ import annotations

import re

_DISTRIBUTION = {
    "absl": "absl-py",
    "attr": "attrs",
    "awq": "autoawq",
    "Bio": "biopython",
    "bs4": "beautifulsoup4",
    "causal_conv1d_cuda": "causal-conv1d",
    "Crypto": "pycryptodome",
    "cuda": "cuda-python",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "dlinfer": "dlinfer-ascend",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "fitz": "pymupdf",
    "flash_attn_2_cuda": "flash-attn",
    "git": "GitPython",
    "google": "protobuf",
    "google.protobuf": "protobuf",
    "grpc": "grpcio",
    "grpc_tools": "grpcio-tools",
    "hydra": "hydra-core",
    "jose": "python-jose",
    "jwt": "PyJWT",
    "llama_cpp": "llama-cpp-python",
    "magic": "python-magic",
    "megatron": "megatron-core",
    "megatron.core": "megatron-core",
    "msprobe": "mindstudio-probe",
    "nemo": "nemo-toolkit",
    "open_clip": "open-clip-torch",
    "OpenSSL": "pyOpenSSL",
    "PIL": "pillow",
    "pkg_resources": "setuptools",
    "pptx": "python-pptx",
    "pynvml": "nvidia-ml-py",
    "recipes": "torchtune",
    "selective_scan_cuda": "mamba-ssm",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "slugify": "python-slugify",
    "swift": "ms-swift",
    "umap": "umap-learn",
    "usb": "pyusb",
    "websocket": "websocket-client",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}
"""For other modules pip accepts the module's name: it treats "_" and "-" alike."""
_OF_NAMES = (
    *("bitsandbytes", "deepspeed", "diffusers", "fairseq", "flash_attn", "fsspec", "gradio", "huggingface_hub"),
    *(
        "hydra",
        "librosa",
        "mlflow",
        "mmengine",
        "modelscope",
        "numpy",
        "omegaconf",
        "peft",
        "pydantic",
        "pytorch_lightning",
    ),
    *(
        "safetensors",
        "sklearn",
        "tensorflow",
        "torchaudio",
        "torchvision",
        "transformers",
        "triton",
        "wandb",
        "xformers",
    ),
)
"""Modules whose names occur in their functions' names, and are not everyday words."""
_NAMED = re.compile(rf"_(?:\w+_)?(?P<module>{'|'.join(_OF_NAMES)})(?:_\w+)?")
_COMMAND = re.compile(r"\bpip (?:show|install|uninstall|index versions|download)\b[^`;:,)\n]*")
_WORD = re.compile(r"(?<![\w./@=-])[A-Za-z_][\w.]*(?![\w./+-])")


def named_for_pip(remedy: str) -> str:
    """Replace modules' names by those of their distributions in the pip commands of a remedy."""
    return _COMMAND.sub(lambda command: _WORD.sub(_renamed, command[0]), remedy)


def named_in(function: str) -> str:
    """Package in the name of a private function: hydra for `_run_hydra`; empty if there is none."""
    match = _NAMED.fullmatch(function)
    return match["module"] if match is not None else ""


def _renamed(word: re.Match[str]) -> str:
    return _DISTRIBUTION.get(word[0], word[0])
