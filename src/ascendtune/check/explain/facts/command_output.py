"""Facts from the output of commands near a failure: the process that listens on a used port, srun's MPI types, the
options of a job's submission, the versions of NVIDIA's driver."""

from __future__ import annotations

import re
from collections.abc import Iterator

_IN_USE = re.compile(r"^.*(?:in use|already allocated|eaddrinuse|errno: 98).*$", re.MULTILINE)
_PORT = re.compile(r"(?<![\d.])\d{2,5}(?![\d.])")
_LISTENERS = (
    re.compile(
        r"(?<!\S)(?P<program>[\w./+-]+) +(?P<pid>\d+) +(?P<user>\S+) +\d+\w* +IPv[46] "
        r".*?TCP \S*:(?P<port>\d+) \(LISTEN\)",
        re.MULTILINE,
    ),  # lsof -i
    re.compile(
        r"\bLISTEN +\d+ +\d+ +\S*:(?P<port>\d+) +\S+ +users:\(\(\"(?P<program>[^\"\s]+)\",pid=(?P<pid>\d+)"
    ),  # ss -ltnp
    re.compile(
        r"(?<!\S)tcp6? +\d+ +\d+ +\S*:(?P<port>\d+) +\S+ +LISTEN +(?P<pid>\d+)/(?P<program>[^\s:]+)", re.MULTILINE
    ),  # netstat -ltnp
)
_MPI_LIST = "types are..."
_MPI_WITHIN = 24
"""Lines below the heading of `srun --mpi=list` that are searched for its rows."""
_MPI_TYPE = re.compile(r"(?:^|\s)(?P<type>none|openmpi|pmi2|pmix(?:_v\d)?|cray_shasta|mvapich|mpichgm|mpichmx|lam)\s*$")
_SUBMISSION = re.compile(
    r"(?<![#\w])#SBATCH[ \t]+(?P<header>.+)$|"
    r"(?<![\w.-])(?:(?P<step>srun)|sbatch|salloc)(?P<command>(?: +-{1,2}[\w-]+(?:[= ](?!-)[^\s;&|]+)?)+)",
    re.MULTILINE,
)
_OPTION = re.compile(
    r"(?<!\S)(?:--(?P<long>account|partition|qos|time)[= ] ?|-(?P<short>[Apqt])[= ]?)"
    r"(?P<value>[^\s=$<{\"'-][^\s$<{\"']*)"
)
_LONG = {"A": "account", "p": "partition", "q": "qos", "t": "time"}
_OPTIONS = tuple(_LONG.values())
_VERSION = r"\d{3}\.\d{2,3}(?:\.\d{2,3})?"
_MODULE = re.compile(
    rf"Kernel Module(?: for \S+)? +(?P<v>{_VERSION})\b|open-gpu-kernel-modules-(?P<source>{_VERSION})|"
    rf"\bnvidia(?:-open|-srv)?[/,] ?(?P<dkms>{_VERSION})\b.*: installed"
)
_LIBRARY = re.compile(
    rf"NVIDIA-Linux-\w+-(?P<run>{_VERSION})(?:[\w-]*)\.run\b.* --no-kernel-modules?\b|"
    rf"\blibnvidia-ml\.so\.(?P<file>{_VERSION})\b|NVML library version: (?P<nvml>{_VERSION})"
)

_ASKED_CUDA = re.compile(
    r"\b(?:cudatoolkit|pytorch-cuda)=+(?P<major>\d+)\.(?P<minor>\d+)|/whl/(?:nightly/)?cu(?P<number>\d{2,3})\b"
)
_DRIVER_CUDA = re.compile(r"Driver Version: (?P<driver>[\d.]+) +CUDA Version: (?P<major>\d+)\.(?P<minor>\d+)")
_ANY_MINOR = 11
"""CUDA release from which on a driver runs builds for all minor releases of its own major one."""
_BUILD_OPTION = re.compile(
    r"(?<!\S)(?P<option>-D ?(?:\w*_)?(?:WITH|USE|ENABLE|BUILD)_(?P<stem>\w{3,})=(?:ON|1|TRUE|YES)\b|"
    r"--(?:use|enable|with)[_-](?P<long>\w{3,})\b)",
    re.IGNORECASE,
)
_COMPILER_ERROR = re.compile(r"^.*?[:(]\d+(?:[:,]\d+)?\)?: (?:fatal )?error: .+$", re.MULTILINE)
_MOST_ERRORS = 5


