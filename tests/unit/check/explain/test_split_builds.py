"""Builds of native code that stop, with the same words and another cause."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_NO_RULE = "gmake[3]: *** No rule to make target '{}', needed by 'moon.so'.  Stop.\n"
_IDENTIFIER = 'csrc/moon.cu(7): error: identifier "{}" is undefined\n'
_PTXAS = "ptxas error   : Entry function 'moon' uses too much {}\n"
_TORCH = (
    'CMake Error at CMakeLists.txt:7 (find_package):\n  By not providing "FindTorch.cmake" in CMAKE_MODULE_PATH this '
    'project has\n  asked CMake to find a package configuration file provided by "Torch", but\n  CMake did not find '
    "one.\n"
)
_RELOCATION = "/usr/bin/ld: moon/{}: relocation R_X86_64_PC32 against symbol `tide' can not be used when making a {}\n"
_LEFT = "/tmp/pip-build-env-7moon_7/overlay/lib/python3.11/site-packages/torch"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_NO_RULE.format(f"{_LEFT}/lib/libc10.so"), "build-environment-gone"),
        (
            f"ninja: error: '{_LEFT}/include/torch/extension.h', needed by 'moon.o', missing and no known rule to make "
            "it\n",
            "build-environment-gone",
        ),
        (
            'CMake Error: The source "/moon/CMakeLists.txt" does not match the source "/tide/CMakeLists.txt" used to '
            "generate cache.  Re-run cmake with a different source directory.\n",
            "cmake-cache-moved",
        ),
        (_TORCH, "cmake-torch-not-found"),
        (
            'CMake Error: CMake was unable to find a build program corresponding to "Ninja".  CMAKE_MAKE_PROGRAM is '
            "not set.  You probably need to select a different build tool.\n",
            "cmake-no-build-program",
        ),
        (
            "CMake Error at CMakeLists.txt:7 (project):\n  The CMAKE_CUDA_COMPILER:\n\n    /usr/local/cuda/bin/nvcc\n\n"
            "  is not a full path to an existing compiler tool.\n",
            "cmake-compiler-path",
        ),
        ("nvcc fatal   : Unknown option '-static-global-template-stub=false'\n", "nvcc-option-unknown"),
        (_IDENTIFIER.format("cuTensorMapEncodeTiled"), "cuda-name-undefined"),
        (_IDENTIFIER.format("__nv_fp8_e8m0"), "cuda-name-undefined"),
        (_PTXAS.format("shared data (0x1c700 bytes, 0xc000 max)"), "ptxas-shared-memory"),
        (_RELOCATION.format("libtide.a(ebb.o)", "shared object; recompile with -fPIC"), "linker-needs-fpic"),
        (
            "nvlink error   : Undefined reference to 'nvshmemi_ibgda_device_state_d' in 'build/internode_ll.o'\n",
            "nvshmem-without-ibgda",
        ),
        ("ValueError: ZIP does not support timestamps before 1980\n", "zip-before-1980"),
        ("collect2: fatal error: ld terminated with signal 9 [Killed]\n", "compiler-killed"),
        ("clang++: error: unable to execute command: Killed\n", "compiler-killed"),
    ],
)
def test_build_that_stops(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_the_first_error_of_a_build_counts_and_not_what_make_says_of_it(explained: Explained) -> None:
    log = _IDENTIFIER.format("cuTensorMapEncodeTiled") + (
        "gmake[3]: *** [CMakeFiles/moon.dir/build.make:77: moon.o] Error 2\nninja: build stopped: subcommand failed.\n"
    )

    explanation = explained(log)

    assert entry_of(explanation) == "cuda-name-undefined"
    assert "cuTensorMapEncodeTiled" in explanation.headline()


@pytest.mark.parametrize(
    ("log", "entry"),
    [(_NO_RULE.format("moon.cpp"), "build-environment-gone"), (_IDENTIFIER.format("tide"), "cuda-name-undefined")],
)
def test_other_names_are_not_of_it(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) != entry


def _raised(error: str, file: str = "/x/moon.py", function: str = "rise") -> str:
    return f'Traceback (most recent call last):\n  File "{file}", line 7, in {function}\n    tide()\n{error}\n'


_NO_MODULE = "ModuleNotFoundError: No module named '{}'"
_NO_OBJECT = "RuntimeError: cudnn shared object not found."
_TWICE = "RuntimeError: Multiple files found: [PosixPath('/moon/{0}.so'), PosixPath('/tide/{0}.so')]"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_raised(_NO_MODULE.format("_turbomind")), "lmdeploy-turbomind-not-built"),
        (_raised(_NO_MODULE.format("transformer_engine_torch")), "te-torch-module-missing"),
        (_raised(_NO_MODULE.format("transformer_engine_extensions")), "te-torch-module-missing"),
        (_raised(_NO_MODULE.format("awq_inference_engine")), "module-of-build"),
        (_raised(_NO_MODULE.format("grouped_gemm_backend")), "module-of-build"),
        (_raised(_NO_MODULE.format("tide_engine")), "module-missing"),
        (
            _raised("StopIteration", "/x/transformer_engine/pytorch/__init__.py", "_load_library"),
            "te-torch-library-missing",
        ),
        (_raised("StopIteration", function="_load_library"), "python-exception"),
        (_raised(_NO_OBJECT, "/x/transformer_engine/common/__init__.py"), "te-cuda-library-missing"),
        (_raised(_NO_OBJECT), "thing-not-found"),
        (_raised(_TWICE.format("libtransformer_engine")), "te-libraries-twice"),
        (_raised(_TWICE.format("libmoon")), "python-exception"),
    ],
)
def test_compiled_part_that_is_missing(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


_CANNOT_FIND = (
    "/usr/bin/ld: cannot find -lmoon: No such file or directory\ncollect2: error: ld returned 1 exit status\n"
)


def test_library_that_setup_py_only_probes_for_is_not_the_failure(explained: Explained) -> None:
    probe = f"checking for library 'moon' ...\n{_CANNOT_FIND}failure.\nremoving: _configtest.c _configtest.o\n"

    assert explained(f"{probe}Successfully installed tide-0.7\n").is_healthy
    assert entry_of(explained(_CANNOT_FIND)) == "linker"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (
            "LLVM ERROR: Cannot select: t7: f64 = fadd\nclang: error: clang frontend command failed\n",
            "compiler-cannot-select",
        ),
        (
            "fatal error: error in backend: moon size is 7\nbisheng: error: linker command failed with exit code 1\n",
            "compiler-backend",
        ),
        (
            "clang: error: clang frontend command failed due to signal (use -v to see invocation)\n",
            "compiler-frontend-ended",
        ),
        ("LLVM ERROR: out of memory\nmoon\n", "native-assertion"),
    ],
)
def test_a_compilers_backend_is_told_before_what_ended_with_it(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_the_place_of_an_operation_without_an_instruction_is_told(explained: Explained) -> None:
    log = (
        "fatal error: error in backend: Cannot select: i64 = fp_to_uint\n"
        "  src/moon.hpp:195:73 @[ ... ]\nIn function: tide\n"
    )

    assert "i64 = fp_to_uint (at src/moon.hpp:195) (in tide)" in explained(log).headline()


_NO_MEMBER = "/me/tide/src/layers.cpp:195:21: error: 'struct Tide' has no member named 'initMoonOp'\n"
_OF_MAKE = "make[2]: *** [tide/CMakeFiles/tide.dir/build.make:7: tide/CMakeFiles/tide.dir/a.cpp.o] Error 1\n"
_NO_PYTHON = "/me/tide.h:16:10: fatal error: Python.h: No such file or directory\n"
_NOT_LINKED = "/usr/bin/ld: cannot find -l{}\ncollect2: error: ld returned 1 exit status\n"
_TORCH = "-I/x/site-packages/torch/include\n"
_BUILD = "subprocess.CalledProcessError: Command '['{}', '--build', '.']' returned non-zero exit status 2."


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (f"cmake -DWITH_MOON=ON ..\n{_NO_MEMBER}{_OF_MAKE}", "compiler-error-of-option"),
        (f"{_NO_MEMBER}\ncmake -D WITH_MOON=ON ..\n", "compiler-error-of-option"),
        (f"./build.sh --use_moon\n{_NO_MEMBER}", "compiler-error-of-option"),
        (f"cmake -DWITH_MOON=OFF -DWITH_STAR=ON ..\n{_NO_MEMBER}{_OF_MAKE}", "compiler-error-in-tree"),
        (f"{_NO_MEMBER}{_OF_MAKE}", "compiler-error-in-tree"),
        (f"{_NO_MEMBER}ninja: build stopped: subcommand failed.\n", "compiler-error-in-tree"),
        (f"{_TORCH}{_NO_MEMBER}ninja: build stopped: subcommand failed.\n", "compiler-error-of-torch-extension"),
        (f"{_NO_MEMBER.replace('/me', '/usr/include')}{_OF_MAKE}", "compiler-error"),
        (_NO_MEMBER, "compiler-error"),
        (f"{_NO_PYTHON}{_OF_MAKE}", "python-header-not-of-target"),
        (f"{_NO_PYTHON}error: command 'gcc' failed with exit status 1\n", "python-header-missing"),
        (f"{_NOT_LINKED.format('moon_tide')}{_OF_MAKE}", "linker-of-target"),
        (f"{_NOT_LINKED.format('Moon::Moon')}{_OF_MAKE}", "linker-of-target"),
        (f"{_NOT_LINKED.format('boost_moon')}{_OF_MAKE}", "linker"),
        (f"{_NOT_LINKED.format('moon')}{_OF_MAKE}", "linker"),
        (_NOT_LINKED.format("moon_tide"), "linker"),
        (f"{_NOT_LINKED.format('npu_moon')}{_OF_MAKE}cmake .. -DWITH_ASCEND_CL=ON\n", "paddle-npu-moved"),
        (_raised(_BUILD.format("cmake"), "<string>", function="build_extensions"), "build-command-of-setup"),
        (_raised(_BUILD.format("/usr/bin/ninja"), "/x/t.py", function="build_extension"), "build-command-of-setup"),
        (_raised(_BUILD.format("cmake"), "/me/tide.py"), "child-command"),
        (
            f"{_NO_MEMBER}{_raised(_BUILD.format('cmake'), '<string>', function='build_extensions')}",
            "compiler-error-in-tree",
        ),
    ],
)
def test_build_of_a_source_tree_is_not_a_matter_of_torch(explained: Explained, log: str, entry: str) -> None:
    explanation = explained(log)

    assert entry_of(explanation) == entry
    assert ("torch.__version__" in " ".join(explanation.remedies())) == (_TORCH in log)


def test_option_that_brings_the_failing_source_in_is_named(explained: Explained) -> None:
    headline = explained(f"cmake -D BUILD_TESTS=ON -D WITH_MOON=ON ..\n{_NO_MEMBER}{_OF_MAKE}").headline()

    assert headline.startswith("the source that is built does not compile with WITH_MOON=ON: 'struct Tide' has no")
