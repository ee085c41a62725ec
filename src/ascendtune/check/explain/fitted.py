"""Remedies as they hold where the job ran: without what is for another system, and with that system's own commands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ascendtune.check.explain.facts import Facts
from ascendtune.check.explain.knowledge import KnownFailure
from ascendtune.check.explain.language import say


@dataclass(frozen=True)
class _Elsewhere:
    """A system that remedies speak of, and the surroundings that rule it out."""

    begins: re.Pattern[str]
    """The beginning of a clause that holds on this system only."""
    names: re.Pattern[str]
    """A failure whose own words match is about this system, whatever the rest of the log shows."""
    shown: tuple[str, str]
    """The fact that it is there, with its value."""
    ruled_out: tuple[tuple[str, str], ...]
    """Other facts, any of which rules it out where it is not shown."""


def _begin(words: str) -> re.Pattern[str]:
    return re.compile(rf"`?(?:{words})")


_NO_LINUX = (("os", "windows"), ("os", "mac"))
_OTHER_MAKERS = ("amd", "hygon", "moore-threads", "metax", "iluvatar", "cambricon", "intel")
_ELSEWHERE = (
    _Elsewhere(
        _begin(
            r"[Ii]n (?:a )?containers?[:,]|[Aa] container:|[Dd]ocker(?::| run| exec| compose| ps)|"
            r"容器[：:]|在?容器[里中内][：:，]"
        ),
        re.compile(r"container|docker|image|容器|镜像", re.IGNORECASE),
        ("container", "docker"),
        (("container", "none"), ("container", "apptainer"), *_NO_LINUX),
    ),
    _Elsewhere(
        _begin(r"(?:[Oo]n |[Ii]n )?Kubernetes|kubectl |resources\.limits|limits:|a pod[:,]|在 ?Kubernetes"),
        re.compile(r"kube|pods?\b|container|helm|volcano", re.IGNORECASE),
        ("container", "kubernetes"),
        (("container", "none"), ("container", "apptainer"), ("scheduler", "slurm"), *_NO_LINUX),
    ),
    _Elsewhere(
        _begin(r"(?:[Uu]nder |[Ii]n |在 ?)?Slurm\b|#?SBATCH|sbatch |srun |scontrol |sacct |squeue "),
        re.compile(r"slurm|srun|sbatch|scontrol|sacct|squeue|scheduler|调度", re.IGNORECASE),
        ("scheduler", "slurm"),
        (("container", "kubernetes"), *_NO_LINUX),
    ),
    _Elsewhere(
        _begin(r"[Oo]n Windows\b|Windows\b|WSL\b|在? ?Windows"),
        re.compile(r"windows|wsl|win32|\.dll", re.IGNORECASE),
        ("os", "windows"),
        (("os", "debian"), ("os", "rpm"), ("os", "mac"), ("scheduler", "slurm")),
    ),
    _Elsewhere(
        _begin(r"[Oo]n (?:a )?Macs?\b|Mac(?:OS)?\b|macOS\b|Apple\b|在? ?(?:Mac|macOS)"),
        re.compile(r"mac|apple|darwin|mps\b|mlx", re.IGNORECASE),
        ("os", "mac"),
        (("os", "debian"), ("os", "rpm"), ("os", "windows"), ("scheduler", "slurm")),
    ),
    _Elsewhere(
        _begin(r"(?:[Oo]n )?(?:an? )?(?:Ascend|NPUs?)\b(?!_)[^;；]{0,20}[:：]|npu-smi (?!info \(nvidia)|在?昇腾"),
        re.compile(r"ascend|npu|hccl|cann|acl|昇腾", re.IGNORECASE),
        ("accelerator", "ascend"),
        (("accelerator", "nvidia"), *(("accelerator", maker) for maker in _OTHER_MAKERS), *_NO_LINUX),
    ),
    _Elsewhere(
        _begin(r"(?:[Oo]n )?(?:an? )?(?:AMD|ROCm|HIP)\b|rocm-smi |在? ?(?:AMD|ROCm)"),
        re.compile(r"amd|rocm|hip|gfx", re.IGNORECASE),
        ("accelerator", "amd"),
        (("accelerator", "nvidia"), ("accelerator", "ascend")),
    ),
)
_GOES_ON = re.compile(
    r"(?:else|or|then|still|it|they|both|nothing|none|there|no|yes|also)\b|否则|或|仍|没有|都|然后|再"
)
"""The beginning of a clause that says nothing without the one before it."""
_CONTAINER = re.compile(r"(?:an? |the )?(?:container|pod)s?\b|容器", re.IGNORECASE)
_CLAUSE_END = re.compile(r"; |；")
_BRACKETS = re.compile(r" ?(?P<open>[(（])(?P<content>[^()（）`]*)[)）]")
_LINUX_ONLY = re.compile(
    r"`?(?:sudo )?(?:(?:apt|apt-get|yum|dnf) install|dmesg|ulimit -|ldd |ldconfig|df -|free -|fuser |lsof |"
    r"chmod |chown |systemctl |cat /|ls (?:-\w+ )?/(?!path)|mount -|ss -|ip -|strace |"
    r"taskset |numactl |nproc\b|find / |"
    r"export LD_(?:PRELOAD|LIBRARY_PATH))"
)
_SHELL = re.compile(
    r"export \w+=\S*:\$|"
    r"`[^`]*(?:\$\{\w+:|\$\(|\bfor \w+ in |\| ?(?:head|tail|wc|sort|awk|sed|xargs)\b|\bfind [./~]|&& *$|<<)[^`]*`"
)
"""A command that cmd.exe has no simple word for."""
_GREP = re.compile(r"\| grep (?:-[a-zA-Z]\d* )*(?P<patterns>(?:-e )?[^`;|\s]+(?: -e [^`;|\s]+)*)")
_UNSET = re.compile(r"(?<![\w-])unset (?P<names>[A-Z_]\w*(?: [A-Z_]\w*)*)")
_OF_WINDOWS = (
    (re.compile(r"(?<![\w-])export ([A-Za-z_]\w*=)"), r"set \1"),
    (re.compile(r"(?<=`)which (?:-a )?|(?<=; )which (?:-a )?(?=\w+[`;])"), "where "),
    (re.compile(r"(?<![\w-])python3(?= -)"), "python"),
    (re.compile(r"(?<=`)env(?= \|)"), "set"),
    (re.compile(r"(?<=[`;|] )cat (?=[\w~{.])|(?<=`)cat (?=[\w~{.])"), "type "),
    (re.compile(r"(?<=`)ls (?:-\w+ )?(?=[\w~{.])"), "dir "),
    (re.compile(r"(?<![\w-])rm -rf? (?=[\w~{.])"), "rmdir /s /q "),
    (re.compile(r"(?<![\w-])source (\S+?)/bin/activate"), r"\1\\Scripts\\activate"),
    (re.compile(r"(?<=`)mv (?=[\w~{.])"), "move "),
    (re.compile(r"\$\{?([A-Z][A-Z0-9_]+)\}?"), r"%\1%"),
    (re.compile(r"~/\.cache/"), r"%USERPROFILE%\\.cache\\"),
)
"""Commands of Linux, each with the one of cmd.exe."""
_IN_BASH = "in Git Bash: {remedy}"
_SMI = r"nvidia-smi(?: -L| -q[^`;|]*| --query-[^\s`;|]+(?: --format=[^\s`;|]+)?)?(?=[`;|(),:]| (?!-)|$)"
_OF_AMD = (
    (re.compile(r"nvidia-smi topo (?:-m|-p2p r)"), "rocm-smi --showtopo"),
    (re.compile(_SMI), "rocm-smi"),
    (re.compile(r"download\.pytorch\.org/whl/cu\w+"), "download.pytorch.org/whl/rocmX.Y"),
)
_OF_ASCEND = (
    (re.compile(r"nvidia-smi topo (?:-m|-p2p r)"), "npu-smi info -t topo"),
    (re.compile(_SMI), "npu-smi info"),
    (re.compile(r"(?<!_)CUDA_VISIBLE_DEVICES"), "ASCEND_RT_VISIBLE_DEVICES"),
    (re.compile(r"CUDA_LAUNCH_BLOCKING"), "ASCEND_LAUNCH_BLOCKING"),
)
_NAMES_ASCEND = re.compile(r"npu|ascend", re.IGNORECASE)
_ABOUT_NVIDIA = re.compile(r"nvidia|nvml|nvcc|ptx|cudnn|fabric|\bxid\b|cu(?:blas|sparse|fft)", re.IGNORECASE)
_ABOUT_CUDA = re.compile(rf"cuda|{_ABOUT_NVIDIA.pattern}", re.IGNORECASE)
_CAPABILITY = re.compile(r"`?nvidia-smi --query-gpu=\S*compute_cap")
"""Of NVIDIA's GPUs alone."""
_APT = re.compile(
    r"(?:sudo )?(?:apt-get update && (?:sudo )?)?apt(?:-get)? install (?P<anew>--reinstall )?(?:-y )?"
    r"(?P<packages>(?!-)[\w.+{}-]+(?:\$\(uname -r\))?"
    r"(?: (?!and |or |in |on |of |the |for |from |with |&& )[a-z{][\w.+{}-]*(?:\$\(uname -r\))?)*)(?![\w=<])"
)
_TWICE = re.compile(r"(?<= )(?P<name>[a-z][\w.+-]+) \((?P=name)\)")
_RPM_NAMED = re.compile(r"\b(?:yum|dnf)\b|RHEL|openEuler")
_RPM = {
    "build-essential": "gcc gcc-c++ make",
    "g++": "gcc-c++",
    "ibverbs-providers": "libibverbs",
    "libaio-dev": "libaio-devel",
    "libaio1": "libaio",
    "libcurl4-openssl-dev": "libcurl-devel",
    "libgl1": "mesa-libGL",
    "libglib2.0-0": "glib2",
    "libgomp1": "libgomp",
    "libibverbs1": "libibverbs",
    "libnuma1": "numactl-libs",
    "libopenmpi-dev": "openmpi-devel",
    "librdmacm1": "librdmacm",
    "libsm6": "libSM",
    "libsndfile1": "libsndfile",
    "libssl-dev": "openssl-devel",
    "libxext6": "libXext",
    "libxrender1": "libXrender",
    "linux-headers-$(uname -r)": "kernel-devel-$(uname -r)",
    "nfs-common": "nfs-utils",
    "openmpi-bin": "openmpi",
    "pkg-config": "pkgconf-pkg-config",
    "python3-dev": "python3-devel",
}
"""Names of packages on Debian, and on the systems with RPM, where they differ."""
_SAME = frozenset(("ca-certificates", "cmake", "gcc", "git", "git-lfs", "hostname", "kmod", "make", "ninja-build"))
_SAME |= frozenset(("pdsh", "sudo", "mpich", "dkms"))


