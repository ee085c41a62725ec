"""Children that need not import torch: forked from a process that has imported the libraries.

Importing torch and transformers costs a process 6 to 8 CPU seconds, a run of two ranks 20. Within `preloaded()` a child
that is started as `[sys.executable, "-m", "ascendtune…", …]`, or with a file of tests/ as its program, is forked from a
process that has imported the libraries. The same applies to what it starts, and to what it becomes by exec.

That process has also imported ascendtune's modules, several times, and taken them out of `sys.modules` each time. A
program of ascendtune gets one of these copies, in which nothing has run. Imports form no cycle
(`tests/unit/test_guards.py`), so that the order in which modules were imported makes no difference.

A forked child has the pid, parent, session, descriptors, signal handlers, directory, arguments and environment that
it would have otherwise, also in /proc. Differences: all share one hash seed; no library is imported again, so that
its caches lie below the XDG_CACHE_HOME of the test process; `os.fsync` does not wait; pictures are composed and saved
as empty files, because drawing one takes longer than these trainings do, and has tests of its own.

What ssh starts on a simulated host (tests/cluster.py) is forked, too: `host_command.py` asks for it.

An interpreter is started as usual where a variable differs that takes effect while it starts (PYTHONPATH, LD_PRELOAD,
HF_HOME, …), and where the kernel does not let a process change what /proc shows of it.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import fcntl
import gc
import importlib
import json
import logging
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from inspect import signature
from itertools import dropwhile
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import unsynced

_LIBRARIES = (
    "torch", "torch.distributed.run", "torch.distributed.fsdp", "torch.nn.parallel",
    "torch.distributed.elastic.multiprocessing.api", "transformers", "transformers.modeling_utils", "peft",
    "transformers.models.qwen2.modeling_qwen2", "transformers.models.auto.modeling_auto", "tokenizers",
    "transformers.models.auto.tokenization_auto", "safetensors.torch", "pyarrow.compute", "pandas", "numpy",
    "jinja2", "yaml", "psutil", "pydantic.main", "pydantic.json_schema", "typer.main", "rich.console", "rich.progress",
    "matplotlib.figure", "matplotlib.backends.backend_agg", "matplotlib.ticker", "typer._adapters",
    "pydantic.type_adapter", "pyarrow.pandas_compat", "peft.utils.transformers_weight_conversion", "encodings.idna",
)  # fmt: skip
_AT_START = ("PYTHON", "LD_", "OMP_", "MKL_", "HF_", "TRANSFORMERS_", "TORCH_DEVICE", "LANG", "LC_")
"""Beginnings of the names of variables that take effect while an interpreter and its libraries start."""
_SAFE_PATH = "PYTHONSAFEPATH"
"""Such a variable, too; a forked process does what an interpreter does with it."""
_ORIGINAL: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_ASKED = tuple(signature(_ORIGINAL).parameters)
_TORCHRUN = "torch.distributed.run"
_TESTS = Path(__file__).parent
_PATIENCE_SECONDS = 300
_COPIES = 3
"""A command may start a command, which becomes a worker. More programs in a row import ascendtune anew."""
_HIGH = 1000
"""Descriptors from here on are free."""
_PR_SET_MM, _PR_SET_MM_MAP, _PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 35, 14, 36, 37
_LIBC = ctypes.CDLL(None, use_errno=True)
_copies: list[dict[str, ModuleType]] = []
"""Name of a module of ascendtune -> the module; no program has had it yet."""
_kept: list[Any] = []
"""Of the program that this process was before: it must not be cleared up, as exec would not."""


def _can_be_forked(asked: Mapping[str, Any], variables: Mapping[str, str]) -> bool:
    if isinstance(asked["args"], str | bytes) or asked["shell"] or asked["executable"]:
        return False
    if asked["gid"] is not None or asked["uid"] is not None or asked["gids"] is not None:
        return False
    return _is_ours([os.fsdecode(each) for each in asked["args"]]) and variables == _at_start(
        _text(os.environ if asked["env"] is None else asked["env"])
    )


def _is_ours(argv: Sequence[str]) -> bool:
    program = _program(argv)
    if argv[0] != sys.executable or not program:
        return False
    if program[0] == "-m":
        module = "".join(program[1:2])
        return module.split(".")[0] == "ascendtune" or module == _TORCHRUN
    return Path(program[0]).is_relative_to(_TESTS) and program[0] != __file__


_OPTIONS = ("-u", "-P")


def _program(argv: Sequence[str]) -> list[str]:
    """What follows the interpreter, -u and -P: "-m", a module and its arguments; or a file and its arguments."""
    return list(dropwhile(_OPTIONS.__contains__, argv[1:]))


def _text(env: Mapping[Any, Any]) -> dict[str, str]:
    return {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}


def _at_start(env: Mapping[str, str]) -> dict[str, str]:
    # What torch and torchrun set themselves in the environment of their children is the same there.
    return {name: value for name, value in env.items() if name.startswith(_AT_START) and value and name != _SAFE_PATH}


def _descriptors(asked: Mapping[str, Any]) -> dict[int, int]:
    """Number in the child -> number here."""
    streams = {0: asked["p2cread"], 1: asked["c2pwrite"], 2: asked["errwrite"]}
    opened = {target: target if given == -1 else given for target, given in streams.items()}
    return {**opened, **{each: each for each in asked["pass_fds"]}}


def _started(asked: Mapping[str, Any], pid: int) -> None:
    popen = asked["self"]
    popen.pid = pid
    popen._child_created = True
    popen._close_pipe_fds(*(asked[each] for each in _PIPES))


_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


class Preloaded:
    """The process that has imported the libraries, for the one whose children it makes. It starts when needed."""

    def __init__(self) -> None:
        self._variables = _at_start(os.environ)
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def children(self) -> Iterator[None]:
        """Within it, subprocess.Popen of this process forks what can be forked."""

        def execute_child(*given: Any) -> None:
            asked = dict(zip(_ASKED, given, strict=True))
            is_possible = not asked["preexec_fn"] and asked["close_fds"] and _can_be_forked(asked, self._variables)
            if is_possible and (pid := self._start(asked)):
                _started(asked, pid)
            else:
                _ORIGINAL(*given)

        before = subprocess.Popen._execute_child  # type: ignore[attr-defined]
        subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]
        try:
            yield
        finally:
            subprocess.Popen._execute_child = before  # type: ignore[attr-defined]

    def listen(self, path: Path) -> None:
        """Fork programs for `host_command.py`, too, which connects to a socket at `path`."""
        with self._lock:
            connection = self._connect()
            connection.sendmsg([json.dumps({"listen": str(path)}).encode()])
            connection.recv(32)

    def end(self) -> None:
        if self._socket and self._process:
            self._socket.close()
            self._process.kill()
            self._process.wait()

    def _connect(self) -> socket.socket:
        if not self._socket:
            ours, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            argv = [sys.executable, __file__, str(other.fileno())]
            # The first that needs it may have changed some of them for itself.
            others = {name: value for name, value in os.environ.items() if not name.startswith(_AT_START)}
            asked = {
                "env": {**others, **self._variables},
                "cwd": "/",
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.DEVNULL,
                "stderr": subprocess.DEVNULL,
            }
            with other:
                self._process = subprocess.Popen(argv, pass_fds=[other.fileno()], **asked)  # type: ignore[call-overload]
            ours.settimeout(_PATIENCE_SECONDS)
            self._socket = ours
            # When the libraries are there: this process adopts orphans for a moment only.
            ours.recv(32)
        return self._socket

    def _start(self, asked: Mapping[str, Any]) -> int:
        """The pid of a new child of this process; 0 if none can be made."""
        if os.getpid() != self._owner:
            # Forked: the children of the other process would not be ours.
            return 0
        opened = _descriptors(asked)
        request = {
            "argv": [os.fsdecode(each) for each in asked["args"]],
            "env": _text(os.environ if asked["env"] is None else asked["env"]),
            "cwd": os.fsdecode(asked["cwd"] or Path.cwd()),
            "targets": list(opened),
            "session": asked["start_new_session"],
            "group": asked["process_group"],
            "umask": asked["umask"] if asked["umask"] >= 0 else _umask(),
            "parent": os.getpid(),
        }
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", list(opened.values())))]
        with self._lock:
            try:
                connection = self._connect()
                with _adopting():
                    connection.sendmsg([json.dumps(request).encode()], rights)
                    return int(connection.recv(32) or 0)
            except OSError:
                # It has ended, or does not answer: interpreters are started instead, which takes longer.
                self.end()
                return 0


@contextmanager
def _adopting() -> Iterator[None]:
    """Meanwhile the parent of an orphan below this process is this process."""
    before = ctypes.c_int()
    _LIBC.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before))
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, before.value)


def _umask() -> int:
    # The call that tells it would change it, for other threads too.
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Umask:")), 8)


# In the process that has imported the libraries


@dataclass
class _Base:
    """The process that has imported the libraries, before anything ran in it."""

    variables: dict[str, str]
    path: list[str]
    filters: list[Any]
    streams: dict[str, tuple[str, str]]
    """Name -> encoding and errors."""
    execve: Any


_base = _Base({}, [], [], {}, os.execve)


def _serve(descriptor: int) -> None:
    global _base
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    unsynced.install()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in _LIBRARIES:
            with suppress(ImportError):
                importlib.import_module(name)
        with suppress(Exception):
            importlib.import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("")
        with suppress(ImportError):
            importlib.import_module("matplotlib.figure").Figure.savefig = lambda *_, **__: None
        _copies.extend(_import_ours() for _ in range(_COPIES))
    path = [each for each in sys.path if each != str(_TESTS)]
    streams = {name: (getattr(sys, name).encoding, getattr(sys, name).errors) for name in ("stdin", "stdout", "stderr")}
    _base = _Base(_at_start(os.environ), path, warnings.filters[:], streams, os.execve)
    can_show = True
    try:
        _show(sys.orig_argv, os.environ)
    except OSError:
        can_show = False
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=descriptor) as asker:
        asker.send(b"ready")
        listening: list[socket.socket] = []
        while True:
            for each in select.select([asker, *listening], [], [])[0]:
                if each is not asker:
                    _accept(each)
                elif not _answer_asker(asker, listening, can_show=can_show):
                    return


def _answer_asker(asker: socket.socket, listening: list[socket.socket], *, can_show: bool) -> bool:
    """False once the asker has ended."""
    content, descriptors, *_ = socket.recv_fds(asker, 1 << 20, 64)
    if not content:
        return False
    request, pid = json.loads(content), 0
    if not can_show:
        pass
    elif path := request.get("listen"):
        listening.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listening[-1].bind(path)
        listening[-1].listen()
    else:
        pid = _grandchild(request, descriptors)
    for each in descriptors:
        os.close(each)
    asker.send(str(pid).encode())
    return True


def _accept(listening: socket.socket) -> None:
    connection, _ = listening.accept()
    with connection, suppress(ChildProcessError):
        if not os.fork():
            try:
                _stand_by(connection)
            finally:
                os._exit(0)
        # Those that have ended since.
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _stand_by(connection: socket.socket) -> None:
    """Be the parent of a program on a host; tell `host_command.py` how it ends."""
    _close_others({connection.fileno()})
    content, descriptors, *_ = socket.recv_fds(connection, 1 << 20, 64)
    request = json.loads(content)
    if not _is_ours(request["argv"]) or _of_interpreter(request["env"]) != _of_interpreter(_base.variables):
        connection.send(b"no")
        return
    reader, writer = os.pipe()
    if pid := os.fork():
        for each in descriptors:
            os.close(each)
        _answer(reader, writer)
        connection.send(b"started")
        _, status = os.waitpid(pid, 0)
        connection.send(str(status).encode())
        return
    try:
        for each in descriptors[3:]:
            if _LIBC.setns(each, 0):
                raise OSError(ctypes.get_errno(), "setns")
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.chdir(request["cwd"])
        streams = dict(enumerate(descriptors[:3]))
        _begin(request["argv"], request["env"], streams, writer, session=True, group=None)
    finally:
        traceback.print_exc()
        os._exit(255)


def _of_interpreter(env: Mapping[str, str]) -> dict[str, str]:
    """Streams are not buffered where the program's environment says so."""
    return {
        name: value for name, value in _at_start(env).items()
        if name.startswith(("PYTHON", "LD_")) and name != "PYTHONUNBUFFERED"
    }  # fmt: skip


