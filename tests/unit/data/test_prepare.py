from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from ascendtune.core.directories import building_of, cache_directory, lock_of
from ascendtune.core.errors import DataError, MachineError, RecipeError
from ascendtune.core.files import digest_of_file
from ascendtune.core.locks import file_lock
from ascendtune.data import fingerprint as fingerprints
from ascendtune.data import prepare as data_prepare
from ascendtune.data.prepare import PreparedData, cached_tokens, open_prepared, prepare
from ascendtune.data.report import lines as lines_of
from ascendtune.data.spec import DataSection, Task
from ascendtune.data.store import TokenDataset
from time_limit import time_limit


@pytest.fixture
def model(make_model: Callable[..., Path]) -> Path:
    return make_model(eos_token="<|im_end|>")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "rows.jsonl", 40)


def write(path: Path, rows: int, first: int = 0) -> Path:
    lines = [
        {"instruction": f"Question {n}?", "output": f"The answer is {n}." * (n % 3 + 1)}
        for n in range(first, first + rows)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def section(data: Path, **more: Any) -> DataSection:
    return DataSection.model_validate({"train": str(data), "template": "chatml", "processes": 1, **more})


def rows_of(path: Path) -> list[tuple[list[int], list[int]]]:
    dataset = TokenDataset.open(path)
    return [(ids.tolist(), labels.tolist()) for ids, labels in map(dataset.row, range(len(dataset)))]


def test_made_once_then_found(data: Path, model: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    cache = tmp_path / "cache"
    made = prepare(section(data), model, seed=1, cache=cache, progress=lambda *each: seen.append(each))
    found = prepare(section(data), model, seed=1, cache=cache)
    assert (made.cached, found.cached) == (False, True)
    assert seen == [("tokenising training data", 40, 40)]
    for prepared in (made, found, open_prepared(made.directory)):
        assert prepared.fingerprint == made.fingerprint == made.directory.name
        assert (prepared.train, prepared.eval) == (made.directory / "train", None)
        assert prepared.report == made.report and prepared.eval_report is None
        assert (prepared.stop_ids, prepared.eos_id, prepared.warnings) == ((5,), 5, ())
        assert "<|im_start|>" in prepared.chat_template
    dataset = TokenDataset.open(found.train)
    assert made.report.rows_read == made.report.rows_kept == len(dataset) == 40
    assert made.report.tokens == dataset.lengths.sum() and made.report.longest == dataset.lengths.max()
    assert made.report.labelled_tokens == dataset.label_counts.sum()
    assert sum(count for _, count in made.report.length_histogram) == 40
    assert made.report.length_histogram[-1][0] >= made.report.longest


@pytest.mark.parametrize("task", ["conversations", "text", "singles"])
def test_each_data_set_of_a_mixture_has_its_tokens(task: Task, model: Path, tmp_path: Path) -> None:
    """Each as it is alone: long texts are split, long conversations dropped."""
    chosen, label = random.Random(task), {"label": True} if task == "singles" else {}
    lengths = [[chosen.choice((1, 3, 40)) for _ in range(size)] for size in (7, 1, 12)]
    sets = []
    for number, (of_set, weight) in enumerate(zip(lengths, (1, 3, 2), strict=True)):
        path = tmp_path / f"{number}.jsonl"
        texts = [f"{number} " + "word " * length for length in of_set]
        rows = [{"text": text} if task == "text" else {"prompt": text, "completion": "yes", **label} for text in texts]
        path.write_text("".join(json.dumps(each) + "\n" for each in rows))
        sets.append({"path": str(path), "weight": weight})

    def reports(train: list[dict[str, Any]]) -> list[Any]:
        long = "truncate" if task == "text" else "drop"
        given = DataSection.model_validate(
            {"train": train, "template": "chatml", "processes": 1, "max_length": 60, "on_long_row": long}
        )
        made = prepare(given, model, task=task, seed=1, cache=tmp_path / "cache")
        dataset = TokenDataset.open(made.train)
        assert sum(each.groups for each in made.report.datasets) * dataset.group_size == len(dataset)
        assert sum(each.tokens for each in made.report.datasets) == made.report.tokens == dataset.lengths.sum()
        return made.report.datasets

    for alone, mixed in zip(sets, reports(sets), strict=True):
        if task == "singles":
            # A mismatched answer is of another row.
            assert mixed.rows_trained == sum(length < 40 for length in lengths[sets.index(alone)]) * alone["weight"]
        else:
            assert [mixed] == reports([alone])
            assert mixed.tokens > 0 or not mixed.rows_trained


def test_tokens_go_to_the_users_cache_by_default(data: Path, model: Path) -> None:
    home = Path(os.environ["XDG_CACHE_HOME"])
    assert prepare(section(data), model, seed=1).directory.is_relative_to(home / "ascendtune" / "tokens")


CHANGES: dict[str, dict[str, Any]] = {
    "max_length": {"max_length": 100},
    "template": {"template": "plain"},
    "loss_on": {"loss_on": "all"},
    "on_long_row": {"on_long_row": "drop"},
    "on_bad_row": {"on_bad_row": "skip"},
    "eval_fraction": {"eval_fraction": 0.1},
    "eval_rows": {"eval_rows": 3},
}


@pytest.mark.parametrize("change", CHANGES)
def test_keys_that_change_tokens_change_the_fingerprint(change: str, data: Path, model: Path) -> None:
    one = fingerprint_of(section(data), model)
    assert fingerprint_of(section(data, **CHANGES[change]), model) != one
    assert fingerprint_of(section(data, packing=False, processes=2), model) == one


def test_the_task_changes_the_fingerprint(data: Path, model: Path) -> None:
    assert len({fingerprint_of(section(data), model, task=task) for task in get_args(Task)}) == len(get_args(Task))


def test_pairs_are_rows_from_file_to_report(model: Path, tmp_path: Path) -> None:
    lines = [
        {"prompt": f"Question {n}?", "chosen": f"Yes {n}", "rejected": "No" if n else f"Yes {n}", "margin": n}
        for n in range(20)
    ]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(DataError) as raised:
        prepare(section(file), model, task="pairs", seed=1, cache=tmp_path)
    assert raised.value.code == "bad-rows" and "1 of 20 rows" in raised.value.what
    assert f"{file}:1: chosen and rejected are the same" in raised.value.what
    # What all learns, a comparison of answers must not see.
    recipe = section(file, on_bad_row="skip", eval_fraction=0.2, loss_on="all")
    prepared = prepare(recipe, model, task="pairs", seed=1, cache=tmp_path)
    train, held_out = TokenDataset.open(prepared.train), TokenDataset.open(prepared.eval or tmp_path)
    report = prepared.report
    assert (report.rows_read, report.rows_dropped, report.rows_held_out, report.rows_kept) == (20, 1, 4, 15)
    assert (len(train), len(held_out), train.group_size) == (30, 8, 2)
    assert sorted([*train.values.tolist(), *held_out.values.tolist()]) == list(range(1, 20))
    assert sum(count for _, count in report.length_histogram) == 30
    assert train.row(0)[1][0] == -100


def test_texts_need_no_chat_template(make_model: Callable[..., Path], tmp_path: Path) -> None:
    base = make_model(eos_token="<|endoftext|>")
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"Once upon a time there were {n} cats, and all were happy.\n" for n in range(30)))
    recipe = section(file, template="auto", max_length=8)
    prepared = prepare(recipe, base, task="text", seed=1, cache=tmp_path)
    dataset, report = TokenDataset.open(prepared.train), prepared.report
    assert (report.rows_read, report.rows_kept, report.split_rows, report.pieces) == (30, 30, 30, len(dataset))
    assert f"split: 30 texts into {len(dataset)} rows" in lines_of(report)
    assert (prepared.chat_template, prepared.stop_ids) == ("", (prepared.eos_id,))
    assert open_prepared(prepared.directory) == replace(prepared, cached=True)
    with pytest.raises(RecipeError) as caught:
        prepare(recipe, base, seed=1, cache=tmp_path)
    assert caught.value.code == "template-missing"


@pytest.mark.parametrize(
    "keys", [{"system": "s"}, {"limit": 3}, {"weight": 2}, {"columns": {"prompt": "instruction"}}, {"format": "alpaca"}]
)
def test_keys_of_a_data_set_change_the_fingerprint(keys: dict[str, Any], data: Path, model: Path) -> None:
    other = DataSection.model_validate({"train": {"path": str(data), **keys}, "template": "chatml"})
    assert fingerprint_of(other, model) != fingerprint_of(section(data), model)


def test_contents_change_the_fingerprint(
    data: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own.jinja"
    own.write_text("{{ messages[0].content }}")
    recipe = section(data, template=str(own))
    seen = {fingerprint_of(recipe, model), fingerprint_of(recipe, model, new_tokens=["<new>"])}
    assert len(seen) == 2

    def is_new() -> bool:
        before = len(seen)
        seen.add(fingerprint_of(recipe, model))
        return len(seen) == before + 1

    assert not is_new()
    own.write_text("{{ messages[0].content }}!")
    assert is_new()
    write(data, 40, first=1)
    assert is_new()
    (model / "chat_template.jinja").write_text("x")
    assert is_new()
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "default.jinja").write_text("y")
    assert is_new()
    path = model / "tokenizer.json"
    path.write_text(path.read_text() + "\n")
    assert is_new()
    room = tmp_path / "room"
    shutil.copytree(Path(fingerprints.__file__).parent, room)
    monkeypatch.setattr(fingerprints, "__file__", str(room / "fingerprint.py"))
    assert not is_new()
    for name in ("collate.py", "inspect.py", "inspect_packed.py", "plan.py", "workers.py"):
        (room / name).write_text("")
    assert not is_new()
    (room / "format" / "alpaca.py").write_text("")
    assert is_new()
    (room / "templates" / "chatml.jinja").write_text("")
    assert is_new()


