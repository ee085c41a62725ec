"""Failures of the machine, its network and its launcher: variants of one cause, and neighbours with another."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_SEMLOCK = (
    'Traceback (most recent call last):\n  File "/moon/multiprocessing/synchronize.py", line 57, in __init__\n'
    "    sl = self._semlock = _multiprocessing.SemLock(\n"
)
_REBUILT = (
    'Traceback (most recent call last):\n  File "/moon/multiprocessing/synchronize.py", line 110, in __setstate__\n'
    "    self._semlock = _multiprocessing.SemLock._rebuild(*state)\n"
)
_TABLE = 'Traceback (most recent call last):\n  File "/moon/{file}", line 7, in main\n    rise(tide)\n'
_CONNECT = "moon1:1:2 [0] misc/socket.cc:9 NCCL WARN socketStartConnect: Connect to {to} failed : {why}\n"
_USING = "moon1:1:1 [0] NCCL INFO Bootstrap: Using tide0:10.7.1.8<0>\n"
_VISIBLE = "The argument is invalid.Reason: Set visible device failed, invalid device={}, input visible devices:{}\n"
_COMMUNICATOR = "RuntimeError: tide.cc:7 HCCL function error: HcclGetRootInfo(&moon), error code is 7\n"
_CORES = "ascend-docker-runtime: [ERROR] check aicore num failed, phy_id:3, core_need:7, used:11, total:17 Failed\n"
_NO_CONTAINER = "kubelet: Error: failed to create shim task: OCI runtime create failed: moon did not end well\n"
_ENDED = (
    'Traceback (most recent call last):\n  File "/x/tbe/common/repository_manager/{}.py", line 7, in tide\n'
    '    moon.get()\n  File "/x/multiprocessing/connection.py", line 7, in {}\n    raise EOFError\nEOFError\n'
)
_NO_ROUTE = "No route to host"
_GLOO = "RuntimeError: Gloo connectFullMesh failed with [/moon/third_party/gloo/gloo/transport/tcp/pair.cc:7] "
_BLAS = "OpenBLAS blas_thread_init: pthread_create: Resource temporarily unavailable\nOpenBLAS blas_thread_init: "


@pytest.mark.parametrize(
    ("log", "known_as"),
    [
        (
            "gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: ^moon0",
            "gloo-interface-pattern",
        ),
        (
            "gloo/transport/tcp/device.cc:83] ifa != nullptr. Unable to find address for: moon0",
            "gloo-interface-missing",
        ),
        ("device.cc:127] rp != nullptr. Unable to find address for: moon-7.tide", "gloo-own-name"),
        (f"{_GLOO}SO_ERROR: Connection refused, remote=[127.0.1.1]:8312", "gloo-loopback"),
        (f"{_GLOO}SO_ERROR: Connection refused, remote=[10.7.1.9]:8312", "gloo-refused"),
        (f"{_GLOO}SO_ERROR: No route to host, remote=[10.7.1.9]:8312", "gloo-no-route"),
        (f"{_GLOO}no error", "gloo-connect"),
        ("srun: error: Task launch for 47.0 failed on node tide7: Invalid job credential", "slurm-credential"),
        ("aclrtSetDevice(7) failed: 507033\n(EL0004): no memory\n  open device 7 failed", "device-full-at-open"),
        ("aclrtSetDevice(7) failed: 507033", "device-id-refused"),
        ("rtSetDevice failed, 0x7020010", "device-open"),
        ("EL0004: [PID: 7] Failed to allocate memory requested by GE module.", "EL0004"),
        (f"{_SEMLOCK}OSError: [Errno 28] No space left on device", "semaphore-no-space"),
        (f"{_SEMLOCK}PermissionError: [Errno 13] Permission denied", "semaphore-refused"),
        (f"{_SEMLOCK}OSError: [Errno 38] Function not implemented", "semaphore-none"),
        (f"{_REBUILT}FileNotFoundError: [Errno 2] No such file or directory", "semaphore-gone"),
        ("RuntimeError: unable to write to file </torch_47_7>: No space left on device (28)", "shared-memory-full"),
        (f"{_TABLE.format(file='x.py')}OSError: [Errno 28] No space left on device: '/moon/7'", "disk-full-at"),
        ("libgomp: Thread creation failed: Operation not permitted", "threads-forbidden"),
        (
            "OpenBLAS blas_thread_init: pthread_create failed for thread 7 of 9: Operation not permitted",
            "threads-forbidden",
        ),
        (
            "OpenBLAS blas_thread_init: pthread_create failed for thread 7 of 9: Resource temporarily unavailable",
            "too-many-threads",
        ),
        ("OSError: [Errno 30] Read-only file system: '/moon/kernel_meta'", "kernel-meta-unwritable"),
        ("PermissionError: [Errno 13] Permission denied: '/moon/atc_data'", "ascend-home-unwritable"),
        ("PermissionError: [Errno 13] Permission denied: '/moon/tide'", "permission"),
        (_USING + _CONNECT.format(to="10.7.1.9<4711>", why=_NO_ROUTE), "nccl-firewall"),
        (_USING + _CONNECT.format(to="10.9.1.1<4711>", why=_NO_ROUTE), "nccl-no-route"),
        (_CONNECT.format(to="172.17.0.7<4711>", why="Connection refused"), "nccl-docker-address"),
        (_CONNECT.format(to="172.17.0.7<4711>", why=_NO_ROUTE), "nccl-docker-address"),
        (_CONNECT.format(to="172.16.0.7<4711>", why="Connection timed out"), "nccl-connect-timed-out"),
        (f"{_BLAS}RLIMIT_NPROC 512 current, 4711 max", "threads-user-limit"),
        (f"{_BLAS}RLIMIT_NPROC -1 current, -1 max", "threads-cgroup-limit"),
        ("[ERROR]  acl set device 0 failed, errorCode = 507033", "507033"),
        (
            "The argument is invalid.Reason: set ASCEND_RT_VISIBLE_DEVICES:6,7 error, input data rang[0-2)",
            "visible-device-range",
        ),
        (_USING + _CONNECT.format(to="10.7.1.9<4711>", why="Connection refused"), "nccl-refused"),
        (_USING + _CONNECT.format(to="fe80::7%6<4711>", why="Network is unreachable"), "nccl-link-local-peer"),
        (_CONNECT.format(to="fe80::7%6<4711>", why="Network is unreachable"), "nccl-link-local"),
        (_VISIBLE.format(3, 3), "visible-device-global"),
        (_VISIBLE.format(5, "4,5"), "visible-device-global"),
        ("(RayWorkerWrapper pid=7) " + _VISIBLE.format(3, 3), "visible-device-ray"),
        (_VISIBLE.format(1, "0,1"), "visible-device-missing"),
        (_VISIBLE.format(0, 4), "visible-device-missing"),
        ("slurmstepd: error: Detected 2 oom_kill events in StepId=47.batch. Some of the step tasks", "slurm-oom"),
        ("slurmstepd: error: Detected 1 oom-kill event(s) in step 47.0 cgroup.", "slurm-oom"),
        ("slurmstepd: error: Exceeded step memory limit at some point.", "slurm-oom"),
        (f"{_TABLE.format(file='hccl_tools.py')}KeyError: '3'", "hccl-tools-no-address"),
        (f"{_TABLE.format(file='tide_tools.py')}KeyError: '3'", "key-missing"),
    ],
)
def test_variant_gets_the_entry_of_its_own_cause(explained: Explained, log: str, known_as: str) -> None:
    assert entry_of(explained(f"{log}\n")) == known_as


def test_missing_component_of_pmix_is_an_error_only_where_mpi_failed(explained: Explained) -> None:
    missing = "Host:      moon7\nFramework: psec\nComponent: tide\n"

    assert explained(f"{missing}step 1 loss 2.0\n").is_healthy
    assert "psec/tide" in explained(f"{missing}  pmix_psec_base_open failed\n").headline()


def test_port_of_hccl_is_told_from_the_lines_below_the_code(explained: Explained) -> None:
    bound = "EJ0003: [PID: 7] Failed to bind the IP port. Reason: The IP address and port have been bound already.\n"
    listen = "        host nic listen start failed, port[60047], return[11][FUNC:Moon][FILE:tide.cc][LINE:9]\n"

    assert "60047" in explained(bound + listen).headline()
    assert "60047" in explained(bound + listen).remedies()[0]
    assert entry_of(explained(bound)) == "EJ0003"


def test_device_that_did_not_start_is_told_from_the_lines_below_the_code(explained: Explained) -> None:
    call = "RuntimeError: NPU function error: c10_npu::SetDevice(device), error code is 507033\n"
    block = "E39007: Starting a subprocess on the device timed out.\n  open device 5 failed, runtime result = 507033.\n"

    assert explained(call + block).headline().startswith("device 5 ")
    assert entry_of(explained(call)) == "507033"


@pytest.mark.parametrize(
    ("log", "entry", "told"),
    [
        (
            f"{_COMMUNICATOR}Failed to bind the IP port. Reason: it has been bound.\n",
            "hccl-listen",
            "its port is taken",
        ),
        (_COMMUNICATOR, "hccl-7", "something it needs is taken"),
        (f"{_CORES}{_NO_CONTAINER}", "vnpu-cores-used", "7 AI cores does not fit on NPU 3 any more: 11 of its 17"),
        (_NO_CONTAINER, "container-device", "moon did not end well"),
        ("RuntimeError: Unable to pin host memory with error code: -7\n", "host-memory-lock", "(error -7)"),
        ("EE1001: Reason: coreDim=77777 can't be greater than UINT16_MAX.\n", "launch-too-many-blocks", "77777 blocks"),
        ("EE1001: Reason: tideDim=77777 can't be greater than 77.\n", "cann-code-call", "tideDim=77777"),
        (
            "ERROR 01-01 10:11:12 [moon.py:7] Tides fail: RuntimeError:\nERROR 01-01 10:11:12 [moon.py:7] moon has "
            "insufficient available streams to capture 7 tides.\n",
            "npu-capture-streams",
            "streams are used up",
        ),
        (
            "(Moon pid=7) ERROR 01-01 10:11:12 [t.py:7] Tides fail: OddError:\n"
            "(Moon pid=7) ERROR 01-01 10:11:12 [t.py:7] the moon is gone\n",
            "error-line",
            "Tides fail: OddError: the moon is gone",
        ),
        (_ENDED.format("route", "_recv"), "tbe-manager-gone", "CANN (TBE) lost the process"),
        (_ENDED.format("tide", "_recv"), "store-lost", "other end of a connection"),
        (
            "error: ub overflow, requires 7700 bits while 770 bits available\n",
            "triton-buffer",
            "(needs 7700 bits, there are 770)",
        ),
    ],
)
def test_the_exhausted_or_occupied_resource_is_named(explained: Explained, log: str, entry: str, told: str) -> None:
    explanation = explained(log)

    assert entry_of(explanation) == entry
    assert told in explanation.headline()


def test_end_of_a_compile_process_goes_behind_what_ended_the_job(explained: Explained) -> None:
    assert entry_of(explained("OddError: 7 tides are shared\n" + _ENDED.format("route", "_recv"))) == "python-exception"