def _import_ours() -> dict[str, ModuleType]:
    """A copy of ascendtune's modules, but for programs and those that import a vendor's libraries."""
    (root,) = importlib.import_module("ascendtune").__path__
    for path in sorted(Path(root).rglob("*.py")):
        is_program = b'__name__ == "__main__"' in path.read_bytes() or "startup" in path.parts
        if not is_program and path.stem not in ("npu", "liger", "__init__"):
            # What cannot be imported is an error of the program that needs it.
            with suppress(Exception):
                importlib.import_module(".".join(path.relative_to(Path(root).parent).with_suffix("").parts))
    return _take_ours()


def _take_ours() -> dict[str, ModuleType]:
    return {each: sys.modules.pop(each) for each in list(sys.modules) if each.split(".")[0] == "ascendtune"}


def _grandchild(request: dict[str, Any], descriptors: list[int]) -> int:
    """Fork twice: the parent of an orphan is the asker, which adopts. Returns the pid."""
    reader, writer = os.pipe()
    between = os.fork()
    if not between:
        between = os.getpid()
        if os.fork():
            os._exit(0)
        _be_grandchild(request, descriptors, writer, between)
    os.waitpid(between, 0)
    return _answer(reader, writer)


def _answer(reader: int, writer: int) -> int:
    """The pid of a forked process, once it is what it is to be; 0 if it has ended before."""
    os.close(writer)
    try:
        return int(os.read(reader, 32) or 0)
    finally:
        os.close(reader)


def _be_grandchild(request: dict[str, Any], descriptors: list[int], ready: int, between: int) -> NoReturn:
    while (parent := os.getppid()) != request["parent"]:
        if parent != between:
            # The asker has ended, or waits no longer.
            os._exit(1)
        time.sleep(0.0005)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    opened = dict(zip(request["targets"], descriptors, strict=True))
    _begin(request["argv"], request["env"], opened, ready, session=request["session"], group=request["group"])


# In a forked process


def _begin(
    argv: list[str], env: Mapping[str, str], opened: Mapping[int, int], ready: int, *, session: bool, group: int | None
) -> NoReturn:
    if session:
        os.setsid()
    if group is not None and group >= 0:
        os.setpgid(0, group)
    # Not onto one that is still to be moved.
    high = {target: fcntl.fcntl(number, fcntl.F_DUPFD, _HIGH) for target, number in opened.items()}
    for target, number in high.items():
        os.dup2(number, target)
    told = fcntl.fcntl(ready, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    _close_others({*opened, told})
    _become(argv, env, told)


def _close_others(kept: set[int]) -> None:
    for each in _open_descriptors():
        if each not in kept:
            os.close(each)


def _open_descriptors() -> list[int]:
    """Without the three streams."""
    found = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208  # Path.iterdir opens more
    # One was that of the directory itself.
    return [each for each in found if each > 2 and os.path.lexists(f"/proc/self/fd/{each}")]


def _become(argv: list[str], env: Mapping[str, str], ready: int | None = None) -> NoReturn:
    """Be the program `argv`, as after exec. Writes the pid to `ready` when others see it as that."""
    code = 1
    try:
        _reset_signals()
        os.environ.clear()
        os.environ.update(env)
        _show(argv, env)
        if ready is not None:
            os.write(ready, str(os.getpid()).encode())
            os.close(ready)
        _forget_program()
        _open_streams(is_unbuffered="-u" in argv[1:3] or bool(env.get("PYTHONUNBUFFERED")))
        sys.orig_argv, program = list(argv), _program(argv)
        first = str(Path.cwd()) if program[0] == "-m" else str(Path(program[0]).parent)
        is_safe = "-P" in argv[1:3] or env.get(_SAFE_PATH)
        sys.path[:] = [*([] if is_safe else [first]), *_base.path]
        os.execve = _exec  # type: ignore[assignment]
        os.execv = lambda path, words: _exec(path, words, os.environ)  # type: ignore[assignment]
        subprocess.Popen._execute_child = _fork  # type: ignore[attr-defined]
        if program[0] == "-m":
            sys.argv = program[1:]
            if _copies and not program[1].startswith((_TORCHRUN, "ascendtune.job.")):
                # Those others import little.
                sys.modules.update(_copies.pop())
                if program[1] != "ascendtune":
                    # It runs as __main__.
                    sys.modules.pop(program[1], None)
            code = _exit_code(lambda: runpy.run_module(program[1], run_name="__main__", alter_sys=True))
        else:
            sys.argv = program
            code = _exit_code(lambda: runpy.run_path(program[0], run_name="__main__"))
    except BaseException:  # noqa: BLE001  # whatever it is, this process must not go on as its parent would
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
        with suppress(BaseException):
            atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code)


