"""The scripts that complete in the shell, with a stand-in that answers as ascendtune does."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer import _completion_shared

from ascendtune.cli.completion import use_own_scripts
from ascendtune.cli.run_names import complete_key
from ascendtune.core.errors import RecipeError
from ascendtune.core.field_docstrings import field_docstrings
from ascendtune.core.rundir import RunDir
from ascendtune.recipe.recipe import Recipe
from ascendtune.recipe.sections import OptimSection

_ANSWERS = {
    "chat a@": "a@20\tcheckpoint\na@best\tcheckpoint\n",
    "train r.yaml optim.le": "optim.learning_rate=\tPeak: it's `1e-4` for $(lora)\n",
    "train r.yaml optim.scheduler=co": "optim.scheduler=constant\noptim.scheduler=cosine\n",
    "chat x": "",
}


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`ascendtune` in PATH, which knows `_ANSWERS`."""
    lines = [f"'ascendtune {asked}') cat {tmp_path}/{number} ;;" for number, asked in enumerate(_ANSWERS)]
    for number, answer in enumerate(_ANSWERS.values()):
        (tmp_path / str(number)).write_text(answer)
    script = tmp_path / "ascendtune"
    script.write_text("\n".join(["#!/bin/sh", 'case "$_TYPER_COMPLETE_ARGS" in', *lines, "esac"]))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return script