def of_command_output(text: str, lower: str) -> Iterator[tuple[str, str]]:
    """Facts from the output of commands.

    `port_holder`: "PORT PROGRAM PID [USER]", for a port that is in use by another line; `slurm_mpi`: the types of
    `srun --mpi=list`; `slurm_options`: account, partition, qos and time from the job's script or command, as
    "account=a time=t", or "none"; `driver_pair`: "MODULE LIBRARY", two differing versions of NVIDIA's driver;
    `cuda_over_driver`: "CUDA DRIVERS_CUDA DRIVER", of an installation for a CUDA that the driver does not run;
    `build_option`: an option of the build, as "WITH_MOON=ON", whose name is in a compiler's error.

    Args:
        lower: `text` in lower case.
    """
    if "error: " in lower and ("cmake" in lower or "build" in lower):
        yield from _build_options(text)
    if "listen" in lower and ("in use" in lower or "already allocated" in lower or "eaddrinuse" in lower):
        yield from _port_holders(text, lower)
    if _MPI_LIST in lower:
        rows = text[lower.index(_MPI_LIST) :].split("\n", _MPI_WITHIN)[1:_MPI_WITHIN]
        if types := [row["type"] for row in map(_MPI_TYPE.search, rows) if row is not None]:
            yield "slurm_mpi", ", ".join(dict.fromkeys(types))
    if any(map(lower.__contains__, ("#sbatch", "sbatch -", "srun -", "salloc -"))):
        yield from _slurm_options(text)
    if "nvidia" in lower:
        yield from _driver_pair(text)
    if "cuda version: " in lower:
        yield from _cuda_over_driver(text)


def _build_options(text: str) -> Iterator[tuple[str, str]]:
    """Options of a build whose names occur in its first compiler errors."""
    errors = [error[0].lower() for _, error in zip(range(_MOST_ERRORS), _COMPILER_ERROR.finditer(text), strict=False)]
    for option in _BUILD_OPTION.finditer(text) if errors else ():
        stem = (option["stem"] or option["long"]).lower()
        if any(stem in error for error in errors):
            yield "build_option", option["option"].removeprefix("-D").strip()


def _port_holders(text: str, lower: str) -> Iterator[tuple[str, str]]:
    taken = {port for line in _IN_USE.finditer(lower) for port in _PORT.findall(line[0])}
    for pattern in _LISTENERS:
        for row in pattern.finditer(text):
            if row["port"] in taken:
                user = row.groupdict().get("user")
                yield "port_holder", " ".join(filter(None, (row["port"], row["program"], row["pid"], user)))


def _slurm_options(text: str) -> Iterator[tuple[str, str]]:
    """Options of the job; several values of one are joined with "|"."""
    named: dict[str, set[str]] = {}
    has_options = False
    for place in _SUBMISSION.finditer(text):
        has_options = has_options or not place["step"]
        for option in _OPTION.finditer(place["header"] or place["command"]):
            name = option["long"] or _LONG[option["short"]]
            named.setdefault(name, set()).add(option["value"])
    if has_options:
        options = (f"{name}={'|'.join(sorted(named[name]))}" for name in _OPTIONS if name in named)
        yield "slurm_options", " ".join(options) or "none"


def _driver_pair(text: str) -> Iterator[tuple[str, str]]:
    modules = [next(filter(None, match.groups())) for match in _MODULE.finditer(text)]
    libraries = [next(filter(None, match.groups())) for match in _LIBRARY.finditer(text)]
    # NVML reports only the first two of three numbers.
    whole = [library for library in libraries if library.count(".") == 2] or libraries
    if modules and whole:
        module, library = modules[-1], whole[-1]
        if not module.startswith(library) and not library.startswith(module):
            yield "driver_pair", f"{module} {library}"


def _cuda_over_driver(text: str) -> Iterator[tuple[str, str]]:
    shown = _DRIVER_CUDA.search(text)
    if shown is None:
        return
    most = int(shown["major"]), int(shown["minor"])
    for asked in _ASKED_CUDA.finditer(text):
        major, minor = asked["major"] or asked["number"][:-1], asked["minor"] or asked["number"][-1:]
        is_over = int(major) > most[0] or (int(major) == most[0] < _ANY_MINOR and int(minor) > most[1])
        if is_over:
            yield "cuda_over_driver", f"{major}.{minor} {most[0]}.{most[1]} {shown['driver']}"
