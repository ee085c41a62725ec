"""With any content of an input file, a command ends in time, with a message and one of our exit codes.

Seconds of it run with every test; `make soak` goes on for ASCENDTUNE_FUZZ_SECONDS (an hour by default) with new draws.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ascendtune.cli.main import main
from ascendtune.job.record import Job
from time_limit import time_limit

_SECONDS_FOR_AN_ANSWER = 30
_ROWS = [{"prompt": f"What is {n}?", "completion": f"It is {n}."} for n in range(4)]
_RECIPE: dict[str, Any] = {
    "name": "fuzzed",
    "model": {"path": "model"},
    "data": {"train": [{"path": "rows.json", "weight": 1.0, "columns": {}}], "max_length": 64, "processes": 1},
    "method": {"tuner": "lora", "lora": {"rank": 4, "target": ["q_proj"]}},
    "optim": {"learning_rate": 1e-3, "max_steps": 2},
    "batch": {"per_device": 1},
    "parallel": {"deepspeed": {"stage": 2}},
}
_TEMPLATE = (
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.n = ns.n + 1 %}{% endif %}"
    "<|im_start|>{{ m['role'] }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# What has broken readers before: of the wrong kind, too large, too deep, or no text.
_HOSTILE: list[Any] = [
    None, True, 0, -1, 1, 10**20, -(10**20), 1e308, float("inf"), float("nan"), "", " ", "x", "x" * 5000,
    "\0", "\x1b]52;c;eA==\a",
    "\ud800", "~nosuchuser", "../..", "/dev/zero", "/proc/kmsg", "1:30:00", "0x_", "9" * 5000, [], {}, [[]], [{}],
    {"": None},
    {"a": {"b": {"c": 1}}}, ["x"] * 300, "{{ x", "{% for i in range(100000) %}{{ i }}{% endfor %}", "\u202e",
]  # fmt: skip
_SNIPPETS = (
    b"\xff", b"\0", b"\xed\xa0\x80", b"{", b"[" * 300, b'"', b"&a *a", b"!!int ", b"<<: ", b"\n\n", b"9" * 400, b"{{ ",
    b"{% if",
    b" * 9", b"|center(9999999999)", b"e999", b"\xef\xbb\xbf", b"PAR1", b"\x1f\x8b",
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A file, what stands in it when it is well, and the command that reads it."""

    file: str
    content: Callable[[Path], bytes]
    words: tuple[str, ...]
    recipe: dict[str, Any] | None = None


def _json(values: Any) -> Callable[[Path], bytes]:
    return lambda _: json.dumps(values).encode()


def _of_model(name: str) -> Callable[[Path], bytes]:
    return lambda model: (model / name).read_bytes()


def _parquet(_: Path) -> bytes:
    import pyarrow
    import pyarrow.parquet

    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(_ROWS), file)
    return file.getvalue()


def _data(name: str) -> dict[str, Any]:
    return {**_RECIPE, "data": {"train": name, "max_length": 64, "processes": 1, "on_bad_row": "skip"}}


_PREPARE = ("train", "r.yaml", "--prepare")
_LINES = "".join(json.dumps(row) + "\n" for row in _ROWS).encode()
_CSV = b"prompt,completion\n" + b"".join(f'"{row["prompt"]}",{row["completion"]}\n'.encode() for row in _ROWS)
_ATTEMPT = {
    "attempt": 1, "started": 1.7e9, "ended": 1.7e9, "monotonic": 5.0, "pid": 2, "start_ticks": 3, "boot_id": "b",
    "pid_namespace": "pid:[1]", "host": "here", "state": "failed", "exit_code": 1, "step": 4,
}  # fmt: skip
_CAUSE = {"kind": "exit", "what": "it ended", "remedy": "look", "code": "process-exited", "exit_code": 1, "rank": 1}
_RUN = {
    "schema_version": 1, "state": "failed", "attempts": [_ATTEMPT], "name": "a", "exit_cause": _CAUSE, "resolved": {},
}  # fmt: skip
_JOB = Job(
    id="a-abcd", pid=2, start_ticks=3, boot_id="b", pid_namespace="pid:[1]", host="here", hosts=("here",), session=2,
    process_group=2, uid=0, run_dir=Path("runs/a"), argv=("x",), nproc=2, kind="npu", device_ids=("0", "1"),
    watched=True, log_sizes={"rank_1.log": 0}, started=1.7e9, ended=1.7e9, exit_code=1, started_monotonic=4.0,
    seconds=3.0,
).as_json()  # fmt: skip
TARGETS = {
    "recipe": Target("r.yaml", lambda _: yaml.safe_dump(_RECIPE).encode(), ("recipe", "check", "r.yaml")),
    "LLaMA-Factory recipe": Target(
        "r.yaml",
        lambda _: b"model_name_or_path: model\nstage: sft\ndo_train: true\nfinetuning_type: lora\ndataset: a\n"
        b"dataset_dir: .\ntemplate: qwen\ncutoff_len: 64\noutput_dir: out\nlearning_rate: 1.0e-4\n",
        ("recipe", "check", "r.yaml"),
    ),
    "dataset_info.json": Target(
        "dataset_info.json",
        _json({"a": {"file_name": "rows.json", "columns": {"prompt": "prompt", "response": "completion"}}}),
        ("recipe", "check", "r.yaml"),
        {"model_name_or_path": "model", "stage": "sft", "do_train": True, "finetuning_type": "lora", "dataset": "a",
         "dataset_dir": ".", "template": "qwen", "output_dir": "out"},
    ),
    "JSON rows": Target("rows.json", _json(_ROWS), _PREPARE, _data("rows.json")),
    "JSON lines": Target("rows.jsonl", lambda _: _LINES, _PREPARE, _data("rows.jsonl")),
    "CSV rows": Target("rows.csv", lambda _: _CSV, _PREPARE, _data("rows.csv")),
    "Parquet rows": Target("rows.parquet", _parquet, _PREPARE, _data("rows.parquet")),
    "chat template": Target(
        "model/chat_template.jinja", lambda _: _TEMPLATE.encode(), _PREPARE, _data("rows.json")
    ),
    "config.json": Target("model/config.json", _of_model("config.json"), _PREPARE, _data("rows.json")),
    "tokenizer.json": Target("model/tokenizer.json", _of_model("tokenizer.json"), _PREPARE, _data("rows.json")),
    "tokenizer_config.json": Target(
        "model/tokenizer_config.json", _of_model("tokenizer_config.json"), _PREPARE, _data("rows.json")
    ),
    "safetensors header": Target(
        "model/model.safetensors", _of_model("model.safetensors"), _PREPARE, _data("rows.json")
    ),
    "run.json": Target("runs/a/run.json", _json(_RUN), ("runs", "list")),
    "job registry": Target("state/ascendtune/jobs/a-abcd.json", _json(_JOB), ("jobs", "list", "--all")),
    "one job": Target("state/ascendtune/jobs/a-abcd.json", _json(_JOB), ("jobs", "show", "a-abcd")),
}  # fmt: skip


