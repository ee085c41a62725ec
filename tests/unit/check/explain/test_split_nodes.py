"""Messages of Slurm, drivers and builds on a node: versions, counts and names in the message, or beside it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_INVAL = "slurmctld: error: Setting node moon7 state to INVAL with reason:{}\n"
_LAUNCH = "srun: error: Task launch for StepId=7.0 failed on node moon7: {}\n"
_NO_MATCH = "Error: Unable to find a match: {}\n"
_NVLS = "moon:7:77 [0] transport/nvls.cc:77 NCCL WARN Cuda failure {}\n"
_ACCOUNT = (
    "{}\nsbatch: error: Batch job submission failed: Invalid account or account/partition combination specified\n"
)
_TIME = "{}\nslurmstepd: error: *** JOB 7 ON moon7 CANCELLED AT 2025-07-07T07:07:07 DUE TO TIME LIMIT ***\n"
_PMI = (
    "$ srun --mpi=list\nsrun: MPI types are...\n{}The application appears to have been direct launched using "
    '"srun",\nbut OMPI was not built with SLURM\'s PMI support and therefore cannot\nexecute.\n'
)
_GGUF = "llama_model_load: error loading model: error loading model architecture: unknown model architecture: '{}'\n"
_VERSIONS = "gcc version {} (Moon)\n\ndoes not match the compiler used here:\n\ncc (Moon OS) {} 20200707 tide\n"


@pytest.mark.parametrize(
    ("log", "entry", "told"),
    [
        (_INVAL.format("gres/gpu count reported lower than configured (3 < 4)"), "slurm-node-fewer-devices", "3"),
        (
            "moon7 inval gres/gpu:a100 count reported lower than configured (0 < 8)\n",
            "slurm-node-fewer-devices",
            "gres/gpu:a100",
        ),
        (
            _INVAL.format("Low RealMemory (reported:7000 < 100.00% of configured:7777)"),
            "slurm-node-less-memory",
            "slurmd found 7000",
        ),
        (_LAUNCH.format("Socket timed out on send/recv operation"), "slurm-node-unanswered", "moon7"),
        (_LAUNCH.format("Unable to contact slurmd"), "slurm-node-unanswered", "moon7"),
        (_LAUNCH.format("User not found on host"), "slurm-launch-failed", "User not found"),
        (_NO_MATCH.format("kernel-devel-4.18.0-77.el8.x86_64"), "yum-no-kernel-package", "4.18.0-77.el8"),
        (
            "+ echo 'Installing Linux kernel headers...'\n" + _NO_MATCH.format("kernel-headers-4.18.0-77.el8.x86_64"),
            "driver-container-no-kernel-package",
            "4.18.0-77.el8",
        ),
        (_NO_MATCH.format("moonlet-devel"), "yum-no-package", "moonlet-devel"),
        (_NVLS.format("'invalid argument'"), "nccl-nvls-fabric-manager", "Fabric Manager"),
        (_NVLS.format("802 'system not yet initialized'"), "nccl-nvls-fabric-manager", "802"),
        (_NVLS.format("801 'operation not supported'"), "nccl-call-not-supported", ""),
        (
            "moon:7:77 [0] transport/nvls.cc:77 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory\n",
            "nccl-nvls",
            "",
        ),
        (_GGUF.format("gemma77"), "gguf-architecture-unknown", "gemma77"),
        (_GGUF.format("clip"), "gguf-not-a-language-model", "clip"),
        (_GGUF.format("qwen_image"), "gguf-not-a-language-model", "qwen_image"),
        (
            "kernel: NVRM: API mismatch: the client has the version 777.44, but\nkernel: NVRM: this kernel module has "
            "the version 777.35.  Please\n",
            "nvrm-mismatch-versions",
            "777.35",
        ),
        (
            "ip-7-7-7-7:7 [0] nccl_net_ofi_init:7 NCCL WARN NET/OFI OFI fi_getinfo() call failed: No data available\n",
            "nccl-ofi-no-efa",
            "/dev/infiniband",
        ),
        (
            "moon:7:7 [0] nccl_net_ofi_init:7 NCCL WARN NET/OFI OFI fi_getinfo() call failed: No data available\n",
            "nccl-ofi-no-provider",
            "",
        ),
        ("Failed to initialize NVML: Driver/library version mismatch\n", "nvml-mismatch", ""),
        (
            "sh NVIDIA-Linux-x86_64-777.10.04.run --no-kernel-module\nmodprobe nvidia\nnvidia/777.10.06, 6.8.0-7, "
            "x86_64: installed\nFailed to initialize NVML: Driver/library version mismatch\n",
            "nvml-user-space-of-other-version",
            "777.10.06",
        ),
        (_ACCOUNT.format("#SBATCH -A moon"), "slurm-account-without-association", "account moon"),
        (_ACCOUNT.format("$ sbatch --account moon job.sh"), "slurm-account-without-association", "account moon"),
        (_ACCOUNT.format("#SBATCH -p tide\n#SBATCH -A moon"), "slurm-account-not-for-partition", "partition tide"),
        (_ACCOUNT.format("#SBATCH --partition=tide\n##SBATCH -A moon"), "slurm-account-none-named", "--account"),
        (_ACCOUNT.format("#SBATCH -A moon\n#SBATCH -A sun"), "slurm-account", ""),
        (_ACCOUNT.format(""), "slurm-account", ""),
        (_TIME.format("#SBATCH -t 00:30:00"), "slurm-time-limit-named", "--time=00:30:00"),
        (_TIME.format("#SBATCH -N 1"), "slurm-time-limit-default", "without --time"),
        (_TIME.format("srun ./tide"), "slurm-time-limit", "default"),
        (_PMI.format("srun: openmpi\nsrun: pmi2\n"), "ompi-slurm-without-pmix", "openmpi, pmi2"),
        (
            _PMI.format("\tnone\n\tpmix\nspecific pmix plugin versions available: pmix_v4\n"),
            "ompi-pmix-not-asked-for",
            "",
        ),
        (
            "slurmd: error: Munge decode failed: Rewound credential\n[2025-07-07T07:07:07.1] ENCODED: Mon Jul 07 "
            "07:17:07 2025\n[2025-07-07T07:07:07.1] DECODED: Mon Jul 07 07:07:07 2025\n",
            "munge-clocks-told",
            "made at Mon Jul 07 07:17:07 2025",
        ),
        (
            "Compiler version check failed:\n\nThe major and minor number of the compiler used to\ncompile the "
            "kernel:\n\n" + _VERSIONS.format("9.3.1", "10.1.1"),
            "kernel-module-compiler-versions",
            "10.1.1",
        ),
        ("Compiler version check failed:\n", "kernel-module-other-compiler", ""),
        (
            'Traceback (most recent call last):\n  File "/moon/site-packages/tide/utility.py", line 7, in <module>\n'
            "    LAYERS = [transformers.moonlets.Conv7]\n"
            "AttributeError: module 'transformers.moonlets' has no attribute 'Conv7'\n",
            "submodule-attribute",
            "tide",
        ),
        ("AttributeError: module 'transformers' has no attribute 'Conv7'\n", "module-attribute", "Conv7"),
    ],
)
def test_values_of_the_message_are_in_the_headline(explained: Explained, log: str, entry: str, told: str) -> None:
    found = explained(log)

    assert entry_of(found) == entry
    assert told in found.headline()


def test_a_sentence_that_the_line_breaks_off_is_quoted_to_its_last_clause(explained: Explained) -> None:
    said = "Jul 07 07:07:07 moon kernel: NVRM: API mismatch: the client has the version 777.44, but\n"

    assert explained(said).headline().endswith("NVRM: API mismatch: the client has the version 777.44")
