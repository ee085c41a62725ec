"""The question to a language model, and the reading of its answer; the server is a real one on loopback."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from ascendtune.check.explain.answer.model_answer import Opinion, Quotation, Server, opinion_in
from ascendtune.check.explain.answer.prompt import question_about
from ascendtune.check.explain.answer.report import opinion_as_text
from ascendtune.check.explain.explain import explain
from ascendtune.cli.explain import explain as command
from ascendtune.core.errors import InputError
from ascendtune.core.http import Fault
from ascendtune.core.rundir import RunDir
from loopback import serving_on_loopback

_LINE = "ValueError: moon_phase=7 is not one of 4 phases"
_LOG = f"start on 10.1.2.3, HF_TOKEN=hf_{'a' * 34}\nTraceback (most recent call last):\n{_LINE}\n"
_ANSWER = {
    "cause": "moon_phase is 7, of 4 phases",
    "sure": "certain",
    "why": ["the script counts them from 0"],
    "do": ["--moon-phase 3", {"run": "rm -rf /"}],
    "lines": [_LINE, "CUDA error: not in this log"],
}


class Model(BaseHTTPRequestHandler):
    """Serves `names`; answers with `content`, and keeps what it was asked."""

    names = ("tiny",)
    content: Any = json.dumps(_ANSWER)
    asked: dict[str, Any]
    authorization: str | None

    def do_GET(self) -> None:
        self._send({"data": [{"id": name} for name in self.names]})

    def do_POST(self) -> None:
        type(self).asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).authorization = self.headers["Authorization"]
        self._send({"choices": [{"message": {"content": self.content}}]})

    def _send(self, answer: Any) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def served() -> Iterator[tuple[str, type[Model]]]:
    handler = type("Served", (Model,), {})
    with serving_on_loopback(handler) as endpoint:
        yield f"{endpoint}/v1", handler


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "job.log"
    path.write_text(_LOG)
    return str(path)


def test_excerpt_is_sent_without_secrets_and_the_opinion_follows_the_answer_of_the_rules(
    log: str, served: tuple[str, type[Model]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, handler = served
    monkeypatch.setenv("ASCENDTUNE_ASK_KEY", "of-this-server")
    # A proxy that must not see what goes to this machine.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")

    assert command([log], ask=url) == 1

    said = capsys.readouterr()
    rules, opinion = said.out.split("\n\n")
    assert "moon_phase=7" in rules and opinion.startswith("tiny says: moon_phase is 7, of 4 phases")
    assert "(not in the logs) CUDA error" in opinion and "it may be invented" in opinion
    assert "1. --moon-phase 3" in opinion and "rm -rf" not in opinion
    assert handler.authorization == "Bearer of-this-server" and handler.asked["model"] == "tiny"
    sent = handler.asked["messages"][0]["content"]
    assert f"3: {_LINE}" in sent and "hf_a" not in sent and "10.1.2.3" not in sent
    assert f"{len(sent):,} characters" in said.err


def test_question_option_prints_what_would_be_sent_and_sends_nothing(
    log: str, served: tuple[str, type[Model]], capsys: pytest.CaptureFixture[str]
) -> None:
    url, handler = served
    assert command([log], ask=url, question=True) == 0
    assert capsys.readouterr().out.rstrip("\n") == question_about(explain([log]), [log]).text
    assert not hasattr(handler, "asked")


def test_question_about_a_run_has_its_recipe_and_versions(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.create(
        "optim: {learning_rate: 7.0e-05}\ntrack: {api_key: abcdefgh12345}\n", {}, {"versions": {"torch": "2.13.0"}}
    )
    (run.logs / "rank_0.log").write_text(_LOG)
    asked = question_about(explain([str(run)]), [str(run)]).text
    assert "learning_rate: 7.0e-05" in asked and "torch 2.13.0" in asked and "abcdefgh" not in asked
    assert asked.index("learning_rate") < asked.index(f"3: {_LINE}")


def test_json_has_the_opinion_with_what_was_found_of_its_lines(
    log: str, served: tuple[str, type[Model]], capsys: pytest.CaptureFixture[str]
) -> None:
    url, handler = served
    command([log], ask=url, model="other", as_json=True)
    found = json.loads(capsys.readouterr().out)["opinion"]
    assert found["model"] == handler.asked["model"] == "other" and not found["is_founded"]
    assert [each["in_logs"] for each in found["lines"]] == [True, False]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"content": None}, "has no text"),
        ({"names": ()}, "lists no models"),
        ({"do_GET": lambda self: self.send_error(401)}, "export ASCENDTUNE_ASK_KEY"),
        ({"do_GET": lambda self: (self.send_response(302), self.send_header("Location", "http://127.0.0.1:1/x"),
                                  self.end_headers())}, "redirects to 127.0.0.1:1"),
        ({"do_POST": lambda self: (self.send_response(400), self.end_headers(), self.wfile.write(
            b'{"error": {"message": "at most\\n4096 tokens"}}'))}, "status 400 Bad Request: at most 4096 tokens"),
    ],
    ids=["no text", "no models", "no key", "redirect", "too long"],
)  # fmt: skip
def test_server_that_does_not_answer_is_a_warning(
    log: str, served: tuple[str, type[Model]], change: dict[str, Any], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url, handler = served
    for name, value in change.items():
        setattr(handler, name, value)
    assert command([log], ask=url) == 1
    assert re.search(rf"^warning: .*{re.escape(reason)}", capsys.readouterr().err, re.MULTILINE)


def test_one_of_several_models_must_be_named(log: str, served: tuple[str, type[Model]]) -> None:
    url, handler = served
    handler.names = ("one", "two")
    with pytest.raises(InputError) as caught:
        command([log], ask=url)
    assert caught.value.code == "option-missing" and caught.value.remedy == "name one: --model one"


def test_model_without_a_server_is_refused(log: str) -> None:
    with pytest.raises(InputError) as caught:
        command([log], model="one")
    assert caught.value.code == "option-not-applicable"


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://host/v1", "http://", "http://me:word@host/v1", "http://h:x/v1", "http://h/v1?k=1"]
)
def test_url_of_no_such_server_is_refused_before_logs_are_read(url: str) -> None:
    with pytest.raises(InputError) as caught:
        command(["no such log"], ask=url)
    assert caught.value.where == "--ask"


@pytest.mark.parametrize("key", ["of this\nserver", "schl\u00fcssel"])
def test_key_that_no_header_can_have_is_not_shown(served: tuple[str, type[Model]], key: str) -> None:
    with pytest.raises(Fault) as caught:
        Server(served[0], key).models()
    assert "Authorization" in caught.value.what and "server" not in caught.value.what


def test_server_that_listens_on_every_address_is_reached_without_a_proxy(
    served: tuple[str, type[Model]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert Server(served[0].replace("127.0.0.1", "0.0.0.0"), key="k").models() == ["tiny"]


def test_server_that_sends_a_header_letter_by_letter_is_not_waited_for(
    served: tuple[str, type[Model]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, handler = served
    is_over = Event()

    def drip(self: Model) -> None:
        while not is_over.wait(0.05):
            self.wfile.write(b"a")

    monkeypatch.setattr(handler, "do_GET", drip)
    monkeypatch.setattr("ascendtune.check.explain.answer.model_answer._LIST_SECONDS", 0.3)
    with pytest.raises(Fault, match="no answer in"):
        Server(url).models()
    is_over.set()


def test_key_never_goes_to_another_machine_unencrypted() -> None:
    with pytest.raises(InputError) as caught:
        Server("http://gpu7:8000/v1", key="k")
    assert caught.value.code == "key-unencrypted"
    assert Server("https://gpu7:8000/v1", key="k").host == Server("http://gpu7:8000/v1").host


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ('{"cause": "a  b"}', Opinion("m", "a b", "unknown", (), (), ())),
        ('<think>{"cause": "no"}</think> ```json\n{"cause": "yes", "why": "one", "do": 3}\n```',
         Opinion("m", "yes", "unknown", ("one",), (), ())),
        ("It is the {disk}.", Opinion("m", "It is the {disk}.", "unknown", (), (), ())),
        ('{"a": {"cause": "inner", "sure": "likely"}}', Opinion("m", "inner", "likely", (), (), ())),
        ('{"cause": ["x"]}', Opinion("m", '{"cause": ["x"]}', "unknown", (), (), ())),
        ('{"cause": "c", "lines": ["12: sent   line", "5: e", 7]}',
         Opinion("m", "c", "unknown", (), (), (Quotation("sent line", True), Quotation("e", False)))),
    ],
)  # fmt: skip
def test_answer_is_read_wherever_its_object_stands(answer: str, expected: Opinion) -> None:
    assert opinion_in(answer, "m", "12: sent line\n13: e") == expected


def test_lines_of_the_question_alone_do_not_count_as_quotations(log: str, served: tuple[str, type[Model]]) -> None:
    url, handler = served
    question = question_about(explain([log]), [log])
    copied = [line for line in question.introduction.splitlines() if len(line) > 20 and _LINE not in line]
    for line in copied:
        handler.content = json.dumps({"cause": "c", "lines": [line, _LINE]})
        assert [each.in_logs for each in Server(url).ask("tiny", question).lines] == [False, True], line


@pytest.mark.parametrize("answer", ["{" * 100_000, '{"cause":' * 50_000, "<think>" * 50_000, "[" * 100_000])
def test_hostile_answer_is_read_in_bounded_work(answer: str) -> None:
    assert len(opinion_in(answer, "m", "q").cause) <= 1_000


def test_opinion_is_told_as_founded_only_if_all_it_quotes_is_in_the_logs() -> None:
    def told(*lines: Quotation) -> str:
        return opinion_as_text(Opinion("m", "c", "likely", (), (), lines), columns=None, paint=lambda text, _: text)

    assert "but the lines it quotes" in told(Quotation("line", True))
    assert "it may be invented" in told(Quotation("line", True), Quotation("other", False))
    assert "it may be invented" in told()


def test_connection_that_breaks_is_a_fault() -> None:
    with pytest.raises(Fault):
        Server("http://127.0.0.1:1/v1").models()
