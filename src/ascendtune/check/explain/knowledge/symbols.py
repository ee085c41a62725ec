"""Libraries of undefined symbols, by the symbols' names."""

from __future__ import annotations

import re

from ascendtune.check.explain.knowledge.entries import FIX, MISMATCH
from ascendtune.check.explain.knowledge.matcher import Hit
from ascendtune.check.explain.language import say

_ENTRY = "undefined-symbol"
_MANGLED = re.compile(r"_Z(?:T[IVS])?(?:NK?|L)?(?P<names>(?:\d+[A-Za-z_]\w*))")
_OF_STANDARD = re.compile(r"_Z(?:T[IVS])?(?:NK?)?S[tsaiod]|__cxa_|__gxx_")
_OF_NAMESPACE = {
    "absl": "Abseil", "arrow": "Apache Arrow", "boost": "Boost", "cv": "OpenCV", "faiss": "Faiss", "fmt": "fmt",
    "folly": "Folly", "google": "protobuf", "grpc": "gRPC", "llvm": "LLVM", "mlir": "LLVM", "nvinfer1": "TensorRT",
    "onnx": "ONNX", "onnxruntime": "ONNX Runtime", "paddle": "Paddle", "sentencepiece": "SentencePiece",
    "spdlog": "spdlog", "tbb": "oneTBB", "tensorflow": "TensorFlow", "transformer_engine": "transformer_engine",
    "tvm": "TVM", "vllm": "vllm", "xla": "XLA", "YAML": "yaml-cpp",
}  # fmt: skip
_OF_PREFIX = {
    "Python": r"_?Py[A-Z_]",
    "NVSHMEM": "nvshmem",
    "rdma-core (libibverbs)": "ibv_|mlx5dv_|rdma_",
    "UCX": "uc[pstm]_",
    "UCC": "ucc_",
    "MPI": r"P?MPI_|ompi_|opal_|orte_|PMPI",
    "PMIx": "PMIx?_",
    "OpenSSL": "EVP_|SSL_|CRYPTO_|OPENSSL_|BIO_|X509_|ERR_",
    "FFmpeg": "av_|avcodec_|avformat_|avutil_|sws_|swr_",
    "SQLite": "sqlite3_",
    "expat": "XML_",
    "libffi": "ffi_",
    "HDF5": "H5[A-Z]",
    "TVM": "TVM[A-Z]",
    "OpenMP (libgomp)": "GOMP_|omp_",
    "OpenMP (libomp, libiomp5)": "__kmpc_|kmp_",
    "BLAS": "cblas_|LAPACKE_|openblas_|[sdcz]ge(?:mm|mv|sv)_",
    "MKL": "mkl_|MKL_",
    "libnuma": "numa_",
    "CUPTI": "cupti",
    "NVML": "nvml",
    "cuFile": "cuFile",
    "zstd": "ZSTD_",
    "xz (liblzma)": "lzma_",
    "libcurl": "curl_",
    "hwloc": "hwloc_",
    "libaio": "io_(?:setup|submit|getevents|destroy|cancel)",
}  # fmt: skip
"""By library: pattern of the beginnings of its functions' names."""
_C_PLUS_PLUS, _PYTHON = "libstdc++", "Python"
_PROVIDERS = {provider: re.compile(rf"(?:{beginning})") for provider, beginning in _OF_PREFIX.items()}


def name_provider(hit: Hit, text: str) -> None:
    """If `hit` is an undefined symbol, add its library and a remedy to the names.

    Args:
        text: the line, which may contain the whole path of the library that needs the symbol.
    """
    if hit.entry.id != _ENTRY:
        return
    symbol, library = hit.names["symbol"], hit.names.get("library", "FILE")
    provider = provider_of(symbol)
    is_of_itself = provider.islower() and (f"/{provider}/" in text or library.startswith(provider))
    if provider == _PYTHON:
        hit.names[MISMATCH] = say("it is of Python itself, so {library} is for another Python", library=library)
        hit.names[FIX] = say(
            "`python -V`: install the package of {library} again in this environment (pip install "
            "--force-reinstall --no-deps --no-cache-dir PACKAGE), or build it there",
            library=library,
        )
    elif provider and is_of_itself:
        hit.names[MISMATCH] = say("it is of {provider} itself: parts of two builds are mixed", provider=provider)
        hit.names[FIX] = say(
            "`pip list | grep -i {provider}; find / -name '{library}' 2>/dev/null`: remove all but one "
            "(an editable copy beside a wheel, packages of two releases), then install that one anew: "
            "pip install --force-reinstall --no-deps PACKAGE==VERSION",
            provider=provider,
            library=library,
        )
    elif provider:
        hit.names[MISMATCH] = say("{function} is of {provider}", function=demangled(symbol), provider=provider)
        hit.names[FIX] = say(
            "`ldd FILE` (FILE: {library} with its path) names the {provider} that is loaded, `nm -D THAT "
            "| grep {symbol}` prints nothing: it is of another release: install the {provider} that the "
            'package of {library} names, or the build of that package for the one that is here; "not '
            'found": put its directory on LD_LIBRARY_PATH',
            library=library,
            provider=provider,
            symbol=symbol,
        )
    else:
        hit.names[FIX] = say(
            "`echo {symbol} | c++filt` names the library that the symbol belongs to: torch or c10: the "
            "extension and torch are no pair; atb, Mki, AsdOps: NNAL; acl, hccl, ge: CANN; cu…: CUDA; "
            "nccl…: the nvidia-nccl package that torch pins, hidden by another libnccl on LD_LIBRARY_PATH",
            symbol=symbol,
        )


def provider_of(symbol: str) -> str:
    """Library that should contain a symbol; empty if its name does not show it."""
    if _OF_STANDARD.match(symbol):
        return _C_PLUS_PLUS
    if _MANGLED.match(symbol):
        return _OF_NAMESPACE.get(demangled(symbol).partition("::")[0], "")
    return next((provider for provider, pattern in _PROVIDERS.items() if pattern.match(symbol)), "")


def demangled(symbol: str) -> str:
    """Names in a C++ symbol, as a::b::c without arguments; a C symbol unchanged."""
    match = _MANGLED.match(symbol)
    if match is None:
        return symbol
    rest, names = match["names"], []
    while length := re.match(r"\d+", rest):
        start, size = length.end(), int(length[0][:4])
        names.append(rest[start : start + size])
        rest = rest[start + size :]
    return "::".join(names)