def fitted(remedies: Iterable[str], entry: KnownFailure | None, facts: Facts) -> tuple[str, ...]:
    """The remedies without clauses for systems that the log rules out, and with the commands of the system it shows.

    What the failure itself names is never ruled out, and one remedy is left at least.
    """
    given = tuple(remedies)
    about = " ".join((entry.family, entry.what, *entry.causes, *map(" ".join, entry.anchors))) if entry else ""
    tool = " ".join(given[:1]).strip("`").partition(" ")[0]
    away = [each for each in _ELSEWHERE if _is_away(each, facts) and not each.names.search(f"{about} {tool}")]
    kept = [shortened for remedy in given if (shortened := _without(remedy, away))] or list(given)
    if _is_only("os", "windows", facts):
        kept = [_for_windows(remedy) for remedy in kept if not _LINUX_ONLY.match(remedy)] or kept
    if _is_only("os", "rpm", facts):
        kept = [_for_rpm(remedy) for remedy in kept]
    is_amd = _is_only("accelerator", "amd", facts) and not _ABOUT_NVIDIA.search(about)
    is_ascend = _is_only("accelerator", "ascend", facts) and not _ABOUT_CUDA.search(about)
    if is_amd or is_ascend:
        kept = [remedy for remedy in kept if not _CAPABILITY.match(remedy)] or kept
        kept = [_in_words_of(remedy, _OF_AMD if is_amd else _OF_ASCEND) for remedy in kept]
    return tuple(kept)


