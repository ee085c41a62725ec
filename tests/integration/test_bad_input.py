"""Faulty input gives one message with cause, remedy and place, and no traceback."""

from __future__ import annotations

import gzip
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from pydantic import BaseModel

from ascendtune.core.config import keys_of
from ascendtune.core.errors import MachineError
from ascendtune.core.locks import file_lock
from ascendtune.core.rundir import RunDir
from ascendtune.recipe.recipe import Recipe
from ascendtune.train import worker
from cluster import until
from python_path import python_path

if TYPE_CHECKING:
    from tests.integration.conftest import Workshop

pytestmark = pytest.mark.usefixtures("preloaded")

ROW = {"instruction": "Name the capital of France.", "output": "Paris."}
ROWS = [{**ROW, "output": f"Paris, said {n} people of {n + 3}."} for n in range(20)]
Text = str | bytes


def recipe(**changes: Any) -> dict[str, Any]:
    values = {
        "model": {"path": "model"},
        "data": {"train": "rows.json", "max_length": 64},
        "optim": {"learning_rate": 1e-3, "max_steps": 6},
        "track": {"tensorboard": False},
    }
    for section, change in changes.items():
        old = values.get(section)
        values[section] = {**old, **change} if isinstance(old, dict) and isinstance(change, dict) else change
    return values


@dataclass(frozen=True)
class Case:
    """What lies in the directory, what is typed, and what must be said."""

    name: str
    said: list[str]
    """Words of the message: what, remedy, place."""
    recipe: dict[str, Any] | Text = field(default_factory=recipe)
    files: dict[str, Text] = field(default_factory=dict)
    """Beside rows.json and the model; None in place of a file of the model removes it."""
    without: tuple[str, ...] = ()
    words: tuple[str, ...] = ("train", "r.yaml")
    code: int = 2


def _misspelt() -> Iterator[Case]:
    """Every section of the recipe, with the first of its keys misspelt."""
    for path in _sections(Recipe, ()):
        valid = keys_of(Recipe, path)
        wrong = valid[0][:-1] + valid[0][-1] * 2
        # A data set is an item of a list.
        values: Any = recipe(**({"data": {path[1]: [{"path": "rows.json"}]}} if 0 in path else {}))
        inner = values
        for part in path:
            if isinstance(inner, dict):
                inner = inner.setdefault(part, {})
            else:
                inner = inner[part]
        inner[wrong] = 1
        dotted, right = (".".join(map(str, (*path, key))) for key in (wrong, valid[0]))
        yield Case(f"misspelt {dotted}", [f"unknown key '{dotted}'", f"did you mean '{right}'?", "r.yaml:"], values)


def _sections(model: type[BaseModel], path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    yield path
    for name, each in model.model_fields.items():
        for inner in _models(each.annotation):
            yield from _sections(inner, (*path, name, 0) if "list" in str(each.annotation) else (*path, name))


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [found for each in getattr(annotation, "__args__", ()) for found in _models(each)]


def _impossible() -> Iterator[Case]:
    for word, said in [
        ("optim.learning_rate=-1", ["optim.learning_rate: -1", "greater than 0"]),
        ("optim.learning_rate=fast", ["optim.learning_rate: fast", "number"]),
        ("optim.max_steps=0", ["optim.max_steps: 0", "greater than or equal to 1"]),
        ("batch.per_device=0", ["batch.per_device: 0"]),
        ("batch.per_device=yes", ["batch.per_device: true", "give a number"]),
        ("optim.learning_rate=on", ["optim.learning_rate: true", "give a number"]),
        ("batch.accumulate=-2", ["batch.accumulate: -2"]),
        ("data.max_length=0", ["data.max_length: 0"]),
        ("data.max_length=long", ["data.max_length: long", "write a whole number"]),
        ("data.train=[]", ["data.train", "at least 1"]),
        ("method.lora.rank=0", ["method.lora.rank: 0"]),
        ("method.lora.dropout=1", ["method.lora.dropout: 1", "less than 1"]),
        ("eval.every_steps=0", ["eval.every_steps: 0"]),
        ("checkpoint.keep=0", ["checkpoint.keep: 0"]),
        ("seed=-1", ["seed: -1"]),
        ("precision=fp8", ["precision: fp8", "auto, bf16, fp16, fp32"]),
        ("method.tuner=lorra", ["method.tuner: lorra", "did you mean 'lora'?"]),
        ("optim=fast", ["optim: fast"]),
        ("name=a/b", ["'a/b' is not a name", "letters, digits"]),
        ("deterministic=maybe", ["deterministic: maybe", "write true or false"]),
        ("method.tuner=qlora", ["'qlora'", "tuner: lora"]),
        ("method.stage=ppo", ["'ppo'", "PPO is not supported in this version"]),
        ("eval.every_steps=2", ["eval.every_steps needs evaluation data", "data.eval_fraction"]),
        ("checkpoint.best=true", ["checkpoint.best needs evaluation data"]),
        ("learning_rate=1", ["unknown key 'learning_rate'", "'optim.learning_rate'"]),
        ("optim.learning_rate", ["not an override", "key=value"]),
        ("=1", ["not an override"]),
        ("optim.=1", ["not an override"]),
        ("optim.max_steps=[1", ["not valid YAML", "quotes"]),
        ("name.x=1", ["'name: {'x': 1}'", "write text"]),
        ("data.train.7.path=x", ["does not lead to a key"]),
    ]:
        yield Case(f"override {word}", [*said, f"command line '{word}'"], words=("train", "r.yaml", word))


RECIPES = [
    *_misspelt(),
    *_impossible(),
    Case("no model", ["'model' is missing", "add it", "r.yaml"], {"data": {"train": "rows.json"}}),
    Case(
        "two mistakes", ["optim.max_step'", "batch.per_devise'"], recipe(optim={"max_step": 1}, batch={"per_devise": 1})
    ),
    Case(
        "two warm-ups", ["warmup_ratio and optim.warmup_steps"], recipe(optim={"warmup_ratio": 0.1, "warmup_steps": 2})
    ),
    Case(
        "two evaluations",
        ["data.eval and data.eval_fraction"],
        recipe(data={"eval": "rows.json", "eval_fraction": 0.1}),
    ),
    Case("YAML", ["not valid YAML", "indentation", "r.yaml:3"], "model: {path: model}\ndata: [train\noptim: {}\n"),
    Case("YAML tab", ["not valid YAML", "r.yaml:2"], "model:\n\tpath: model\n"),
    Case("key twice", ["code: duplicate-key", "r.yaml:3"], "seed: 1\nmodel: {path: model}\nseed: 2\n"),
    Case("a list", ["not a mapping"], "- model\n- data\n"),
    Case("empty", ["the recipe is empty", "ascendtune init"], ""),
    Case("only a comment", ["the recipe is empty"], "# nothing\n"),
    Case("not UTF-8", ["not UTF-8", "save the recipe as UTF-8"], "name: f\xfcr\n".encode("latin-1")),
    Case("binary", ["not valid YAML"], b"\x00\x01\x02"),
    Case("no recipe", ["no such recipe", "did you mean 'r.yaml'?"], words=("train", "rr.yaml")),
    Case(
        "recipe is a model",
        ["this is a model, not a recipe", "ascendtune init --model model"],
        words=("train", "model"),
    ),
    Case("recipe is a device", ["a pipe or a device", "into a file"], words=("train", "/dev/zero")),
    Case("log is a device", ["a pipe or a device", "explain -"], words=("explain", "/dev/zero")),
    Case("no such model", ["no such model", "did you mean 'model'?"], recipe(model={"path": "./modl"})),
    Case("no such data", ["no such data", "did you mean 'rows.json'?"], recipe(data={"train": "row.json"})),
    Case("model without weights", ["no weights", "model.init: random"], without=("model.safetensors",)),
    Case("model without config", ["no config.json"], without=("config.json",)),
    Case("model without tokenizer", ["no tokenizer"], without=("tokenizer.json",)),
    Case("model is a file", ["a model is a directory"], recipe(model={"path": "rows.json"})),
    Case("config is not JSON", ["not readable as JSON"], files={"model/config.json": "{"}),
    Case(
        "weights cut off",
        ["damaged or cut off", "download it again", "model.safetensors"],
        files={"model/model.safetensors": b"\x10\x00"},
    ),
    Case(
        "LFS pointer",
        ["Git LFS pointer", "git lfs pull"],
        files={"model/model.safetensors": "version https://git-lfs.github.com/spec/v1\n"},
    ),
    Case("no checkpoint there", ["no such checkpoint"], words=("train", "r.yaml", "checkpoint.resume=runs/x")),
    Case("checkpoint is not one", ["not a complete checkpoint"], words=("train", "r.yaml", "checkpoint.resume=model")),
    Case(
        "device ids on CPU", ["--device-ids", "--devices N"], words=("train", "r.yaml", "--device-ids", "0,1"), code=3
    ),
    Case(
        "no chat template",
        ["no chat template", "chatml"],
        files={"model/tokenizer_config.json": '{"eos_token": "<|im_end|>"}'},
    ),
    Case(
        "no such template",
        ["neither a name nor", "did you mean 'chatml'?", "r.yaml:"],
        recipe(data={"template": "chatlm"}),
    ),
    Case("no such template file", ["neither a name nor", "where: t/x.jinja"], recipe(data={"template": "t/x.jinja"})),
    Case("tokenizer damaged", ["tokenizer.json cannot be used"], files={"model/tokenizer.json": "{}"}),
]

_LINES = [json.dumps(row) for row in ROWS]


def _lines(**changed: Text) -> bytes:
    """JSON lines in which line N (named `lineN`) is another."""
    return b"".join(
        (new if isinstance(new := changed.get(f"line{n}", line), bytes) else new.encode()) + b"\n"
        for n, line in enumerate(_LINES, 1)
    )


def _of(name: str, **data: Any) -> dict[str, Any]:
    return recipe(data={"train": name, **data})


DATA = [
    Case(
        "malformed line",
        ["not valid JSON", "d.jsonl:11", "correct or remove this row"],
        _of("d.jsonl"),
        {"d.jsonl": _lines(line11='{"instruction": "a"')},
    ),
    Case(
        "malformed array",
        ["not valid JSON", "d.json:4"],
        _of("d.json"),
        {"d.json": '[\n{"instruction": "a", "output": "b"},\n{"instruction": \n]'},
    ),
    Case("not an object", ["must be an object", "d.jsonl:5"], _of("d.jsonl"), {"d.jsonl": _lines(line5="[1, 2]")}),
    Case(
        "latin-1 in the middle",
        ["not UTF-8", "d.jsonl:7", "iconv"],
        _of("d.jsonl"),
        {"d.jsonl": _lines(line7=b'{"instruction": "\xfc", "output": "b"}')},
    ),
    Case("UTF-16 cut off", ["UTF-16"], _of("d.json"), {"d.json": json.dumps(ROWS).encode("utf-16")[:-1]}),
    Case("gzip cut off", ["gzip file is damaged"], _of("d.jsonl.gz"), {"d.jsonl.gz": gzip.compress(_lines())[:-30]}),
    Case("empty file", ["the file is empty"], _of("d.json"), {"d.json": ""}),
    Case("empty array", ["no rows"], _of("d.json"), {"d.json": "[]"}),
    Case("a wrapper", ["one JSON object", "jq .rows"], _of("d.json"), {"d.json": json.dumps({"rows": ROWS}, indent=1)}),
    Case(
        "a bad row",
        ["1 of 20 rows cannot be trained on", "d.jsonl:9", "data.on_bad_row: skip"],
        _of("d.jsonl"),
        {"d.jsonl": _lines(line9='{"instruction": "a", "output": ""}')},
    ),
    Case(
        "all rows bad",
        ["none of the 20 rows can be trained on", "d.jsonl:1"],
        _of("d.jsonl", on_bad_row="skip"),
        {"d.jsonl": b"".join(b'{"instruction": "a", "output": ""}\n' for _ in range(20))},
    ),
    Case(
        "unknown columns",
        ["no format fits the columns a, b", "columns:"],
        _of("d.jsonl"),
        {"d.jsonl": '{"a": 1, "b": 2}\n'},
    ),
    Case(
        "column that is not there",
        ["no column 'questoin'", "did you mean 'question'?"],
        recipe(
            data={
                "train": [
                    {
                        "path": "d.jsonl",
                        "format": "prompt_completion",
                        "columns": {"prompt": "questoin", "completion": "answer"},
                    }
                ]
            }
        ),
        {"d.jsonl": '{"question": "a", "answer": "b"}\n'},
    ),
    Case(
        "max_length too small",
        ["leaves no row with an answer", "set data.max_length to"],
        _of("rows.json", max_length=4),
    ),
    Case(
        "long rows",
        ["longer than data.max_length", "rows.json:", "data.on_long_row"],
        _of("rows.json", max_length=32, on_long_row="fail"),
    ),
    Case("all rows too long", ["leaves no row with an answer"], _of("rows.json", max_length=8, on_long_row="drop")),
    Case("no data file in it", ["no data file in this directory"], _of("empty"), {"empty/readme.md": "hello"}),
    Case("not Parquet", ["d.parquet"], _of("d.parquet"), {"d.parquet": "PAR1 or not"}),
    Case("CSV without its column", ["no format fits"], _of("d.csv"), {"d.csv": "a,b\n1,2\n"}),
    Case(
        "evaluation data is bad",
        ["not valid JSON", "e.jsonl:2"],
        _of("rows.json", eval="e.jsonl"),
        {"e.jsonl": _LINES[0] + "\n{\n"},
    ),
    Case(
        "one row for two",
        ["a single row cannot be divided"],
        _of("d.jsonl", eval_fraction=0.5),
        {"d.jsonl": _LINES[0] + "\n"},
    ),
]
CASES = {case.name: case for case in (*RECIPES, *DATA)}


@pytest.fixture(scope="module")
def answers(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the command line says to each case, told by a process in which `import torch` raises."""
    home = tmp_path_factory.mktemp("cases")
    stub = home / "stub" / "torch" / "__init__.py"
    stub.parent.mkdir(parents=True)
    stub.write_text("raise ImportError('torch was imported')\n")
    listed, before = [], []
    for number, case in enumerate(CASES.values()):
        directory = home / str(number)
        _furnish(directory, case, tiny_model)
        before.append(_tree(directory))
        listed.append({"directory": str(directory), "words": case.words})
    (home / "cases.json").write_text(json.dumps(listed))
    result = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("refuse.py")), str(home / "cases.json")],
        env={
            **os.environ,
            "PYTHONPATH": python_path(stub.parents[1]),
            "XDG_CACHE_HOME": str(home / "c"),
            "XDG_STATE_HOME": str(home / "s"),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = json.loads(result.stdout)
    for answer, each, tree in zip(found, listed, before, strict=True):
        answer["written"] = sorted(_tree(Path(each["directory"])) - tree)
    return dict(zip(CASES, found, strict=True))


def _furnish(directory: Path, case: Case, model: Path) -> None:
    directory.mkdir()
    (directory / "rows.json").write_text(json.dumps(ROWS, indent=0))
    (directory / "model").mkdir()
    for file in model.iterdir():
        if file.name not in case.without:
            # Weights are linked, not copied; a case that has its own puts a file in the link's place.
            (directory / "model" / file.name).symlink_to(file)
    for name, content in case.files.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    asked = yaml.safe_dump(case.recipe, sort_keys=False) if isinstance(case.recipe, dict) else case.recipe
    (directory / "r.yaml").write_bytes(asked if isinstance(asked, bytes) else asked.encode())


def _tree(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


@pytest.mark.parametrize("name", CASES)
def test_wrong_input_is_one_message_with_its_exit_code(answers: dict[str, dict[str, Any]], name: str) -> None:
    case, answer = CASES[name], answers[name]
    said = answer["err"]
    assert answer["code"] == case.code, said
    _is_one_message(said)
    for words in case.said:
        assert words in said
    assert answer["out"] == "" and answer["written"] == []
    assert answer["cpu_seconds"] < 1


def _is_one_message(said: str) -> None:
    assert "error: " in said and "\n   do: " in said
    assert "Traceback" not in said and "bug in ascendtune" not in said


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("name", ["misspelt optim.learning_ratee", "no such data", "no recipe"])
def test_refused_within_a_second(workshop: Workshop, tiny_model: Path, name: str) -> None:
    """The whole process, interpreter included; on a terminal of 60 columns, without colours, without stdin."""
    directory = workshop.directory / "case"
    _furnish(directory, CASES[name], tiny_model)
    command = ["bash", "-c", '"$@" <&-', "bash", sys.executable, "-m", "ascendtune", *CASES[name].words]
    env = {**workshop.env, "COLUMNS": "60", "NO_COLOR": "1"}
    seconds = []
    # What else runs on a core costs this process CPU time, too: the least of three is its own.
    for _ in range(3):
        before = _cpu_seconds()
        closed = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=60)
        seconds.append(_cpu_seconds() - before)
    assert min(seconds) < 1
    assert closed.returncode == 2 and closed.stdout == "" and "\x1b" not in closed.stderr
    _is_one_message(closed.stderr)


# Disks


@pytest.fixture
def bench(workshop: Workshop, tiny_model: Path) -> Workshop:
    """A workshop with a recipe that trains."""
    _furnish_in_place(workshop.directory, recipe(), tiny_model)
    return workshop


def _furnish_in_place(directory: Path, values: dict[str, Any], model: Path) -> None:
    (directory / "rows.json").write_text(json.dumps(ROWS, indent=0))
    (directory / "model").symlink_to(model)
    (directory / "r.yaml").write_text(yaml.safe_dump(values, sort_keys=False))


@pytest.mark.parametrize(
    ("options", "what"), [("ro", "read-only"), ("size=8k,nr_inodes=2", "full")], ids=["read-only", "full"]
)
@pytest.mark.parametrize("place", ["run_dir", "cache", "state"])
def test_a_disk_that_takes_nothing(
    bench: Workshop, disk: Callable[..., Path], options: str, what: str, place: str
) -> None:
    path = disk(options)
    words = ("train", "r.yaml", f"run_dir={path}/runs/a") if place == "run_dir" else ("train", "r.yaml")
    env = {"cache": {"XDG_CACHE_HOME": str(path)}, "state": {"XDG_STATE_HOME": str(path)}}.get(place, {})
    ended = bench.run(*words, **env)
    assert ended.code == 3, ended.err
    _is_one_message(ended.err)
    assert what in ended.err and str(path) in ended.err
    if place == "run_dir" and options == "ro":
        assert not list(bench.cache.rglob("*.arrow")), "found out before the data was prepared"


def test_a_disk_too_small_for_what_the_run_will_write(bench: Workshop, disk: Callable[..., Path]) -> None:
    path = disk("size=1m")
    run = RunDir(path / "runs" / "run")
    ended = bench.run("train", "r.yaml", f"run_dir={run}", "checkpoint.every_steps=1")
    assert ended.code == 3, ended.err
    _is_one_message_of_a_worker(ended.err)
    assert "this run needs" in ended.err and "lower checkpoint.keep" in ended.err and str(run) in ended.err
    assert run.read()["state"] == "failed" and not run.has_metrics()


def test_full_disk_at_a_checkpoint_ends_with_one_message(bench: Workshop, disk: Callable[..., Path]) -> None:
    path = disk("size=40m")
    run = RunDir(path / "runs" / "run")
    job = bench.start("train", "r.yaml", f"run_dir={run}", "optim.max_steps=1000", "checkpoint.every_steps=100")
    job.until_step(run, 3)
    (path / "ballast").write_bytes(b"\0" * (30 << 20))
    ended = job.wait()
    assert ended.code == 3, ended.err
    _is_one_message_of_a_worker(ended.err)
    assert "a checkpoint needs" in ended.err and "free space" in ended.err and str(run.checkpoints) in ended.err
    assert run.checkpoint_steps() == [] and not list(run.checkpoints.glob(".*"))
    assert run.read()["state"] == "failed" and run.read()["exit_cause"]["exit_code"] == 3
    assert [each["step"] for each in run.read_metrics()] == list(range(1, 101))


def test_full_disk_at_a_line_of_metrics_ends_with_one_message(bench: Workshop, disk: Callable[..., Path]) -> None:
    path = disk("size=20m")
    run = RunDir(path / "runs" / "run")
    job = bench.start("train", "r.yaml", f"run_dir={run}", "optim.max_steps=100000", "checkpoint.every_steps=100000")
    job.until_step(run, 3)
    with (path / "ballast").open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(b"\0" * 4096)
        except OSError:
            pass
    ended = job.wait()
    assert ended.code == 3, ended.err
    _is_one_message_of_a_worker(ended.err)
    assert "the disk is full while appending a line" in ended.err and f"where: {run.metrics}" in ended.err
    content = run.metrics.read_bytes()
    assert content.endswith(b"\n")
    steps = [json.loads(line)["step"] for line in content.splitlines()]
    assert steps == list(range(1, len(steps) + 1))


@pytest.mark.parametrize(
    "room", [range(12, 37, 4), pytest.param(range(10, 38), marks=pytest.mark.soak)], ids=["some", "all"]
)
def test_a_disk_that_is_full_at_any_file(
    disk: Callable[..., Path], work: Callable[..., tuple[int, str, RunDir]], room: range
) -> None:
    """As many files as fit, from a few to all: at each the disk is full once."""
    words = ("optim.max_steps=4", "checkpoint.every_steps=2", "checkpoint.keep=1", "track.tensorboard=true")
    codes = []
    for files in room:
        run = RunDir(disk(f"size=60m,nr_inodes={files}", str(files)) / "run")
        try:
            code, err, _ = work(*words, f"run_dir={run}")
        except MachineError as error:
            code, err = error.exit_code, f"error: {error}"
        codes.append(code)
        said = [line for line in err.splitlines() if "error: " in line]
        assert (code == 0 and not said) or (code == 3 and len(said) == 1 and "the disk is full" in said[0]), err
        assert "Traceback" not in err and "bug in ascendtune" not in err
        assert not list(run.path.glob(".model.*")) and not list(run.checkpoints.glob(".step_*"))
        for step in run.checkpoint_steps():
            assert {path.name for path in run.checkpoint(step).iterdir()} >= {
                "state.json",
                "tensors_rank_0.safetensors",
                "rng",
            }
    assert codes == sorted(codes, reverse=True) and {0, 3} == set(codes)


def _is_one_message_of_a_worker(said: str) -> None:
    assert said.count("error: ") == 1 and "\n   do: " in said
    assert "Traceback" not in said and "bug in ascendtune" not in said


# What others hold


def test_run_that_another_process_trains_is_refused(bench: Workshop) -> None:
    run = RunDir(bench.directory / "runs" / "run")
    run.create(yaml.safe_dump(recipe()), {}, {})
    with file_lock(run.lock, wait=False):
        ended = bench.run("train", "r.yaml")
    assert ended.code == 3
    _is_one_message(ended.err)
    assert "being trained by another process" in ended.err and "name=OTHER" in ended.err


def test_master_port_in_use_is_refused(bench: Workshop) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = bench.run("launch", "--devices", "2", "--", "true", MASTER_PORT=str(port))
    assert ended.code == 3
    _is_one_message(ended.err)
    assert f"port {port} is in use" in ended.err and "unset MASTER_PORT" in ended.err


def test_more_devices_than_there_are(bench: Workshop, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from ascendtune.cli.main import main
    from ascendtune.machine.visible import VisibleDevices

    monkeypatch.chdir(bench.directory)
    monkeypatch.setattr("ascendtune.cli.node_choice.visible_devices", lambda: VisibleDevices("npu", ("0", "1")))
    with pytest.raises(SystemExit) as left:
        main(["train", "r.yaml", "--devices", "4"])
    said = capsys.readouterr().err
    assert left.value.code == 3 and "4 devices requested, 2 NPU visible" in said and "--devices 2" in said
    _is_one_message(said)


def test_interrupted_while_data_is_prepared(bench: Workshop) -> None:
    rows = [{**ROW, "output": f"Paris, {n}."} for n in range(30_000)]
    (bench.directory / "rows.json").write_text(json.dumps(rows))
    job = bench.start("train", "r.yaml", "data.processes=2")
    tokens = bench.cache / "ascendtune" / "tokens"
    job.until(lambda: any(tokens.glob(".building-*/train/*.arrow")))
    # As a terminal does: to the whole group.
    os.killpg(job.process.pid, signal.SIGINT)
    ended = job.wait()
    assert ended.code == 130 and "Traceback" not in ended.err
    until(lambda: not bench.processes())
    assert not list(tokens.glob(".building-*")) and not (bench.directory / "runs").exists()


# What only a worker can know. In this process: what matters is the answer of `main`, which becomes the exit code.


@pytest.fixture
def work(bench: Workshop, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Callable[..., tuple[int, str, RunDir]]:
    """Prepare, then be the worker; exit code, what was said, and the run."""
    from ascendtune.train.prepare import prepare_run

    monkeypatch.chdir(bench.directory)

    def be_the_worker(*overrides: str) -> tuple[int, str, RunDir]:
        run = prepare_run(*Recipe.load_with_origins("r.yaml", overrides)).run
        assert run is not None
        code = worker.main([str(run)])
        return code, capsys.readouterr().err, run

    return be_the_worker


@pytest.mark.parametrize(
    ("overrides", "code", "said"),
    [
        (["precision=fp16"], 3, ["does not train in fp16", "precision: bf16 or fp32"]),
        (
            ["method.tuner=lora", "method.lora.target=[q_porj]"],
            2,
            ["no module 'q_porj'", "did you mean 'q_proj'?", "method.lora.target"],
        ),
        (["model.attention=npu_fusion"], 3, ["npu_fusion is an operator of Ascend NPUs", "model.attention: auto"]),
    ],
    ids=["fp16 on CPU", "lora target", "npu_fusion"],
)
def test_worker_refuses_with_one_message_and_records_the_cause(
    work: Callable[..., tuple[int, str, RunDir]], overrides: list[str], code: int, said: list[str]
) -> None:
    got, err, run = work(*overrides)
    assert got == code, err
    _is_one_message_of_a_worker(err)
    for words in said:
        assert words in err
    assert run.read()["state"] == "failed" and run.read()["exit_cause"]["exit_code"] == code
    # The next start is a first one, in the same place.
    again = work(*overrides)[2]
    assert again.path == run.path


@pytest.fixture
def spoilt(bench: Workshop, tiny_model: Path) -> None:
    """One weight of the model is infinite."""
    from safetensors.torch import load_file, save_file

    model = bench.directory / "model"
    model.unlink()
    shutil.copytree(tiny_model, model)
    weights = load_file(model / "model.safetensors")
    weights["model.layers.0.mlp.down_proj.weight"][0, 0] = float("inf")
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.usefixtures("spoilt")
def test_weights_that_are_not_numbers(work: Callable[..., tuple[int, str, RunDir]]) -> None:
    code, err, _ = work()
    assert code == 2
    _is_one_message_of_a_worker(err)
    assert "model.layers.0.mlp.down_proj.weight" in err and "download the model again" in err


DIVERGES = ("optim.learning_rate=1e30", "optim.scheduler=constant", "optim.max_grad_norm=null")


def test_a_loss_that_is_not_a_number_stops(work: Callable[..., tuple[int, str, RunDir]]) -> None:
    code, err, run = work(*DIVERGES)
    assert code == 1
    _is_one_message_of_a_worker(err)
    assert "step 2: loss" in err and "not a number" in err and "optim.learning_rate" in err
    assert run.read()["state"] == "failed" and [each["step"] for each in run.read_metrics()] == [1]


def test_a_loss_that_is_not_a_number_is_skipped_and_counted(work: Callable[..., tuple[int, str, RunDir]]) -> None:
    code, err, run = work(*DIVERGES, "on_nan=skip", "track.tensorboard=true")
    assert code == 0, err
    records = list(run.read_metrics())
    assert [each["skipped_steps"] for each in records] == [0, 1, 2, 3, 4, 5]
    assert records[0]["loss"] and all(each["loss"] is None for each in records[1:])
    assert run.read()["state"] == "finished" and "not a number" in err
