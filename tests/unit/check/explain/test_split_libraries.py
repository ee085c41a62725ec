"""Failures of libraries with the same words and another cause, told apart by the frame, the code or a line beside."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]
_COMMAND = "subprocess.CalledProcessError: Command '[{command}]' returned non-zero exit status 7.\n"
_LAUNCHER = "triton-launcher-compiler"
_TORCH_SIX = (
    'Traceback (most recent call last):\n  File "{file}", line 7, in <module>\n    from torch._six import inf\n'
    "ModuleNotFoundError: No module named 'torch._six'\n"
)

_TRACE = 'Traceback (most recent call last):\n  File "{file}", line 7, in {function}\n    {code}\n{error}\n'
_FLOAT_TEXT = "TypeError: '<=' not supported between instances of 'float' and 'str'"
_SHARED = "RuntimeError: Some tensors share memory, this will lead to duplicate memory on disk"
_PREFIXED = 'Exception: Error converting. Found unexpected key: "_orig_mod.tide.weight".'
_LINK = "error: [Errno 18] Invalid cross-device link: '{file}' -> '/tide/moon'\n"
_NO_PART = "ImportError: cannot import name 'Tides' from 'moon.tide' (/x/moon/tide/__init__.py)"
_REFUSED = (
    "requests.ConnectionError: HTTPConnectionPool(host='{host}', port=7007): Max retries exceeded with url: /t "
    "(Caused by NewConnectionError('<t>: Failed to establish a new connection: [Errno 111] Connection refused'))"
)
_NO_NAME = "ImportError: cannot import name '{}' from '{}' (/x/torch/tide.py)\n"
_UNDEFINED = "ImportError: /x/async_tide.so: undefined symbol: {}\n"
_NO_VERSION = "ERROR: Could not find a version that satisfies the requirement {} (from versions: 2.1.0, 2.5.1)\n"
_NOT_INCLUDED = (
    "CMake Error at {}/lib64/cmake/TIDEConfig.cmake:7 (include):\n  include could not find requested file:\n\n"
    "    {}/moon/FindTIDE.cmake\n"
)
_NO_CUDA = _TRACE.format(
    file="{}/moon.py",
    function="rise",
    code="torch.cuda.tide()",
    error="AssertionError: Torch not compiled with CUDA enabled",
)
_NPU_UNKNOWN = "RuntimeError: Expected one of cpu, cuda, ipu, privateuseone device type at start of device string: npu"
_NO_KEY = "KeyError: 'model.tides.weight'\n"
_NO_TRITON = "  Successfully uninstalled triton-7.6.0\n"
_AUTOLOAD = 'Traceback (most recent call last):\n  File "/x/torch/__init__.py", line 7, in _import_device_backends\n'
_JOIN = "Type Join Failed: dtype1 = Moon32, dtype2 = Tide16.\n"
_BRANCHES = (
    f"TypeError: Cannot join the return values of different branches, perhaps you need to make them equal.\n{_JOIN}"
)
_ARGUMENT = "TypeError: SFTConfig.__init__() got an unexpected keyword argument 'tide'"


def _raised(error: str, code: str = "moon(tide)", file: str = "/x/moon.py", function: str = "rise") -> str:
    return _TRACE.format(file=file, function=function, code=code, error=error)


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_raised(_FLOAT_TEXT, "if not 0.0 <= lr:", "/x/torch/optim/moon.py"), "learning-rate-as-text"),
        (_raised(_FLOAT_TEXT, "if not 0.0 <= eps:", "/x/torch/optim/moon.py"), "optimizer-number-as-text"),
        (_raised(_FLOAT_TEXT, "if moon <= tide:"), "number-written-as-text"),
        (
            _raised(_SHARED, file="/x/modeling_utils.py", function="save_pretrained"),
            "shared-tensors-in-save-pretrained",
        ),
        (_raised(_SHARED), "shared-tensors"),
        (_raised(_PREFIXED, function="save_checkpoint"), "compiled-names-at-save"),
        (_raised(_PREFIXED, function="load_checkpoint"), "python-exception"),
        ("Guessing wheel URL:  https://moon/tide-7.whl\n" + _LINK.format(file="tide-7.whl"), "wheel-across-devices"),
        (_LINK.format(file="/moon/tide-7.bin"), "cross-device-link"),
        (_raised(_NO_PART, "from .tide import Tides", "/x/moon/__init__.py"), "import-swallowed"),
        (_raised(_NO_PART, "from moon.tide import Tides"), "import-name"),
        (_raised(_NO_PART.replace("/x/", "/x/site-packages/"), "from .tide import Tides"), "import-name"),
        (_raised(_ARGUMENT, "args = SFTConfig(**args_as_dict)"), "trl-arguments-extended"),
        (_raised(_ARGUMENT, "args = SFTConfig(tide=7)"), "argument-unknown"),
        (_raised("KeyError: 'moon'", "role = tag_mapping[message[tide]]"), "llamafactory-role-unknown"),
        (_raised("KeyError: 'moon'", "text = message[tide]"), "data-field-missing"),
        ("t.cpp:7:1: fatal error: pybind11/stl.h: No such file or directory\n", "pybind11-header-missing"),
        ("t.cpp:7:1: fatal error: moon/tide.h: No such file or directory\n", "header-missing"),
        (
            "    CMake Error at cmake/Moon.cmake:7 (find_library):\n      Could not find cudnn_LIBRARY: cudnn.\n",
            "cmake-cudnn-missing",
        ),
        ("torch.__version__  = 2.9.7+rocm7.7\nFailed to build `flash-attn==2.9.9`\n", "flash-attn-on-rocm"),
        ("torch.__version__  = 2.9.7+cu129\nFailed to build `flash-attn==2.9.9`\n", "build-failed"),
        (
            "wandb: ERROR Error while calling W&B API: permission denied (<Response [403]>)\n"
            "wandb: ERROR Launch exception: Permission denied to access moon/tides/7\n",
            "wandb-denied",
        ),
        (
            "Loading settings from moon\\tide.toml\nValueError: Reserved escape sequence used\n",
            "toml-backslash-in-file",
        ),
        ("ValueError: Reserved escape sequence used\n", "toml-backslash"),
        (_raised(_REFUSED.format(host="localhost")), "local-service"),
        (_raised(_REFUSED.format(host="moon.example")), "host-no-answer"),
        (
            _raised("StopIteration", file="/x/datasets/arrow_dataset.py", function="push_to_hub"),
            "datasets-push-without-info",
        ),
        (_NO_NAME.format("_cuda_tideToPool", "torch.cuda.memory"), "name-of-cuda-builds"),
        (_NO_NAME.format("_cuda_tideToPool", "torch.cuda.memory").replace("'", '"'), "name-of-cuda-builds"),
        (_NO_NAME.format("tide_to_pool", "torch.cuda.memory"), "torch-name-gone"),
        (_UNDEFINED.format("_ZN16deepspeed_moon_t10_make_tideEbRKN2at6TensorE"), "deepspeed-op-incomplete"),
        (_UNDEFINED.format("_ZN4tide4moonEv"), "undefined-symbol"),
        ("AttributeError: '_OpNamespace' '_C_ascend' object has no attribute 'tide'\n", "vllm-ascend-operators"),
        ("AttributeError: '_OpNamespace' 'npu' object has no attribute 'tide'\n", "torch-npu-lacks-attribute"),
        (_NO_VERSION.format("torch_npu==7.7.1.post1.dev20250101"), "pip-ascend-development-build"),
        (_NO_VERSION.format("torch_npu==7.7.1"), "pip-other-versions"),
        (_NO_VERSION.format("tide==7.7.1.dev20250101"), "pip-other-versions"),
        ("ModuleNotFoundError: No module named 'triton._C.libtriton.ascend';\n", "triton-over-ascend"),
        ("ModuleNotFoundError: No module named 'triton._C.tide'\n", "module-of-installed-package"),
        (_NOT_INCLUDED.format("/m/cann-7.1/x86_64-linux", "/t/CANN8.B1/cann-8.8/compiler"), "cmake-two-canns"),
        (_NOT_INCLUDED.format("/m/ascend-toolkit/7.1", "/m/ascend-toolkit/8.8/tools"), "cmake-two-canns"),
        (_NOT_INCLUDED.format("/m/cann-7.1/x86_64-linux", "/m/cann-7.1/compiler"), "cmake-include-missing"),
        (_NOT_INCLUDED.format("/m/tide", "/m/tide/third_party"), "cmake-include-missing"),
        (_NO_CUDA.format("/x/bitsandbytes") + "[ERROR] ERR77777 tide of the npu\n", "bitsandbytes-asks-for-cuda"),
        (_NO_CUDA.format("/x/bitsandbytes"), "cuda-on-npu"),
        (_NO_CUDA.format("/x/tides") + "[ERROR] ERR77777 tide of the npu\n", "cuda-asked-on-npu"),
        (f"     71         elif is_torch_npu_available:\n{_NPU_UNKNOWN}\n", "npu-check-not-called"),
        (f"     71         elif is_torch_npu_available():\n{_NPU_UNKNOWN}\n", "invalid-device-npu"),
        (_raised(_NPU_UNKNOWN, file="/x/site-packages/FlagEmbedding/flag_models.py"), "flagembedding-takes-npu"),
        (_raised(_NPU_UNKNOWN, file="/x/site-packages/tides/flag_models.py"), "invalid-device-npu"),
        (f'LLM("tide", quantization="awq")  # vllm_ascend\n{_NO_KEY}', "key-weight-awq-on-ascend"),
        (f"(vllm-ascend) serve tide --quantization awq\n{_NO_KEY}", "key-weight-awq-on-ascend"),
        (f'LLM("tide", quantization="awq")\n{_NO_KEY}', "key-weight-name"),
        (f'LLM("tide", quantization="ascend")  # vllm_ascend\n{_NO_KEY}', "key-weight-name"),
        (f"{_NO_TRITON}{_AUTOLOAD}", "triton-uninstalled-over-ascend"),
        (f"{_NO_TRITON}Successfully installed triton-ascend-7.2\n{_AUTOLOAD}", "traceback-cut-off"),
        (f"{_BRANCHES}# 0 In file moon.py(71)\n        if a > b:\n", "mindspore-branch-types"),
        (_BRANCHES.replace("Type Join", "Tide"), "mindspore-branches"),
        (f"TypeError: {_JOIN}", "mindspore-type-join"),
        ("/x/opp/tide.h:7:10: fatal error: 'cstddef' file not found\n", "cann-cxx-header-missing"),
        ("moon.cpp:7:10: fatal error: cstddef: No such file or directory\n", "cxx-header-missing"),
        ("moon.cpp:7:10: fatal error: 'string.h' file not found\n", "header-missing"),
        ("/x/npu_utils.cpp:7:7: error: 'RT_TIDE' was not declared in this scope\n", "triton-npu-helper"),
        ("/x/moon_utils.cpp:7:7: error: 'RT_TIDE' was not declared in this scope\n", "compiler-error"),
        ("/x/npu_utils.cpp:7:7: fatal error: moon/tide.h: No such file or directory\n", "header-missing"),
        ("[Moon] encounters error: bishengir-compile: Unknown command line argument '--tide=7'.\n", "bishengir-option"),
        ("[ConvertLinalgRToBinary] encounters error: bishengir-compile: no tide\n", "triton-ascend"),
        ("/x/python3: No module named torchnpugen.moon\n", "module-of-installed-package"),
        (
            "x: Error while finding module 'torchnpugen.t' (ModuleNotFoundError: No module named 'torchnpugen')\n",
            "torchnpugen-missing",
        ),
    ],
)
def test_cause_is_told_by_what_stands_beside_the_words(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_status_of_cmake_about_cudnn_is_not_a_failure(explained: Explained) -> None:
    assert explained("-- Could NOT find CUDNN (missing: CUDNN_LIBRARY_PATH)\n-- Moon found\nstep 1\n").is_healthy


@pytest.mark.parametrize(
    ("said", "entry"),
    [
        ("requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: {}", "wandb-key-refused"),
        ("requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: {}", "wandb-denied"),
        ("requests.exceptions.HTTPError: 404 Client Error: Not Found for url: {}", "wandb-not-found"),
        (
            "wandb.errors.CommError: 404 Client Error: Not Found for url: https://moon.example/graphql",
            "wandb-not-found",
        ),
        ("wandb.errors.CommError: Error 403: Forbidden", "wandb-denied"),
        ("wandb: 403 encountered (permission denied), retrying request", "wandb-denied"),
        ("wandb: ERROR Error while calling W&B API: moon (<Response [404]>)", "wandb-not-found"),
        ('wandb.errors.CommError: returned error 404: {{"errors":[{{"message":"no moon"}}]}}', "wandb-not-found"),
        ("wandb: ERROR Error while calling W&B API: entity moon not found (<Response [404]>)", "wandb-entity-unknown"),
    ],
)
def test_answers_of_wandb_are_told_by_their_number(explained: Explained, said: str, entry: str) -> None:
    explanation = explained(said.format("https://api.wandb.ai/graphql") + "\n")

    assert entry_of(explanation) == entry
    assert explanation.headline().startswith("Weights & Biases")


def test_error_of_the_tracker_is_told_in_its_own_words(explained: Explained) -> None:
    explanation = explained("wandb: ERROR the moon is full\n")

    assert explanation.headline() == "the experiment tracker failed: the moon is full"


def test_entity_that_wandb_refuses_is_named(explained: Explained) -> None:
    log = "wandb: ERROR Launch exception: Permission denied to access moon/tides/7\n"

    assert explained(log).headline().endswith("to the entity moon")


def test_values_of_a_symbol_and_of_two_installations_are_named(explained: Explained) -> None:
    undefined = _UNDEFINED.format("_ZN16deepspeed_moon_t10_make_tideEbRKN2at6TensorE")
    mixed = _NOT_INCLUDED.format("/m/cann-7.1/x86_64-linux", "/t/cann-8.8/compiler")

    assert "deepspeed_moon_t::_make_tide" in explained(undefined).headline()
    assert "CMake reads /m/cann-7.1, which" in explained(mixed).headline()


def test_triton_kernels_that_were_not_imported_are_not_failures(explained: Explained) -> None:
    line = (
        "ERROR 01-01 10:11:12 [import_tide.py:7] Failed to import Triton kernels. Please make sure your triton version "
        "is compatible. Error: No module named 'triton.language.tide'\n"
    )

    assert explained(line).is_healthy
    assert explained(line + "INFO 01-01 10:11:13 [moon.py:7] Starting the tide\n").is_healthy
    assert entry_of(explained(line + _raised("ValueError: 7 odd tides"))) == "python-exception"


def test_values_of_branches_headers_and_helpers_are_named(explained: Explained) -> None:
    branches = explained(f"{_BRANCHES}# 0 In file moon.py(71)\n        if a > b:\n")
    helper = explained(
        "/x/npu_utils.cpp:7:7: error: could not convert '{{\"TIDE\", <expression error>}}' from 'moon'\n"
    )

    assert branches.headline().endswith("dtype1 = Moon32, dtype2 = Tide16 (at moon.py(71))")
    assert helper.headline().endswith("(TIDE is unknown there)")
    assert "header file moon/tide.h" in explained("t.cpp:7:1: fatal error: 'moon/tide.h' file not found\n").headline()


def test_uninstalled_triton_alone_is_not_a_failure(explained: Explained) -> None:
    assert explained(f"{_NO_TRITON}step 1\n").is_healthy


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        ("t.cu:7:1: fatal error: cutlass/moon.h: No such file or directory\n", "cutlass-header-missing"),
        ("t.cpp:7:1: fatal error: 'cute/tide.hpp' file not found\n", "cutlass-header-missing"),
        ("t.cpp:7:1: fatal error: acute/tide.hpp: No such file or directory\n", "header-missing"),
        ("t.cpp:7:1: fatal error: 'Python.h' file not found\n", "python-header-missing"),
        (_COMMAND.format(command="'/usr/bin/gcc', '/tmp/moon/main.c', '-lcuda', '-o', '/tmp/t.so'"), _LAUNCHER),
        (
            "torch._dynamo.exc.BackendCompilerFailed: tide raised "
            + _COMMAND.format(command="'/usr/bin/cc', '/tmp/moon/main.c', '-lcuda', '-o', '/tmp/t.so'"),
            _LAUNCHER,
        ),
        (
            "/usr/bin/ld: cannot find -lcuda: No such file or directory\n"
            + _COMMAND.format(command="'/usr/bin/gcc', '/tmp/moon/main.c', '-lcuda', '-o', '/tmp/t.so'"),
            "linker-without-driver-library",
        ),
        (_COMMAND.format(command="'/usr/bin/gcc', '/tmp/moon/main.c', '-o', '/tmp/t.so'"), "child-command"),
        (_TORCH_SIX.format(file="/x/moon.py"), "api-renamed"),
    ],
)
def test_headers_and_compilers_of_extensions_are_told_apart(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_package_that_is_older_than_torch_is_named(explained: Explained) -> None:
    windows = explained(_TORCH_SIX.format(file="C:\\x\\site-packages\\moon\\tide.py"))

    assert windows.headline().startswith("the installed torch is too new for the code that uses it (moon)")
    assert "pip install -U moon" in windows.remedies()[0]
    assert "the code that uses it: " in explained("ModuleNotFoundError: No module named 'torch._six'\n").headline()


def test_version_of_the_python_without_headers_is_named(explained: Explained) -> None:
    explanation = explained("/x/python3.7/moon.h:7:1: fatal error: Python.h: No such file or directory\n")

    assert "(3.7)" in explanation.headline() and "python3.7-dev" in explanation.remedies()[0]