def test_the_seed_counts_only_where_it_is_used(data: Path, model: Path) -> None:
    assert fingerprint_of(section(data), model, seed=1) == fingerprint_of(section(data), model, seed=2)
    drawn = section(data, eval_fraction=0.5)
    assert fingerprint_of(drawn, model, seed=1) != fingerprint_of(drawn, model, seed=2)


def fingerprint_of(
    recipe: DataSection,
    model: Path,
    *,
    seed: int = 1,
    new_tokens: list[str] | None = None,
    task: Task = "conversations",
) -> str:
    locations = [(spec, Path(spec.path)) for spec in (*recipe.train, *recipe.eval)]
    return fingerprints.fingerprint(fingerprints.TokenInputs(recipe, model, locations, task, new_tokens or [], seed))


def test_a_share_is_held_out_with_all_its_copies(data: Path, model: Path, tmp_path: Path) -> None:
    whole = rows_of(prepare(section(data), model, seed=1, cache=tmp_path).train)
    recipe = section(data, eval_fraction=0.25, train={"path": str(data), "weight": 2})
    prepared = prepare(recipe, model, seed=1, cache=tmp_path)
    assert prepared.eval and prepared.eval_report and prepared.eval_report.rows_kept == 10
    held, kept = rows_of(prepared.eval), rows_of(prepared.train)
    assert len(kept) == prepared.report.rows_kept == 60
    assert sorted([*held, *kept[:30]]) == sorted(whole) and kept[:30] == kept[30:]
    report = prepared.report
    assert report.rows_held_out == len(held) and report.rows_kept == len(kept)
    assert report.rows_read + report.rows_by_weight - report.rows_held_out == report.rows_kept
    assert rows_of(prepare(recipe, model, seed=2, cache=tmp_path).eval or tmp_path) != held


