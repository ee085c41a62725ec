"""Facts of a log: variables, versions, ranks and ports; and the numbers and names in a message.

Entries of the knowledge may require facts (`requires`), the headline adds those of the message, JSON has all of them.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator

from ascendtune.check.explain.facts.command_output import of_command_output
from ascendtune.check.explain.facts.connection_facts import of_connections
from ascendtune.check.explain.facts.job_environment import of_job_environment
from ascendtune.check.explain.facts.package_facts import of_packages
from ascendtune.check.explain.facts.printed_versions import matches, places, versions_in, without_prefixes
from ascendtune.check.explain.lazy_pattern import LazyPattern

Facts = dict[str, tuple[str, ...]]
"""Values by name, without repetition, in the order of the log."""

_MOST_VALUES = 16
_LONGEST_VALUE = 200
_MOST_TOLD = 3
_LONGEST_TOLD = 60
_NAME = (
    r"(?:ASCEND|HCCL|NCCL|GLOO|TP_SOCKET|CUDA|TORCH|PYTORCH|HF|TRANSFORMERS|MASTER|WORLD|LOCAL|NODE|NPROC|NNODES|RAY|"
    r"VLLM|OMP|LD|ATB|TASK_QUEUE|CPU_AFFINITY|MULTI_STREAM|DS|SLURM|RANK_TABLE|FLASH|USE|FORCE)[A-Z0-9_]*"
)
_VARIABLE = re.compile(rf"(?<![\w$.]){_NAME}(?<=[A-Z0-9])=['\"]?(?P<value>[^\s'\";|&)`]+)")
_HAS_VARIABLE = re.compile(r"=(?<=[A-Z0-9]=)")
"""Begins with a literal character: `re` finds it many times faster than names of variables."""
_EXAMPLE, _EXAMPLE_WITHIN = "or example", 40
"""Words, and characters, before a variable that is only an example."""
_WORLD = {
    "world_size": (
        ("world", "nranks", "ranksize", "rank_size"),
        re.compile(r"\b(?:world[ _]?size|WORLD_SIZE|nranks|nRanks|rank_?[Ss]ize)\W{1,4}(?P<value>\d{1,5})\b"),
    ),
    "nproc": (
        ("nproc", "num_gpus", "num_processes"),
        re.compile(
            r"(?:--nproc[_-]per[_-]node[= ]|NPROC_PER_NODE=|--num_gpus[= ]|--num_processes[= ]|nproc_per_node *[:=] *)"
            r"(?P<value>[1-9]\d{0,3})\b"
        ),
    ),
    "nnodes": (
        ("nnodes", "num_machines"),
        re.compile(r"(?:--nnodes[= ]|NNODES=|--num_machines[= ])(?P<value>[1-9]\d{0,3})\b"),
    ),
    "port": (
        ("port", "::]:", ".0.0.0:", "localhost:", ".0.0.1:"),
        re.compile(
            r"(?:MASTER_PORT=|--master[_-]port[= ]|\bport[:= ]{1,2}|\[::\]:|0\.0\.0\.0:|localhost:|127\.0\.0\.1:|"
            r"--port[= ])(?P<value>\d{4,5})\b"
        ),
    ),
    "checkpoint_inputs": (("requires_grad",), re.compile(r"None of the inputs have (?P<value>requires_grad)=True")),
    "failed_build": (
        ("failed to ", "likely indicates"),
        re.compile(r"(?:Failed to (?:download and )?build:?|likely indicates that) [`'(]?(?P<value>[A-Za-z][\w.-]*)"),
    ),
    "joined": (
        ("worker_count", "clients joined"),
        re.compile(
            r"world_size=(?P<wanted>\d+), worker_count=(?P<value>\d+)|(?P<clients>\d+)/(?P<places>\d+) clients joined"
        ),
    ),
}
"""By fact: lower-case words, one of which is in every match of its pattern; and the pattern."""
_DEVICE_NODE = re.compile(
    r"(?<![\w/-])c(?P<mode>[rwx-]{9})\S* +\d+ +(?P<owner>\S+) +(?P<group>\S+) .* "
    r"(?P<node>(?:/dev/)?(?:davinci|nvidia|kfd)\w*)$",
    re.MULTILINE,
)
_USER = re.compile(r"\buid=(?P<uid>\d+)\((?P<user>[^)]+)\) gid=\S+ groups=(?P<groups>\S+)")
_ROOT = re.compile(
    r"^(?:\([\w.-]+\) ?)?\[?root@(?![0-9a-f]{12}\b)[\w.-]+[: ][^\n]{0,80}?[#$](?: |$)|"
    r"\buid=0\(root\)|^(?:\S* ?[#$] )?whoami\s*\nroot\s*$",
    re.MULTILINE,
)
"""Prompt of root's shell, except in a container (whose name is twelve digits), or the output of `id`."""
_NO_CAPABILITIES = re.compile(r"\bCapEff:\s*0{16}\b|\bCurrent: =\s*$", re.MULTILINE)
_PULL = re.compile(
    r"\b(?:docker|podman|nerdctl|crictl|ctr) (?:image )?pull (?:-\S+ )*(?P<image>[\w./:@-]+)|"
    r"^(?P<tag>[\w.-]+): Pulling from (?P<name>[\w./-]+)",
    re.MULTILINE,
)
_DIRECTORY = re.compile(
    r"(?<![\w/-])(?P<mode>d[rwxsStT-]{9})\S? +\d+ +(?P<owner>\S+) +(?P<group>\S+) +\d+ .*? (?P<path>/[^\s/][^\s]*?)/?$",
    re.MULTILINE,
)
_DTYPES = (
    "Half|BFloat16|Float|Double|Long|Int|Bool|Char|Byte|float16|bfloat16|float32|float64|"
    "fp16|bf16|fp32|int8|int32|int64"
)
_SIZE = r"\d+(?:\.\d+)? ?(?:[KMGT]i?B|bytes)\b"
_MESSAGE = {
    "shape": re.compile(
        r"torch\.Size\(\[(\d[\d, ]*)\]\)|\b((?!0x)\d+x\d+(?:x\d+)*)\b|(?<!block: )(?<!thread: )\[(\d+(?:, ?\d+)+)\]"
    ),
    "size_of": re.compile(r"tensor [ab] \(\d+\)|dimension \d+|batch_size \(\d+\)|input of size \d+"),
    "dtype": re.compile(rf"(?<!-)\b(?:torch\.|c10::)?({_DTYPES})\b(?=[ ,.;:)\]'\"]|$)|\bfor (DT_\w+)"),
    "size": re.compile(_SIZE),
    "operator": re.compile(
        r"\b(aclnn\w+|aten::[\w.]+|npu::\w+|torchvision::\w+|Hccl\w+(?=,| fail))|\bop type[:=] ?(\w+)"
    ),
    "kernel": re.compile(r"\bfault kernel_name=(\w[\w.]*)|\bkernel_name[=:] ?(\w+)"),
    "error_code": re.compile(
        r"\berror code(?: is|:)? ?(\d+)|\b(E[A-Z]\d{4}|ERR\d{5})\b|\bret(?:urn)?(?:code)?[ =:]{1,2}(-?\d{2,})"
    ),
    "peer": re.compile(r"\b(\d{1,3}(?:\.\d{1,3}){3}(?::\d{2,5})?)\b"),
    # The program that ended is not a path that it could not use.
    "path": re.compile(r"(?<!of binary: )(?<![\w/.:#*<>])((?:~|\.{1,2})?/[\w.@+-]++(?:/[\w.@+-]++)*+)(?!/?[#*<{$])"),
    "name": re.compile(r"(?<!': )(?<![\w{])'([^'\n]{2,60})'(?![\w:])|\"([^\"\n]{2,60})\"(?!:)|`([^`\n]{2,60})`"),
    "number": re.compile(r"(?<![\w./:+-])(-?\d+(?:\.\d+)?)(?![\w./:]|\.\d)"),
}
_SOURCES = (".cc", ".cpp", ".h", ".hpp", ".ts", ".py", "/python", "/python3")
"""Ends of paths that are the place in a source, not the subject of the message."""
_ERRNO = re.compile(r"\[?[Ee]rrno:? ?(\d{1,3})\b")
_IS_NAME = re.compile(r"^(?!.*[=;]|.*\(.+\))[\w/~.<@-].*[\w/>)\]%]$|^\([\d, ]+\)$")
"""A quoted name, not the text between two quoted names, and not quoted code."""
_COMMAND = re.compile(r"\[(?=[^\]]*'-)(?:'[^']*', )+'[^']*'\]")
"""A command as a Python list, with an option among its words."""
ENDED = re.compile(
    r"(?:\S+: line \d+: +)?\b\d+ "
    r"(?:Killed|Aborted|Terminated|[A-Z][a-z]+ (?:\w+ )?(?:fault|error|exception|instruction))\b.*"
)
"""A shell's report of a command that a signal ended, with the script before it and the command after it."""
_ADVICE = re.compile(r"[.!;)] *(?:This error is caused|For example|Please|You (?:can|should)|To (?:fix|solve)|See )")
"""Beginning of the advice in a message; its names do not belong to the failure."""
_ALLOWED = re.compile(
    r"\b(?:(?:select|pick|choose|one|any) (?:from|(?:one |any )?of)|(?:must|should) (?:only )?be (?:in|from)|"
    r"(?:valid|available|allowed|supported|possible|permitted|known|existing) (?:\w+ ){0,2}(?:are|is)|"
    r"(?:available|allowed|supported|valid|options|choices|candidates)(?: \w+)?(?=:))\b\W{0,12}[\[({][^\])}]*[\])}]?",
    re.IGNORECASE,
)
"""List of the valid values; the invalid one is outside of it."""
_TOLD = ("shape", "size_of", "dtype", "operator", "kernel", "path", "name", "size", "peer", "errno")
"""Facts that the headline adds, the most useful first."""


