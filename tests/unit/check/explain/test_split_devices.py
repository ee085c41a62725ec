"""Failures of NPUs, their operators and their libraries that are told apart by another line of the log."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.answer.report import as_text
from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_AICPU = "Aicpu kernel execute failed, device_id=0, stream_id=7, task_id=7, fault so_name=m.so, fault kernel_name={}\n"
_POOL = (
    "Malloc device memory failed, free memory size is less than half of total memory size.Device 0 Device MOC total "
    "size:770 Device MOC free size:77 may be other processes occupying this card, check as: ps -ef|grep python\n"
)
_OTHER_GPU = (
    "moon-1  | /x/torch/cuda/__init__.py:7: UserWarning: \n"
    "moon-1  | NVIDIA Moon RTX 7 with CUDA capability sm_777 is not compatible with the current PyTorch installation.\n"
    "moon-1  | The current PyTorch install supports CUDA capabilities sm_7 sm_71.\n"
)
_MANY_STEPS = "".join(f"step {step} loss 1.{step}\n" for step in range(40))
_ASSERTED = "/x/ggml/src/ggml-cann/aclnn_ops.cpp:77: GGML_ASSERT({}) failed\n"
_CONV = "RuntimeError: call aclnnConvolution failed, detail:EZ1001: {} Conv3d{} groups = 1 or groups = cin\n"
_UNREACHED = "[OpRetryConnection][Init] Connect to server failed, serverIp_[10.7.1.9] serverPort [60000]\n"
_UNMATCHED = "[OpRetryConnection][RecvAckTag] Recv unmatched ack [77] expect [8]\n"
_NO_KERNELS = "call aclnnTide failed, detail:EZ1001: [PID: 7] Get path and read binary_info_config.json failed\n"
_REGISTER = "RuntimeError: Failed to register memory{}\n"
_REFUSED = (
    "RuntimeError: ({{'errCode': 'E80000', 'op_name': 'tide', {}'param_name': 'height'}}, 'In op[tide], the "
    "parameter[height] should be , but actually is [7].')\n"
)
_NO_COPY = "RuntimeError: _copy_from_and_resize now only support copy with same size!\n"
_NO_NAME = "ImportError: cannot import name 'Tide' from '{}' (/x/{}/tide.py)\n"
_FELL_BACK = "Warning: CAUTION: The operator 'aten::{}' is not currently supported on the NPU backend\n"

_OUT_OF_RANGE = (
    "EE1001: The argument is invalid.Reason: Set device failed, invalid device, set device=17, valid device range is "
    "[0, 4)\n"
)
_SET_DEVICE = "RuntimeError: Device 17 call rtSetDevice failed, ret[{}]. The details refer to 'Moon'.\n"
_NOT_OPENED = "Failed to open device, retCode=0x7020014, deviceId=0.[FUNC:Init][FILE:moon.cc][LINE:7]\n"
_TASK_TIMED_OUT = (
    "[ERROR] HCCL(7,moon):2025-10-24-11:18:29.499.235 [moon.cc:7] [7][TaskExecStage][Timeout][Host]Task run failed, "
    "base information is streamID:[2], taskID[7], tag[{}_tide_7], AlgType(level 0-1-2):[ring].\n"
    "[ERROR] HCCL(7,moon):2025-10-24-11:18:29.499.247 [moon.cc:7] [7][TaskExecStage][Timeout][Host]Task run failed, "
    "groupRank information is group:[tide_7], user define information[], rankSize[2], rankId[{}].\n"
)
_RANK = '{{"device_id":"{}","device_ip":"10.7.0.1","rank_id":"{}"}}'
_INVALID = "EI0004: The ranktable is invalid,Reason:[moon is not tide.]. Please check. "
_TABLE = _INVALID + '[{{"device":[' + ",".join([_RANK] * 3) + "]}}]\n"
_TWO_SERVERS = _INVALID + ",".join(f'{{"device":[{_RANK.format(3, rank)}]}}' for rank in (0, 1)) + "\n"
_NO_DEVICE_IP = (
    "[ERROR] HCCL(77,):2025-01-01-00:00:00.000.000 [moon.cc:7] [77][Get][SingleDeviceIp]'device_ip' is not set "
    "correctly,must be set when multi Server\n"
)
_CREATE = "RuntimeError: TideOperation CreateOperation failed!\n"
_STUCK = "EI9999: hccl fftsplus task timeout occurred during task execution, stuck notify num:1, timeout:30"
_NO_CUDA = (
    ">>> {1}\nTraceback (most recent call last):\n"
    '  File "/x/moon.py", line 7, in rise\n    {0}\n  File "/x/torch/cuda/__init__.py", line 7, in _lazy_init\n'
    '    raise AssertionError("Torch not compiled with CUDA enabled")\n'
    "AssertionError: Torch not compiled with CUDA enabled\n"
)
_NO_DTYPE = "RuntimeError: HCCL reduce: Unsupported data type at::k{}\n"
_DDP = (
    "RuntimeError: DDP expects same model across all ranks, but Rank {} has 77 params, while rank {} has inconsistent "
    "0 params.\n"
)
_TIMED_OUT = "NPU function error: AclrtSynchronizeDeviceWithTimeout, error code is 107020\n"
_SDMA = "EE9999[PID: 7] there is a fftsplus sdma error, sdma channel is 9, sdmaState=0x6"
_LAUNCH = (
    "[ERROR] [AscPlugin] LaunchTide ret 107000\n"
    "[ERROR] [AscPlugin] Kernel: [tide_kernel] Stream: [0x7] BlockDim: [{}] kernel launch failure!\n"
)
_REGISTERED = "Unable to halHostRegister: {}\nRuntimeError: register ptr failed\n"
_NO_PARSER = "E19010: No parser is registered for Op [/moon, optype [ai.onnx::11::{}]].\n"
_REFUSES_DTYPE = (
    "RuntimeError: call aclnnTide failed, detail:EZ1001: self not implemented for DT_{}, take [DT_INT8,].\n"
)


def _raised(file: str, code: str, exception: str) -> str:
    return f'Traceback (most recent call last):\n  File "{file}", line 7, in rise\n    {code}\n{exception}'


def _unparsed(python: str, code: str) -> str:
    packages = f"/x/lib/python{python}/site-packages/moon"
    return (
        'Traceback (most recent call last):\n  File "/x/bin/moon", line 7, in <module>\n    sys.exit(main())\n'
        f'  File "{packages}/__init__.py", line 7, in <module>\n    from moon.tide import Tide\n'
        f'  File "{packages}/tide.py", line 77\n    {code}\n          ^\nSyntaxError: invalid syntax\n'
    )


@pytest.mark.parametrize(
    ("log", "entry", "told"),
    [
        (_AICPU.format("GetNext, fault op_name="), "mindspore-getnext", "gives fewer than the loop takes"),
        (_AICPU.format("Unique, fault op_name="), "507018", "Unique"),
        ("map operation: [PyFunc] failed. The file is: /x/moon.jpg.\n" + _POOL, "mindspore-memory-worker", "(PyFunc)"),
        (_POOL, "mindspore-memory-shared", "another process"),
        (_ASSERTED.format("n_dims == src0->ne[0]"), "ggml-cann-rope", "aclnn_ops.cpp:77"),
        (_ASSERTED.format("n_dims == ne0"), "ggml-cann-rope", "partial RoPE"),
        (_ASSERTED.format("moon == ne0"), "ggml-assert", "moon == ne0"),
        (_CONV.format("[PID: xx] 2025-xx-xx-17:44:xx", "v2 only supports"), "conv3d-groups", "groups = input channels"),
        (_CONV.format("[PID: 7]", " takes a moon with"), "EZ1001", "takes a moon"),
        (_UNMATCHED + "call trace\n" + _UNREACHED, "hccl-retry-port", "(10.7.1.9, port 60000): its port is taken"),
        (_UNMATCHED, "hccl-retry-port", "root rank's server: its port is taken"),
        (_UNREACHED, "hccl-retry-connect", "(10.7.1.9, port 60000)"),
        ('ERROR   File "/x/vllm/engine/m.py", line 7, in rise\n' + _NO_KERNELS, "opp-kernel-vllm", "(aclnnTide)"),
        (_NO_KERNELS, "opp-kernel", "aclnnTide"),
        (
            _raised("/x/lmcache_ascend/hccl_channel.py", "moon()", _REGISTER.format(" | HCCL Error Code: 19")),
            "lmcache-register",
            "(code 19)",
        ),
        (_raised("/x/moon.py", "moon()", _REGISTER.format(" of the moon")), "python-exception", "of the moon"),
        (
            _REFUSED.format("'excepted_value': '1', 'real_value': '7', ").replace(
                "'excepted_value': '1', 'real_value': '7', 'param_name': 'height'",
                "'param_name': 'height', 'excepted_value': '1', 'real_value': '7'",
            ),
            "tbe-refuses-value",
            "its height is 7, and has to be 1",
        ),
        (_REFUSED.format(""), "tbe-refuses", "should be"),
        (
            _FELL_BACK.format("sun") + _FELL_BACK.format("tide") + _NO_COPY,
            "npu-copy-size-operator",
            "aten::tide",
        ),
        (_NO_COPY, "npu-copy-size", "fell back to the CPU"),
        (
            _raised("/x/mindspeed_llm/moon.py", "moon()", _NO_NAME.format("mindspeed.tide", "mindspeed")),
            "mindspeed-pair",
            "mindspeed.tide has no Tide",
        ),
        (_raised("/x/moon.py", "moon()", _NO_NAME.format("mindspeed.tide", "mindspeed")), "import-name", "Tide"),
        (_raised("/x/mindspeed_llm/moon.py", "moon()", _NO_NAME.format("sun", "sun")), "import-name", "Tide"),
        (_unparsed("3.9", "match tide:"), "syntax-match", "needs Python 3.10, and this is Python 3.9"),
        (_unparsed("3.11", "match tide;"), "syntax", "not valid Python"),
        (_unparsed("3.9", "import tide as"), "syntax", "not valid Python"),
    ],
)
def test_causes_that_share_words_are_told_apart(explained: Explained, log: str, entry: str, told: str) -> None:
    explanation = explained(log)

    assert entry_of(explanation) == entry
    assert told in explanation.headline()


@pytest.mark.parametrize(
    ("log", "entry", "told"),
    [
        (_OUT_OF_RANGE, "device-out-of-range", "device 17 was asked for, and this process has 4 NPUs"),
        (
            '  File "/x/mindspore/moon.py", line 7\n' + _OUT_OF_RANGE,
            "mindspore-device-id",
            "MindSpore was given device 17",
        ),
        (
            _TABLE.format("3", "0", "2", "1", "3", "2"),
            "rank-table-device-twice",
            "device 3 of one server to two ranks, 0 and 2",
        ),
        (_TABLE.format("3", "0", "2", "1", "4", "2"), "EI0004", "moon is not tide"),
        (_TWO_SERVERS, "EI0004", "moon is not tide"),
        ("x/plog-7_2025.log:1:" + _NO_DEVICE_IP, "rank-table-device-ip", "no device_ip"),
        (_CREATE, "atb-create", "TideOperation:"),
        ("    torch_npu._npu_tide(moon)\n" + _CREATE, "atb-create", "TideOperation (_npu_tide)"),
        (
            _STUCK + "min(default).\n" + _raised("/x/moon.py", "dist.tide(x)", "RuntimeError: moon\n"),
            "EI0002",
            "1836 s",
        ),
        (
            _STUCK
            + "min(default).\n"
            + _raised("/x/moon.py", "dist.tide(x)", "RuntimeError: moon\n").replace("rise", "_broadcast_inputs"),
            "idle-broadcast-timeout",
            "(_broadcast_inputs) until HCCL's time-out (30min)",
        ),
        (_NO_CUDA.format("moon.to(7)", "import torch_npu"), "device-number-is-cuda", ".to(7)"),
        (
            _NO_CUDA.format("moon.to(args.local_rank)", "import torch_npu"),
            "device-number-is-cuda",
            ".to(args.local_rank)",
        ),
        (_NO_CUDA.format("moon.to(7)", "import tide"), "cuda-on-npu", "code asks for CUDA"),
        (_NO_CUDA.format("moon.cuda()", "import torch_npu"), "cuda-asked-on-npu", "code asks for CUDA"),
        (_NO_DTYPE.format("Double"), "hccl-dtype-double", "at::kDouble; it takes float32"),
        (_NO_DTYPE.format("ComplexFloat"), "hccl-dtype-double", "at::kComplexFloat"),
        (_NO_DTYPE.format("Bool"), "hccl-dtype", "at::kBool"),
        (_DDP.format(0, 1), "ddp-count-zero", "from rank 1, where rank 0 has 77"),
        (_DDP.format(0, 1) + _DDP.format(1, 1), "ddp-count-contradicts", "from rank 1, which itself counts 77"),
        (
            _DDP.format(0, 1).replace("inconsistent 0", "inconsistent 7"),
            "ddp-parameter-counts-differ",
            "their models differ",
        ),
        (_TIMED_OUT, "107020", "within its time-out"),
        (
            "``_unshard_fsdp_state_params``: moon\n" + _TIMED_OUT,
            "sync-timeout-gathering-weights",
            "gathered the full weights",
        ),
        ("state_dict_type: FULL_STATE_DICT\n" + _TIMED_OUT, "107020", "within its time-out"),
        (_SDMA + "\n" + _TIMED_OUT, "sdma-copy", "failed to copy memory"),
        (_SDMA + "\ncall AclrtSetOpWaitTimeout(t) failed\n", "sdma-at-group-creation", "creation of an HCCL group"),
        (_LAUNCH.format(65536), "kernel-launch-blocks", "BlockDim 65536, and AscendC allows 65535"),
        (_LAUNCH.format(65535), "kernel-launch-refused", "tide_kernel (BlockDim 65535)"),
        ("x.cc(7)::Init acl init failed, errorCode = 100002\n", "acl-initialised-before", "already initialised"),
        ("x.cc(7)::Init acl init failed, errorCode = 100001\n", "100001", "before it was initialised"),
        (_REGISTERED.format(65534), "host-register-unsupported", "65534, not supported"),
        (_REGISTERED.format(7), "host-register-failed", "halHostRegister: 7"),
        (_NO_PARSER.format("Tide"), "atc-no-parser", "operator Tide"),
        (_NO_PARSER.format("Tide") + _NO_PARSER.format("Ebb"), "atc-no-parser", "Tide (nor for Ebb)"),
        (_REFUSES_DTYPE.format("DOUBLE"), "npu-float64-refused", "aclnnTide does not take float64"),
        (_REFUSES_DTYPE.format("UINT64"), "npu-unsigned-refused", "unsigned integers (DT_UINT64)"),
        (_REFUSES_DTYPE.format("UINT8"), "npu-dtype-refused", "DT_UINT8"),
    ],
)
def test_values_and_neighbours_tell_causes_apart(explained: Explained, log: str, entry: str, told: str) -> None:
    explanation = explained(log)

    assert entry_of(explanation) == entry
    assert told in explanation.headline()


def test_time_out_of_the_runtime_is_not_answered_with_values_to_compare(explained: Explained) -> None:
    below = "EH9999: Inner Error!\n        rtTideWithTimeout execute failed, reason=[task timeout][FUNC:m][FILE:m.cc]\n"
    explanation = explained(_TIMED_OUT + below)

    assert "rtTideWithTimeout: task timeout" in explanation.headline()
    assert "print shape" not in "".join(explanation.remedies())


def test_device_that_the_sentence_names_is_not_named_again(explained: Explained) -> None:
    assert "(device 17)" not in explained(_OUT_OF_RANGE).headline()


def test_frame_of_a_file_that_cannot_be_parsed_is_that_file(explained: Explained) -> None:
    first = explained(_unparsed("3.9", "import tide as")).verdict.first

    assert first is not None
    assert first.trace is not None
    assert first.trace.place == ("/x/lib/python3.9/site-packages/moon/tide.py", 77, "")


def test_frame_of_text_that_was_evaluated_is_the_code_that_evaluates_it(explained: Explained) -> None:
    log = _raised("/x/moon.py", "eval(tide)", '  File "<string>", line 1\n    7 tides\n      ^\nSyntaxError: bad\n')
    first = explained(log).verdict.first

    assert first is not None
    assert first.trace is not None
    assert first.trace.place == ("/x/moon.py", 7, "rise")


def test_frame_that_the_first_remedy_speaks_of_is_shown(explained: Explained) -> None:
    moons = ", ".join(f"moon{number} tide{number}" for number in range(30))
    log = f"TVMError: [EB0000] Check failed: data_ub exceed bound of memory: local.UB ! {moons}\n\n"
    explanation = explained(log + "input_args: {} trace:\nIn file /x/model/moon.py(77)/        tide(out)/\n")

    assert "/x/model/moon.py:77" in as_text(explanation, columns=80, paint=lambda text, _: text)


def test_addresses_of_both_ends_of_a_broken_rdma_connection_are_told(explained: Explained) -> None:
    headline = explained(
        "Execution Error ROCE CQE(EI0013): An error CQE occurred during operator execution. Local information: server "
        "10.7.0.1, device ID 0, device IP 10.7.1.1. Peer information: server 10.7.0.2, device ID 1, device IP 10.7.1.2."
    ).headline()

    assert "(10.7.1.1 to 10.7.1.2)" in headline


def test_gpu_that_torch_was_not_built_for_is_named(explained: Explained) -> None:
    excerpt = explained(f"{_OTHER_GPU}\n")
    failed = explained(
        f"{_OTHER_GPU}{_MANY_STEPS}RuntimeError: CUDA error: no kernel image is available for execution\n"
    )

    for explanation in (excerpt, failed):
        assert entry_of(explanation) == "torch-without-gpu-code"
        assert "NVIDIA Moon RTX 7 (sm_777): it was built for sm_7 sm_71" in explanation.headline()
    assert explained(_OTHER_GPU + _MANY_STEPS).is_healthy
    old = "UserWarning: \n    Found GPU0 Tesla M7 which is of cuda capability 1.7.\n"
    assert "Tesla M7 (1.7)" in explained(old).headline()


def test_disk_without_room_for_a_download_is_told_where_nothing_follows(explained: Explained) -> None:
    warning = (
        "/x/file_download.py:7: UserWarning: Not enough free disk space to download the file. The expected file size "
        "is: 77.10 MB. The target location /moon/hub/models--a--tide/blobs only has 7.10 MB free disk space.\n"
        "  warnings.warn(\n"
    )

    assert explained(warning).headline().endswith("77.10 MB needed, 7.10 MB free")
    assert "disk of /moon has" in explained(warning).headline()
    assert explained(warning + _MANY_STEPS).is_healthy


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_SET_DEVICE.format("507033"), "device-open"),
        (_SET_DEVICE.format("107001"), "107001"),
        (_SET_DEVICE.format("507033") + _OUT_OF_RANGE, "device-out-of-range"),
        (_NOT_OPENED, "device-open"),
        (">>> os.environ['ASCEND_RT_VISIBLE_DEVICES'] = '7'\n" + _NOT_OPENED, "visible-devices-set-in-python"),
        ("# os.environ['ASCEND_RT_VISIBLE_DEVICES'] = '7'\n" + _NOT_OPENED, "device-open"),
        (_TASK_TIMED_OUT.format("AllReduce", 0) + _TASK_TIMED_OUT.format("AllReduce", 1), "EI0002"),
        (_TASK_TIMED_OUT.format("AllReduce", 0) + _TASK_TIMED_OUT.format("AllGather", 0), "EI0002"),
        (
            _TASK_TIMED_OUT.format("AllReduce", 0) + _TASK_TIMED_OUT.format("AllGather", 1),
            "ranks-timed-out-in-different-collectives",
        ),
        (
            "[7][ParameterConflict]CMD information op check fail. local[7], remote[0]\n",
            "ranks-link-with-different-operations",
        ),
        (
            "[7][ParameterConflict]CMD information root check fail. local[7], remote[0]\n",
            "ranks-link-with-different-arguments",
        ),
    ],
)
def test_values_that_the_log_prints_tell_the_cause(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry
