"""Opinion of a language model behind OpenAI's API: requested, parsed, and checked against the logs.

A model may invent facts. It must copy the lines that prove its answer, and each of them is looked up in the excerpts
that were sent. The answer is untrusted text (a log may contain instructions to the model): it is shown, and no part of
it is ever run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from ascendtune.check.explain.answer.prompt import Question
from ascendtune.core.errors import InputError
from ascendtune.core.foreign_json import value_at
from ascendtune.core.http import Fault, exchange_json, is_loopback

KEY = "ASCENDTUNE_ASK_KEY"
"""Variable with the server's key; a separate one, so that the key of another service is not sent to this server."""
_LIST_SECONDS = 20.0
_ANSWER_SECONDS = 600.0
"""Time-out for an answer: a reasoning model writes thousands of tokens."""
_MOST_ITEMS = 4
_LONGEST = 1_000
_THOUGHTS = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_MOST_BRACES = 200
_NUMBER = re.compile(r"^\s*\d+: ")
_SHORTEST_QUOTATION = 8
"""Characters; shorter texts are in every log."""


@dataclass(frozen=True)
class Quotation:
    text: str
    in_logs: bool


@dataclass(frozen=True)
class Opinion:
    model: str
    cause: str
    """One sentence; the whole answer if it does not have the requested form."""
    sure: str
    why: tuple[str, ...]
    do: tuple[str, ...]
    lines: tuple[Quotation, ...]

    @property
    def is_founded(self) -> bool:
        """Whether it quotes lines, and all of them are in the logs."""
        return bool(self.lines) and all(each.in_logs for each in self.lines)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "is_founded": self.is_founded}


class Server:
    """A server with OpenAI's API.

    Args:
        url: up to the version, as in http://127.0.0.1:8000/v1.
        key: sent as a bearer token, unless empty.

    Raises:
        InputError: the URL is invalid, or the key would be sent to another machine unencrypted.
    """

    def __init__(self, url: str, key: str = "") -> None:
        self.host = _host(url)
        if key and urlsplit(url).scheme == "http" and not is_loopback(url):
            raise InputError(
                f"{KEY} would be sent to {self.host} unencrypted",
                code="key-unencrypted",
                remedy="give an https:// URL, or reach the server through a tunnel: ssh -N -L 8000:localhost:8000 HOST",
            )
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    def models(self) -> list[str]:
        """Names of its models.

        Raises:
            Fault: no connection, or an invalid answer.
        """
        answer = exchange_json(f"{self._url}/models", self._headers, seconds=_LIST_SECONDS)
        listed = value_at(answer, "data")
        names = [value_at(each, "id") for each in listed] if isinstance(listed, list) else []
        models = [name for name in names if isinstance(name, str)]
        if not models:
            raise Fault("the server lists no models")
        return models

    def ask(self, model: str, question: Question) -> Opinion:
        """Ask `model` for its opinion.

        Raises:
            Fault: no connection, an error status, no answer in ten minutes, or an invalid answer.
        """
        body = {"model": model, "messages": [{"role": "user", "content": question.text}]}
        answer = exchange_json(f"{self._url}/chat/completions", self._headers, body, seconds=_ANSWER_SECONDS)
        try:
            text = answer["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            text = None
        if not isinstance(text, str) or not text.strip():
            raise Fault("the model's answer has no text")
        return opinion_in(text, model, question.logs)


def opinion_in(answer: str, model: str, logs: str) -> Opinion:
    """Parse an answer in the requested form; any other text becomes the cause.

    Args:
        logs: text in which its quotations are looked up, without the rest of the question, which any model can copy.
    """
    text = _THOUGHTS.sub("", answer).strip() or answer.strip()
    fields = next(_objects(text), None)
    if fields is None:
        return Opinion(model, _sentence(text), "unknown", (), (), ())
    sent = " ".join(logs.split())
    quoted = [_NUMBER.sub("", line) for line in _sentences(fields.get("lines"))]
    return Opinion(
        model,
        _sentence(fields["cause"]),
        _sentence(fields.get("sure")) or "unknown",
        _sentences(fields.get("why")),
        _sentences(fields.get("do")),
        tuple(Quotation(line, _is_in(line, sent)) for line in quoted),
    )


def _is_in(line: str, sent: str) -> bool:
    return len(line) >= _SHORTEST_QUOTATION and line in sent


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """JSON objects with a cause, anywhere in the text."""
    decoder = json.JSONDecoder()
    for begin in [match.start() for match in re.finditer(r"\{", text)][:_MOST_BRACES]:
        try:
            value, _ = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and isinstance(value.get("cause"), str) and value["cause"].strip():
            yield value


def _sentences(value: Any) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(each for each in map(_sentence, values[:_MOST_ITEMS]) if each)


def _sentence(value: Any) -> str:
    return " ".join(value.split())[:_LONGEST] if isinstance(value, str) else ""


def _host(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_plain = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_plain = False
    if not is_plain or parts.username or parts.password or parts.query or parts.fragment:
        raise InputError(
            "not the URL of a server with OpenAI's API",
            code="invalid-value",
            remedy=f"give its address up to the version, as in http://127.0.0.1:8000/v1; its key belongs into {KEY}",
            where="--ask",
        )
    return parts.netloc
