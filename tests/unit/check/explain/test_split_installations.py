"""Messages of pip, uv, conda and compilers with the same words and another cause."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_TORCH = "ModuleNotFoundError: No module named 'torch'\n"
_SYMBOL = "ImportError: /moon/tide_2_cuda.cpython-310.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocation{}\n"
_NVCC = '      {}(42): error: identifier "__moon" is undefined\n'
_UV = "  × Failed to download `moon==7.7`\n"
_CONDA = "LibMambaUnsatisfiableError: Encountered problems while solving:\n  - {}\n"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_TORCH, "torch-missing"),
        (_SYMBOL.format("ENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"), "extension-of-other-cxx-abi"),
        (_SYMBOL.format("ESs"), "extension-of-old-cxx-abi"),
        (
            f"      {_TORCH}  × Getting requirements to build wheel did not run successfully.\n",
            "module-missing-in-build",
        ),
        ("      Killed\n      ninja: build stopped: subcommand failed.\n", "killed-while-compiling"),
        ("      FAILED: moon.o\n      ninja: build stopped: subcommand failed.\n", "build-failed"),
        ("moon.h:7:7: fatal error: libaio.h: No such file or directory\n", "system-header-missing"),
        ("moon.h:7:7: fatal error: nccl.h: No such file or directory\n", "nccl-header-missing"),
        ("moon.h:7:7: fatal error: crt/host_config.h: No such file or directory\n", "cuda-header-missing"),
        (
            "WARNING: The repository located at moon.example is not a trusted or secure host and is being ignored.\n"
            "ERROR: No matching distribution found for tide\n",
            "pip-host-not-trusted",
        ),
        ("ERROR: No matching distribution found for tide\n", "pip-no-version"),
        (
            "Could not fetch URL https://moon.example/simple/: There was a problem confirming the ssl certificate: "
            "HTTPSConnectionPool(host='moon.example', port=443): Max retries exceeded with url: /simple/ (Caused by "
            'SSLError("Can\'t connect to HTTPS URL because the SSL module is not available.")) - skipping\n',
            "pip-python-without-ssl",
        ),
        (_NVCC.format("/usr/lib/gcc/x86_64-linux-gnu/11/include/amxtileintrin.h"), "nvcc-older-than-system-headers"),
        (_NVCC.format("/usr/include/x86_64-linux-gnu/bits/mathcalls.h"), "nvcc-older-than-system-headers"),
        (_NVCC.format("/usr/include/moon/tide.h"), "compiler-error"),
        ("    moon.c:7: error: 'PyThreadState' has no member named 'frame'\n", "c-code-older-than-python"),
        ("    moon.c:7: error: ‘PyArray_Descr’ has no member named ‘subarray’\n", "c-code-older-than-numpy"),
        ("    moon.c:7: error: ‘PyMoon’ has no member named ‘tide’\n", "compiler-error"),
        ("    nvcc fatal   : Value 'c++20' is not defined for option 'std'\n", "nvcc-standard-unknown"),
        ("E: Unable to locate package moon\n", "apt-locate"),
        (
            "W: Failed to fetch http://moon.example/dists/InRelease  Temporary failure resolving 'moon.example'\n"
            "E: Unable to locate package tide\n",
            "host-unresolved",
        ),
        (_UV + "  ╰─▶ Failed to download distribution due to network timeout.\n", "uv-slow-download"),
        (
            _UV + "  ╰─▶ HTTP status client error (401 Unauthorized) for url (https://moon.example/)\n",
            "uv-fetch-refused",
        ),
        (
            "error: Failed to fetch: `https://moon.example/`\n  Caused by: invalid peer certificate: UnknownIssuer\n",
            "uv-certificate",
        ),
        (_CONDA.format("nothing provides __cuda >=11.8 needed by moon-13"), "conda-no-driver"),
        (
            _CONDA.format("package moon-2.0 requires python >=3.10, but none of the providers can be installed"),
            "conda-two-requirements",
        ),
    ],
)
def test_installation(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_conda_names_what_nothing_provides(explained: Explained) -> None:
    headline = explained(_CONDA.format("nothing provides tide-version 12.4 needed by moon-2.5.1")).headline()

    assert headline.endswith(": tide-version 12.4")


@pytest.mark.parametrize(
    "log",
    [
        "WARNING: The repository located at moon.example is not a trusted or secure host and is being ignored.\n"
        "Successfully installed tide-1.0\n",
        "WARNING: Ignoring version 0.4.3 of moon since it has invalid metadata:\n"
        "Requested moon==0.4.3 from https://moon.example has invalid metadata: .* suffix can only be used with `==`\n"
        "Please use pip<24.1 if you need to use this version.\nSuccessfully installed moon-0.4.4\n",
        "-- Could NOT find CUDAToolkit (missing: CUDAToolkit_INCLUDE_DIR)\n[100%] Built target moon\n",
    ],
)
def test_installation_that_ends_well_is_healthy(explained: Explained, log: str) -> None:
    assert explained(log).is_healthy


@pytest.mark.parametrize(
    ("failure", "entry"),
    [
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            "pip-temporary-full",
        ),
        ("ERROR: No matching distribution found for moon-777", "pip-no-version"),
    ],
)
def test_module_that_pip_could_not_install_before_is_an_echo(explained: Explained, failure: str, entry: str) -> None:
    missing = (
        f'Traceback (most recent call last):\n  File "/x/moon.py", line 7, in <module>\n    import torch\n{_TORCH}'
    )

    assert entry_of(explained(f"{failure}\n{missing}")) == entry
    assert entry_of(explained(missing)) == "torch-missing"


@pytest.mark.parametrize(
    ("header", "package"),
    [
        ("mpi.h", "libopenmpi-dev"),
        ("infiniband/verbs.h", "libibverbs-dev"),
        ("openssl/evp.h", "libssl-dev"),
        ("numaif.h", "libnuma-dev"),
        ("boost/any.hpp", "libboost-all-dev"),
    ],
)
def test_the_package_that_brings_a_missing_header_is_named(explained: Explained, header: str, package: str) -> None:
    found = explained(f"moon.c:7:7: fatal error: {header}: No such file or directory\n")

    assert package in found.headline()
    assert f"apt-get install -y {package}" in found.remedies()[0]


_NO_WHEEL = (
    "Because {0}==7.6.0 has no wheels with a matching platform tag (e.g., `{1}`) and you require {0}==7.6.0, we can "
    "conclude that your requirements are unsatisfiable.\n\n      hint: Wheels are available for `{0}` (v7.6.0) on the "
    "following platforms: {2}\n"
)
_NEW = "`manylinux_2_28_x86_64`, `macosx_11_0_arm64`, `win_amd64`"
_RECORD = "ERROR: Cannot uninstall moon 7.7, RECORD file not found.\n{}"
_CUDART = "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory\n"


@pytest.mark.parametrize(
    ("log", "entry", "told"),
    [
        (_NO_WHEEL.format("moon", "macosx_15_0_x86_64", _NEW), "uv-tag-without-wheel-for-intel-mac", "Intel"),
        (
            _NO_WHEEL.format("moon", "macosx_15_0_x86_64", _NEW + ", `macosx_16_0_x86_64`"),
            "uv-wheels-for-other-platforms",
            "macosx_16_0_x86_64",
        ),
        (_NO_WHEEL.format("tide", "manylinux_2_27_x86_64", _NEW), "uv-wheels-for-other-platforms", "manylinux_2_28"),
        (_NO_WHEEL.format("tide", "win_arm64", _NEW).partition("\n")[0] + "\n", "uv-no-wheel-for-platform", "tide"),
        (_RECORD.format("       Hint: The package was installed by debian.\n"), "pip-record-of-distribution", "debian"),
        (_RECORD.format(""), "pip-record-missing", "another tool"),
        (
            _CUDART + "ImportError: Could not import xformers. Please install it with `pip install xformers`.\n",
            "package-of-cuda-not-here",
            "xformers is built for CUDA 12",
        ),
        (_CUDART, "cuda-runtime-of-number-missing", "CUDA 12"),
        (_CUDART + "torch 2.9.0+cu130\n", "cuda-12-wanted-13-there", "CUDA 13"),
        (
            "OSError: [Errno 122] Disk quota exceeded: '/home/tide/.cache/uv/archive/moon.so'\n",
            "quota-cache",
            "cache of uv",
        ),
        ("OSError: [Errno 122] Disk quota exceeded: '/scratch/tide/moon.pt'\n", "quota-exceeded", "/scratch/tide"),
    ],
)
def test_remedies_do_not_ask_for_facts_that_the_log_lists(
    explained: Explained, log: str, entry: str, told: str
) -> None:
    found = explained(log)

    assert entry_of(found) == entry
    assert told in found.headline()


@pytest.mark.parametrize(
    ("offers", "entry"),
    [
        ({"pytorch==0.7.1": "0.1.2, 1.0.2"}, "pip-pytorch-placeholder"),
        ({"pytorch==0.7.1": "0.1.2, 1.0.2", "torch==0.7.1": "0.1.2, 0.1.2.post1, 1.7.0"}, "pip-only-newer-versions"),
        ({"pytorch-tide==0.7.1": "0.1.2, 0.7.0"}, "pip-other-versions"),
        ({"tide==1.5.1": "0.4.0, 1.7.0, 1.7.1"}, "pip-only-newer-versions"),
        ({"tide==1.5.1": "1.5.0, 1.7.0"}, "pip-other-versions"),
        ({"tide==1.5.1": "1.3.0, 1.4.0, 1.7.0"}, "pip-other-versions"),
        ({"tide==1.5.1": "1.4.0"}, "pip-other-versions"),
    ],
)
def test_release_that_this_python_has_no_wheel_of_is_told(
    explained: Explained, offers: dict[str, str], entry: str
) -> None:
    log = "".join(
        f"ERROR: Could not find a version that satisfies the requirement {asked} (from versions: {offered})\n"
        for asked, offered in offers.items()
    )

    assert entry_of(explained(log)) == entry