def of_log(texts: Iterable[str]) -> Facts:
    """Facts of a job in its log: `variable.NAME`, `version.NAME`, `world_size`, `nproc`, `nnodes`, `port`.

    `failed_build` is a package that pip or uv could not build.
    `checkpoint_inputs` is present if gradient checkpointing warned that its inputs require no gradient. `asked` is
    the requested number of processes if it is more than one; `joined` is "more" or "fewer" if more or fewer processes
    than its world size joined a rendezvous. `device_denied` is a device node that the user of `id` may not open, by
    `ls -l`; `user` is "root" if a prompt or `id` shows it; `capabilities` is "none" if the process has none;
    `image_pull` is an image that is pulled; `inside_container` is "no" if Slurm started the job and nothing shows a
    container; `closed_directory` is a directory, with its rights by `ls -ld`, in which a path was refused.

    The output of other commands has its own facts (command_output.py), as has that of package managers
    (package_facts.py, connection_facts.py) and the environment of the job: `os`, `subsystem` ("wsl"), `accelerator`,
    `container`, `speaker` ("compose" writes its services' names before lines), `scheduler` (job_environment.py).
    """
    by_name: dict[str, dict[str, None]] = {}

    def note(name: str, value: str) -> None:
        values = by_name.setdefault(name, {})
        if len(values) < _MOST_VALUES:
            values.setdefault(value.rstrip(".,")[:_LONGEST_VALUE])

    for text in dict.fromkeys(texts):
        # "İ" is the only character that becomes two in lower case.
        lower = text.replace("İ", "i").lower()
        for match in matches(_VARIABLE, text, (match.start() for match in _HAS_VARIABLE.finditer(text))):
            if _EXAMPLE in text[max(0, match.start() - _EXAMPLE_WITHIN) : match.start()]:
                continue
            note(f"variable.{match[0].partition('=')[0]}", match["value"])
        for package, version in versions_in(text, lower):
            note(f"version.{package}", version)
        for name, (words, pattern) in _WORLD.items():
            for match in matches(pattern, text, places(lower, words)):
                value = match["value"]
                if name == "joined":
                    joined, expected = value or match["clients"], match["wanted"] or match["places"]
                    value = "more" if int(joined) > int(expected) else "fewer"
                note(name, value)
        of_commands = (*_of_commands(text, lower), *of_command_output(text, lower))
        for name, value in (
            *of_commands,
            *of_packages(text, lower),
            *of_connections(text, lower),
            *of_job_environment(text, lower),
        ):
            note(name, value)
    requested = _largest(by_name.get("nproc", {})) * max(1, _largest(by_name.get("nnodes", {})))
    if requested > 1:
        note("asked", str(requested))
    if "slurm" in by_name.get("scheduler", {}) and "inside_container" not in by_name:
        note("inside_container", "no")
    return {
        name: without_prefixes(values) if name.startswith("version.") else tuple(values)
        for name, values in by_name.items()
    }


