"""Messages of MPI, UCX, NVSHMEM and libibverbs on a host or container whose cause is in another line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_NVSHMEM = "/moon/src/host/transport/transport.cpp:nvshmemi_transport_init:77: "
_NO_PEERMEM = "/moon/src/modules/{}.cpp:7: neither nv_peer_mem, or nvidia_peermem detected. Skipping transport.\n"
_AGENT = 'The value of the MCA parameter "{0}" was set to a path\nthat could not be found:\n\n  {0}: {1}\n'
_RULE = "-" * 74 + "\n"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_NO_PEERMEM.format("ibgda") + _NVSHMEM + "init failed for transport: IBGDA\n", "nvshmem-no-peermem"),
        (
            _NO_PEERMEM.format("ibrc") + "topo.cpp:77: [GPU 1] Peer GPU 4 is not accessible, exiting ...\n",
            "nvshmem-no-peermem",
        ),
        (_NVSHMEM + "init failed for transport: IBGDA\n", "nvshmem-ibgda"),
        (_NVSHMEM + "Unable to initialize any transports. returning error.\n", "nvshmem-no-transport"),
        (
            "[7.7] [moon:7:0]  mm_posix.c:77  UCX  ERROR open(file_name=/proc/71/fd/7 flags=0x0) failed: Permission "
            "denied\n[moon:7] pml_ucx.c:77  Error: ucp_ep_create(proc=1) failed: Shared memory error\n",
            "ucx-other-namespace",
        ),
        (
            "[7.7] [moon:7:0]  cma_ep.c:77  UCX  ERROR process_vm_writev(pid=7 length=77) returned -1: Operation not "
            "permitted\n",
            "mpi-single-copy-refused",
        ),
        ("Read -1, expected 77777, errno = 1\n", "mpi-single-copy-refused"),
        (
            "[7.7] [moon:7:0]  cma_ep.c:77  UCX  ERROR process_vm_readv(pid=7 length=77) returned -1: Bad address\n",
            "error-line",
        ),
        (_RULE + _AGENT.format("plm_rsh_agent", "ssh : rsh"), "mpi-no-launch-agent"),
        (_RULE + _AGENT.format("plm_ssh_agent", "/moon/bin/tide-ssh") + _RULE, "mpi-no-launch-agent"),
        (
            "[moon:7] [[INVALID],INVALID] ORTE_ERROR_LOG: Unable to start a daemon on the local node in file tide.c at "
            "line 7\n",
            "mpi-singleton-daemon",
        ),
        ("[moon:7] [[7,0],0] ORTE_ERROR_LOG: Not found in file tide.c at line 7\n", "mpi-runtime-error"),
        (
            "libibverbs: Warning: couldn't open config directory '/etc/libibverbs.d'.\nNo IB devices found\n",
            "ibverbs-no-provider",
        ),
        (
            "libibverbs: Warning: no userspace device-specific driver found for /sys/class/infiniband_verbs/uverbs7\n"
            "Failed to get IB devices list: Function not implemented\n",
            "ibverbs-no-provider",
        ),
        ("# ibv_devinfo\nNo IB devices found\n", "ibverbs-no-devices"),
        ("libibverbs: Warning: couldn't open config directory '/etc/libibverbs.d'.\nstep 7 loss 1.5\n", None),
    ],
)
def test_the_line_beside_it_tells_the_cause(explained: Explained, log: str, entry: str | None) -> None:
    assert entry_of(explained(log)) == entry


def test_the_agent_that_was_not_found_is_in_the_headline(explained: Explained) -> None:
    assert "/moon/bin/tide-ssh" in explained(_RULE + _AGENT.format("plm_ssh_agent", "/moon/bin/tide-ssh")).headline()
