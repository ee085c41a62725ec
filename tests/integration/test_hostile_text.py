"""Names, logs, rows, keys and messages full of control sequences: no command lets one of them reach the terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ascendtune.cli.main import main
from ascendtune.core.rundir import RunDir
from ascendtune.job import registry
from ascendtune.job.spec import JobSpec

EVIL = "\x1b]52;c;ZXZpbCEh\x07\x1b[2J\x9b31m\rok\x08\u202egpj\u2066\u200b[link=http://x]y[/link]"
"""Writes the clipboard, clears the screen, paints, overwrites, erases, turns round; and Rich's markup."""
NAME = EVIL.replace("/", "")
PROOF = "52;c;ZXZpbCEh"
Called = Callable[..., tuple[bytes, bytes]]


def harmless(written: bytes) -> bool:
    text = written.decode()
    forbidden = [*range(9), *range(11, 32), *range(0x7F, 0xA0), 0x202E, 0x2066, 0x200B]
    return not any(chr(each) in text for each in forbidden)


@pytest.fixture
def called(capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Called:
    """What a command in this process writes to the descriptors of stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def call(*words: str) -> tuple[bytes, bytes]:
        # As in a process of its own: the streams of this test, not those of the one before.
        with pytest.raises(SystemExit):
            main(words)
        out, err = capfdbinary.readouterr()
        return out, err

    return call


@pytest.fixture
def bench(tmp_path: Path, tiny_model: Path, called: Called) -> Path:
    """A model, rows with hostile columns, recipes, a run, a job and logs."""
    (tmp_path / "model").symlink_to(tiny_model)
    (tmp_path / "columns.json").write_text(json.dumps([{EVIL: "a", "b": EVIL}] * 3))
    (tmp_path / "rows.json").write_text(json.dumps([{"instruction": "a", "output": "b"}] * 3))
    (tmp_path / "raises.jinja").write_text(f'{{{{ raise_exception("{EVIL}") }}}}')
    run = RunDir(tmp_path / "runs" / NAME)
    run.create(f"name: {json.dumps(EVIL)}\n", {}, {"data_hash": EVIL, "argv": ["train", EVIL], "host": EVIL})
    run.begin_attempt({"host": EVIL, "hosts": [EVIL], "device": EVIL})
    run.update(versions={EVIL: EVIL}, resolved={"attention": EVIL}, exit_cause={"kind": EVIL, "message": EVIL})
    run.end_attempt("failed")
    job = registry.register(JobSpec((EVIL, "train.py"), run.path, nproc=2, kind="cpu"), [EVIL], watched=False)
    job.logs.mkdir(parents=True, exist_ok=True)
    for name in ("job.log", "rank_0.log", "rank_1.log"):
        (job.logs / name).write_text(f"{EVIL}\nRuntimeError: {EVIL}\n")
    (tmp_path / "failed.log").write_text(
        f'Traceback (most recent call last):\n  File "{EVIL}.py", line 1, in f\nRuntimeError: {EVIL} [rank 1]\n'
    )
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / f"{NAME}.py").write_text(f"import flash_attn  # {EVIL}\nx.cuda()\n")
    return tmp_path


def _recipe(path: Path, **changes: Any) -> str:
    values = {"model": {"path": "model"}, "data": {"train": "rows.json"}, **changes}
    (path / "r.yaml").write_text(json.dumps(values))
    return "r.yaml"


_COMMANDS: dict[str, Callable[[Path], list[str]]] = {
    "unknown command": lambda _: [EVIL],
    "unknown option": lambda _: ["train", f"--{EVIL}"],
    "no such recipe": lambda _: ["train", NAME],
    "unknown key": lambda path: ["train", _recipe(path, **{EVIL: 1})],
    "override": lambda path: ["train", _recipe(path), f"{EVIL}=1"],
    "bad value": lambda path: ["recipe", "check", _recipe(path, precision=EVIL)],
    "name": lambda path: ["recipe", "check", _recipe(path, run_dir=f"runs/{EVIL}")],
    "no such model": lambda path: ["train", _recipe(path, model={"path": f"./{NAME}"})],
    "columns": lambda path: ["train", "--prepare", _recipe(path, data={"train": "columns.json"})],
    "template": lambda path: [
        "train",
        "--prepare",
        _recipe(path, data={"train": "rows.json", "template": "raises.jinja"}),
    ],
    "convert": lambda path: ["recipe", "convert", _recipe(path, model_name_or_path=EVIL, stage="sft")],
    "init": lambda _: ["init", "--model", "model", "--data", "columns.json", "-o", NAME],
    "generate": lambda _: ["generate", f"./{NAME}", "hi"],
    "merge": lambda _: ["merge", f"./{NAME.replace('=', '')}", "--to", "x"],
    "runs list": lambda _: ["runs", "list"],
    "runs list --json": lambda _: ["runs", "list", "--json"],
    "runs show": lambda _: ["runs", "show", f"runs/{NAME}"],
    "runs show --json": lambda _: ["runs", "show", f"runs/{NAME}", "--json"],
    "runs compare": lambda _: ["runs", "compare", f"runs/{NAME}", f"runs/{NAME}"],
    "jobs list": lambda _: ["jobs", "list", "--all"],
    "jobs list --json": lambda _: ["jobs", "list", "--all", "--json"],
    "jobs show": lambda _: ["jobs", "show", next(registry.jobs()).id],
    "jobs logs": lambda _: ["jobs", "logs", next(registry.jobs()).id],
    "explain": lambda _: ["explain", "failed.log"],
    "explain --json": lambda _: ["explain", "failed.log", "--json"],
    "explain run": lambda _: ["explain", f"runs/{NAME}"],
    "migrate check": lambda _: ["migrate", "check", "code"],
    "submit": lambda path: ["submit", _recipe(path, run_dir=f"runs/{NAME}"), "--to", "slurm"],
}
_SILENT = {"jobs logs", "jobs list", "explain run", "convert", "submit", "runs compare"}
"""These need not show the text: some leave sequences out or make names of them, some refuse earlier."""


@pytest.mark.parametrize("name", _COMMANDS)
def test_no_command_lets_control_sequences_through(name: str, bench: Path, called: Called) -> None:
    out, err = called(*_COMMANDS[name](bench))
    assert out or err
    assert harmless(out) and harmless(err), (out + err).decode(errors="backslashreplace")
    # A recipe with control characters is refused before any of it is said.
    assert PROOF.encode() in out + err or name in _SILENT or b"control character" in err, (out + err).decode()
    assert b"bug in ascendtune" not in err, err.decode()
    if "--json" in name:
        json.loads(out)


def test_printed_json_holds_the_text_as_it_was(bench: Path, called: Called) -> None:
    [shown] = json.loads(called("jobs", "list", "--all", "--json")[0])
    assert shown["run_dir"] == str(bench / "runs" / NAME)


def test_library_of_a_worker_cannot_write_sequences(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Warnings, tracebacks and prints of libraries go to the same streams."""
    import warnings

    from ascendtune.core import log
    from ascendtune.core.terminal_text import make_streams_safe

    make_streams_safe()
    log.set_up()
    log.warn(EVIL)
    warnings.warn(EVIL, stacklevel=1)
    print(EVIL)
    print(EVIL, file=sys.stderr)
    sys.stderr.writelines([EVIL, os.linesep])
    out, err = capfdbinary.readouterr()
    assert harmless(out) and harmless(err) and PROOF.encode() in out + err