def _of_commands(text: str, lower: str) -> Iterator[tuple[str, str]]:
    """Facts from the output of commands: `ls -l` of devices with `id`, capabilities, pulls of images."""
    user = _USER.search(text) if "uid=" in lower else None
    if user is not None and user["uid"] != "0":
        groups = re.findall(r"\(([^)]+)\)", user["groups"])
        for node in _DEVICE_NODE.finditer(text):
            is_open = node["mode"][6:8] == "rw" or node["group"] in groups or node["owner"] == user["user"]
            if not is_open:
                rights = f"{node['mode']} {node['owner']}:{node['group']}"
                yield "device_denied", f"{node['node']} ({rights}), user {user['user']}"
    if "permission denied" in lower and "drwx" in text:
        for directory in _DIRECTORY.finditer(text):
            is_open = directory["mode"][7] == "r" and directory["mode"][9] in "xt"
            if not is_open and re.search(rf"{re.escape(directory['path'])}/?[^\n]{{0,120}}Permission denied", text):
                yield "closed_directory", "{path} ({mode} {owner}:{group})".format(**directory.groupdict())
    if "root" in lower and _ROOT.search(text):
        yield "user", "root"
    if ("capeff" in lower or "current: =" in lower) and _NO_CAPABILITIES.search(text):
        yield "capabilities", "none"
    if " pull " in lower or "pulling from" in lower:
        for pull in _PULL.finditer(text):
            yield "image_pull", pull["image"] or f"{pull['name']}:{pull['tag']}"


