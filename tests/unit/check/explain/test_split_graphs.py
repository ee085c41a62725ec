"""Failures of CANN's graph compiler and of offline models, and the classes of CANN's error codes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_STAMP = "[PID: 7] 2025-10-30-08:21:08.817.477 "
_INFER = "        Call InferShapeAndType for node:{0}_1({0}) failed[FUNC:Infer][FILE:infershape_pass.cc][LINE:117]\n"
_TWO_DTYPES = "E89999: " + _STAMP + "op[MoonSub_1] op dtype is not same, type1:DT_INT32, type2:DT_INT64[FUNC:Check]\n"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (
            f"EE1001: {_STAMP}The argument is invalid.Reason: ModelCheckCompatibility failed, supported "
            "socVersion=Ascend910B3, but the model socVersion=Ascend310P3\n",
            "om-of-other-chip",
        ),
        (
            "[ERROR] GE(7,moon):2025 [om_file_helper.cc:265]Check model compatibility failed.[FUNC:LoadModelData]"
            "[FILE:model_helper.cc][LINE:1266]\n",
            "om-of-other-chip-unnamed",
        ),
        (f"EE1001: {_STAMP}The argument is invalid.Reason: moon is larger than the tide\n", "cann-code-call"),
        (
            f"E60108: {_STAMP}In op[moon2d], [the tide does not support dynamic shape, shape is [7, -1]]\n",
            "operator-needs-fixed-shape",
        ),
        (
            "RuntimeError: ({'errCode': 'E60038', 'op_name': 'moon_tide', 'reason': 'unknown rank is not supported'}, "
            "'In op[moon_tide], unknown rank is not supported')\n",
            "operator-needs-fixed-shape",
        ),
        (
            "RuntimeError: ({'errCode': 'E60038', 'op_name': 'moon_tide', 'reason': 'shape [7] is wrong'}, "
            "'In op[moon_tide], shape [7] is wrong')\n",
            "tbe-refuses",
        ),
        (_TWO_DTYPES + _INFER.format("MoonSub"), "graph-dtypes-differ"),
        ("atc --model=moon.onnx --soc_version=Ascend310P3\n" + _TWO_DTYPES, "graph-dtypes-differ-onnx"),
        ("CANN error: EL0003: " + _STAMP + "The argument is invalid.\n", "EL0003"),
        (
            "CANN error: EZ9999: Inner Error!\nEZ9999: BinaryGetFunction failed, kernelName: Tide_1\n",
            "operator-binary-missing",
        ),
        (
            "In file included from /x/tikcpp/tikcfw/kernel_operator.h:7:\nerror: no member named 'Tide' in namespace "
            "'AscendC'\n",
            "ascendc-intrinsic-missing",
        ),
        ("RuntimeError: dtype of inputs must be same as that of the tide\n", "python-exception"),
        (f"E19999: {_STAMP}The rank of tide is 7[FUNC:Moon]\n" + _INFER.format("Tide"), "cann-words-in-graph-compile"),
        (f"E19999: {_STAMP}The rank of tide is 7[FUNC:Moon]\n        run failed[FUNC:Rise]\n", "EE9999"),
        ("E10001: Value [-1] for parameter [moon] is invalid. Reason: it is not fixed\n", "atc-input-shape-missing"),
        (f"E10013: {_STAMP}Value 7 for --tide is out of range.\n", "cann-code-atc"),
        (f"E14002: {_STAMP}In the current process, the attribute of moon must be obtained.\n", "cann-code-graph"),
        (f"E61203: {_STAMP}The tide of moon is out of range.\n", "cann-code-operator"),
        (f"E39001: {_STAMP}The tide is invalid.\n", "cann-code-ai-cpu"),
        (f"EH0009: {_STAMP}aclMoon failed. Value 7 for parameter tide is invalid.\n", "cann-code-call"),
        (f"EP0001: {_STAMP}The content of moon in configuration file tide.json is invalid.\n", "cann-code-tool"),
        (f"EI0020: {_STAMP}The tide of the communicator is wrong.\n", "cann-code"),
    ],
)
def test_words_of_cann_about_graphs_and_codes(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_chip_and_model_are_named(explained: Explained) -> None:
    log = "EE1001: Reason: supported socVersion=Ascend910B3, but the model socVersion=Ascend310P3\n"

    told = explained(log)

    assert "converted for Ascend310P3, and this NPU is Ascend910B3" in told.headline()
    assert "--soc_version=Ascend910B3" in told.remedies()[0]


def test_every_code_of_cann_has_a_remedy_that_begins_with_what_tells(explained: Explained) -> None:
    for code in ("E10013", "E14002", "E61203", "E40022", "E39001", "EE1011", "EK0005", "EL0018"):
        remedies = explained(f"{code}: {_STAMP}The tide of the moon is wrong.\n").remedies()

        assert len(remedies) > 1
        assert "what the message names; if" not in remedies[0]
