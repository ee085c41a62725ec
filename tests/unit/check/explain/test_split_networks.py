"""Messages of NCCL on its network and hosts: the cause, not the words."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_WARN = "moon7:77:78 [0] tide.cc:7 NCCL WARN {}\n"


@pytest.mark.parametrize(
    ("words", "entry"),
    [
        ("Mismatched NCCL version detected : rank 0 version 22005 rank 8 version 21805", "nccl-versions-differ"),
        (
            "MNNVL (cliqueSize 8) is available but not working on this system. Check the IMEX channel configuration "
            "(/dev/nvidia-caps-imex-channels). Set NCCL_MNNVL_ENABLE=0 to ignore this issue.",
            "nccl-imex",
        ),
        ("No transport found for rank 0[1000] -> rank 1[2000]", "nccl-no-transport"),
        (
            "NET/Socket : peer 10.0.0.4<33212> message truncated : receiving 1048576 bytes instead of 262144. If you "
            "believe your socket network is in a healthy state, there may be a mismatch in collective sizes",
            "nccl-sizes-differ",
        ),
        ("Call to ibv_reg_mr failed with error Bad address", "nccl-gpu-memory-not-registered"),
        ("Call to ibv_reg_mr failed with error Cannot allocate memory", "nccl-memlock"),
        ("nvmlDeviceGetHandleByPciBusId() failed: Not Found", "nccl-gpus-of-other-container"),
        ("Error: network IB not found.", "nccl-network-not-there"),
        ("Failed to initialize any NET plugin", "nccl-no-net-plugin"),
        ("NET/OFI Unable to find a protocol that worked.  Failing initialization.", "nccl-ofi-no-provider"),
        ("NET/IB : mlx5_2:1 Got async event : port error", "nccl-ib-port-down"),
        ("NET/IB : mlx5_2:1 Got async event : local catastrophic error", "nccl-card-failed"),
    ],
)
def test_warning_of_nccl(explained: Explained, words: str, entry: str) -> None:
    assert entry_of(explained(_WARN.format(words))) == entry


def test_plugin_without_cards_is_harmless_where_the_training_continues(explained: Explained) -> None:
    words = _WARN.format("NET/OFI Unable to find a protocol that worked.  Failing initialization.")
    steps = "".join(f"step {step} loss {7 / step:.3f}\n" for step in range(1, 78))

    assert explained(words + "moon7:77:78 [0] NCCL INFO Using network Socket\n" + steps).is_healthy


def test_plugin_without_cards_is_harmless_where_the_measurement_ends_well(explained: Explained) -> None:
    words = _WARN.format("NET/OFI aws-ofi-nccl initialization failed")

    assert explained(words + "#  size  count  type\n# Out of bounds values : 0 OK\n").is_healthy


_EACCES = (
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
    "port: {}, useIpv6: false, code: -13, name: EACCES, message: permission denied\n"
)
_IBGDA = (
    "/moon/src/modules/transport/ibgda/ibgda.cpp:1889: {}\n"
    "/moon/init.cu:1007: non-zero status: 7 nvshmem setup connections failed\n"
)


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_EACCES.format(80), "master-port-privileged"),
        (_EACCES.format(1023), "master-port-privileged"),
        (_EACCES.format(29500), "port-not-permitted"),
        (_IBGDA.format("NULL value cannot allocate mlx5dv_devx_uar"), "nvshmem-no-card-rights"),
        (_IBGDA.format("non-zero status: 22 ibv_modify_qp failed"), "nvshmem-cards-not-joined"),
        (_IBGDA.format("non-zero status: 7 no valid NICs found"), "nvshmem-no-cards"),
        ("ImportError: /moon/tide.so: undefined symbol: nvshmemi_device_state_d\n", "deepep-other-nvshmem"),
        ("ImportError: /moon/tide.so: undefined symbol: nvshmemi_ibgda_moon\n", "nvshmem-without-ibgda"),
        ("RuntimeError: Unable to find address for: eno1\n", "gloo-interface-missing"),
    ],
)
def test_port_or_card(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry
