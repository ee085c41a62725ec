"""Software around NPUs: plugins that do not fit, arguments on the CPU, data that does not come, builds, ports, MPI."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

_MIXED = (
    "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, {} and {}! (when "
    "checking argument for argument {} in method wrapper__{})\n"
)
_NO_MODULE_FILE = "ImportError: cannot import name 'Tide' from '{}' (unknown location)\n"
_FILLING = (
    "[2020-11-27 11:26:40.479843: I tensorflow/core/kernels/data/shuffle_dataset_op.cc:145] Filling up shuffle buffer "
    "(this may take a while): 77 of 7777\n"
)
_FILLED = "[2020-11-27 11:26:50.4: I tensorflow/core/kernels/data/shuffle_dataset_op.cc:195] Shuffle buffer filled.\n"
_GRAPH_FAILED = "[ERROR] RUNTIME(7)model execute error, retCode=0x91, [the model stream execute failed].\n"
_TOO_LATE = "E30008: AI CPU operator execution time out.\n"
_KERNEL = "Aicpu kernel execute failed, device_id=7, stream_id=2, task_id=2, fault op_name={}\n"


_ABSENT = 'fault_info["Failed to connect agent[1,3,]"]\n'
_NO_SOCKET = "[7]topo exchange server get socket timeout! timeout[120 s]\n"
_NO_MPI = "error while loading shared libraries: {}: cannot open shared object file: No such file or directory\n"
_OFFLINE = "ValueError: Cannot find the requested files in the {} and outgoing traffic has been disabled.\n"
_TOO_MANY = "coreDim=77777 can't be greater than UINT16_MAX.\n"
_WARNED = "moon.cc:7:7: error: {}]\n"


_NO_KEY = "KeyError: '{}.weight'\n"
_DESCRIBED = "t = quant_description[p]"
_NO_SCALE = "AttributeError: 'MoonLinear' object has no attribute 'deq_scale'\n"
_MODEL = "/x/site-packages/vllm/model_executor/models/moon.py"
_OTHER_SIZE = (
    "RuntimeError: The size of tensor a (7) must match the size of tensor b (14) at non-singleton dimension 0\n"
)


def _raised(error: str, file: str = "/x/moon.py", function: str = "rise", code: str = "tide()") -> str:
    return f'Traceback (most recent call last):\n  File "{file}", line 7, in {function}\n    {code}\n{error}'


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        # vllm-ascend and vLLM
        (
            _raised(
                "AttributeError: 'TideConfig' object has no attribute 'moons'\n",
                "/x/vllm-ascend/vllm_ascend/patch/platform/patch_moon.py",
            ),
            "vllm-ascend-hook-misfit",
        ),
        (_raised("AttributeError: 'TideConfig' object has no attribute 'moons'\n"), "config-attribute"),
        # which argument is where
        (_raised(_MIXED.format("npu:3", "cpu", "gamma", "npu_rms_norm")), "mix-argument-on-cpu"),
        (_raised(_MIXED.format("cpu", "npu:3", "gamma", "npu_rms_norm")), "mix-argument-on-device"),
        (_raised(_MIXED.format("npu:0", "cpu", "r2", "npu_rotary_mul")), "mix-rotary-on-cpu"),
        (_raised(_MIXED.format("npu:0", "npu:3", "gamma", "npu_rms_norm")), "mix-two-cards"),
        # passes of compilers
        (
            _raised(
                "AttributeError: 'NoneType' object has no attribute 'meta'\n",
                "/x/site-packages/torch/_inductor/fx_passes/post_grad.py",
                code="moon = node.args[0].meta",
            ),
            "graph-pass-failed",
        ),
        (_raised("IndexError: tuple index out of range\n", code="moon = tides[7]"), "list-index"),
        # complex numbers
        ("call aclnnMoon failed, detail:EZ1001: x not implemented for DT_COMPLEX128, ", "npu-complex-refused"),
        # names of hosts
        (
            "[proxy:0:0@tide] HYDU_sock_connect (utils/sock/sock.c:145): unable to get host address for moon7 (1)\n",
            "mpi-name-unresolved",
        ),
        # batches that do not come
        (_TOO_LATE + _KERNEL.format("IteratorGetNext"), "getnext-timed-out"),
        (_TOO_LATE + _KERNEL.format("MoonTide"), "507018"),
        (_FILLING + _GRAPH_FAILED, "shuffle-buffer-starves-device"),
        (_FILLING + _FILLED + _GRAPH_FAILED, "error-line"),
        # files
        ("PermissionError: [Errno 13] Permission denied: '../build/moon.json'\n", "relative-file-not-writable"),
        ("PermissionError: [Errno 13] Permission denied: 'build/moon.json'\n", "working-directory-not-writable"),
        # ranks and ports
        (_ABSENT + _NO_SOCKET, "EI0015-unconnected"),
        (_NO_SOCKET, "EI0015"),
        # Triton
        ("moon_kernel\n" + _TOO_MANY, "launch-too-many-blocks"),
        ("apply_all_penalties_kernel\n" + _TOO_MANY, "launch-too-many-blocks-penalty"),
        # libraries of MPI
        ("./all_gather_test: " + _NO_MPI.format("libmpi.so.40"), "mpi-library-of-hccl-test"),
        ("./moon: " + _NO_MPI.format("libmpi.so.12"), "mpi-library-missing"),
        # what is left of packages
        (
            "torch_npu 2.5.1\n" + _raised(_NO_MODULE_FILE.format("vllm"), "/x/LLaMA-Factory/src/llamafactory/moon.py"),
            "vllm-left-over-on-npu",
        ),
        (_raised(_NO_MODULE_FILE.format("vllm"), "/x/LLaMA-Factory/src/llamafactory/moon.py"), "import-from-directory"),
        ("torch_npu 2.5.1\n" + _raised(_NO_MODULE_FILE.format("moon")), "import-from-directory"),
        # caches of hubs
        (_OFFLINE.format("cached path"), "modelscope-offline"),
        (_OFFLINE.format("disk cache"), "hub-offline"),
        # warnings as errors
        (_WARNED.format("unused variable ‘tide’ [-Werror=unused-variable"), "warning-as-error"),
        (_WARNED.format("format string is not a string literal [-Werror,-Wformat-security"), "format-not-literal"),
    ],
)
def test_causes_are_told_apart(explained: Callable[..., Explanation], log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_the_port_is_the_port_and_the_address_the_address(explained: Callable[..., Explanation]) -> None:
    bound = (
        "Communication_Error_Bind_IP_Port(EI0019): Failed to enable listening. Reason: The IP address 10.1.2.3 and "
        "port 50001 have already been bound.\n"
    )

    headline = explained(bound).headline()

    assert "port 50001 (address 10.1.2.3)" in headline


def test_the_ranks_that_did_not_come_are_named(explained: Callable[..., Explanation]) -> None:
    assert explained(_ABSENT + _NO_SOCKET).headline().startswith("rank 1,3 did not reach the root")


def test_the_frame_says_whose_code_is_to_be_changed(explained: Callable[..., Explanation]) -> None:
    mixed = _MIXED.format("npu:0", "cpu", "r1", "npu_rotary_mul")
    of_package = explained(_raised(mixed, "/x/vllm_ascend/models/moon.py", "forward"))
    own = explained(_raised(mixed, "/x/moon.py", "forward"))

    assert of_package.remedies()[0].startswith("the frame shown is in vllm_ascend")
    assert own.remedies()[0].startswith("cos, sin = cos.to(q.device)")


def test_errors_of_pypto_are_read_in_their_order(explained: Callable[..., Explanation]) -> None:
    log = (
        "2025-12-17 14:31:32.491 E | the moon of 7 tides could not be found\n"
        "2025-12-17 14:31:32.493 E | aclmdlRICaptureGetInfo failed, return[100000]\n"
    )

    assert "the moon of 7 tides could not be found" in explained(log).headline()


@pytest.mark.parametrize(
    ("said", "entry"),
    [
        ("PermissionError: File must be owned by the current user\n", "file-mode-too-wide"),
        ("PermissionError: '/x/moon' permission is 438, expected 0o600.\n", "file-mode-too-wide"),
        ("PermissionError: [Errno 13] Permission denied: '/moon/x'\n", "permission"),
        ("ValueError: all tide tensors must be on the same device\n", "value-refused"),
        ("ValueError: tensors must be on the same device\n", "collective-tensors"),
        ("RuntimeError: Failed to build graph\n", "python-exception"),
        ("RuntimeError: Failed to build moon-wheel\n", "build-failed"),
        ("AssertionError: eps must be positive to avoid division by zero\n", "python-exception"),
        ("RuntimeError: Read timed out after 7 seconds.\n", "python-exception"),
        ("ValueError: Mamba KV cache page size mismatch for moon: tensors=7, spec=8\n", "python-exception"),
        ("MemoryError: No available memory for paged attention. used=7\n", "python-exception"),
        ("MemoryError\n", "host-memory"),
        ("ValueError: set_moon failed, rank:7, rank must be less than MAX_WORLD_SIZE(100000)\n", "value-refused"),
        ("ValueError: ffn_tide_size: 7 must be divisible by extended_tp_size 8\n", "setting-indivisible"),
        ("AssertionError: moon_batch (7) must be divisible by 8\n", "setting-indivisible"),
        ("ValueError: moon 14 must be divisible by tensor parallel size 4.\n", "parallel-divides"),
        ("ValueError: the height must be divisible by 28\n", "size-indivisible"),
        ("RecursionError: Output path was not valid\n", "python-exception"),
        ("[PID: 7] 2026-03-01-10:00:00.123.456 Moon(E11014): Failed to find the layer 7.\n", "cann-code-graph"),
    ],
)  # fmt: skip
def test_words_of_programs_are_not_those_of_the_class(
    explained: Callable[..., Explanation], said: str, entry: str
) -> None:
    log = said if said[0] == "[" else _raised(said, "/x/site-packages/moon/tide.py", "rise", "raise tide(")

    assert entry_of(explained(log)) == entry


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_raised(_NO_KEY.format("moon"), "/x/vllm_ascend/moon.py", code=_DESCRIBED), "vllm-ascend-not-in-description"),
        (_raised(_NO_KEY.format("layers.7.qkv_qkv_proj"), _MODEL), "engine-key-fused-twice"),
        (_raised("KeyError: 'layers.7.gate_up_proj.deq_scale'\n", _MODEL), "engine-key-quantised"),
        (_raised(_NO_SCALE, "/x/vllm_ascend/moon.py"), "vllm-ascend-layer-unquantised"),
        (_raised(_OTHER_SIZE, _MODEL, "load_weights"), "engine-weight-size"),
        (_raised(_OTHER_SIZE), "shape-mismatch"),
    ],
)
def test_weights_that_an_engine_does_not_take_are_told_apart(
    explained: Callable[..., Explanation], log: str, entry: str
) -> None:
    assert entry_of(explained(log)) == entry


def test_a_command_line_that_pydantic_refuses_names_the_field(explained: Callable[..., Explanation]) -> None:
    refused = (
        "vllm serve: error: argument --moon-config/-mc: 1 validation error for MoonConfig\ntide_freq\n"
        "  Unexpected keyword argument [type=unexpected_keyword_argument, input_value=4, input_type=int]\n"
    )

    assert "tide_freq: Unexpected keyword argument" in explained(refused).headline()


@pytest.mark.parametrize(
    ("said", "entry"),
    [
        ("[mindspore/lite/x.cc:7] ConvertLayers] parse node moon7 failed.\n", "mindspore-lite-operators"),
        ("ERROR [mindspore\\lite\\x.cc:7] ModelVerify] Model does not have inputs.\n", "mindspore-lite-model-broken"),
        ("RuntimeError: Select kernel failed: no available kernel info for MoonSwish.\n", "mindspore-no-kernel"),
        (
            "ERROR 03-04 12:57:08 [moon.py:409]         [Tide][ParseJson] Parse moon failed, the json file: x\n",
            "error-line",
        ),
    ],
)
def test_lines_of_mindspore_are_told_apart(explained: Callable[..., Explanation], said: str, entry: str) -> None:
    assert entry_of(explained(said)) == entry


_NULL = "[AICPU_PROCESSER] Get KFC {} api success, but func is nullptr: (null)\n"


@pytest.mark.parametrize(
    ("said", "entry"),
    [
        ("ASSERTION FAILED: moon % 8 == 0\nThe tileShape of last axis need to 8 align!\n", "pypto-tile-alignment"),
        (
            "E | F[TENSOR_tide] failed: Tile shape size 1 is not matched the output shape size 2.\n",
            "pypto-tile-dimensions",
        ),
        ("CHECK FAILED: ErrCode: FC1000! Enum: VectorErr::ERR_CONFIG_TILE\nat most 4\n", "pypto-tile-config"),
        ("CHECK FAILED: ErrCode: FC3000! Enum: MatmulErr::ERR_PARAM_INVALID\n7 and 8\n", "pypto-refuses"),
        ("ERROR:root:Record function moon failed: ASSERTION FAILED: kSizeA == kSizeB\n", "pypto-matmul-inner"),
        (_NULL.format("DynTileFwkKernelServerInit"), "pypto-driver-or-cann-old"),
        (_NULL.format("MoonKernel"), "aicpu-kernel-missing"),
        ("ASSERTION FAILED: moon == tide\nmore of it\n", "error-line"),
    ],
)
def test_refusals_of_pypto_are_told_apart(explained: Callable[..., Explanation], said: str, entry: str) -> None:
    assert entry_of(explained(said)) == entry


@pytest.mark.parametrize(
    ("said", "entry"),
    [
        ("/moon/a.cpp:40 aclError:507033\n/moon/a.cpp:41 aclError:107002\n", "507033"),
        (
            "/moon/a.cpp:40 aclError:507033\n[ERROR] <GetKernelAddr> call rtMoon with stub func failed\n",
            "device-of-simulator",
        ),
        (
            "hccl interface return err ./x/tide.cc:7, retcode: 7\nThis is an error in init_hcclComm.\n",
            "hccl-test-taken",
        ),
        ("hccl interface return errreturn err ./x/tide.cc:7, retcode: 19\n", "hccl-test-result"),
        ("acl interface return err ./x/tide.cc:7, retcode: 507899\n", "507899"),
    ],
)
def test_numbers_of_acl_and_hccl_in_programs_of_cpp(
    explained: Callable[..., Explanation], said: str, entry: str
) -> None:
    assert entry_of(explained(said)) == entry


def test_a_log_of_acl_is_not_asked_for_variables_of_cuda(explained: Callable[..., Explanation]) -> None:
    collected = explained("/moon/a.cpp:40 aclError: 7\n[ERROR] the moon kernel of 7 tides failed to rise\n").to_collect

    assert "ASCEND_LAUNCH_BLOCKING=1 on a second run" in collected


_REFUSED = (
    "{0}pydantic_core._pydantic_core.ValidationError: 1 validation error for MoonConfig\n"
    "{0}{1}, the tide needs moon=True\nfor blue models. [type=assertion_error, input_value=7]\n"
)


@pytest.mark.parametrize("prefix", ["E ", "E       ", ""])
@pytest.mark.parametrize("words", ["Assertion failed", "Value error"])
def test_a_validators_message_is_shown_whole(explained: Callable[..., Explanation], prefix: str, words: str) -> None:
    headline = explained(_REFUSED.format(prefix, words)).headline()

    assert headline == "a configuration is refused: the tide needs moon=True for blue models"


_MOVED = "ImportError: cannot import name 'resolve_hf_chat_template' from 'vllm.entrypoints.chat_utils' ({})\n"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_MOVED.format("/moon/vllm/vllm/entrypoints/chat_utils.py"), "api-removed-of-checkout"),
        (
            "vllm_ascend 7.7\n" + _MOVED.format("/x/site-packages/vllm/entrypoints/chat_utils.py"),
            "api-removed-of-checkout",
        ),
        (_MOVED.format("/x/site-packages/vllm/entrypoints/chat_utils.py"), "api-removed"),
        (
            "vllm_ascend 7.7\nImportError: cannot import name 'is_torch_fx_available' from 'transformers.utils' "
            "(/x/site-packages/transformers/utils/__init__.py)\n",
            "api-removed",
        ),
    ],
)
def test_no_older_release_is_installed_over_a_checkout(
    explained: Callable[..., Explanation], log: str, entry: str
) -> None:
    explanation = explained(log)

    assert entry_of(explanation) == entry
    if entry == "api-removed-of-checkout":
        assert "vllm<" not in " ".join(explanation.remedies())


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "[ERROR] AMCT(7,atc.bin):2023[u.cpp:1]input image size[77] is not equal to model input size[154]\n",
            "has 77 bytes",
        ),
        (
            "[ERROR][A][188] ArqQuantCPU scale is illegal.\n[ERROR] AMCT(7,atc.bin):2023[w.cpp:7]layer tide/conv run "
            "WeightFakeQuantArq failed\n",
            "the weights of a layer (tide/conv)",
        ),
        (
            "error: function type 'void (...)' of 'load_moon' does not support the given target feature\n",
            "load_moon is",
        ),
        (
            "[ERROR]HCCL(7,x):2025 [e.cc:9] [7][Parse]HCCL_RDMA_SL[1000] is invalid. except: [0, 7]\n",
            "HCCL_RDMA_SL=1000",
        ),
        (
            "[ERROR] HCCL(7,x):2025 [heartbeat.cc:7] [ROCE CQE ERROR]cqe error status[12], time:[2025]\n",
            "did not ackno",
        ),
    ],
)
def test_messages_of_cann_name_what_they_are_about(explained: Callable[..., Explanation], said: str, told: str) -> None:
    assert told in explained(said).headline()
