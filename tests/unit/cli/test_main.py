from __future__ import annotations

import json
import os
import py_compile
import re
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.exceptions import Abort

from ascendtune import __version__
from ascendtune.cli import main as entry
from ascendtune.cli.commands import COMMANDS, GROUPS, CommandEntry
from ascendtune.core.errors import InputError, MachineError, RecipeError

GOLDEN = Path(__file__).parents[2] / "golden"
HEAVY = (
    *("torch", "transformers", "peft", "pydantic", "numpy", "pyarrow", "yaml", "rich", "matplotlib"),
    *("psutil", "ctypes", "socket", "hashlib", "logging"),
)


@pytest.mark.parametrize(
    "words",
    [
        *([], ["train"], ["submit"], ["launch"], ["runs"], ["init"], ["devices"], ["recipe", "check"]),
        *(["comm", "test"], ["comm", "bench"], ["jobs", "stop"], ["jobs", "cleanup"], ["env", "mirrors"]),
    ],
    ids=" ".join,
)
def test_help_is_as_recorded(in_process: Any, words: list[str]) -> None:
    result = in_process(*words, "--help")
    assert result.returncode == 0 and result.stderr == ""
    golden = GOLDEN / "help" / f"{'_'.join(['ascendtune', *words])}.txt"
    assert result.stdout == golden.read_text(), "when this is meant: make golden"


@pytest.mark.parametrize("words", [[], ["train"]], ids=" ".join)
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    look = (
        "import sys; from ascendtune.__main__ import main\n"
        "names, sys.argv[1:] = sys.argv[1].split(','), sys.argv[2:]\n"
        "try: main()\n"
        "except SystemExit: print([name for name in names if name in sys.modules], file=sys.stderr)"
    )
    argv = [sys.executable, "-c", look, ",".join(HEAVY), *words, "--help"]
    result = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert result.stderr == "[]\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_exists_and_shows_an_example(name: str) -> None:
    module, _, function = COMMANDS[name].target.partition(":")
    command = getattr(import_module(module), function)
    assert f"ascendtune {name}" in command.__doc__
    assert name.count(" ") == 0 or name.split()[0] in GROUPS


def test_version_option_prints_the_version(ascendtune: Any) -> None:
    assert ascendtune("--version").stdout == f"ascendtune {__version__}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian"], "no such command 'trian'. Did you mean 'train', 'track'?"),
        (["runs", "lst"], "no such command 'lst'. Did you mean 'list'?"),
        (["train", "r.yaml", "--device", "2"], "--devices"),
        (["train"], "missing argument"),
        (["explain"], "COMMAND 2>&1 | ascendtune explain -"),
        (["train", "r.yaml", "--devices", "two"], "valid integer"),
        (["train", "r.yaml", "--devices", "0"], "--devices"),
        (["submit", "r.yaml", "--to", "lsf"], "invalid value for '--to': 'lsf' is not one of"),
        (["submit", "r.yaml", "--to", "slurm", "--hours", "x"], "'--hours': it should be a valid number"),
        (["runs", "compare", "a"], "one run cannot be compared"),
        (["comm", "bench", "--png"], "see `ascendtune comm bench --help`"),
        (["chat", "run", "--system"], "see `ascendtune chat --help`"),
        (["env", "mirrors", "use", "tuna", "--only", "apt"], "do: choose from pip, conda"),
        (["track", "import", __file__], "not a directory"),
    ],
)
def test_a_mistake_is_one_message_with_a_remedy(in_process: Any, words: list[str], said: str) -> None:
    result = in_process(*words)
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith("error: ") and said in result.stderr
    assert "\n   do: " in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("columns", [60, 80])
def test_help_of_every_command_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for command in ("", *COMMANDS):
        with pytest.raises(SystemExit):
            entry.main([*command.split(), "--help"])
        too_wide = [line for line in capsys.readouterr().out.splitlines() if len(line) > columns]
        assert not too_wide, f"{command}: {too_wide[0]}"


