"""Failures of NPUs, their operators and their libraries that are told apart by another line of the log."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.report import as_text

Explained = Callable[..., Explanation]

_AICPU = "Aicpu kernel execute failed, device_id=0, stream_id=7, task_id=7, fault so_name=m.so, fault kernel_name={}\n"
_POOL = (
    "Malloc device memory failed, free memory size is less than half of total memory size.Device 0 Device MOC total "
    "size:770 Device MOC free size:77 may be other processes occupying this card, check as: ps -ef|grep python\n"
)
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