def versions(facts: Facts, package: str) -> tuple[str, ...]:
    """Releases of a package in the log, in any spelling of its name."""
    return facts.get(f"version.{package.lower().replace('-', '_')}", ())


def of_message(text: str) -> Facts:
    """Facts in a message: shapes, dtypes, sizes, operators, error codes, peers, paths, names."""
    by_name: dict[str, tuple[str, ...]] = {}
    for name, pattern in _MESSAGE.items():
        values = dict.fromkeys(
            next((part for part in match.groups() if part), match[0]).strip(" \\")[:_LONGEST_VALUE]
            for match in pattern.finditer(text)
        )
        if values:
            by_name[name] = tuple(values)[:_MOST_VALUES]
    numbers = dict.fromkeys(match[1] for match in _ERRNO.finditer(text))
    if numbers:
        by_name["errno"] = tuple(f"{number} {errno.errorcode.get(int(number), '')}".strip() for number in numbers)
    return by_name


def statement(message: str) -> str:
    """Remove quoted and repeated commands, lists of valid values, and advice at the end from a message."""
    return _ADVICE.split(_ALLOWED.sub("", ENDED.sub("", _COMMAND.sub("", message))), maxsplit=1)[0]


def told(message: Facts, sentence: str) -> str:
    """At most three facts of one kind that `sentence` lacks, as "a, b"; empty if there are none."""
    for name in _TOLD:
        shown: list[str] = []
        for value in message.get(name, ()):
            is_new = value not in sentence and not any(value in each or each in value for each in shown)
            is_name = _IS_NAME.search(value) and not value.isdigit() and not value.endswith(_SOURCES)
            if is_new and is_name and len(value) <= _LONGEST_TOLD:
                shown.append(value)
        if shown:
            return ", ".join(shown[:_MOST_TOLD])
    return ""


def satisfied(requires: dict[str, LazyPattern], facts: Facts) -> dict[str, str] | None:
    """Named groups of the required patterns in the facts; None if one of them does not match."""
    names: dict[str, str] = {}
    for name, pattern in requires.items():
        match = next(filter(None, map(pattern.search, facts.get(name, ()))), None)
        if match is None:
            return None
        names.update({key: value for key, value in match.groupdict().items() if value})
    return names


def _largest(values: Iterable[str]) -> int:
    return max(map(int, values), default=0)