def causes_here(causes: Iterable[str], facts: Facts) -> tuple[str, ...]:
    """The causes without those that begin with a system which the log rules out; one is left at least."""
    given = tuple(causes)
    away = [each for each in _ELSEWHERE if _is_away(each, facts)]
    kept = [cause for cause in given if not any(_begins_with(each, cause) for each in away)]
    return tuple(kept) or given


def _begins_with(elsewhere: _Elsewhere, cause: str) -> bool:
    is_container = elsewhere.shown[0] == "container" and _CONTAINER.match(cause) is not None
    return is_container or elsewhere.begins.match(cause) is not None


def _is_away(elsewhere: _Elsewhere, facts: Facts) -> bool:
    fact, value = elsewhere.shown
    is_shown = value in facts.get(fact, ())
    return not is_shown and any(other in facts.get(name, ()) for name, other in elsewhere.ruled_out)


def _is_only(fact: str, value: str, facts: Facts) -> bool:
    return facts.get(fact, ()) == (value,)


def _without(remedy: str, away: list[_Elsewhere]) -> str:
    """`remedy` without clauses, and without clauses in brackets, that begin with words of a system in `away`."""
    if not away:
        return remedy

    def holds(clause: str) -> bool:
        return not any(each.begins.match(clause.strip()) for each in away)

    def in_brackets(found: re.Match[str]) -> str:
        clauses = _CLAUSE_END.split(found["content"])
        held = [clause for clause in clauses if holds(clause)]
        if len(held) == len(clauses):
            return found[0]
        content = ("；" if found["open"] == "（" else "; ").join(held)
        return found[0].replace(found["content"], content) if held else ""

    shortened = _BRACKETS.sub(in_brackets, remedy)
    clauses = list(_clauses(shortened))
    held = [clause for clause in clauses if holds(clause)]
    if len(held) == len(clauses):
        return shortened
    if not holds(clauses[0]) and held and _GOES_ON.match(held[0]):
        return ""
    return ("；" if "；" in remedy else "; ").join(held)


