"""Adapts remedies to the system where the job ran: no clauses for other systems, and the system's own commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ascendtune.check.explain.answer.package_commands import for_apk, for_brew, for_rpm, for_zypper
from ascendtune.check.explain.facts.facts import Facts
from ascendtune.check.explain.knowledge.entries import KnownFailure
from ascendtune.check.explain.language import say


@dataclass(frozen=True)
class _Elsewhere:
    """A system named in remedies, and the facts that exclude it."""

    begins: re.Pattern[str]
    """Beginning of a clause for this system only."""
    names: re.Pattern[str]
    """Words of failures that are about this system, whatever the rest of the log shows."""
    shown: tuple[str, str]
    """Fact that shows the system, with its value."""
    ruled_out: tuple[tuple[str, str], ...]
    """Other facts, each of which excludes the system if it is not shown."""


def _begin(words: str) -> re.Pattern[str]:
    return re.compile(rf"`?(?:{words})")


_NO_LINUX = (("os", "windows"), ("os", "mac"))
_LINUX = (("os", "debian"), ("os", "rpm"), ("os", "alpine"))
_NO_CONTAINER = (("container", "none"), ("container", "apptainer"))
_OTHER_MAKERS = ("amd", "hygon", "moore-threads", "metax", "iluvatar", "cambricon", "intel", "jetson")
_ELSEWHERE = (
    _Elsewhere(
        _begin(
            r"[Ii]n (?:a )?containers?[:,]|[Aa] container:|[Ii]nside the container$|"
            r"[Dd]ocker(?::| run| exec| compose| ps)|容器[：:]|在?容器[里中内](?:[：:，]|$)"
        ),
        re.compile(r"container|docker|image|容器|镜像", re.IGNORECASE),
        ("container", "docker"),
        (*_NO_CONTAINER, *_NO_LINUX, ("inside_container", "no")),
    ),
    _Elsewhere(
        _begin(r"(?:[Oo]n |[Ii]n )?Kubernetes|kubectl |resources\.limits|limits:|a pod[:,]|在 ?Kubernetes"),
        re.compile(r"kube|pods?\b|container|helm|volcano", re.IGNORECASE),
        ("container", "kubernetes"),
        (*_NO_CONTAINER, ("scheduler", "slurm"), *_NO_LINUX),
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
        (*_LINUX, ("os", "mac"), ("scheduler", "slurm")),
    ),
    _Elsewhere(
        _begin(r"[Oo]n (?:a )?Macs?\b|Mac(?:OS)?\b|macOS\b|Apple\b|在? ?(?:Mac|macOS)"),
        re.compile(r"mac|apple|darwin|mps\b|mlx", re.IGNORECASE),
        ("os", "mac"),
        (*_LINUX, ("os", "windows"), ("scheduler", "slurm")),
    ),
    _Elsewhere(
        _begin(
            r"(?:[Oo]n )?(?:an? )?(?:Ascend|NPUs?)\b(?!_)(?! (?:or|and)\b| ?[或和与/])[^;；,，]{0,20}[:：]|"
            r"npu-smi (?!info \(nvidia)|在?昇腾(?: NPU)?(?:[上要用：:])"
        ),
        re.compile(r"ascend|npu|hccl|cann|acl|昇腾", re.IGNORECASE),
        ("accelerator", "ascend"),
        (("accelerator", "nvidia"), *(("accelerator", maker) for maker in _OTHER_MAKERS), *_NO_LINUX),
    ),
    _Elsewhere(
        _begin(r"(?:[Oo]n )?(?:an? )?(?:AMD|ROCm|HIP)\b(?! (?:or|and)\b| ?[或和与/])|rocm-smi |在? ?(?:AMD|ROCm)"),
        re.compile(r"amd|rocm|hip|gfx", re.IGNORECASE),
        ("accelerator", "amd"),
        (("accelerator", "nvidia"), ("accelerator", "ascend")),
    ),
)
_GOES_ON = re.compile(
    r"(?:else|or|then|still|it|they|both|nothing|none|there|no|not|yes|also)\b|否则|或|仍|没有|都|然后|再"
)
"""Beginning of a clause that is meaningless without the one before it."""
_CONTAINER = re.compile(r"(?:an? |the )?container\b(?!'s|\W+or\b|.*,? or\b)|容器(?!.*或)", re.IGNORECASE)
"""A cause for containers only."""
_POD = re.compile(r"(?:an? |the )?pods?\b(?!'s|\W+or\b|.*,? or\b)", re.IGNORECASE)
_CLAUSE_END = re.compile(r"; |；")
_ITEM_END = re.compile(r"(?:, |，|、)(?!and |or |with |in |the |和|或|并)")
_BRACKETS = re.compile(r" ?(?P<open>[(（])(?P<content>[^()（）`]+)[)）]")
_LINUX_ONLY = re.compile(
    r"`?(?:sudo )?(?:(?:apt|apt-get|yum|dnf) install|dmesg|ldconfig|free -|fuser |lsof |"
    r"systemctl |mount -|ss -|ip -|strace |taskset |numactl )"
)
"""Commands that are missing on Windows, also in its shells."""
_OF_UNIX = re.compile(r"`[^`]*\b(?:grep|head|tail|ls|find|ldd|df|du|cat|which|rm|mv)\b[^`]*`|\bexport [A-Z_]+=")
_IN_BASH = "on Windows run these commands in Git Bash; in cmd `export X=Y` is `set X=Y`, in PowerShell `$env:X = 'Y'`"
_SMI = r"nvidia-smi(?: -L)?(?=[`;),:]| (?![-a-z|])|$)"
"""Command that lists the GPUs, without an option that the tools of other makers lack."""
_OF_AMD = (
    (re.compile(r"nvidia-smi topo (?:-m|-p2p r)"), "rocm-smi --showtopo"),
    (re.compile(_SMI), "rocm-smi"),
)
_OF_ASCEND = (
    (re.compile(r"nvidia-smi topo -m"), "npu-smi info -t topo"),
    (re.compile(_SMI), "npu-smi info"),
    (re.compile(r"(?<!_)CUDA_VISIBLE_DEVICES"), "ASCEND_RT_VISIBLE_DEVICES"),
    (re.compile(r"CUDA_LAUNCH_BLOCKING"), "ASCEND_LAUNCH_BLOCKING"),
)
_KERNEL_OF_MAC = "log show --last 1h --predicate 'process == \"kernel\"'"
_OF_MAC = (
    (re.compile(r"\bss -[ltnup]{2,6}\b"), "lsof -nP -iTCP -sTCP:LISTEN"),
    (re.compile(r"\bfree -[a-z]\b(?: -s \d+)?"), "vm_stat"),
    (re.compile(r"\bdmesg(?: -T)?(?= \|)"), _KERNEL_OF_MAC),
    (
        re.compile(r"grep -i(?:E| -E)? [\"'](?:killed process|oom\|killed(?: process)?|killed process\|oom)[\"']"),
        "grep -i memorystatus",
    ),
    (re.compile(r"\bldd (?=[^`]*`)"), "otool -L "),
    (re.compile(r"(?<=`)nproc\b"), "sysctl -n hw.ncpu"),
)
"""Commands of Linux, and the equivalents on a Mac."""
_OF_LINUX = re.compile(
    r"`?(?:sudo )?(?:(?:apt|apt-get|yum|dnf) install|ldconfig|systemctl |fuser |update-alternatives )"
)
"""Beginning of a clause for Linux only."""
_OF_LAUNCHER = re.compile(r"(?:torchrun|DeepSpeed|accelerate)\b")
"""Beginning of a clause for jobs of several ranks."""
_NAMES_LAUNCHER = re.compile(
    r"torchrun|deepspeed|launch|rank|elastic|train|zero|accelerat|megatron|[nh]ccl|gradient|tensor|model|optim|mpi|slurm|"
    r"fsdp|torch|cuda|interpreter|config|world|process|parallel",
    re.IGNORECASE,
)
_OF_RANKS = ("world_size", "nproc", "nnodes", "launcher")
"""Facts of logs of several ranks."""
_OF_NVIDIA = re.compile(
    r"cuda|nvidia|nvlink|cu\d|cuXYZ|nvcc|compute_cap|--gpus\b|nvml|nvrm|\bMIG\b|\bsm_\d|\bxid\b|\bwsl\b|V100|RTX|(?<![a-z])npu|ascend|\bhip\b|rocm",
    re.IGNORECASE,
)
"""Words of a remedy that is only for NVIDIA's GPUs, or that names other makers itself."""
_ABOUT_NVIDIA = re.compile(r"nvidia|nvml|nvcc|ptx|cudnn|fabric|\bxid\b|cu(?:blas|sparse|fft)", re.IGNORECASE)
_ABOUT_CUDA = re.compile(rf"cuda|nccl|{_ABOUT_NVIDIA.pattern}", re.IGNORECASE)