def test_a_number_of_rows_is_held_out(data: Path, model: Path, tmp_path: Path) -> None:
    recipe = section(data, eval_rows=7)
    prepared = prepare(recipe, model, seed=1, cache=tmp_path)
    assert len(rows_of(prepared.eval or tmp_path)) == 7 and len(rows_of(prepared.train)) == 33
    other = prepare(recipe, model, seed=2, cache=tmp_path)
    assert rows_of(other.eval or tmp_path) != rows_of(prepared.eval or tmp_path)
    with pytest.raises(DataError) as caught:
        prepare(section(data, eval_rows=40), model, seed=1, cache=tmp_path)
    assert caught.value.code == "too-few-rows"


def test_rows_that_equal_a_held_out_row_are_not_trained_on(data: Path, model: Path, tmp_path: Path) -> None:
    twice = write(tmp_path / "twice.jsonl", 40)
    twice.write_text(twice.read_text() * 2)
    prepared = prepare(section(twice, eval_rows=7), model, seed=1, cache=tmp_path)
    held, kept = rows_of(prepared.eval or tmp_path), rows_of(prepared.train)
    assert len(held) == 7 and not [each for each in held if each in kept]
    report, distinct = prepared.report, len({tuple(ids) for ids, _ in held})
    assert report.dropped["equal to a row that is held out"].count == 2 * distinct - 7
    assert report.rows_kept == len(kept) == 80 - 2 * distinct
    assert report.rows_read + report.rows_by_weight - report.rows_dropped - report.rows_held_out == report.rows_kept
    one = write(tmp_path / "one.jsonl", 1)
    one.write_text(one.read_text() * 9)
    alike = prepare(section(one, eval_fraction=0.2), model, seed=1, cache=tmp_path)
    assert alike.report.rows_kept == 7 and not alike.report.dropped
    assert any(each.startswith("2 of 2 evaluation rows equal rows") for each in alike.warnings)