def _exit_code(run: Callable[[], object]) -> int:
    """As the interpreter gives it."""
    try:
        _set_signals_of_interpreter()
        run()
    except SystemExit as left:
        if left.code is None or isinstance(left.code, int):
            return (left.code or 0) & 0xFF
        print(left.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001  # as the interpreter does
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


def _exec(path: Any, words: Sequence[Any], env: Mapping[Any, Any]) -> None:
    argv, variables = [os.fsdecode(each) for each in words], _text(env)
    if not _is_ours(argv) or os.fsdecode(path) != sys.executable or _at_start(variables) != _base.variables:
        _base.execve(path, words, env)
    gc.collect()
    _close_others({each for each in _open_descriptors() if os.get_inheritable(each)})
    _become(argv, variables)


def _fork(*given: Any) -> None:
    """Of Popen: fork this process where it would start another interpreter for ascendtune."""
    asked = dict(zip(_ASKED, given, strict=True))
    if not _can_be_forked(asked, _base.variables):
        _ORIGINAL(*given)
        return
    env, opened = _text(os.environ if asked["env"] is None else asked["env"]), _descriptors(asked)
    reader, writer = os.pipe()
    if pid := os.fork():
        _answer(reader, writer)
        _started(asked, pid)
        return
    try:
        if asked["cwd"] is not None:
            os.chdir(asked["cwd"])
        if asked["umask"] >= 0:
            os.umask(asked["umask"])
        if not asked["close_fds"]:
            opened |= {each: each for each in _open_descriptors() if os.get_inheritable(each)}
        if asked["preexec_fn"]:
            asked["preexec_fn"]()
        argv = [os.fsdecode(each) for each in asked["args"]]
        _begin(argv, env, opened, writer, session=asked["start_new_session"], group=asked["process_group"])
    finally:
        traceback.print_exc()
        os._exit(255)


def _reset_signals() -> None:
    """As exec does: those that are ignored stay ignored. Ctrl-C ends the process, until the program runs."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError, ValueError):
            if signal.getsignal(number) is not signal.SIG_IGN:
                is_blocked = number == signal.SIGINT and number in signal.pthread_sigmask(signal.SIG_BLOCK, [])
                signal.signal(number, _interrupt_when_unblocked if is_blocked else signal.SIG_DFL)


def _set_signals_of_interpreter() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def _interrupt_when_unblocked(number: int, frame: Any) -> None:
    """Threads of the program before, which exec would have ended, take signals that the main thread has blocked."""
    if number in signal.pthread_sigmask(signal.SIG_BLOCK, []):
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:
        signal.default_int_handler(number, frame)


def _forget_program() -> None:
    """What the process was before: its modules of ascendtune, its streams, its handlers."""
    _kept.append(_take_ours())
    _kept.extend(sys.modules.pop(each, None) for each in ("__main__", _TORCHRUN))
    _kept.extend((sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__))
    tempfile.tempdir = None
    time.tzset()
    sys.excepthook, sys.unraisablehook = sys.__excepthook__, sys.__unraisablehook__
    warnings.filters[:] = _base.filters  # type: ignore[index]
    logging.getLogger("ascendtune").handlers.clear()
    for each in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        each.atexit = False


def _open_streams(*, is_unbuffered: bool) -> None:
    for number, (name, (encoding, errors)) in enumerate(_base.streams.items()):
        stream: Any = None
        with suppress(OSError):
            stream = open(  # noqa: SIM115
                number, "w" if number else "r", closefd=False, encoding=encoding, errors=errors
            )
            if number:
                is_by_line = not is_unbuffered and (number == 2 or stream.isatty())
                stream.reconfigure(write_through=is_unbuffered, line_buffering=is_by_line)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


class _MemoryMap(ctypes.Structure):
    """prctl_mm_map of linux/prctl.h."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in (
            "start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack",
            "arg_start", "arg_end", "env_start", "env_end",
        )),
        ("auxv", ctypes.c_void_p), ("auxv_size", ctypes.c_uint32), ("exe_fd", ctypes.c_uint32),
    ]  # fmt: skip