def test_a_wide_example_is_continued_with_a_backslash(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(SystemExit):
        entry.main(["submit", "--help"])
    shown = capsys.readouterr().out
    assert "  ascendtune submit recipe.yaml --to docker --devices 8 \\\n    --apply\n" in shown


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["export", "x.yaml"], "ascendtune merge RUN_OR_ADAPTER --to DIR"),
        (["webchat"], "ascendtune chat RUN_OR_MODEL"),
        (["dpo", "--model_name_or_path", "x"], "--stage preference, then ascendtune train recipe.yaml"),
        (
            ["sft", "--model_name_or_path", "x", "--dataset", "my rows.json", "--learning_rate=3e-4", "--bf16"],
            "ascendtune init --model x --data 'my rows.json' --stage sft, then "
            "ascendtune train recipe.yaml optim.learning_rate=3e-4",
        ),
        (["kto", "model=x"], "init --model x --data DATA --stage preference, then ascendtune train recipe.yaml method"),
        (["train", "r.yaml", "--resume"], "the same command resumes from the newest checkpoint"),
        (["resume"], "repeat the same ascendtune train RECIPE"),
        (["train", "--config", "r.yaml"], "ascendtune train RECIPE"),
        (["train", "r.yaml", "--learning_rate", "3e-4"], "without dashes: optim.learning_rate=3e-4"),
        (["train", "r.yaml", "--output-dir=my runs"], "without dashes: run_dir='my runs'"),
        (["train", "r.yaml", "--learning_rate"], "without dashes: optim.learning_rate=VALUE"),
        (["init", "model", "rows.jsonl"], "ascendtune init --model MODEL --data DATA"),
        (["merge", "runs/qa@120"], "ascendtune merge runs/qa@120 --to qa-merged"),
        (["train", "r.yaml", "--stage", "sft"], "without dashes: method.stage=sft\n"),
        (["train", "r.yaml", "--stage", "kto"], "dashes: method.stage=preference method.preference.loss=kto\n"),
        (["train", "r.yaml", "--bf16"], "without dashes: precision=bf16\n"),
        (["train", "r.yaml", "--fp16", "False"], "without dashes: precision=fp32\n"),
        (["train", "r.yaml", "--report_to", "wandb"], "without dashes: 'track.send_to=[wandb]'\n"),
        (
            ["train", "r.yaml", "--deepspeed", "my ds.json"],
            "dashes: parallel.strategy=deepspeed 'parallel.deepspeed.config=my ds.json'\n",
        ),
        (["train", "r.yaml", "--push-to-hub", "me/x"], "after the training: ascendtune push RUN me/x\n"),
        (["train", "r.yaml", "--push_to_hub", "--hub_model_id", "me/x"], "ascendtune push RUN me/x\n"),
        (["init", "--model", "m", "--data", "d", "--stage", "rm"], "do: use --stage reward\n"),
        (
            ["init", "--model", "m", "--data", "d", "--stage", "kto"],
            "do: use --stage preference, and train with method.preference.loss=kto\n",
        ),
        (["kto"], "method.preference.loss=kto\n"),
        (["train", "r.yaml", "--optim.epochs", "2"], "without dashes: optim.epochs=2"),
        (
            ["train", "--stage", "sft", "--do_train", "--model_name_or_path", "tiny", "--dataset", "mine"],
            "write these options into a file, a line `key: value` for each, and give that: ascendtune train FILE.yaml",
        ),
        (
            ["chat", "--model_name_or_path", "tiny", "--adapter_name_or_path", "saves/a"],
            "do: ascendtune chat saves/a\n",
        ),
        (["chat", "--model_name_or_path=my model"], "do: ascendtune chat 'my model'\n"),
        (["infer", "--adapters", "out/checkpoint-9", "--stream", "true"], "generate out/checkpoint-9 PROMPT\n"),
        (["webchat", "--lora-model-dir=out"], "do: ascendtune chat out\n"),
        (
            ["export", "--model_name_or_path", "m", "--adapter_name_or_path", "a,b", "--export_dir", "c"],
            "do: ascendtune merge a --adapter b --onto m --to c\n",
        ),
        (
            ["export", "--model", "a, b", "--adapters", "my a, b,"],
            "do: ascendtune merge 'my a' --adapter b --onto 'a, b' ",
        ),
        (["export", "--model", "my model", "--adapters", ","], "do: ascendtune merge , --onto 'my model' --to DIR\n"),
        (["export", "--model", "my model"], "do: ascendtune merge 'my model' --to DIR\n"),
        (["export", "--adapters", "out", "--merge_lora", "true"], "do: ascendtune merge out --to DIR\n"),
        (["merge", "--model", "m", "--adapters", "a"], "do: ascendtune merge a --onto m --to DIR\n"),
        (["llamafactory-cli", "train", "my recipe.yaml"], "leave it out: ascendtune train 'my recipe.yaml'\n"),
        (["swift", "export", "--hub_token", "none-of-yours"], "leave it out: ascendtune export --hub_token '***'\n"),
        (["unsloth", "train", "--model", "m"], "leave it out: ascendtune train --model m\n"),
        (["tune", "run", "lora", "--config", "qwen2/1B"], "ascendtune init --model MODEL --data DATA"),
        (["verl", "data.train_files=d"], "for supervised training: ascendtune init --model MODEL --data DATA"),
        (["torchrun", "train.py"], "ascendtune launch -- python train.py"),
        (
            ["export", "--adapters", "out/x", "--push_to_hub", "true", "--hub_model_id", "me/x"],
            "do: ascendtune push out/x me/x\n",
        ),
        (
            ["train", "--model", "m", "--dataset", "d.jsonl", "--learning_rate", "1e-4"],
            "init --model m --data d.jsonl, then ascendtune train recipe.yaml optim.learning_rate=1e-4\n",
        ),
        (
            ["sft", "--model", "m", "--dataset", "a.json", "b.json#9", "--foo", "1"],
            "--data a.json --data b.json --stage",
        ),
        (["sft", "--model", "m", "--dataset", "a.json", "b.json#9", "--foo", "1"], "left out: foo; "),
        (["rlhf", "--rlhf_type", "grpo", "--model", "m", "--dataset", "d"], "method.stage: preference is the nearest"),
        (["api", "x.yaml"], "vllm serve RUN/model"),
        (["train", "r.yaml", "--micro-batch-size", "2"], "without dashes: batch.per_device=2"),
        (["train", "r.yaml", "--val_set_size", "200"], "without dashes: data.eval_rows=200\n"),
        (["train", "r.yaml", "--warmup_steps", "0.1"], "without dashes: optim.warmup_ratio=0.1\n"),
        (["train", "r.yaml", "--save_steps", "0.1"], "without dashes: checkpoint.every_steps=VALUE\n"),
        (["train", "r.yaml", "--gradient_checkpointing", "False"], "memory.gradient_checkpointing=false\n"),
    ],
)
def test_words_of_other_tools_are_answered_with_the_command_or_key_here(
    capsys: pytest.CaptureFixture[str], words: list[str], remedy: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        entry.main(words)
    assert ended.value.code == 2 and remedy in capsys.readouterr().err


_TRL = "model_name_or_path: m\ndataset_name: d.jsonl\nlearning_rate: 0.1\n"


@pytest.mark.parametrize(
    ("words", "file", "remedy"),
    [
        (["sft", "--config", "c.yaml"], _TRL, "init --model m --data d.jsonl --stage sft, then ascendtune train"),
        (["dpo", "c.yaml"], _TRL, "--stage preference, then ascendtune train recipe.yaml data."),
        (["sft", "c.yaml", "--learning_rate", "0.5"], _TRL, " optim.learning_rate=0.5 "),
        (["finetune", "c.yaml"], "name: qa\nmodel: {path: m}\n", "do: ascendtune train c.yaml\n"),
        (["preprocess", "c.yaml"], _TRL, "do: ascendtune train c.yaml --prepare\n"),
        (["sft", "--config", "d.yaml"], _TRL, "do: d.yaml: no such recipe; did you mean 'c.yaml'"),
    ],
)
def test_commands_of_other_tools_are_answered_from_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    words: list[str], file: str, remedy: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(file)
    with pytest.raises(SystemExit) as ended:
        entry.main(words)
    assert ended.value.code == 2 and remedy in capsys.readouterr().err


_MERGING = "model_name_or_path: base\nadapter_name_or_path: saves/lora\nexport_dir: merged\n"
_CHATTING = "model_name_or_path: base\nadapter_name_or_path: saves/lora\ntemplate: qwen\n"
_TRAINING = "name: qa\nmodel: {path: m}\ndata: {train: rows.jsonl}\n"


@pytest.mark.parametrize(
    ("words", "recipe", "remedy"),
    [
        (["export"], _MERGING, "ascendtune merge saves/lora --onto base --to merged"),
        (["merge"], _MERGING, "ascendtune merge saves/lora --onto base --to merged"),
        (["webchat"], _CHATTING, "ascendtune chat saves/lora"),
        (["chat"], _CHATTING, "ascendtune chat saves/lora"),
        (["chat"], _TRAINING, "give the run that it trained: runs/qa"),
        (["merge"], _TRAINING, "give the run that it trained: runs/qa"),
        (["export"], _TRAINING, "ascendtune merge RUN_OR_ADAPTER --to DIR"),
    ],
)
def test_recipe_in_place_of_a_run_is_answered_with_the_command_or_the_run(
    in_process: Any, tmp_path: Path, words: list[str], recipe: str, remedy: str
) -> None:
    (tmp_path / "r.yaml").write_text(recipe)
    result = in_process(*words, tmp_path / "r.yaml")
    assert result.returncode == 2 and remedy in result.stderr


def test_completion_knows_commands_and_options(ascendtune: Any) -> None:
    def complete(line: str, position: int) -> list[str]:
        env = {"_ASCENDTUNE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(position)}
        found: list[str] = ascendtune(**env).stdout.split()
        return found

    assert complete("ascendtune tra", 1) == ["train", "track"]
    assert complete("ascendtune runs s", 2) == ["show"]
    assert complete("ascendtune train --dev", 2) == ["--devices", "--device-ids"]
    assert complete("ascendtune train r.yaml optim.le", 3) == ["optim.learning_rate="]


def _fail_with(error: BaseException) -> Any:
    def command() -> None:
        raise error

    return command


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command that raises, and returns its exit code and what stood on stderr."""

    def run(error: BaseException, *words: str) -> tuple[int, str]:
        monkeypatch.setitem(COMMANDS, "fail", CommandEntry("nowhere:nothing", "Fails."))
        monkeypatch.setattr(entry, "resolve_name", lambda target: _fail_with(error))
        monkeypatch.setenv("ASCENDTUNE_DEBUG", "")
        with pytest.raises(SystemExit) as left:
            entry.main([*words, "fail"])
        assert isinstance(left.value.code, int)
        return left.value.code, capsys.readouterr().err

    return run


def test_every_error_found_is_told_with_its_place(failing: Any) -> None:
    further = [RecipeError("two", code="test", remedy="mend two", where="r.yaml:2")]
    code, said = failing(RecipeError("one", code="test", remedy="mend one", where="r.yaml:1", further=further))
    assert code == 2
    assert said == "".join(
        f"error: {name}\n   do: mend {name}\nwhere: r.yaml:{line}\n code: test\n"
        for line, name in enumerate(("one", "two"), 1)
    )


def test_a_program_that_asks_for_json_gets_errors_as_json(in_process: Any, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("modle: {}\nepochs: 1\n")
    result = in_process("plan", str(tmp_path / "r.yaml"), "--json")
    assert result.returncode == 2 and result.stderr.startswith("error: ")
    errors = json.loads(result.stdout)["errors"]
    unknown = [each["where"] for each in errors if each["code"] == "unknown-recipe-key"]
    assert unknown == [f"{tmp_path}/r.yaml:{line}" for line in (1, 2)]
    assert all(each["what"] and each["remedy"] and each["exit_code"] == 2 for each in errors)
    assert in_process("plan", str(tmp_path / "r.yaml")).stdout == ""


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["jobs", "list", "--zzz"], "usage"),
        (["runs", "show"], "usage"),
        (["runs", "list", "x" * 300], "name-too-long"),
    ],
)
def test_usage_errors_and_errors_of_the_system_are_json_too(in_process: Any, words: list[str], code: str) -> None:
    result = in_process(*words, "--json")
    assert [each["code"] for each in json.loads(result.stdout)["errors"]] == [code]
    assert result.returncode == 2 and f"code: {code}" in result.stderr


def test_an_interrupt_is_an_error_for_programs(in_process: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ascendtune.cli.runs.find_runs", interrupted)
    result = in_process("runs", "list", "--json")
    (error,) = json.loads(result.stdout)["errors"]
    assert (error["code"], error["exit_code"], result.returncode) == ("stopped", 130, 130)
    assert in_process("runs", "list").stdout == ""


def test_json_keeps_names_that_no_encoding_has(tmp_path: Path) -> None:
    """A file name with a byte that is not UTF-8, and an output in GBK: values arrive unchanged."""
    name = os.fsdecode(b"r\xffn")
    (tmp_path / "ü…" / name).mkdir(parents=True)
    (tmp_path / "ü…" / name / "run.json").write_text(json.dumps({"state": "finished", "attempts": []}))
    argv = [sys.executable, "-m", "ascendtune", "runs", "list", "ü…", "--json"]
    for encoding in ("utf-8", "gbk"):
        env = {**os.environ, "PYTHONIOENCODING": encoding}
        told = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, check=True)
        (run,) = json.loads(told.stdout.decode(encoding))
        assert (run["name"], run["path"]) == (name, f"ü…/{name}")


def test_the_class_of_an_error_is_its_exit_code(failing: Any) -> None:
    assert failing(MachineError("no", code="test", remedy="yes"))[0] == 3
    assert failing(KeyboardInterrupt())[0] == 130


def test_a_bug_is_one_error_and_a_traceback_only_on_request(failing: Any) -> None:
    code, said = failing(ZeroDivisionError("by\nzero"))
    assert code == 1
    assert said.startswith("error: this is a bug in ascendtune: ZeroDivisionError: by zero\n   do: run with --debug ")
    assert said.count("\n") == 3 and said.endswith(" code: internal-error\n")
    assert "Traceback" in failing(ZeroDivisionError(), "--debug")[1]
    assert "Traceback" in failing(InputError("no", code="test", remedy="yes"), "--debug")[1]


def test_a_memory_error_is_of_the_host_and_no_bug(failing: Any) -> None:
    code, said = failing(MemoryError())
    assert code == 3 and said.startswith("error: out of host memory\n   do: ")
    assert "ulimit -v" in said and said.endswith(" code: out-of-memory\n")
    assert "Traceback" in failing(MemoryError("Unable to allocate 3 GiB"), "--debug")[1]


def test_a_missing_extra_is_named_and_a_missing_module_of_ours_is_a_bug(failing: Any) -> None:
    code, said = failing(ModuleNotFoundError("No module named 'pyarrow.lib'", name="pyarrow.lib"))
    assert code == 3 and "needs pyarrow" in said and "'ascendtune[train]'" in said
    code, said = failing(ModuleNotFoundError("No module named 'ascendtune.nothing'", name="ascendtune.nothing"))
    assert code == 1 and "bug" in said


@pytest.mark.parametrize(
    "error",
    [
        ImportError("libhccl.so: cannot open shared object file: No such file or directory"),
        ImportError("cannot import name 'load' from 'peft' (/site-packages/peft/__init__.py)", name="peft"),
        ModuleNotFoundError("No module named 'httpx'", name="httpx"),
    ],
)
def test_package_that_cannot_be_imported_is_of_the_machine_and_no_bug(failing: Any, error: ImportError) -> None:
    code, said = failing(error)
    assert code == 3 and str(error) in " ".join(said.split()) and said.endswith(" code: package-not-importable\n")
    assert "ascendtune doctor" in said


def test_name_that_a_module_of_ours_lacks_is_a_bug(failing: Any) -> None:
    code, said = failing(ImportError("cannot import name 'x' from 'ascendtune.core'", name="ascendtune.core"))
    assert code == 1 and "bug" in said


def test_end_of_a_file_is_a_bug_and_no_silent_abort(failing: Any) -> None:
    code, said = failing(EOFError("3 bytes are missing"))
    assert code == 1 and "bug in ascendtune: EOFError: 3 bytes are missing" in said
    assert failing(Abort())[0] == 130


def test_a_compiled_module_that_was_cut_is_named(failing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "module_to_cut.py"
    source.write_text("VALUES = [1, 2, 3]\n")
    compiled = Path(py_compile.compile(str(source), doraise=True) or "")
    compiled.write_bytes(compiled.read_bytes()[:30])
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(EOFError) as caught:
        import_module("module_to_cut")
    code, said = failing(caught.value)
    assert code == 3 and "code: bytecode-damaged" in said and f"rm {compiled}" in said


def test_a_reader_that_goes_away_is_not_an_error(tmp_path: Path) -> None:
    for number in range(300):
        run = tmp_path / f"a-run-with-quite-a-long-name-{number}"
        run.mkdir()
        (run / "run.json").write_text(json.dumps({"state": "finished", "attempts": []}))
    shell = f"{sys.executable} -m ascendtune runs list {tmp_path} --json | head -1; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert result.stderr == ""
    # 1 would say that a check found something wrong.
    assert result.stdout.splitlines()[-1] in ("0", "141")


@pytest.mark.parametrize(
    ("closing", "words", "code"),
    [
        ("<&-", ["init"], 2),
        ("2>&-", ["trian"], 2),
        (">&-", ["--version"], 0),
        ("2>/dev/full", ["train", "absent.yaml"], 2),
        ("2>/dev/full", ["trian"], 2),
    ],
)
def test_a_closed_stream_is_not_a_bug_and_changes_no_exit_code(closing: str, words: list[str], code: int) -> None:
    argv = ["bash", "-c", f'"$@" {closing}', "bash", sys.executable, "-m", "ascendtune", *words]
    result = subprocess.run(argv, stdin=subprocess.PIPE, capture_output=True, text=True, check=False)
    assert result.returncode == code and "bug" not in result.stderr and "Traceback" not in result.stderr


_INTERRUPTED = """
import atexit, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "ascendtune.core.terminal_text":
            signal.raise_signal(signal.SIGINT)
sys.argv, when = ["ascendtune", "--version"], sys.argv[1]
if when == "import":
    sys.meta_path.insert(0, Finder())
else:
    atexit.register(signal.raise_signal, signal.SIGINT)
from ascendtune.__main__ import main
main()
"""


@pytest.mark.parametrize(("when", "said"), [("import", ""), ("exit", f"ascendtune {__version__}\n")])
def test_interrupt_before_and_after_the_command_ends_without_a_traceback(when: str, said: str) -> None:
    ended = subprocess.run([sys.executable, "-c", _INTERRUPTED, when], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, said, "")


def test_help_names_no_type_of_python_and_cuts_no_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in ("", *GROUPS, *COMMANDS):
        with pytest.raises(SystemExit):
            entry.main([*command.split(), "--help"])
        shown = capsys.readouterr().out
        usage = shown.partition("\n\n")[0]
        assert not re.search(r"<\w|\{|\.\.\.\]\.\.\.", usage), usage
        lines = shown.splitlines()
        assert not [line for line in lines if re.search(r"<[a-z]+[ \[>|]", line)], command
        if not command or command in GROUPS:
            assert not [line for line in lines if line.endswith("...") and not line.startswith("Usage")], command


def test_a_deleted_working_directory_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    shell = f'cd {gone}; rmdir {gone}; exec "$0" -m ascendtune doctor disk'
    result = subprocess.run(["/bin/sh", "-c", shell, sys.executable], capture_output=True, text=True, check=False)
    assert result.returncode == 2 and result.stderr.startswith("error: the working directory does not exist any more\n")


@pytest.mark.parametrize(
    "words",
    [
        ["fetch", "https://me:hunter22@host/x"],
        ["train", "--devices", "https://me:hunter22@host/x"],
        ["runs", "shwo", "--token=hunter22"],
    ],
)
def test_usage_error_shows_no_password(in_process: Any, words: list[str]) -> None:
    result = in_process(*words)
    assert result.returncode == InputError.exit_code and "code: usage" in result.stderr
    assert "hunter22" not in result.stdout + result.stderr