def fitted(remedies: Iterable[str], entry: KnownFailure | None, facts: Facts) -> tuple[str, ...]:
    """Remove clauses for systems that the log excludes, and use the commands of the system that it shows.

    A system that the failure itself names is never excluded; at least one remedy remains.
    """
    given = list(remedies)
    about = f"{_about(entry)} {' '.join(entry.causes)}" if entry else ""
    tool = " ".join(given[:1]).strip("`").partition(" ")[0]
    kept = without_clauses(given, *(each.begins for each in _ruled_out(f"{about} {tool}", facts))) or given
    if _is_only("os", "windows", facts):
        kept = [remedy for remedy in kept if not _LINUX_ONLY.match(remedy)] or kept
        if any(map(_OF_UNIX.search, kept)):
            kept.append(say(_IN_BASH))
    if _is_only("os", "mac", facts):
        kept = [for_brew(_replaced(each, _OF_MAC)) for each in without_clauses(kept, _OF_LINUX) or kept]
    if facts and facts.keys().isdisjoint(_OF_RANKS) and not _NAMES_LAUNCHER.search(about):
        kept = without_clauses(kept, _OF_LAUNCHER) or kept
    if _is_only("os", "rpm", facts):
        kept = [for_rpm(remedy, "yum {verb} -y") for remedy in kept]
    if _is_only("os", "suse", facts):
        kept = [for_zypper(remedy) for remedy in kept]
    if _is_only("os", "alpine", facts):
        kept = [for_apk(remedy) for remedy in kept]
    if _is_only("accelerator", "amd", facts) and not _ABOUT_NVIDIA.search(about):
        kept = [_in_words_of(remedy, _OF_AMD) for remedy in kept]
    if _is_only("accelerator", "ascend", facts) and not _ABOUT_CUDA.search(about):
        kept = [_in_words_of(remedy, _OF_ASCEND) for remedy in kept]
    return tuple(kept)


