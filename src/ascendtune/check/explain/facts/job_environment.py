"""Environment of a job, by its log: operating system, maker of the accelerators, container, launcher, scheduler.

A missing driver or tool does not show that there is an accelerator. A fact has several values if the log shows
several.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_SIGNS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "os": {
        "windows": (
            r"(?<![A-Za-z])[A-Za-z]:\\{1,2}[\w .()-]+\\{1,2}[\w.]|(?<![A-Za-z])[A-Za-z]:/Users/|\.win-amd64\b|"
            r"\bWinError\b|\bWindows (?:1[01]|Server)\b|"
            r"(?<![\w/.])[A-Z]:/(?!(?:usr|home|root|opt|var|tmp|mnt|data|etc|workspace)/)[A-Za-z][\w .()-]*/",
            (":\\", ":/", "win-amd64", "winerror", "windows "),
        ),
        "mac": (
            r"(?<![\w.:])/Users/[\w.-]+/|/opt/homebrew/|\.macosx-\d|\bmacOS[ -]\d",
            ("/users/", "/opt/homebrew/", "macos"),
        ),
        "rpm": (
            r"(?<![\w.])/usr/lib64/|\bCentOS\b|\bRocky Linux\b|\bAlmaLinux\b|\bRed Hat Enterprise\b|\bopenEuler\b|"
            r"\bEulerOS\b|\bKylin\b|\bAnolis\b|\bAmazon Linux\b|(?i:\bfedora\b)|\(Red Hat \d|"
            r"\.(?:el|fc)\d{1,2}(?:_\d+)?\b|"
            r"Failed to download metadata for repo|downloading metadata for repository|"
            r"(?:[#$] |^)(?:sudo )?(?:yum|dnf) (?:-y )?install ",
            (
                *(
                    "/usr/lib64/",
                    "centos",
                    "rocky linux",
                    "almalinux",
                    "red hat enterprise",
                    "euler",
                    "kylin",
                    "anolis",
                ),
                *("amazon linux", "yum ", "dnf ", "fedora", "(red hat ", ".el", ".fc", "metadata for repo"),
            ),
        ),
        "debian": (
            r"/usr/lib/(?:x86_64|aarch64)-linux-gnu|/lib/python3(?:\.\d+)?/dist-packages|\bUbuntu\b|\bDebian\b|"
            r"(?:[#$] |^)(?:sudo )?apt(?:-get)? (?:-y )?install |\bdpkg\b",
            ("-linux-gnu", "/dist-packages", "ubuntu", "debian", "apt ", "apt-get ", "dpkg"),
        ),
        "suse": (
            r"\bopenSUSE\b|\bSUSE Linux\b|\bSLES\b|\bzypper (?:-\S+ )*(?:in|install|ref|refresh|up|dup)\b",
            ("suse", "sles", "zypper "),
        ),
        "alpine": (r"\bAlpine Linux\b|\bapk add\b|ld-musl", ("alpine linux", "apk add", "ld-musl")),
    },
    "accelerator": {
        "nvidia": (
            r"\bNVIDIA (?:[ABHLTV]\d|GB\d|RTX|GeForce|Tesla|Quadro|TITAN|Graphics|Driver Version)|\bNVIDIA-SMI \d|"
            r"\bNVRM: |\bsm_\d\d|\b(?:A100|H[12]00|[AH]800|V100|L40S?|RTX ?\d{3,4}|GeForce|Tesla)\b|\+cu\d{2,3}\b|"
            r"/usr/local/cuda-\d|\bnvidia_\w+_cu1\d",
            (
                *("nvidia", "nvrm: ", "sm_", "a100", "h100", "h200", "a800", "h800", "v100", "l40", "rtx", "geforce"),
                *("tesla", "+cu", "/usr/local/cuda-"),
            ),
        ),
        "amd": (
            r"\bROCm (?:version:? )?\d|/opt/rocm(?:-[\d.]+)?/|\+rocm\d|\bHIP error\b|\bhipError|\bamdgpu\b|"
            r"\bMI[23]\d\dX?\b|\bHIP out of memory\b|\bRCCL (?:WARN|INFO|version)|\blibrccl\.so|"
            r"\bgfx(?:9\d\d|90a|1\d{3})\b|\bRadeon\b|\bAMD/ATI\b|\bAMD (?:Raven|Renoir|Instinct|Vega)\b|"
            r"\bGPU[^\n:]{0,40}: ?AMD\b",
            ("amd", "radeon", "rocm", "hip error", "hiperror", "amdgpu", "mi2", "mi3", "hip out", "rccl", "gfx"),
        ),
        "ascend": (
            r"\btorch_npu\b|\bAscend ?\d{3}|/usr/local/Ascend|\bnpu-smi\b|\bHCCL\b|\bACLNN\b|\bCANN\b|\bvllm_ascend\b|"
            r"\btriton-ascend\b|\bdavinci\d|\b910[ABC]\d?\b|\bnpu:\d",
            ("torch_npu", "ascend", "npu-smi", "hccl", "aclnn", "cann", "davinci", "910", "npu:"),
        ),
        "hygon": (r"\+das\d|\bdtk[-_]?\d|/opt/dtk|\bhy-smi\b|\bDCU\b", ("+das", "dtk", "hy-smi", "dcu")),
        "moore-threads": (r"\btorch_musa\b|\bMUSA\b|\bmthreads-gmi\b", ("musa", "mthreads-gmi")),
        "metax": (r"\+(?:metax|maca)[\d.]|/opt/maca|\bmx-smi\b|\bMetaX\b", ("+maca", "metax", "/opt/maca", "mx-smi")),
        "iluvatar": (r"\bcorex[-._/\d]|\bixsmi\b|\bIluvatar\b", ("corex", "ixsmi", "iluvatar")),
        "cambricon": (
            r"\btorch_mlu\b|\bcnmon\b|\bMLU\d{3}\b|/usr/local/neuware",
            ("torch_mlu", "cnmon", "mlu", "/usr/local/neuware"),
        ),
        "intel": (
            r"\bxpu-smi\b|\bxpu:\d|\bintel_extension_for_pytorch\b|/opt/intel/oneapi|\+xpu\b",
            ("xpu", "intel_extension_for_pytorch", "/opt/intel/oneapi"),
        ),
        "jetson": (r"\bJetson\b|\bJetPack\b|\btegra\b", ("jetson", "jetpack", "tegra")),
    },
    "subsystem": {
        "wsl": (
            r"/usr/lib/wsl/|microsoft-standard-WSL|\bWSL ?[12]\b|"
            r"\bWindows 1[01],? \(?WSL\b|\bWSL,? \(?(?:Ubuntu|Debian)\b|/mnt/[c-f]/(?:Users|Program)",
            ("/wsl/", "wsl", "/mnt/"),
        ),
    },
    "speaker": {
        "compose": (
            r"^[a-z\d][\w.-]*-\d+ +\| |^ ?Container [\w.-]+ +(?:Creat|Start|Wait|Recreat|Error|Exit)|"
            r"\bservice \"[\w-]+\" didn't",
            (" | ", "container ", 'service "'),
        ),
    },
    "container": {
        "kubernetes": (
            r"\bkube(?:ctl|let|rnetes)|\bKubernetes\b|\bKUBERNETES_|kubernetes\.io/|\bpods?/|\bpod \"|\bOpenShift\b|"
            r"\bhelm\b",
            ("kube", "pod/", "pods/", 'pod "', "openshift", "helm"),
        ),
        "apptainer": (
            r"(?i:\bapptainer\b|\bsingularity\b|/\.singularity\.d|\.sif\b)",
            ("apptainer", "singularity", ".sif"),
        ),
        "docker": (
            r"(?i:\bdocker\b|\bcontainer\b|\bpodman\b|/\.dockerenv|/opt/conda/|(?<![\w.])/workspace/|"
            r"/usr/local/lib/python3\.\d+/(?:dist|site)-packages|(?<![\w.])/root/)",
            (*("docker", "container", "podman", "/opt/conda/", "/workspace/", "/usr/local/lib/python3", "/root/"),),
        ),
        "none": (
            r"(?<![\w.])/(?:data/)?home/(?!(?:ma-user|jovyan|coder|vscode|user|appuser|app)/)[\w.-]+/(?:[\w.-]+/)?"
            r"(?:(?:mini|ana)conda3?|miniforge3?|mambaforge|\.conda|\.pyenv|\.local|\.?venv|envs?)/",
            ("/home/",),
        ),
    },
    "inside_container": {
        "yes": (
            r"(?i:\b(?:docker|podman|nerdctl)(?:-compose)? (?:-\S+ )*(?:compose )?(?:run|exec|up|logs)\b|"
            r"\bkube(?:ctl|let|pods)\b|\bCrashLoopBackOff\b|\bOpenShift\b|"
            r"\b(?:apptainer|singularity) (?:-\S+ )*(?:run|exec|shell|instance)\b|/\.singularity\.d/|\bApptainer> |"
            r"\bSingularity[> ]|--container-(?:image|name)[= ]|\benroot (?:start|exec)\b|/\.dockerenv\b|"
            r"/docker/overlay2/|/docker-entrypoint|\bpyxis: |\bch-run\b|\bshifter --|\bsarus run\b|"
            r"/nvidia_entrypoint\.sh\b|\bContainer image Copyright\b)|\w@[0-9a-f]{12}[: ]",
            (
                *("docker", "podman", "nerdctl", "kube", "crashloop", "openshift", "apptainer", "singularity"),
                *("--container-", "enroot ", "pyxis: ", "ch-run", "shifter --", "sarus run", "nvidia_entrypoint"),
                *("container image copyright", "@"),
            ),
        ),
    },
    "launcher": {
        "ranks": (
            r"(?i:\btorchrun\b|\btorch\.distributed|\bdeepspeed\b|\baccelerate launch\b|\bmsrun\b|"
            r"\bMASTER_(?:ADDR|PORT)[=:] ?\w|\blocal_rank\b|\bpdsh\b|\bhostfile\b|\brank[ =:_-]?\d)",
            (
                *("torchrun", "torch.distributed", "deepspeed", "accelerate launch", "msrun", "master_", "local_rank"),
                *("pdsh", "hostfile", "rank"),
            ),
        ),
    },
    "scheduler": {
        "slurm": (
            r"(?i:\bslurm|\bsrun\b|\bsbatch\b|\bsalloc\b|\bsacct\b)",
            ("slurm", "srun", "sbatch", "salloc", "sacct"),
        ),
    },
}
"""By fact and value: a pattern that only jobs there print, and lower-case words, one of which is in each match: finding
them is many times faster than the pattern. `container` "docker" is any container whose kind the log does not show, and
also what is only usual in one; `inside_container` needs a sign that the program itself ran in a container.
"""
_WITHIN = 100
"""Most characters of a match before the word, and at least after it."""
_PATTERNS = {
    (fact, value): (re.compile(pattern, re.MULTILINE), words)
    for fact, values in _SIGNS.items()
    for value, (pattern, words) in values.items()
}


def of_job_environment(text: str, lower: str) -> Iterator[tuple[str, str]]:
    """`os`, `accelerator`, `subsystem`, `speaker`, `container`, `inside_container`, `launcher` and `scheduler`.

    Each has the values that `text` shows.

    Args:
        lower: `text` in lower case.
    """
    for (fact, value), (pattern, words) in _PATTERNS.items():
        if any(pattern.search(text, *span) for word in words for span in _around(word, lower)):
            yield fact, value


def _around(word: str, lower: str) -> Iterator[tuple[int, int]]:
    """Begin and end of the parts of a text that may contain a match with `word`."""
    at = lower.find(word)
    while at >= 0:
        yield max(0, at - _WITHIN), at + 2 * _WITHIN
        at = lower.find(word, at + _WITHIN)