def _clauses(remedy: str) -> Iterator[str]:
    """The clauses of a remedy, divided by semicolons that stand in no command and in no brackets."""
    start = 0
    for end in _CLAUSE_END.finditer(remedy):
        before = remedy[: end.start()]
        is_within = before.count("`") % 2 or sum(map(before.count, "(（")) > sum(map(before.count, ")）"))
        if not is_within:
            yield remedy[start : end.start()]
            start = end.end()
    yield remedy[start:]


def _in_words_of(remedy: str, pairs: Iterable[tuple[re.Pattern[str], str]]) -> str:
    """`remedy` with the second of each pair in place of what the first matches; as it is where it names Ascend."""
    if pairs is _OF_ASCEND and _NAMES_ASCEND.search(remedy):
        return remedy
    for pattern, command in pairs:
        remedy = pattern.sub(command, remedy)
    return remedy


def _for_windows(remedy: str) -> str:
    if _SHELL.search(remedy):
        return say(_IN_BASH, remedy=remedy)
    remedy = _GREP.sub(lambda grep: f'| findstr /i "{" ".join(_patterns_of(grep["patterns"]))}"', remedy)
    remedy = _UNSET.sub(lambda unset: " & ".join(f"set {name}=" for name in unset["names"].split()), remedy)
    return _in_words_of(remedy, _OF_WINDOWS)


def _patterns_of(words: str) -> list[str]:
    return [word.strip("'\"") for word in words.split() if word != "-e"]


def _for_rpm(remedy: str) -> str:
    if _RPM_NAMED.search(remedy):
        return remedy
    return _TWICE.sub(r"\g<name>", _APT.sub(_for_yum, remedy))


def _for_yum(command: re.Match[str]) -> str:
    """The command of yum for one of apt; the same command if a package's name there is not known."""
    names = [_of_rpm(name) for name in re.split(r" (?!-r\))", command["packages"])]
    if not all(names):
        return command[0]
    return f"yum {'reinstall' if command['anew'] else 'install'} -y {' '.join(dict.fromkeys(names))}"


def _of_rpm(name: str) -> str:
    if name in _RPM or name in _SAME or name[:1] == "{":
        return _RPM.get(name, name)
    if python := re.fullmatch(r"(python3\.\d+)-dev", name):
        return f"{python[1]}-devel"
    return f"{name.removesuffix('-dev')}-devel" if name.startswith("lib{") else ""