def _mutated(content: bytes, draw: random.Random) -> bytes:
    """The content with a value replaced, where it can be parsed, or with bytes cut, doubled and put in."""
    header = content[8 : 8 + struct.unpack("<Q", content[:8])[0]] if content[8:9] == b"{" else None
    if draw.random() < 0.6:
        with contextlib.suppress(Exception):
            values = json.loads(header or content)
            made = json.dumps(_with_hostile_value(values, draw)).encode()
            return struct.pack("<Q", len(made)) + made + content[8 + len(header) :] if header else made
        with contextlib.suppress(Exception):
            values = yaml.safe_load(content)
            if isinstance(values, dict):
                return yaml.safe_dump(_with_hostile_value(values, draw)).encode()
    for _ in range(draw.randint(1, 4)):
        begin = draw.randint(0, len(content))
        end = min(len(content), begin + draw.choice([0, 1, 3, 20, len(content)]))
        piece = draw.choice([b"", draw.choice(_SNIPPETS), content[begin:end] * 2, draw.randbytes(3)])
        content = content[:begin] + piece + content[end:]
    return content


def _with_hostile_value(values: Any, draw: random.Random) -> Any:
    if isinstance(values, dict) and values and draw.random() < 0.85:
        key = draw.choice(list(values))
        if draw.random() < 0.1:
            return {**values, draw.choice(["", "x" * 300, "\x1b[2J", "\ud800"]): values[key]}
        return {**values, key: _with_hostile_value(values[key], draw)}
    if isinstance(values, list) and values and draw.random() < 0.85:
        at = draw.randrange(len(values))
        return [*values[:at], _with_hostile_value(values[at], draw), *values[at + 1 :]]
    return draw.choice(_HOSTILE)


@pytest.fixture
def place(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(tiny_model, tmp_path / "model")
    (tmp_path / "rows.json").write_text(json.dumps(_ROWS))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _try(target: Target, place: Path, model: Path, draw: random.Random) -> None:
    file = place / target.file
    file.parent.mkdir(parents=True, exist_ok=True)
    content = _mutated(target.content(model), draw)
    if target.recipe is not None:
        (place / "r.yaml").write_text(yaml.safe_dump(target.recipe))
    file.write_bytes(content)
    said, code = io.StringIO(), None
    try:
        with (
            time_limit(_SECONDS_FOR_AN_ANSWER, f"{content[:2000]!r}"),
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
        ):
            main(target.words)
    except SystemExit as left:
        code = left.code
    found = f"{content[:2000]!r}\nexit code {code}\n{said.getvalue()[:3000]}"
    assert code in (0, 1, 2, 3, 4), found
    assert "this is a bug" not in found, found
    assert "Traceback" not in said.getvalue(), found


def _search(target: Target, place: Path, model: Path, examples: int, seed: int | None = None) -> None:
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=seed is None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.integers(0, 2**64))
    def search(drawn: int) -> None:
        _try(target, place, model, random.Random(f"{seed}/{drawn}"))

    search()


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_any_content_of_a_file_is_answered(target: Target, place: Path, tiny_model: Path) -> None:
    _search(target, place, tiny_model, examples=15)


@pytest.mark.soak
def test_any_content_is_answered_for_an_hour(place: Path, tiny_model: Path) -> None:
    until = time.monotonic() + float(os.environ.get("ASCENDTUNE_FUZZ_SECONDS", "3600"))
    draw = random.SystemRandom()
    while time.monotonic() < until:
        for target in TARGETS.values():
            _search(target, place, tiny_model, examples=50, seed=draw.getrandbits(32))
            shutil.rmtree(place / "model")
            shutil.copytree(tiny_model, place / "model")
            (place / "rows.json").write_text(json.dumps(_ROWS))