def test_answers_that_share_a_token_with_the_prompt_are_warned_of(model: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    answers = ("\nIt is.", "\nIt was.", "It is.")
    rows.write_text("".join(json.dumps({"prompt": "q", "completion": answer}) + "\n" for answer in answers))
    prepared = prepare(section(rows), model, seed=1, cache=tmp_path, new_tokens=["\n\n"])
    assert [each[:39] for each in prepared.warnings] == ["in 2 rows an answer and the end of its "]


def test_evaluation_data_that_was_trained_on_is_warned_of(data: Path, model: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other.jsonl", 9, first=34)
    prepared = prepare(section(data, eval=str(other)), model, seed=1, cache=tmp_path)
    assert any(each.startswith("6 of 9 evaluation rows equal rows that are trained on") for each in prepared.warnings)


def test_a_template_without_answers_is_named_as_the_cause(data: Path, model: Path, tmp_path: Path) -> None:
    template = tmp_path / "questions.jinja"
    template.write_text("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}\n{% endif %}{% endfor %}")
    with pytest.raises(DataError) as caught:
        prepare(section(data, template=str(template)), model, seed=1, cache=tmp_path)
    assert caught.value.code == "template-without-answer"


def test_separate_evaluation_data_is_not_taken_from_the_training_rows(data: Path, model: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other.jsonl", 3, first=100)
    prepared = prepare(section(data, eval=str(other)), model, seed=1, cache=tmp_path)
    assert prepared.eval and len(rows_of(prepared.eval)) == 3 and len(rows_of(prepared.train)) == 40


def test_new_tokens_are_single_tokens(data: Path, model: Path, tmp_path: Path) -> None:
    plain = prepare(section(data), model, seed=1, cache=tmp_path)
    grown = prepare(section(data), model, new_tokens=["Question"], seed=1, cache=tmp_path)
    assert grown.vocab_size == plain.vocab_size + 1
    assert all(plain.vocab_size in ids for ids, _ in rows_of(grown.train))


@pytest.mark.parametrize("damage", ["flip", "cut", "lose", "record"])
def test_a_damaged_entry_is_rebuilt(damage: str, data: Path, model: Path, tmp_path: Path) -> None:
    made = prepare(section(data), model, seed=1, cache=tmp_path)
    good, shard = rows_of(made.train), made.train / "00000.arrow"
    content = shard.read_bytes()
    if damage == "flip":
        middle = len(content) // 2
        shard.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    elif damage == "cut":
        shard.write_bytes(content[:100])
    elif damage == "lose":
        shard.unlink()
    else:
        (made.directory / "prepared.json").write_text("{}")
    if damage != "flip":
        with pytest.raises(MachineError) as caught:
            open_prepared(made.directory)
        assert caught.value.code == "prepared-data-damaged"
    again = prepare(section(data), model, seed=1, cache=tmp_path)
    assert not again.cached and rows_of(again.train) == good


def test_an_entry_is_read_again_only_after_it_was_touched(
    data: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def digest(path: Path) -> str:
        read.append(path.name)
        return digest_of_file(path)

    made = prepare(section(data), model, seed=1, cache=tmp_path)
    monkeypatch.setattr("ascendtune.data.prepare.digest_of_file", digest)
    assert prepare(section(data), model, seed=1, cache=tmp_path).cached and read == []
    os.utime(made.train / "00000.arrow")
    for _ in range(2):
        assert prepare(section(data), model, seed=1, cache=tmp_path).cached and read == ["00000.arrow"]


def test_record_of_a_touched_entry_is_left_to_the_process_that_has_the_lock(
    data: Path, model: Path, tmp_path: Path
) -> None:
    made = prepare(section(data), model, seed=1, cache=tmp_path)
    record = made.directory / "prepared.json"
    before = record.read_bytes()
    os.utime(made.train / "00000.arrow")
    with file_lock(lock_of(tmp_path, made.fingerprint), wait=False):
        assert prepare(section(data), model, seed=1, cache=tmp_path).cached and record.read_bytes() == before
    assert prepare(section(data), model, seed=1, cache=tmp_path).cached and record.read_bytes() != before


def test_tokens_that_another_host_has_built_meanwhile_are_used(
    data: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of NFS that did not find the entry says so for a minute, unless it changes the directory itself."""
    made = prepare(section(data), model, seed=1, cache=tmp_path)
    intact, make, is_asked = data_prepare._intact, tempfile.TemporaryFile, False

    def make_file(dir: Path) -> Any:
        nonlocal is_asked
        is_asked |= dir == tmp_path
        return make(dir=dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", make_file)
    monkeypatch.setattr(data_prepare, "_intact", lambda entry: intact(entry) if is_asked else None)
    before = made.directory.stat().st_ino
    assert prepare(section(data), model, seed=1, cache=tmp_path).cached
    assert made.directory.stat().st_ino == before


def test_max_length_shorter_than_every_row_is_refused(data: Path, model: Path, tmp_path: Path) -> None:
    for keys in ({}, {"on_long_row": "drop"}):
        with pytest.raises(DataError) as caught:
            prepare(section(data, max_length=5, **keys), model, seed=1, cache=tmp_path)
        assert caught.value.code == "no-answer-left"
    assert not [each for each in tmp_path.iterdir() if each.is_dir()]


@pytest.mark.parametrize(
    ("positions", "on_long_row", "remedy"),
    [
        (5, "truncate", "choose a model for longer texts, or shorten the rows: this one was made for 5 positions"),
        (32, "drop", "choose a model for longer texts"),
        # Answers begin before position 32.
        (32, "truncate", "set data.max_length to 32, the positions that the model was made for, or shorten the rows"),
        (40, "drop", "set data.max_length to 40, the positions that the model was made for, or shorten the rows"),
        (100_000, "truncate", "or as high as memory allows"),
    ],
)
@pytest.mark.parametrize("within", ["{}", '{{"text_config": {}}}'])
def test_remedy_for_rows_that_are_all_too_long_knows_the_positions_of_the_model(
    data: Path, model: Path, tmp_path: Path, positions: int, on_long_row: str, remedy: str, within: str
) -> None:
    copy = tmp_path / "model"
    shutil.copytree(model, copy)
    (copy / "config.json").write_text(within.format(json.dumps({"max_position_embeddings": positions})))
    with pytest.raises(DataError) as caught:
        prepare(section(data, max_length=5, on_long_row=on_long_row), copy, seed=1, cache=tmp_path / "cache")
    assert remedy in caught.value.remedy


def test_rows_held_out_are_named_where_only_they_have_no_answer(model: Path, tmp_path: Path) -> None:
    short, long = [
        [{"prompt": begin + question, "completion": "ja"} for question in "abcd"] for begin in ("", "long " * 40)
    ]
    for name, rows in (("train", short), ("eval", long)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    recipe = section(tmp_path / "train.jsonl", eval=str(tmp_path / "eval.jsonl"), max_length=64)
    with pytest.raises(DataError, match="leaves no row of the evaluation data with an answer"):
        prepare(recipe, model, seed=1, cache=tmp_path / "cache")


def test_long_rows_fail_by_name(data: Path, model: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        prepare(section(data, max_length=40, on_long_row="fail"), model, seed=1, cache=tmp_path)
    lines = caught.value.what.splitlines()
    assert lines[1].startswith(f"  {data}:") and lines[1].endswith(" tokens") and len(lines) == 7
    assert "data.on_long_row" in caught.value.remedy


def test_report_counts_dropped_and_truncated_rows(data: Path, model: Path, tmp_path: Path) -> None:
    with data.open("a") as file:
        file.write(json.dumps({"instruction": "long " * 100, "output": "short"}) + "\n")
    report = prepare(section(data, max_length=48), model, seed=1, cache=tmp_path).report
    assert report.rows_read == 41 and report.rows_kept == 40 and report.unlabelled_rows == 1
    ((reason, dropped),) = report.dropped.items()
    assert reason == "no answer left within max_length" and dropped.examples[0].startswith(f"{data}:41: ")
    assert report.truncated_rows and report.truncated_tokens >= report.truncated_rows


def test_refused_rows_fail_by_name_or_are_counted(data: Path, model: Path, tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text(
        "{% if '7' in messages[0].content %}{{ raise_exception('no 7') }}{% endif %}{{ messages[1].content }}"
    )
    with pytest.raises(DataError) as caught:
        prepare(section(data, template=str(template)), model, seed=1, cache=tmp_path)
    assert f"{data}:8: no 7" in caught.value.what
    report = prepare(section(data, template=str(template), on_bad_row="skip"), model, seed=1, cache=tmp_path).report
    assert report.dropped["the chat template refuses it"].count == 4 and report.rows_kept == 36


def test_model_without_a_template_is_refused(data: Path, model: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        prepare(section(data, template="auto"), model, seed=1, cache=tmp_path)
    assert caught.value.code == "template-missing"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        path = tmp_path / f"disk{len(mounted)}"
        path.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", str(path)], check=True)


@pytest.mark.parametrize("processes", [1, 2])
def test_full_disk_ends_preparation_and_leaves_no_entry(
    processes: int, model: Path, tmp_path: Path, small_disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ascendtune.data.tokenize._SMALLEST_SHARD", 1000)
    many = write(tmp_path / "many.jsonl", 3000)
    disk = small_disk("size=256k")
    with pytest.raises(MachineError) as caught:
        prepare(section(many, processes=processes), model, seed=1, cache=disk / "cache")
    assert caught.value.code == "disk-full"
    assert caught.value.exit_code == 3 and caught.value.where
    assert not [each for each in (disk / "cache").iterdir() if each.is_dir()]


def test_a_read_only_disk_serves_what_it_has(data: Path, model: Path, small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("size=4m")
    prepare(section(data), model, seed=1, cache=disk)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert prepare(section(data), model, seed=1, cache=disk).cached
    with pytest.raises(MachineError) as caught:
        prepare(section(data, max_length=99), model, seed=1, cache=disk)
    assert caught.value.code == "read-only-file-system"
    assert caught.value.exit_code == 3


def test_a_cached_run_loads_no_library(data: Path, model: Path, tmp_path: Path) -> None:
    prepare(section(data), model, seed=1, cache=tmp_path / "cache")
    program = PROGRAM + "print({'tokenizers', 'jinja2', 'pyarrow', 'numpy'} & sys.modules.keys())"
    arguments = [sys.executable, "-c", program, str(data), str(model), str(tmp_path / "cache"), "1"]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.stdout == "True\nset()\n", done.stderr


PROGRAM = """
import sys
from pathlib import Path
from ascendtune.data.prepare import prepare
from ascendtune.data.spec import DataSection, Task
data, model, cache, processes = sys.argv[1:]
section = DataSection.model_validate({"train": data, "template": "chatml", "processes": int(processes)})
print(prepare(section, Path(model), seed=1, cache=Path(cache)).cached)
"""


def start(data: Path, model: Path, cache: Path, processes: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(data), str(model), str(cache), str(processes)],
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.long
def test_four_that_start_together_build_once(model: Path, tmp_path: Path) -> None:
    many = write(tmp_path / "many.jsonl", 2000)
    started = [start(many, model, tmp_path / "cache", 1) for _ in range(4)]
    answers = [process.communicate(timeout=120)[0].strip() for process in started]
    assert sorted(answers) == ["False", "True", "True", "True"]
    assert len([each for each in (tmp_path / "cache").iterdir() if each.is_dir()]) == 1


@pytest.mark.long
@pytest.mark.parametrize("processes", [1, 2])
def test_preparation_killed_half_way_leaves_a_cache_that_works(processes: int, model: Path, tmp_path: Path) -> None:
    many = write(tmp_path / "many.jsonl", 8000)
    cache = tmp_path / "cache"
    drawn = random.Random(processes)
    for _ in range(2):
        process = start(many, model, cache, processes)
        while process.poll() is None and not list(cache.glob(".building-*/train/*.arrow")):
            time.sleep(0.005)
        time.sleep(drawn.random() * 0.2)
        process.kill()
        process.communicate()
    assert not finished(cache), "killed too late to prove anything"
    prepared = prepare(section(many, processes=1), model, seed=1, cache=cache)
    assert not prepared.cached and prepared.report.rows_kept == 8000
    assert finished(cache) == [prepared.directory] and not list(cache.glob(".building-*"))
    untouched = prepare(section(many, processes=1), model, seed=1, cache=tmp_path / "other")
    assert contents(prepared) == contents(untouched)


def test_leftovers_of_other_data_are_removed(data: Path, model: Path, tmp_path: Path) -> None:
    leftover = tmp_path / ".building-0123"
    leftover.mkdir()
    (leftover / "x.arrow").write_text("half")
    prepare(section(data), model, seed=1, cache=tmp_path)
    assert not leftover.exists()


def finished(cache: Path) -> list[Path]:
    return [each for each in cache.iterdir() if each.is_dir() and not each.name.startswith(".")]


def contents(prepared: PreparedData) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in prepared.train.iterdir()}


@pytest.mark.parametrize(
    "name", ["", "..", "../../other", "/etc", "a" * 31, "A" * 32, "a" * 33, "a" * 31 + "\n", "٣" * 32]
)
def test_tokens_are_found_by_their_fingerprint_alone(name: str) -> None:
    with pytest.raises(MachineError) as refused:
        cached_tokens(name)
    assert refused.value.code == "record-damaged"


def test_tokens_of_a_fingerprint_lie_in_the_cache() -> None:
    assert cached_tokens("0f" * 16) == cache_directory() / "tokens" / ("0f" * 16)


@pytest.mark.parametrize("spoil", ["writable by others", "of another user"])
def test_tokens_that_others_may_have_written_are_refused(spoil: str, data: Path, model: Path, tmp_path: Path) -> None:
    entry = prepare(section(data), model, seed=1, cache=tmp_path / "cache").directory
    if spoil == "writable by others":
        entry.chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(entry, 65534, 65534)
    else:
        pytest.skip("only root can give a directory away")
    for attempt in (
        lambda: open_prepared(entry),
        lambda: prepare(section(data), model, seed=1, cache=tmp_path / "cache"),
    ):
        with pytest.raises(MachineError) as refused:
            attempt()
        assert refused.value.code in ("writable-by-others", "owned-by-another-user")


@pytest.mark.parametrize("content", ["[]", "{}", '{"files": {}}', '{"files": {}, "format_version": 3}', "[" * 100_000])
def test_tokens_with_a_damaged_record_are_made_again(content: str, data: Path, model: Path, tmp_path: Path) -> None:
    made = prepare(section(data), model, seed=1, cache=tmp_path / "cache")
    (made.directory / "prepared.json").write_text(content)
    with pytest.raises(MachineError) as refused:
        open_prepared(made.directory)
    assert refused.value.code == "prepared-data-damaged"
    again = prepare(section(data), model, seed=1, cache=tmp_path / "cache")
    assert not again.cached
    assert rows_of(again.train) == rows_of(made.train)


@pytest.mark.parametrize("what", ["file", "pipe", "link", "link to itself"])
@pytest.mark.parametrize("where", ["entry", "building"])
def test_tokens_are_made_where_something_else_stands(
    where: str, what: str, data: Path, model: Path, tmp_path: Path
) -> None:
    cache, aside = tmp_path / "cache", tmp_path / "aside"
    made = prepare(section(data), model, seed=1, cache=cache)
    made.directory.rename(aside)
    place = made.directory if where == "entry" else building_of(cache, made.fingerprint)
    if what == "file":
        place.touch()
    elif what == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(aside if what == "link" else place)
    with time_limit(20, what):
        again = prepare(section(data), model, seed=1, cache=cache)
    assert not again.cached
    assert rows_of(again.train) == rows_of(aside / "train")
    assert not place.is_symlink()


@pytest.mark.parametrize(
    "files", [{}, {"/dev/zero": [0, ""]}, {"../../../etc/passwd": [1, ""]}, {"pipe.arrow": [0, ""]}]
)
def test_files_of_a_record_that_are_not_the_entrys_make_it_damaged(
    files: dict[str, Any], data: Path, model: Path, tmp_path: Path
) -> None:
    entry = prepare(section(data), model, seed=1, cache=tmp_path / "cache").directory
    os.mkfifo(entry / "pipe.arrow")
    record = json.loads((entry / "prepared.json").read_text())
    (entry / "prepared.json").write_text(json.dumps({**record, "files": files}))
    with time_limit(20, str(files)):
        with pytest.raises(MachineError) as refused:
            open_prepared(entry)
        assert refused.value.code == "prepared-data-damaged"
        assert not prepare(section(data), model, seed=1, cache=tmp_path / "cache").cached


def test_a_lock_that_is_a_link_is_not_followed(data: Path, model: Path, tmp_path: Path) -> None:
    cache, victim = tmp_path / "cache", tmp_path / "victim"
    cache.mkdir()
    lock_of(cache, fingerprint_of(section(data), model)).symlink_to(victim)
    with pytest.raises(MachineError) as refused:
        prepare(section(data), model, seed=1, cache=cache)
    assert refused.value.code == "symbolic-link-loop"
    assert not victim.exists()