def causes_here(causes: Iterable[str], entry: KnownFailure | None, facts: Facts) -> tuple[str, ...]:
    """Remove causes that begin with a system that the log excludes; at least one remains.

    A system that the failure itself names is never excluded.
    """
    given = tuple(causes)
    ruled_out = _ruled_out(_about(entry) if entry else "", facts)
    begins, values = [each.begins for each in ruled_out], [each.shown[1] for each in ruled_out]
    if "kubernetes" in values:
        begins.append(_POD)
        if "docker" in values:
            begins.append(_CONTAINER)
    kept = tuple(cause for cause in given if not any(each.match(cause) for each in begins))
    return kept or given


def ran_on_host(facts: Facts) -> bool:
    """Whether the log shows that the program ran without a container."""
    return _is_away(_ELSEWHERE[0], facts)


def _about(entry: KnownFailure) -> str:
    return " ".join((entry.family, entry.what, *map(" ".join, entry.anchors)))


def _ruled_out(about: str, facts: Facts) -> list[_Elsewhere]:
    """Systems that are not shown and that all values of another fact exclude, except those that `about` names."""
    return [each for each in _ELSEWHERE if _is_away(each, facts) and not each.names.search(about)]


def _is_away(elsewhere: _Elsewhere, facts: Facts) -> bool:
    fact, value = elsewhere.shown
    if value in facts.get(fact, ()):
        return False
    names = {name for name, _ in elsewhere.ruled_out}
    return any(facts.get(name) and all((name, shown) in elsewhere.ruled_out for shown in facts[name]) for name in names)


