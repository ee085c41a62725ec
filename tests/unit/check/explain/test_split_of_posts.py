"""Warnings and codes of short posts: an image of another processor, HIP without a GPU, a rank table's file, Paddle."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_PLATFORM = (
    "WARNING: The requested image's platform ({image}) does not match the detected host platform ({host}) and no "
    "specific platform was requested\n"
)
_HIP = (
    "/v/torch/cuda/__init__.py:7: UserWarning: HIP initialization: Unexpected error from hipGetDeviceCount(). Did you "
    "run some cuda functions before? Error 101: hipErrorInvalidDevice (Triggered internally at tide.cpp:7.)\n"
    "  return torch._C._cuda_getDeviceCount() > 0\n"
)


@pytest.mark.parametrize(("image", "host"), [("linux/amd64", "linux/arm64/v8"), ("linux/arm64", "linux/amd64")])
def test_image_of_another_processor_is_the_cause_where_an_accelerator_is_wanted(
    explained: Explained, image: str, host: str
) -> None:
    warning = _PLATFORM.format(image=image, host=host)

    assert (
        explained(f"{warning}\nmachine: 8 * 910B\nimage: moon/vllm-ascend:7\n").findings()[0].code == "image-emulated"
    )
    assert explained(f"{warning}tide 7 of the docs of ascend\n").is_healthy
    assert explained(f"{warning}Setting up nvidia-moon\nINFO:     Application startup complete.\n").is_healthy


def test_hip_warning_is_the_cause_where_no_gpu_is_there_for_what_follows(explained: Explained) -> None:
    assert explained(f"{_HIP}False\n>>>\n\nMoon on a card of 2023.\n").findings()[0].code == "hip-count-warned"
    assert explained(_HIP).findings()[0].code == "hip-count-warned"
    assert explained(f"{_HIP}torch.cuda.is_available(): False\n").findings()[0].code == "hip-count-warned"
    assert explained(f"{_HIP}tide 7\nscore 0\nerrors: 0\n").is_healthy
    assert explained(f"{_HIP}tide 7\nmoon 8 on cpu\n").is_healthy


def test_file_of_a_rank_table_is_not_an_option_of_atc(explained: Explained) -> None:
    said = (
        "Config_Error_Ranktable({code}): Value {value} for ranktable variable {name} is invalid. Expected value: {it}."
    )

    for code in ("EI0014", "E10014"):
        path = said.format(code=code, value="/tide/topo/moon.json", name="topo_file path", it="valid path")
        assert explained(path).findings()[0].code == "rank-table-topo-file"
        empty = said.format(code=code, value="[]", name="[device_ip]", it="a valid address")
        assert explained(empty).findings()[0].code == "rank-table-value"
    atc = "E10014: [PID: 7] 2024-06-28-13:05:55.631.066 Value moon for parameter --tide is invalid.\n"
    assert explained(atc).findings()[0].code == "cann-code-atc"


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16"])
def test_missing_kernel_of_paddle_names_operator_and_plugin(explained: Explained, dtype: str) -> None:
    key = f"(npu, Undefined(AnyLayout), {dtype})"
    log = f"RuntimeError: (NotFound) The kernel with key {key} of kernel `tide` is not registered.\n"

    assert "operator tide" in explained(log).headline()
