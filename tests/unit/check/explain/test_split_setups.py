"""Failures of launchers, versions and networks that are told apart by another line or number of the log."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_SLOTS = "There are not enough slots available in the system to satisfy the 7 slots\n"
_MKDIR = "slurmd[7]: error: pyxis:     mkdir: cannot create directory '{path}': Permission denied\n"
_FABRIC = "moon nv-fabricmanager[7]: fabric manager NVIDIA GPU driver interface version "
_DETECTED = "Detected CUDA_VISIBLE_DEVICES=7: setting --include=localhost:7\n"
_LAUNCHED = (
    'Traceback (most recent call last):\n  File "/x/deepspeed", line 7, in <module>\n    tide()\n'
    '  File "/x/deepspeed/launcher/runner.py", line 7, in parse_inclusion_exclusion\n    return tide(moon=mo\n'
)
_SLOT = "ValueError: No slot '7' specified on host 'moon'\n"
_GLOO = "RuntimeError: [/x/gloo/transport/tcp/pair.cc:7] connect [{address}]:7077: Connection refused\n"
_NO_LIBRARY = "ImportError: {library}: cannot open shared object file: No such file or directory\n"
_NO_SYMBOL = "ImportError: /moon/torch/lib/libtorch_cuda.so: undefined symbol: {symbol}\n"
_BFLOAT = (
    "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Moon T7 GPU has "
    "compute capability {capability}.\n"
)
_FLAT = "RuntimeError: The size of tensor a ({a}) must match the size of tensor b ({b}) at non-singleton dimension 0\n"
_CONDA = "CondaHTTPError: HTTP 000 CONNECTION FAILED for url <https://moon.example/noarch>\n"
_UNREACHABLE = (
    "ConnectionError(MaxRetryError(\"HTTPSConnectionPool(host='moon.example', port=443): Max retries exceeded with "
    "url: /noarch (Caused by NewConnectionError('<Moon>: Failed to establish a new connection: [Errno 101] Network is "
    "unreachable',))\",),)\n"
)
_NO_GCS = "[2027-01-02 03:04:05,6 E 7 7] gcs_rpc_client.h:7: Failed to connect to GCS at address 10.7.1.9:6379\n"
_RAY = "Exception: Version mismatch: The cluster was started with:\n    Ray: 2.7.0\n    Python: 3.10.7\n"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        ("$ mpirun -np 7 -H moon python t.py\n" + _SLOTS, "mpi-host-without-slots"),
        ("$ horovodrun -np 7 -H moon,tide python t.py\n" + _SLOTS, "mpi-host-without-slots"),
        ("$ mpirun -np 7 -H moon:4,tide:2 python t.py\n" + _SLOTS, "mpi-slots"),
        ("$ mpirun -np 7 --hostfile moons python t.py\n" + _SLOTS, "mpi-slots"),
        (_GLOO.format(address="127.0.1.1"), "gloo-loopback"),
        (_GLOO.format(address="10.7.1.9"), "gloo-refused"),
        (_NO_LIBRARY.format(library="libcudnn.so.8"), "cudnn-missing"),
        (
            "Could not load library libcudnn_ops_infer.so.8. Error: libcudnn_ops_infer.so.8: cannot open shared object "
            "file: No such file or directory\n",
            "cudnn-missing",
        ),
        (_NO_LIBRARY.format(library="libnvrtc.so.12"), "cuda-runtime-of-number-missing"),
        (_NO_LIBRARY.format(library="libnvrtc.so.12") + "torch 2.9.0+cu130\n", "cuda-12-wanted-13-there"),
        (_NO_LIBRARY.format(library="libnvrtc.so.12") + "torch 2.7.0+cu128\n", "cuda-runtime-of-number-missing"),
        (_NO_LIBRARY.format(library="libcudart.so.11.0") + "torch 2.7.0+cu128\n", "cuda-11-wanted-newer-there"),
        (_NO_LIBRARY.format(library="libcudart.so.11.0") + "torch 2.1.0+cu118\n", "cuda-runtime-of-number-missing"),
        (_NO_SYMBOL.format(symbol="ncclTideFree"), "torch-older-nccl"),
        (
            _NO_SYMBOL.format(symbol="ncclTideFree")
            + "nvidia-nccl-cu11    2.7.3\nmoon  7\nnvidia-nccl-cu12    2.9.3\n",
            "torch-two-nccl",
        ),
        (_NO_SYMBOL.format(symbol="ncclTideFree") + "nvidia-nccl-cu12==2.7.3\n", "torch-older-nccl"),
        (_NO_SYMBOL.format(symbol="_ZN3c104tideEv"), "torch-of-two-builds"),
        (_BFLOAT.format(capability="7.5"), "vllm-bfloat16-old-gpu"),
        (_BFLOAT.format(capability="6.1"), "gpu-below-volta"),
        (
            _BFLOAT.format(capability="6.0")
            + "RuntimeError: GPUs with compute capability below 7.0 are not supported.",
            "gpu-below-volta",
        ),
        ("resuming from moon.ckpt\n" + _FLAT.format(a=70707070, b=17676767), "flat-state-other-world"),
        ("resuming from moon.ckpt\n" + _FLAT.format(a=768, b=1024), "shape-mismatch"),
        (_FLAT.format(a=70707070, b=17676767), "shape-mismatch"),
        (_CONDA + _UNREACHABLE, "conda-no-network"),
        (_CONDA, "conda-channel"),
        ("$ ray start --block --address=127.0.0.1:6379\n" + _NO_GCS, "ray-worker-at-loopback"),
        ("$ ray start --address localhost:6379 --block\n" + _NO_GCS, "ray-worker-at-loopback"),
        ("$ ray start --address=10.7.1.2:6379 --block\n" + _NO_GCS, "ray-not-there"),
        ("moon.py: error: unrecognized arguments: --tide 7 --local-rank=3\n", "local-rank-with-dash"),
        ("moon.py: error: unrecognized arguments: --local_rank=3\n", "local-rank-passed"),
        ("moon.py: error: unrecognized arguments: --tide=3\n", "argument-unrecognized"),
        ("bash: line 1: orted: command not found\n", "mpi-daemon-not-on-path"),
        (
            "bash: orted: command not found\nORTE was unable to reliably start one or more daemons.\n",
            "mpi-daemon-not-on-path",
        ),
        ("bash: moonrun: command not found\n", "command-not-found"),
        (
            "orted: error while loading shared libraries: libmoon.so.7: cannot open shared object file\n",
            "shared-object",
        ),
        (_RAY, "ray-version-differs"),
        (
            _RAY + "This process on node moon was started with:\n    Ray: 2.7.0\n    Python: 3.10.9\n",
            "ray-python-differs",
        ),
        ("RuntimeError: cuda runtime error (101) : invalid device ordinal at moon.cpp:7\n", "cuda-invalid-device"),
        ("RuntimeError: HIP error: invalid device ordinal\n", "cuda-invalid-device"),
        (
            "moon7 nv-fabricmanager[7]: fabric manager NVIDIA GPU driver interface version 7.1.2 don't match with "
            "driver version 7.1.3. Please update\nmoon7 systemd[1]: nvidia-fabricmanager.service: Control process "
            "exited, code=exited, status=1/FAILURE\n",
            "fabric-manager-version",
        ),
        (
            "[moon:7] PMI_Get_clique_size [pmix_s1.c:7:s1_init]: Operation failed\nbut OMPI was not built with SLURM's "
            "PMI support and therefore cannot\nexecute.\n",
            "ompi-without-pmi",
        ),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'ninja'\n", "ninja-missing"),
        (
            "ValueError: Not enough GPUs available. Requested 14 GPUs, but only 7 are available in the cluster.\n",
            "ray-requested-gpus",
        ),
    ],
)
def test_line_is_read_with_what_tells_its_causes_apart(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


@pytest.mark.parametrize(
    ("log", "entry", "told"),
    [
        (
            "mpirun was unable to find the specified executable file, and therefore\ndid not launch the job.\n\n"
            "Node:       moon7\nExecutable: tide\n",
            "mpi-program-not-found",
            "program tide",
        ),
        ("mpirun has detected an attempt to run as root.\n", "mpi-as-root", "root"),
        (
            "Unable to load any of {libcudnn_tide.so.9.1.0, libcudnn_tide.so.9.1, libcudnn_tide.so.9}\n"
            "Invalid handle. Cannot load symbol cudnnCreateTide\n",
            "cudnn-missing",
            "libcudnn_tide.so.9",
        ),
        (
            "Could not load library libcudnn_tide.so.8. Error: libnvrtc.so: cannot open shared object file\n",
            "nvrtc-without-number",
            "libnvrtc.so",
        ),
        (
            "[moon:7] ORTE_ERROR_LOG: Data unpack would read past end of buffer in file tide.c\n",
            "mpi-versions-differ",
            "MPI",
        ),
        (
            "ssh: Could not resolve hostname moon:7: Name or service not known\n",
            "mpi-host-with-slots-unknown",
            "moon:7",
        ),
        ("ssh: Could not resolve hostname moon7: Name or service not known\n", "ssh-host-name", "moon7"),
        (
            "It looks like MPI_INIT failed for some reason; your parallel process is\nlikely to abort.\n\n"
            '  PML add procs failed\n  --> Returned "Not found" (-13) instead of "Success" (0)\n',
            "mpi-init-failed",
            "PML add procs failed",
        ),
        (
            "gcs_rpc_client.h:7: Failed to connect to GCS at address :6379 within 5 seconds.\n",
            "ray-address-empty",
            ":6379",
        ),
        (
            "gcs_rpc_client.h:7: Failed to connect to GCS within 60 seconds. GCS may have been killed.\n",
            "ray-gcs-gone",
            "gcs_server",
        ),
        (
            "RuntimeError: [/x/gloo/transport/tcp/socket.cc:7] rv != -1. -1 vs -1. connect: Network is unreachable\n",
            "gloo-interface",
            "Network is unreachable",
        ),
        (
            "RuntimeError: Gloo connectFullMesh failed with [/x/gloo/pair.cc:7] SO_ERROR: No route to host, "
            "remote=[10.7.1.9]:8312\n",
            "gloo-no-route",
            "10.7.1.9",
        ),
    ],
)
def test_words_of_mpi_ray_and_gloo_are_explained(explained: Explained, log: str, entry: str, told: str) -> None:
    explanation = explained(log)

    assert entry_of(explanation) == entry
    assert told in explanation.headline()


def test_driver_without_a_node_of_its_own_is_told_where_the_log_continues_so(explained: Explained) -> None:
    line = "INFO node.py:7 -- Can't find a `node_ip_address.json` file from /tmp/ray/session_7. Have you started Ray?\n"
    steps = "".join(f"step {step} loss 1.{step}\n" for step in range(40))

    assert "no node of it on this machine" in explained(3 * line).headline()
    assert explained(line + steps).is_healthy


def test_brackets_with_several_names_go_where_none_is_known(explained: Explained) -> None:
    headline = explained("RuntimeError: CUDA driver version is insufficient for CUDA runtime version\n").headline()

    assert "(" not in headline


def test_host_that_only_a_command_names_is_not_a_culprit(explained: Explained) -> None:
    assert "(host" not in explained("$ mpirun -np 7 -H moon python t.py\n" + _SLOTS).headline()


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_SLOTS + "  2. The --host command line parameter, via a suffix on the\n     hostname\n", "mpi-slots"),
        (_MKDIR.format(path="/run/moon"), "enroot-directory-denied"),
        (_MKDIR.format(path="/var/run/enroot/7"), "enroot-directory-denied"),
        (_MKDIR.format(path="/tide/enroot/data"), "enroot-disk-directory-denied"),
        (_FABRIC + "770.7.7 don't match with driver version 771.1.1. Please update.\n", "fabric-manager-version"),
        (_FABRIC + "770.7.7 don'\n", "fabric-manager-version"),
        (_SLOT, "deepspeed-slot-not-there"),
        (_DETECTED + _SLOT, "deepspeed-visible-slot"),
        (_DETECTED + _LAUNCHED + _SLOT, "deepspeed-visible-slot"),
        (_DETECTED + _LAUNCHED, "deepspeed-visible-slot"),
        (_LAUNCHED, "traceback-cut-off"),
        (_DETECTED + _LAUNCHED + "ValueError: 7 odd tides\n", "python-exception"),
        ("ValueError: Hostname 'moon' not found in hostfile\n", "deepspeed-slot-not-there"),
    ],
)
def test_slots_and_directories_of_nodes_are_told_apart(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_values_of_slots_directories_and_managers_are_named(explained: Explained) -> None:
    directory = explained(_MKDIR.format(path="/tide/enroot/data"))

    assert "(770.7.7)" in explained(_FABRIC + "770.7.7 don'\n").headline()
    assert "/tide/enroot is not writable" in directory.headline()
    assert "--include localhost:7" in explained(_DETECTED + _LAUNCHED).remedies()[0]
    assert "(slot '7' specified on host 'moon')" in explained(_SLOT).headline()


def test_include_that_the_launcher_made_is_not_a_failure(explained: Explained) -> None:
    assert explained(_DETECTED + "step 1 loss 2.0\n").is_healthy