def _is_only(fact: str, value: str, facts: Facts) -> bool:
    return facts.get(fact, ()) == (value,)


def without_clauses(remedies: Iterable[str], *begins: re.Pattern[str]) -> list[str]:
    """Remove clauses, also those in brackets, with one of these beginnings; remedies without a rest are dropped."""
    return [left for remedy in remedies if (left := _without_clauses(remedy, begins))] if begins else list(remedies)


def _without_clauses(remedy: str, begins: Sequence[re.Pattern[str]]) -> str:
    def holds(clause: str) -> bool:
        return not any(each.match(clause.strip()) for each in begins)

    def in_brackets(match: re.Match[str]) -> str:
        if match.string.count("`", 0, match.start()) % 2:
            # A call in a command.
            return match[0]
        clauses = _CLAUSE_END.split(match["content"])
        kept = [rest for clause in clauses if (rest := _items_that(holds, clause))]
        if kept == clauses:
            return match[0]
        content = ("；" if match["open"] == "（" else "; ").join(kept)
        return match[0].replace(match["content"], content) if kept else ""

    shortened = _BRACKETS.sub(in_brackets, remedy)
    clauses = list(clauses_of(shortened))
    kept = [clause for clause in clauses if holds(clause)]
    if len(kept) == len(clauses):
        return shortened
    if not holds(clauses[0]) and kept and _GOES_ON.match(kept[0]):
        return ""
    return ("；" if "；" in remedy else "; ").join(kept)


def _items_that(holds: Callable[[str], bool], clause: str) -> str:
    """Remove the items of a list in brackets that do not hold; if such an item has a colon, also all after it."""
    items: list[str] = []
    start = 0
    for end in (*(match.span() for match in _ITEM_END.finditer(clause)), (len(clause), len(clause))):
        item = clause[start : end[0]]
        if not holds(item):
            items.append("")
            if re.search("[:：]", item):
                break
        else:
            items.append(clause[start : end[1]])
        start = end[1]
    return clause if all(items) else "".join(items).rstrip(", ，、")


def clauses_of(remedy: str) -> Iterator[str]:
    """Clauses of a remedy, separated by semicolons outside of commands and brackets."""
    start = 0
    for end in _CLAUSE_END.finditer(remedy):
        before = remedy[: end.start()]
        is_within = before.count("`") % 2 or sum(map(before.count, "(（")) > sum(map(before.count, ")）"))
        if not is_within:
            yield remedy[start : end.start()]
            start = end.end()
    yield remedy[start:]


def _in_words_of(remedy: str, pairs: Iterable[tuple[re.Pattern[str], str]]) -> str:
    """Replace matches of the first of each pair by the second; unchanged if the rest of the remedy is for NVIDIA's
    GPUs."""
    rest = _replaced(remedy, [(pattern, "") for pattern, _ in pairs])
    return remedy if _OF_NVIDIA.search(rest) else _replaced(remedy, pairs)


def _replaced(remedy: str, pairs: Iterable[tuple[re.Pattern[str], str]]) -> str:
    for pattern, command in pairs:
        remedy = pattern.sub(command, remedy)
    return remedy