def _show(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Let /proc/PID/cmdline and /proc/PID/environ be these.

    Raises:
        OSError: the kernel does not allow it.
    """
    words = b"".join(os.fsencode(each) + b"\0" for each in argv)
    variables = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in env.items())
    area = ctypes.create_string_buffer(words + variables)
    _kept.append(area)
    # Without the pid and the name, which may hold spaces; the first of these is field 3.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start_code, end_code, start_stack = (int(fields[each - 3]) for each in (26, 27, 28))
    start_data, end_data, start_brk = (int(fields[each - 3]) for each in (45, 46, 47))
    _LIBC.sbrk.restype = ctypes.c_void_p
    begin = ctypes.addressof(area)
    middle, end = begin + len(words), begin + len(words) + len(variables)
    places = (
        start_code,
        end_code,
        start_data,
        end_data,
        start_brk,
        _LIBC.sbrk(0),
        start_stack,
        begin,
        middle,
        middle,
        end,
    )
    memory = _MemoryMap(*places, None, 0, 0xFFFFFFFF)
    size = ctypes.c_ulong(ctypes.sizeof(memory))
    if _LIBC.prctl(_PR_SET_MM, ctypes.c_ulong(_PR_SET_MM_MAP), ctypes.byref(memory), size, ctypes.c_ulong(0)):
        raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