def _script(shell: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(_completion_shared, "_completion_scripts", dict(_completion_shared._completion_scripts))
    use_own_scripts(shell_is_given=False)
    return _completion_shared.get_completion_script(
        prog_name="ascendtune", complete_var="_ASCENDTUNE_COMPLETE", shell=shell
    )


@pytest.mark.parametrize(
    ("typed", "replies"),
    [
        ("chat a@", ["20", "best"]),
        ("train r.yaml optim.le", ["optim.learning_rate="]),
        ("train r.yaml optim.scheduler=co", ["constant", "cosine"]),
        ("chat x", []),
    ],
)
def test_bash_replaces_what_follows_the_last_word_break(
    typed: str, replies: list[str], program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = f"""{_script("bash", monkeypatch)}
        COMP_LINE='ascendtune {typed}' COMP_WORDBREAKS=$' \\t\\n"'"'"'@><=;|&(:'
        COMP_POINT=${{#COMP_LINE}}
        _ascendtune_completion ascendtune 2> /dev/null
        printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(["bash", "--norc", "-c", asked], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == replies


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_leaves_no_space_behind_a_key_and_runs_no_help_text(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = f"""compdef() {{ : }}
        _describe() {{ local -a shown=("${{(@P)2}}"); print -r -- "${{(@)shown}}" "${{@:3}}." }}
        _files() {{ print files }}
        {_script("zsh", monkeypatch)}
        for typed in 'train r.yaml optim.le' 'train r.yaml optim.scheduler=co' 'chat x'; do
            words=(ascendtune ${{=typed}}) CURRENT=$#words
            _ascendtune_completion
        done"""
    done = subprocess.run(["zsh", "-f", "-c", asked], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == [
        "optim.learning_rate=:Peak: it's `1e-4` for $(lora) -S .",
        "optim.scheduler=constant: optim.scheduler=cosine: .",
        "files",
    ]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_option_prints_the_own_script(shell: str, ascendtune: Any) -> None:
    shown = ascendtune("--show-completion", shell).stdout
    assert "_TYPER_COMPLETE_FISH_ACTION=get-args" in shown and "eval" not in shown
    assert ("compdef" in shown) == (shell == "zsh")


def test_a_key_is_one_completion_however_long_its_help_is(ascendtune: Any) -> None:
    asked = {
        "_ASCENDTUNE_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": "ascendtune train r.yaml optim.learning_r",
    }
    about = field_docstrings(OptimSection)["learning_rate"].partition("\n")[0]
    assert len(about) > 80
    assert ascendtune(**asked, COLUMNS="40").stdout == f"optim.learning_rate=\t{about}\n"


def test_words_and_truth_values_of_a_key_are_completed() -> None:
    schedulers = {value for value, _ in complete_key("optim.scheduler=co")}
    assert schedulers == {"optim.scheduler=constant", "optim.scheduler=cosine"}
    assert {value for value, _ in complete_key("checkpoint.best=")} == {"checkpoint.best=false", "checkpoint.best=true"}
    assert complete_key("optim.learning_rate=") == [] == complete_key("optim.nothing=")
    assert [value for value, _ in complete_key("data.template=glm4_7_")] == ["data.template=glm4_7_last_thought"]


def test_keys_that_are_sections_or_lists_are_completed_where_they_take_values() -> None:
    assert [value for value, _ in complete_key("data.train=")] == []
    assert [value for value, _ in complete_key("data.train")][:2] == ["data.train=", "data.train.0.path="]
    assert {value for value, _ in complete_key("kernel=")} == {"kernel=auto", "kernel=off"}
    assert "optim=" not in {value for value, _ in complete_key("optim")}


def test_each_completed_key_is_one_of_a_recipe(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("model: {path: m}\ndata: {train: [{path: o/d}], eval: [{path: o/d}]}\n")
    for key, _ in complete_key(""):
        try:
            Recipe.load(path, [f"{key}null"])
        except RecipeError as error:
            assert "unknown-recipe-key" not in str(error) and "override-path-missing" not in str(error)


@pytest.mark.parametrize(
    "command", ["train r.yaml", "plan r.yaml", "bench r.yaml", "profile r.yaml", "recipe check r.yaml"]
)
def test_recipe_keys_are_completed_wherever_they_are_taken(ascendtune: Any, command: str) -> None:
    words = f"ascendtune {command} optim.sch"
    env = {"_ASCENDTUNE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    assert ascendtune(**env).stdout.split() == ["optim.scheduler="]


def test_checkpoints_are_completed_behind_the_key_that_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = RunDir(tmp_path / "runs" / "alpaca")
    run.create("", {}, {})
    run.checkpoint(40).mkdir(parents=True)
    values = {value for value, _ in complete_key("checkpoint.resume=a")}
    assert values == {"checkpoint.resume=auto", "checkpoint.resume=alpaca"}
    assert ("checkpoint.resume=alpaca@40", "checkpoint") in complete_key("checkpoint.resume=alpaca@")


@pytest.mark.parametrize("command", ["align compare", "align compare a", "align bisect", "align nan", "runs show"])
def test_names_of_runs_are_completed_wherever_they_are_taken(
    ascendtune: Any, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    RunDir(tmp_path / "runs" / "alpaca").create("", {}, {})
    words = f"ascendtune {command} al"
    env = {"_ASCENDTUNE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    assert ascendtune(**env).stdout.split() == ["alpaca"]


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("init --tuner l", ["lora"]),
        ("init --preset lora-d", ["lora-dpo"]),
        ("init --format pre", ["preference"]),
        ("devices --lang z", ["zh"]),
        ("env mirrors use tu", ["tuna"]),
        ("plan --device h2", ["h200"]),
        ("env caches --clean tri", ["triton"]),
        ("env caches --clean pip,tri", ["pip,triton"]),
        ("env mirrors use tuna --only pip,hu", ["pip,huggingface"]),
        ("align bisect a b --switch dtype,att", ["dtype,attention"]),
        ("bench r.yaml --strategies ddp,f", ["ddp,fsdp"]),
        ("chat run --template chat", ["chatml"]),
        ("init --template llama", ["llama2", "llama3"]),
        ("train r.yaml --allow-change optim.sch", ["optim.scheduler"]),
        ("train r.yaml --allow-change dat", ["data"]),
    ],
)
def test_words_of_an_option_are_completed(ascendtune: Any, words: str, completed: list[str]) -> None:
    env = {
        "_ASCENDTUNE_COMPLETE": "complete_bash",
        "COMP_WORDS": f"ascendtune {words}",
        "COMP_CWORD": str(len(words.split())),
    }
    assert ascendtune(**env).stdout.split()[: len(completed)] == completed
