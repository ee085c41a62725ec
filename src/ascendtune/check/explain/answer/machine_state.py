"""State of this machine as far as a remedy depends on it: installed packages, used ports, variables, free space."""

from __future__ import annotations

import ast
import errno
import importlib.metadata
import importlib.util
import os
import re
import resource
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ascendtune.check.explain.event.event import Event
from ascendtune.check.explain.facts.facts import Facts, of_message
from ascendtune.check.explain.language import say
from ascendtune.check.explain.package.api_change import missing_in
from ascendtune.check.explain.package.spelling import meant
from ascendtune.core.mask import without_secrets
from ascendtune.core.threads import run_in_daemon_thread
from ascendtune.core.units import format_bytes

_VARIABLE = re.compile(r"(?<![\w/$.])[A-Z][A-Z0-9]+(?:_[A-Z0-9]+)+(?![\w/])")
_MODULE = re.compile(r"No module named ['\"]?([\w.]+)")
_LARGEST_SOURCE = 4 << 20
"""Most bytes of a module's file that is read for its names."""
_MOST = 3
_LONGEST_VALUE = 80
_PATIENCE_SECONDS = 2.0
_SHARED_MEMORY = Path("/dev/shm")
_IS_FULL = re.compile(r"No space left|StorageFull|[Qq]uota exceeded")
"""Failures to write a file, for which the directory above it counts."""


@dataclass(frozen=True)
class Here:
    """This machine, as far as remedies depend on it."""

    environment: Mapping[str, str]
    version_of: Callable[[str], str | None]
    """Version of a module of this Python; "" if it has none, None if the module is not installed."""
    is_taken: Callable[[int], bool]
    """Whether a port of this machine is in use."""
    free_bytes: Callable[[Path], int | None]
    """Free bytes of the file system of an existing path; None if the path does not exist.

    Raises:
        TimeoutError: the file system does not answer.
        PermissionError: a directory above it may not be entered by this user.
    """
    open_files: Callable[[], int]
    """Limit of open files of this process."""
    names_in: Callable[[str], frozenset[str]] = lambda _: frozenset()
    """Names in the file of a module of this Python, read without running it; none if the file does not exist."""
    has_module: Callable[[str], bool] = lambda _: True
    """Whether an installed package of this Python has a file for one of its modules, "package.module"."""


def on_this_machine(first: Event, remedies: tuple[str, ...], facts: Facts, here: Here) -> tuple[str, ...]:
    """At most three sentences on the state of this machine, for the failure and its remedies.

    Args:
        facts: facts of the log.
    """
    text = " ".join(remedies)
    message = of_message(first.message)
    sentences = [
        *_modules(first, here),
        *_names(first, here),
        *_ports(first, text, facts, here),
        *_space(first, text, message, here),
        *_variables(text, here),
    ]
    if "ulimit -n" in text:
        sentences.append(say("the limit of open files is {limit}", limit=here.open_files()))
    return tuple(sentences[:_MOST])


def this_machine() -> Here:
    return Here(os.environ, _version_of, _is_taken, _free_bytes, _open_files, _names_in, _has_module)


def _modules(first: Event, here: Here) -> Iterator[str]:
    if match := _MODULE.search(first.message):
        module, python = match[1].rstrip("."), sys.executable
        package, _, part = module.partition(".")
        version = here.version_of(package)
        if version is None:
            yield say("{module} is not installed in {python}", module=package, python=python)
        elif part and not here.has_module(module):
            name = f"{package} {version}".strip()
            yield say("{package} of {python} has no {module}", package=name, python=python, module=module)
        else:
            name = f"{module} {version}".strip()
            yield say("{module} is installed in {python}: the job used another Python", module=name, python=python)


def _names(first: Event, here: Here) -> Iterator[str]:
    missing = missing_in(first.message)
    if missing is None:
        return
    module, name = missing
    names, python = here.names_in(module), sys.executable
    if name in names:
        yield say(
            "{module} of {python} has {name}: the job used another Python or copy",
            module=module,
            python=python,
            name=name,
        )
    elif close := meant(name, names):
        yield say("{module} of {python} has {close}, not {name}", module=module, python=python, close=close, name=name)


