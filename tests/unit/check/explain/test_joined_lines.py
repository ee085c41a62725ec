"""Of two lines of one failure, the more informative one is shown, in any order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of
from tests.unit.check.explain.written_trace import PACKAGES, written_trace

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_NEWS = "the moon rises\n"
_WARNED = "[WARNING] moon is off: cannot import name '{}' from 'torch.optim.tide' (/x/tide.py)\n"
_NOT_PULLED = "Failed  Error: ErrImagePull\n"
_WHY_NOT = (
    'Failed  Failed to pull image "moon:7": toomanyrequests: You have reached your unauthenticated pull rate limit\n'
)
_NO_NVCC = "/bin/sh: 1: :/usr/local/cuda-7/bin/nvcc: not found\n"
_MAGIC = "gguf_init_from_file: invalid magic number {}\n"
_OPEN_KFD = "Unable to open /dev/kfd read-write: {}\n"
_OF_VERSIONS = written_trace(
    "TypeError: '>=' not supported between instances of 'tuple' and 'Version'",
    (f"{PACKAGES}/bitsandbytes/ops.py", "if version.parse(torch.__version__).release >= version.parse('2.9'):"),
)


@pytest.mark.parametrize("first, second", [(_NOT_PULLED, _WHY_NOT), (_WHY_NOT, _NOT_PULLED)])
def test_reason_of_an_image_that_is_not_pulled_goes_before_its_event(
    explained: Explained, first: str, second: str
) -> None:
    assert entry_of(explained(first + _NEWS + second)) == "docker-pull-limit"


def test_image_that_is_not_pulled_without_a_reason_is_told(explained: Explained) -> None:
    assert entry_of(explained(_NOT_PULLED + _NEWS)) == "image-pull"


@pytest.mark.parametrize(
    "report",
    [
        "subprocess.CalledProcessError: … returned non-zero exit status 127\n",
        "RuntimeError: the tide ended with exit code 127\n",
        "make: *** [Makefile:7: moon] Error 127\n",
    ],
)
def test_exit_status_127_is_the_command_that_was_not_found(explained: Explained, report: str) -> None:
    assert entry_of(explained(_NO_NVCC + _NEWS + report)) == "cuda-home-joined"


def test_command_that_was_not_found_gives_way_to_another_exit_status(explained: Explained) -> None:
    report = "subprocess.CalledProcessError: Command 'moon' returned non-zero exit status 7\n"

    assert "with status 7" in explained("/bin/sh: 1: lspci: not found\n" + report).headline()


def test_message_below_a_blank_line_belongs_to_the_exception(explained: Explained) -> None:
    error = "accelerate.utils.operations.DistributedOperationException:\n\nCannot apply desired operation due to shape "
    trace = written_trace(error + "mismatches. All shapes across devices must be valid.", ("/x/moon.py", "moon()"))

    assert entry_of(explained(trace)) == "accelerate-shape-mismatch"


@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize(
    "error, code",
    [
        ("NameError: name '_moon' is not defined", "@_moon()"),
        ("TypeError: 'NoneType' object is not callable", "_moon()"),
    ],
)
def test_name_that_an_import_warning_explains_is_of_that_import(
    explained: Explained, error: str, code: str, *, is_before: bool
) -> None:
    trace = written_trace(error, (f"{PACKAGES}/deepspeed/moon.py", code))
    parts = [_WARNED.format("_moon"), trace]

    found = explained("".join(parts if is_before else reversed(parts)))

    assert entry_of(found) == "torch-name-gone"
    assert "_moon" in found.headline() and "deepspeed" in str(found.remedies())


def test_import_warning_of_another_name_explains_nothing(explained: Explained) -> None:
    trace = written_trace("NameError: name '_moon' is not defined", ("/x/moon.py", "@_moon()"))

    assert entry_of(explained(_WARNED.format("_tide") + trace)) == "name-undefined"


def test_assertion_of_a_result_gives_way_to_the_line_of_failure_above(explained: Explained) -> None:
    trace = written_trace("AssertionError", (f"{PACKAGES}/tide/moon.py", "assert self.model is not None"))
    failed = "moon_load: failed to load the tide\n"

    assert "failed to load the tide" in explained(failed + trace).headline()
    assert "failed to load the tide" in explained(f"{failed}\n{trace}").headline()
    assert "assertion" in explained(failed + _NEWS + trace).headline()
    assert "assertion" in explained("no errors found, 0 failed\n" + trace).headline()


def test_old_model_file_goes_before_the_assertion_that_follows(explained: Explained) -> None:
    trace = written_trace("AssertionError", (f"{PACKAGES}/llama_cpp/llama.py", "assert self.model is not None"))

    assert entry_of(explained(_MAGIC.format("67676a74") + trace)) == "llama-ggml-file"
    assert entry_of(explained(_MAGIC.format("73726576") + trace)) == "llama-magic"


def test_notice_of_bitsandbytes_is_not_the_cause(explained: Explained) -> None:
    notice = "The 8-bit optimizer is not available on your device, only available on CUDA for now.\n"

    assert entry_of(explained(notice + _OF_VERSIONS)) == "version-compared-with-other-type"
    assert explained(notice + _NEWS).is_healthy


def test_mistake_of_two_types_does_not_follow_from_what_was_logged(explained: Explained) -> None:
    logged = "2026-03-01 07:12:53,451 ERROR upload: [Errno 13] Permission denied: '/root/.cache/tide'\n"

    assert entry_of(explained(logged + _OF_VERSIONS)) == "version-compared-with-other-type"


@pytest.mark.parametrize(
    "said, entry",
    [
        ("[ 7.77] kfd kfd: amdgpu: PITCAIRN  not supported in kfd\n", "kfd-gpu-not-supported"),
        ("[ 7.77] kfd kfd: skipped device 1002:67ef, PCI rejects atomics\n", "kfd-no-atomics"),
        (_NEWS, "kfd-not-opened"),
    ],
)
@pytest.mark.parametrize("reason", ["Cannot allocate memory", "Invalid argument"])
def test_gpu_that_the_kernel_does_not_take(explained: Explained, said: str, entry: str, reason: str) -> None:
    opened = _OPEN_KFD.format(reason)

    assert entry_of(explained(opened + _NEWS + said)) == entry
    assert entry_of(explained(said + _NEWS + opened)) == entry


def test_gpu_that_is_not_for_computing_is_not_a_failure(explained: Explained) -> None:
    assert explained("[ 7.77] kfd kfd: amdgpu: RAVEN  not supported in kfd\n" + _NEWS).is_healthy


def test_memory_that_the_host_lacks_is_not_that_of_a_device_file(explained: Explained) -> None:
    assert entry_of(explained("moon: cannot fork: Cannot allocate memory\n")) == "host-memory"
    assert entry_of(explained("moon: cannot open /dev/tide7: Cannot allocate memory\n")) != "host-memory"


@pytest.mark.parametrize(
    "said, entry",
    [
        ("NVRM: Open nvidia.ko is only ready for use on Data Center GPUs.\n", "open-module-not-for-this-gpu"),
        ("NVRM: is not supported by open nvidia.ko because it does not include the\n", "open-module-without-gsp"),
        (_NEWS, "gpu-init-failed"),
    ],
)
def test_driver_says_above_why_a_gpu_is_not_started(explained: Explained, said: str, entry: str) -> None:
    failed = "NVRM: GPU 0000:04:00.0: RmInitAdapter failed! (0x63:0x0:1905)\n"

    assert entry_of(explained(said + failed)) == entry
    assert entry_of(explained(failed + said)) == entry


def test_time_that_the_partition_refuses_beside_a_job_that_it_ended(explained: Explained) -> None:
    ended = "slurmstepd: error: *** STEP 77.0 ON moon CANCELLED AT 2026-07-07T07:07:07 DUE TO TIME LIMIT ***\n"
    refused = (
        "srun: error: Unable to allocate resources: Requested time limit is invalid (missing or exceeds some limit)\n"
    )

    assert entry_of(explained(ended + refused)) == "slurm-time-limit-of-partition"
    assert entry_of(explained(refused + ended)) == "slurm-time-limit-of-partition"
    assert entry_of(explained(ended)) == "slurm-time-limit"
    assert entry_of(explained(refused)) == "slurm-time"


@pytest.mark.parametrize(
    "frame, entry",
    [("hipify/hipify_python.py", "cuda-home-none-on-rocm"), ("cpp_extension.py", "cuda-home-none")],
)
def test_build_for_rocm_is_not_told_to_install_cuda(explained: Explained, frame: str, entry: str) -> None:
    error = "TypeError: expected str, bytes or os.PathLike object, not NoneType"
    frames = ((f"{PACKAGES}/torch/utils/{frame}", "moon()"), ("/x/tide.py", "os.path.join(CUDA_HOME, 'include')"))

    found = explained(written_trace(error, *frames))

    assert entry_of(found) == entry


@pytest.mark.parametrize(
    "seen",
    [
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
        written_trace("RuntimeError: No CUDA GPUs are available", (f"{PACKAGES}/torch/cuda/__init__.py", "moon()")),
        written_trace("RuntimeError: Found no NVIDIA driver on your system.", ("/x/moon.py", "moon()")),
        "Failed to initialize NVML: Unknown Error\n",
        "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown\n",
    ],
)
@pytest.mark.parametrize(
    "said, entry",
    [
        ("NVRM: installed in this system is not supported by the\n", "nvrm-gpu-not-supported"),
        ("NVRM:  supported through the NVIDIA 470.xx Legacy drivers. Please\n", "nvrm-legacy-gpu"),
        ("NVRM: GPU 0000:04:00.0: RmInitAdapter failed! (0x63:0x0:1905)\n", "gpu-init-failed"),
        ("modprobe: ERROR: could not insert 'nvidia': Key was rejected by service\n", "kernel-module-key"),
        ("modprobe: ERROR: could not insert 'nvidia': No such device\n", "kernel-module-no-device"),
        ("nvidia: disagrees about version of symbol module_layout\n", "kernel-module-of-other-kernel"),
    ],
)
def test_kernel_says_why_a_program_finds_no_gpu(explained: Explained, seen: str, said: str, entry: str) -> None:
    assert entry_of(explained(seen + _NEWS + said)) == entry
    assert entry_of(explained(said + _NEWS + seen)) == entry
    assert entry_of(explained(seen)) not in (entry, None)


@pytest.mark.parametrize(
    "outer",
    [
        written_trace("SystemExit: 1", ("/x/moon.py", "sys.exit(1)")),
        written_trace("RuntimeError: initialization failed", ("/x/moon.py", "moon()")),
        "subprocess.CalledProcessError: Command '['sh', 'moon.sh']' returned non-zero exit status 1.\n",
    ],
)
def test_known_complaint_of_a_command_goes_before_a_failure_that_says_nothing(explained: Explained, outer: str) -> None:
    complaint = "mkdir: cannot create directory '/moon/tide': Permission denied\n"
    of_values = written_trace("ValueError: the tide 7 is higher than the moon", ("/x/moon.py", "moon()"))

    assert entry_of(explained(complaint + _NEWS + outer)) == "shell-target-not-writable"
    assert "tide 7 is higher" in explained(complaint + _NEWS + of_values).headline()


def test_the_reason_below_an_image_pull_outranks_its_event(explained: Explained) -> None:
    full = "failed to extract layer: write /var/lib/containerd/moon: no space left on device\n"

    assert entry_of(explained(_NOT_PULLED + full)) != "image-pull"


def test_kernel_says_why_a_program_finds_no_npu(explained: Explained) -> None:
    seen = "dcmi module initialize failed. ret is -8005\n"
    said = "drv_pcie: version magic '7.7.7-moon SMP mod_unload ' should be '7.7.8-moon SMP mod_unload '\n"

    assert entry_of(explained(seen + _NEWS + said)) == "kernel-module-of-other-kernel"
    assert entry_of(explained(said + _NEWS + seen)) == "kernel-module-of-other-kernel"
    assert entry_of(explained(seen)) == "dcmi-8005"
