"""Generation from real weights: a tiny model that was taught three answers, as a model, an adapter and a run."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from ascendtune.cli.main import main
from ascendtune.core.errors import InputError
from ascendtune.core.rundir import RunDir
from ascendtune.data.conversation import Message
from ascendtune.infer.engine import Engine, Sampling, load

ANSWERS = {
    "What is the capital of France?": "The capital of France is Paris.",
    "who are you?": "I am a small assistant, trained to answer questions.",
    "Give three tips for staying healthy, and describe the structure of an atom.": "好 Eat 🙂 well",
}


def asked(question: str) -> list[Message]:
    return [{"role": "user", "content": question}]


@pytest.fixture(scope="module")
def taught(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, trained on `ANSWERS` by a bare loop; its generation_config asks for wild sampling."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    rows = []
    for question, answer in ANSWERS.items():
        turns = [*asked(question), {"role": "assistant", "content": answer}]
        prompt = tokenizer.apply_chat_template(turns[:1], add_generation_prompt=True, tokenize=False)
        text = tokenizer.apply_chat_template(turns, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
        labels = ids.clone()
        labels[:, : len(tokenizer(prompt, add_special_tokens=False).input_ids)] = -100
        rows.append((ids, labels))
    for _ in range(120):
        loss = sum(model(input_ids=ids, labels=labels).loss for ids, labels in rows)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if loss < 0.02:
            break
    directory = tmp_path_factory.mktemp("taught")
    model.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model / name, directory)
    wild = {"do_sample": True, "temperature": 9.0, "repetition_penalty": 9.0, "max_length": 3, "eos_token_id": 0}
    (directory / "generation_config.json").write_text(json.dumps(wild))
    return directory


@pytest.fixture(scope="module")
def engine(taught: Path) -> Engine:
    return load(taught)


def run_command(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(words)
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def test_answers_are_those_that_were_taught(engine: Engine) -> None:
    assert engine.generate([asked(question) for question in ANSWERS]) == list(ANSWERS.values())


def test_the_stop_token_is_not_part_of_the_answer(engine: Engine) -> None:
    prompt, stop = (
        engine.tokenizer.encode(engine.template.render_prompt(asked("who are you?"))),
        engine.template.stop_ids,
    )
    [ids] = engine.model.generate([prompt], Sampling(50), stop, pad_id=0)
    assert engine.tokenizer.decode(ids) == ANSWERS["who are you?"]


def test_a_batch_answers_as_each_alone(engine: Engine) -> None:
    questions = [asked(question) for question in (*ANSWERS, "hello " * 30)]
    together = engine.generate(questions, 20)
    assert together == engine.generate(questions, 20, batch_size=1)
    assert together[:3] == list(ANSWERS.values())


def test_streaming_gives_the_same_text_in_whole_characters(engine: Engine) -> None:
    for question, answer in ANSWERS.items():
        pieces: list[str] = []
        assert engine.stream(asked(question), pieces.append) == answer
        assert "".join(pieces).strip() == answer
        assert len(pieces) > 2


def test_sampling_follows_its_seed_and_leaves_the_random_state_alone(engine: Engine) -> None:
    before = torch.get_rng_state()
    draw = [engine.generate([asked("hello")], 20, temperature=2.0, seed=seed) for seed in (1, 1, 2)]
    assert draw[0] == draw[1] != draw[2]
    assert torch.equal(torch.get_rng_state(), before)


def test_a_turn_may_end_with_text_that_is_not_a_token(taught: Path, tmp_path: Path) -> None:
    template = tmp_path / "ends-with-paris.jinja"
    template.write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% if m.role == 'assistant' %}Paris{% else %}<|im_end|>{% endif %}\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    engine = load(taught, template=str(template))
    questions = [asked(question) for question in ANSWERS]
    assert engine.generate(questions)[0] == "The capital of France is"
    assert len(engine.model.generate(
        [engine.tokenizer.encode(engine.template.render_prompt(questions[0]))], Sampling(50),
        stop_ids=(), pad_id=0, is_ended=engine._is_ended,
    )[0]) < 20  # fmt: skip


def test_a_conversation_longer_than_the_context_is_refused(engine: Engine) -> None:
    with pytest.raises(InputError, match="context has 512") as caught:
        engine.generate([asked("word " * 600)])
    assert caught.value.code == "prompt-too-long"


def test_a_turn_that_the_template_refuses(taught: Path) -> None:
    with pytest.raises(InputError) as caught:
        load(taught, template="alpaca").generate([[{"role": "tool", "content": "4"}]])
    assert caught.value.code == "conversation-rejected"


def test_template_that_writes_nothing_is_refused(taught: Path, tmp_path: Path) -> None:
    (tmp_path / "silent.jinja").write_text("{{ messages[0].missing }}")
    with pytest.raises(InputError) as caught:
        load(taught, template=str(tmp_path / "silent.jinja")).generate([asked("who are you?")])
    assert caught.value.code == "prompt-empty"


def test_an_adapter_goes_onto_its_base(taught: Path, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from ascendtune.data.tokenizer import Tokenizer

    base = shutil.copytree(taught, tmp_path / "base")
    # As GLM, whose turns end with the token that opens the next one.
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 1]}))
    tokenizer = Tokenizer.load(base, ["<new>"])
    model = AutoModelForCausalLM.from_pretrained(base)
    model.resize_token_embeddings(tokenizer.vocab_size, mean_resizing=False)
    torch.manual_seed(0)
    config = LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", r=4, init_lora_weights=False)
    tuned = get_peft_model(model, config).eval()
    tuned.save_pretrained(tmp_path / "adapter")
    tokenizer.save(tmp_path / "adapter")

    loaded = load(tmp_path / "adapter")
    ids = torch.tensor([tokenizer.encode(loaded.template.render_prompt(asked("who are you? <new>")))])
    assert tokenizer.id_of("<new>") == 512
    assert 512 in ids
    with torch.no_grad():
        expected, found = tuned(ids).logits, loaded.model.model(ids).logits
    torch.testing.assert_close(found, expected)
    assert set(loaded.template.stop_ids) == {tokenizer.eos_id, 0, 1}
    assert loaded.generate([asked("who are you?")], 20) != load(taught).generate([asked("who are you?")], 20)


@pytest.mark.parametrize(("before", "after"), [(512, 576), (576, 512)], ids=["padded", "cut to the tokenizer"])
@pytest.mark.parametrize("saved", [None, ["embed_tokens"]], ids=["beside", "trained"])
def test_an_adapter_with_another_number_of_embeddings_than_its_base_and_its_tokenizer(
    saved: list[str] | None, before: int, after: int, taught: Path, tmp_path: Path
) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from ascendtune.merge.merge import merge

    base = shutil.copytree(taught, tmp_path / "base")
    model = AutoModelForCausalLM.from_pretrained(taught)
    model.resize_token_embeddings(before, mean_resizing=False)
    model.save_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base)
    torch.manual_seed(0)
    model.resize_token_embeddings(after, mean_resizing=False)
    config = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"], modules_to_save=saved)
    tuned = get_peft_model(model, config).eval()
    with torch.no_grad():
        tuned.get_input_embeddings().weight.mul_(1.5)
    tuned.save_pretrained(tmp_path / "adapter")

    loaded = load(tmp_path / "adapter")
    merged = merge([str(tmp_path / "adapter")], tmp_path / "merged")

    ids = torch.arange(3, 40)[None]
    assert merged.verification is not None and merged.verification.agrees
    with torch.no_grad():
        expected, found = tuned(ids).logits, loaded.model.model(ids).logits
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(load(tmp_path / "merged").model.model(ids).logits, expected)


def test_an_adapter_without_its_base_says_so(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "base_model_name_or_path": str(tmp_path / "gone")})
    )
    with pytest.raises(InputError, match="base model of this adapter"):
        load(tmp_path)


def test_weights_without_a_template_need_the_option(taught: Path, tmp_path: Path) -> None:
    shutil.copytree(taught, tmp_path / "base")
    config = tmp_path / "base" / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": None}))
    with pytest.raises(InputError) as error:
        load(tmp_path / "base")
    assert "--template chatml" in error.value.remedy
    assert load(tmp_path / "base", template="chatml").generate([asked("who are you?")])[0].startswith("I am")


def test_missing_files_and_templates_are_reported_without_recipe_keys(
    taught: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, said in ((["--file", "questions.none"], "no such data file"), (["?", "--template", "chatlm"], "chatml")):
        code, _, err = run_command(["generate", str(taught), *words], capsys)
        assert code == 2 and said in err and "data." not in err


def test_generate_for_a_run(taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDir(tmp_path / "run")
    run.create("", {}, {"argv": ["ascendtune", "train", "my recipe.yaml"]})
    code, out, err = run_command(["generate", str(run), "who are you?"], capsys)
    assert (code, out) == (2, "")
    assert "no final weights: its state is created" in err
    assert "ascendtune train 'my recipe.yaml'" in err
    shutil.copytree(taught, run.model)
    code, out, _ = run_command(["generate", str(run), "who are you?"], capsys)
    assert (code, out) == (0, ANSWERS["who are you?"] + "\n")


def test_generate_for_a_file_with_answers(taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "held-out.jsonl"
    rows = [{"instruction": question, "input": "", "output": answer} for question, answer in ANSWERS.items()]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, _ = run_command(["generate", str(taught), "--file", str(file), "--json"], capsys)
    found = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [row["answer"] for row in found] == [row["expected"] for row in found] == list(ANSWERS.values())


def test_an_interrupt_keeps_the_answers_so_far(
    taught: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of eight prompts in batches of two, with two batches at once, the third batch is interrupted."""
    questions = [*ANSWERS, "?", "a much longer question than the others"] * 8
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join(questions[:8]) + "\n")
    monkeypatch.setattr("ascendtune.infer.engine._BATCHES_AT_ONCE", 2)
    arguments = ["generate", str(taught), "--file", str(file), "--json", "--batch-size", "2", "--max-new-tokens", "9"]
    code, whole, _ = run_command(arguments, capsys)
    assert code == 0 and [json.loads(each)["messages"][0]["content"] for each in whole.splitlines()] == questions[:8]
    generated, calls = Engine._generated, list[int]()

    def interrupted(self: Engine, *rest: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return generated(self, *rest)

    monkeypatch.setattr(Engine, "_generated", interrupted)
    code, out, err = run_command(arguments, capsys)
    assert code == 130 and out.splitlines() == whole.splitlines()[:4]
    assert "the first 4 of 8 answers are printed" in err


def test_chat_reads_a_pipe(taught: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Any] = []
    stream = Engine.stream

    def remembering(self: Engine, messages: Sequence[Message], *rest: Any, **settings: Any) -> str:
        seen.append([message["content"] for message in messages])
        return stream(self, messages, *rest, **settings)

    monkeypatch.setattr(Engine, "stream", remembering)
    monkeypatch.setattr("sys.stdin", io.StringIO("who are you?\n\nhello\n/reset\nwho are you?\n/exit\nhello\n"))
    code, out, _ = run_command(["chat", str(taught), "--max-new-tokens", "20"], capsys)
    answer = ANSWERS["who are you?"]
    assert code == 0
    assert len(seen) == 3
    assert seen[0] == seen[2] == ["who are you?"]
    assert seen[1] == ["who are you?", answer, "hello"]
    assert out.startswith(answer + "\n")
    assert out.endswith(answer + "\n")
