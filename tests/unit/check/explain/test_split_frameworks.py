"""Failures of frameworks, containers and builds that are told apart by another line or value of the log."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_TRACEBACK = 'Traceback (most recent call last):\n  File "/x/{file}.py", line 7, in {function}\n    {code}\n'
_LAYERS = "AssertionError: Number of layers should be divisible by the pipeline-model-parallel size\n"
_NO_VARIABLE = (
    _TRACEBACK.format(file="moon", function="tide", code="rank = int(os.environ['{name}'])")
    + '  File "/v/lib/python3.11/os.py", line 7, in __getitem__\n    raise KeyError(key) from None\n'
    + "KeyError: '{name}'\n"
)
_BF16 = "ValidationError: 2 validation errors for DeepSpeedBF16Config\n"
_EXTRA = "{field}\n  Extra inputs are not permitted [type=extra_forbidden, input_value=7, input_type=int]\n"
_FLAT = _TRACEBACK.format(file="torch/nn/functional", function="linear", code="ret = torch.addmm(bias, input, w.t())")
_NO_ADDRESS = (
    "[W socket.cpp:7] [c10d] The IPv4 network addresses of (moon7, 29507) cannot be retrieved (gai error: -2).\n"
)
_NO_MESH = "ValueError: Mesh '{mesh}' is not available. Ensure the corresponding parallelism dimension is enabled.\n"
_NO_INTERFACE = (
    "RuntimeError: [enforce fail at /x/gloo/device.cc:7] ifa != nullptr. Unable to find address for: moon0\n"
)
_DEVICES = (
    "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, {one} and {other}!\n"
)
_ADDED = _TRACEBACK.format(file="trainer", function="_inner_training_loop", code="tr_loss += tr_loss_step")
_NVML = "Failed to initialize NVML: Unknown Error\n"
_STALE = "OSError: [Errno 116] Stale file handle: '/moon/tide.arrow'\n"
_NO_HEADER = "tide.cu:7:10: fatal error: {header}: No such file or directory\n"
_ACCEPTED = (
    "Installed CUDA version 12.1 does not match the version torch was compiled with 12.7 but since the APIs are "
    "compatible, accepting this combination\n"
)
_IMPORT = (
    "slurmstepd: error: pyxis: child 77 failed with error code: 1\n"
    "slurmstepd: error: pyxis: failed to import docker image\n"
)
_DAEMON = '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}\n'
_NO_RUNTIME = "Error response from daemon: unknown or invalid runtime name: nvidia\n"
_ILLEGAL = "Illegal instruction (core dumped)\n"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_LAYERS, "pipeline-layers-indivisible"),
        ("--pipeline_model_parallel_size 7 \\\n" + _LAYERS, "pipeline-stages-indivisible"),
        ("--pipeline-model-parallel-size 1\n" + _LAYERS, "pipeline-layers-indivisible"),
        (
            "AssertionError: num_layers (77) must be divisible by pipeline_parallel_size (4)\n",
            "pipeline-layers-indivisible",
        ),
        ("ValueError: tide_height 333 must be divisible by 28\n", "size-indivisible"),
        (_NO_VARIABLE.format(name="RANK"), "key-rank-variable"),
        (
            "$ python moon/t.py -o t --launcher pytorch\n" + _NO_VARIABLE.format(name="RANK"),
            "launcher-option-without-launcher",
        ),
        ("$ python moon/t.py --launcher none\n" + _NO_VARIABLE.format(name="RANK"), "key-rank-variable"),
        (_NO_VARIABLE.format(name="TIDE_TOKEN"), "variable-of-service-key"),
        (_NO_VARIABLE.format(name="TIDE_LEVEL"), "variable-unset"),
        (_BF16 + _EXTRA.format(field="loss_scale") + _EXTRA.format(field="hysteresis"), "deepspeed-bf16-loss-scale"),
        (_BF16 + _EXTRA.format(field="moon") + _EXTRA.format(field="tide"), "deepspeed-config-key-unknown"),
        ("$ deepspeed moon.py\n" + _FLAT + "RuntimeError: tensors must be 2-D\n", "zero3-linear-not-gathered"),
        (_FLAT + "RuntimeError: 'weight' must be 2-D\n", "sharded-weight-used"),
        ("$ torchrun --standalone t.py\n" + _NO_ADDRESS, "own-host-name-unresolved"),
        ("$ torchrun --nnodes=12 t.py\n" + _NO_ADDRESS, "rendezvous-host-unresolved"),
        (_NO_MESH.format(mesh="ep"), "mesh-dimension-off"),
        ("--parallelism.tensor_parallel_degree=1\n" + _NO_MESH.format(mesh="tp"), "tensor-parallel-mesh-off"),
        ("--parallelism.tensor_parallel_degree=1\n" + _NO_MESH.format(mesh="cp"), "mesh-dimension-off"),
        ("--parallelism.tensor_parallel_degree=16\n" + _NO_MESH.format(mesh="tp"), "mesh-dimension-off"),
        ("$ horovodrun -np 7 python t.py\n" + _NO_INTERFACE, "horovod-gloo-interface"),
        (_NO_INTERFACE, "gloo-interface-missing"),
        (_ADDED + _DEVICES.format(one="npu:0", other="npu:7"), "trainer-loss-on-another-device"),
        (_ADDED + _DEVICES.format(one="npu:0", other="cpu"), "device-mix-named"),
        (_DEVICES.format(one="cuda:0", other="cuda:7"), "mix-two-cards"),
        (_NVML, "nvml-devices-denied"),
        ("no-cgroups = true\n" + _NVML, "cgroups-off-under-docker"),
        ("#no-cgroups = true\n" + _NVML, "nvml-devices-denied"),
        ("$ docker exec moon nvidia-smi\n" + _NVML, "container-lost-devices"),
        (_TRACEBACK.format(file="datasets/moon", function="tide", code="os.chmod(x)") + _STALE, "stale-cache-handle"),
        (_TRACEBACK.format(file="moon", function="tide", code="os.chmod(x)") + _STALE, "stale-file-handle"),
        (_ACCEPTED + _NO_HEADER.format(header="curand_kernel.h"), "cuda-header-of-another-toolkit"),
        (_NO_HEADER.format(header="cublas_v2.h"), "cuda-header-missing"),
        (_NO_HEADER.format(header="Python.h"), "python-header-missing"),
        (_NO_HEADER.format(header="cudalike/tide.h"), "header-missing"),
        (_IMPORT, "pyxis-import-failed"),
        ("pyxis: importing docker image: moon.sqsh\n" + _IMPORT, "pyxis-image-path"),
        ("$ srun --container-image=/x/moon.sqsh tide\n" + _IMPORT, "pyxis-import-failed"),
        ("$ srun --container-image=./moon.sqsh tide\n" + _IMPORT, "pyxis-import-failed"),
        ("pyxis: importing docker image: moon/tide:7\n" + _IMPORT, "pyxis-import-failed"),
        (
            _IMPORT + "slurmstepd: error: pyxis:     Write failed because No space left on device\n",
            "enroot-disk-full",
        ),
        ("OSError: [Errno 28] No space left on device: '/moon/tide.pt'\n", "disk-full-at"),
        ("systemd[1]: Detected virtualization kvm.\n" + _ILLEGAL, "illegal-instruction-in-guest"),
        (_ILLEGAL, "illegal-instruction"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'https://moon.example/tide'\n", "address-as-path"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/x/oss:/moon/tide'\n", "address-as-path"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/moon/tide'\n", "file-missing"),
        (
            _TRACEBACK.format(file="x", function="clip_grad_norm_", code="tide()")
            + "RuntimeError: No backend type associated with device type cpu\n",
            "clip-norm-on-cpu",
        ),
        ("RuntimeError: No backend type associated with device type cpu\n", "no-backend-for-device"),
        ("PermissionError: [Errno 13] Permission denied: '/tmp/moon.log'\n", "temporary-file-of-another-user"),
        ("PermissionError: [Errno 13] Permission denied: '/tide/moon.log'\n", "output-permission"),
        (_DAEMON + " Runtimes: runc\n" + _NO_RUNTIME, "docker-runtime-not-loaded"),
        (_DAEMON + " Runtimes: nvidia runc\n" + _NO_RUNTIME, "docker-gpu-runtime"),
        (_NO_RUNTIME, "docker-gpu-runtime"),
        (
            "AssertionError: DistributedDataParallel is not needed when a module doesn't have any parameter that "
            "requires a gradient.\n",
            "ddp-nothing-trainable",
        ),
        (
            "torch.distributed.DistStoreError: use_libuv was requested but PyTorch was built without it\n",
            "libuv-not-built-in",
        ),
        ("RuntimeError: Backend gloo does not support reduce_scatter\n", "collective-not-in-backend"),
    ],
)
def test_causes_behind_the_same_words_are_told_apart(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("--pipeline-model-parallel-size 7\n" + _LAYERS, "the 7 pipeline stages"),
        (_NO_VARIABLE.format(name="MASTER_PORT"), "MASTER_PORT, which torchrun sets"),
        (_BF16 + _EXTRA.format(field="loss_scale") + _EXTRA.format(field="hysteresis"), "loss_scale, hysteresis"),
        ("$ torchrun --standalone t.py\n" + _NO_ADDRESS, "moon7"),
        (_ACCEPTED + _NO_HEADER.format(header="curand_kernel.h"), "12.1 here lacks the header curand_kernel.h"),
        ("RuntimeError: ProcessGroupHCCL does not support gather\n", "HCCL of this torch has no gather"),
    ],
)
def test_values_that_decide_are_in_the_headline(explained: Explained, log: str, told: str) -> None:
    assert told in explained(log).headline()


def test_line_above_a_traceback_that_is_cut_off_says_what_the_backend_lacks(explained: Explained) -> None:
    log = "ProcessGroupNCCL does not support scatter\n" + _TRACEBACK.format(file="x", function="t", code="scatter(x)")

    assert entry_of(explained(log)) == "collective-not-in-backend"


def test_directory_that_may_exist_is_told_where_its_name_is_cut_off(explained: Explained) -> None:
    log = (
        _TRACEBACK.format(file="x", function="t", code="os.makedirs(d, exist_ok=True)")
        + "FileExistsError: [Errno 17] Fi\n"
    )

    assert entry_of(explained(log)) == "directory-made-twice"


def test_nvcc_of_a_quoted_message_names_the_directory_to_export(explained: Explained) -> None:
    log = "meet `No such file or directory: ':/opt/moon/bin/nvcc'`\nerror: subprocess-exited-with-error\n"
    explanation = explained(log)

    first = explanation.verdict.first

    assert entry_of(explanation) == "cuda-home-joined"
    assert first is not None and "export CUDA_HOME=/opt/moon`" in first.remedies[0]


@pytest.mark.parametrize("month", ["7", "11"])
def test_connection_that_a_warning_of_any_month_reports_is_not_a_failure(explained: Explained, month: str) -> None:
    stamp = f"[W{month}06 00:43:56.240378877 TCPStore.cpp:125]"
    log = f"{stamp} [c10d] recvValue failed on SocketImpl(fd=7): Connection reset by peer\nframe #0: moon + 0x7\n"

    assert explained(log).is_healthy
    assert not explained(log.replace("[W", "[E")).is_healthy


def test_toolkit_that_deepspeed_accepts_is_not_a_failure(explained: Explained) -> None:
    assert explained(_ACCEPTED + "step 1 loss 2.0\n").is_healthy


def test_devices_that_a_message_compares_are_not_culprits(explained: Explained) -> None:
    assert "(device" not in explained(_DEVICES.format(one="cuda:0", other="cuda:7")).headline()