def _ports(first: Event, remedies: str, facts: Facts, here: Here) -> Iterator[str]:
    names_port = "port" in f"{first.text} {first.entry.what} {remedies}".lower()
    ports = [first.hit.names["port"]] if "port" in first.hit.names else list(facts.get("port", ()))[:1]
    for port in ports:
        if names_port and port.isdecimal() and 0 < int(port) < 1 << 16:
            state = "port {port} is taken" if here.is_taken(int(port)) else "port {port} is free"
            yield say(state, port=port)


def _space(first: Event, remedies: str, message: Facts, here: Here) -> Iterator[str]:
    named = [Path(path) for path in message.get("path", ()) if path.startswith("/")][:1]
    if str(_SHARED_MEMORY) in remedies or "shm-size" in remedies:
        named = [_SHARED_MEMORY]
    for path in named:
        try:
            free, above = here.free_bytes(path), path
            while free is None and _IS_FULL.search(first.text) and above != above.parent:
                above = above.parent
                free = here.free_bytes(above)
        except TimeoutError:
            yield say("{path} does not answer", path=path)
        except PermissionError:
            yield say("{path} may not be entered by this user", path=path)
        else:
            if free is None:
                yield say("{path} does not exist", path=path)
            elif above != path:
                sentence = "{path} does not exist; {free} are free in {above}"
                yield say(sentence, path=path, free=format_bytes(free), above=above)
            else:
                yield say("{path} exists, {free} are free there", path=path, free=format_bytes(free))


def _variables(remedies: str, here: Here) -> Iterator[str]:
    for name in dict.fromkeys(_VARIABLE.findall(remedies)):
        value = here.environment.get(name)
        if value is None:
            yield say("{name} is not set in this shell", name=name)
            continue
        shown = without_secrets(f"{name}={value}").removeprefix(f"{name}=")
        if shown == "***":
            yield say("{name} is set in this shell", name=name)
        else:
            yield say("{name} is {value} in this shell", name=name, value=shown[:_LONGEST_VALUE])


def _version_of(module: str) -> str | None:
    try:
        if importlib.util.find_spec(module) is None:
            return None
    except (ImportError, ValueError):
        return None
    for name in importlib.metadata.packages_distributions().get(module, ()):
        return importlib.metadata.version(name)
    return ""


def _names_in(module: str) -> frozenset[str]:
    with suppress(ImportError, ValueError, OSError, SyntaxError, RecursionError):
        file = _file_of(module)
        if file is not None and file.suffix == ".py" and file.stat().st_size <= _LARGEST_SOURCE:
            return frozenset(_named(ast.parse(file.read_text(encoding="utf-8")).body))
    return frozenset()


def _has_module(module: str) -> bool:
    """Whether a module exists; also True if unknown, as for a package without its own file."""
    with suppress(ImportError, ValueError, OSError):
        spec = importlib.util.find_spec(module.partition(".")[0])
        if spec is None or spec.origin is None:
            return True
        file = Path(spec.origin).parent.joinpath(*module.split(".")[1:])
        return file.is_dir() or any(file.parent.glob(f"{file.name}.*"))
    return True


def _file_of(module: str) -> Path | None:
    """Source of a module of this Python; None if it does not exist, or is not Python."""
    root, *parts = module.split(".")
    # find_spec of an inner module would run the outer one.
    spec = importlib.util.find_spec(root)
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin)
    if not parts:
        return file
    inner = file.parent.joinpath(*parts)
    return next(filter(Path.is_file, (inner.with_suffix(".py"), inner / "__init__.py")), None)


def _named(statements: list[ast.stmt]) -> Iterator[str]:
    """Names that statements of a module define, and strings that may be names (`__all__`, tables of lazy names)."""
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.alias):
                yield node.asname or node.name
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                yield node.value


def _is_taken(port: int) -> bool:
    """Whether a server of this machine listens on the port, on any address."""
    return any(_cannot_bind(family, port) for family in (socket.AF_INET, socket.AF_INET6))


def _cannot_bind(family: socket.AddressFamily, port: int) -> bool:
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(("", port))
    except OSError as error:
        # Other errors (a port below 1024, no IPv6) do not show that it is used.
        return error.errno == errno.EADDRINUSE
    return False


def _free_bytes(path: Path) -> int | None:
    def look() -> int | None:
        try:
            return shutil.disk_usage(path).free
        except PermissionError:
            raise
        except OSError:
            return None

    # A path may be on a file system whose server does not answer.
    return run_in_daemon_thread(look).result(_PATIENCE_SECONDS)


def _open_files() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
