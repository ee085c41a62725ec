"""HTTP with the standard library: byte ranges, JSON, redirects without the token, and classified faults."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import closing
from functools import cache
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from ascendtune import __version__
from ascendtune.core.threads import run_in_daemon_thread

_ANSWER_SECONDS = 20.0
"""A server that sends nothing for so long counts as down."""
_OPENING_SECONDS = 90.0
"""Until the body of an answer begins, including redirects and a slow proxy."""
_MOST_JSON_BYTES = 64 << 20
_MOST_JSON_SECONDS = 120.0
"""Limit for one JSON answer, however slowly it arrives."""
_MOST_ERROR_BYTES = 1 << 16
_MOST_ERROR_CHARACTERS = 300
_MOST_WAIT_SECONDS = 60.0


class Fault(Exception):
    """A request failed; another try, or another mirror, may succeed.

    Attributes:
        status: of the answer; None if there was no answer.
        wait_seconds: the wait that the server requests (Retry-After), bounded.
        is_transient: whether the same request may succeed in a moment: the server is busy or has a fault, or the
            connection ended early.
    """

    def __init__(
        self, what: str, status: int | None = None, wait_seconds: float | None = None, *, is_cut: bool = False
    ) -> None:
        super().__init__(what)
        self.what = what
        self.status = status
        self.wait_seconds = wait_seconds
        self.is_transient = is_cut or status == 429 or (status or 0) >= 500


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, as hubs use them for their storage, without the token, and never from https to http."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        # Unless the body of a redirect is closed, urllib reads it, however long it is.
        fp.close()
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        if after.scheme not in ("http", "https") or (before.scheme == "https" and after.scheme != "https"):
            raise Fault(f"{before.netloc} redirects from {before.scheme} to {after.scheme or 'a local file'}")
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and (before.scheme, before.netloc) != (after.scheme, after.netloc):
            request.remove_header("Authorization")
        return request


@cache
def _opener() -> urllib.request.OpenerDirector:
    """Created at the first request, because it reads the proxies from the environment."""
    return urllib.request.build_opener(_Redirects)


def open_url(url: str, headers: Mapping[str, str], *, offset: int = 0) -> http.client.HTTPResponse:
    """The answer to GET, from byte `offset` on if the server supports that; its status is 200 or 206.

    Raises:
        Fault: no connection, an error status, or a redirect that is not followed.
    """
    request_headers = {"Accept-Encoding": "identity", **headers}
    if offset:
        request_headers["Range"] = f"bytes={offset}-"
    request = urllib.request.Request(url, headers=request_headers)
    # A header that arrives letter by letter, or a repeated "100 Continue", would block urllib for ever.
    opening = run_in_daemon_thread(lambda: _answer(_opener(), request, _ANSWER_SECONDS))
    try:
        return opening.result(_OPENING_SECONDS)
    except TimeoutError:
        opening.add_done_callback(_close)
        raise Fault(f"no answer in {_OPENING_SECONDS:.0f} seconds") from None


def _close(opening: Future[http.client.HTTPResponse]) -> None:
    if opening.exception() is None:
        opening.result().close()


def _answer(
    opener: urllib.request.OpenerDirector, request: urllib.request.Request, seconds: float, *, is_quoted: bool = False
) -> http.client.HTTPResponse:
    """The answer of the server; `is_quoted`: a fault quotes the server's error message, not its status only."""
    request.add_header("User-Agent", f"ascendtune/{__version__}")
    for name, value in request.header_items():
        # http.client would also refuse it, with the value in the message, which may be a token.
        if not (value.isascii() and value.isprintable()):
            raise Fault(f"the value of {name} contains the end of a line, or a character that is not ASCII")
    try:
        answer: http.client.HTTPResponse = opener.open(request, timeout=seconds)
    except urllib.error.HTTPError as error:
        wait = error.headers.get("Retry-After", "")
        with closing(error):
            seconds_to_wait = min(float(wait), _MOST_WAIT_SECONDS) if wait.isascii() and wait.isdigit() else None
            reason = " ".join(str(error.reason).split())
            what = f"status {error.code} {reason}{_quoted(error) if is_quoted else ''}"
        raise Fault(what, error.code, seconds_to_wait) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise translated(error) from error
    return answer


def _quoted(error: urllib.error.HTTPError) -> str:
    """The message of an error in JSON, as servers with OpenAI's API send it; empty if there is none."""
    try:
        message = json.loads(error.read(_MOST_ERROR_BYTES))
    except (OSError, http.client.HTTPException, ValueError, RecursionError):
        return ""
    message = message.get("error", message) if isinstance(message, dict) else None
    message = message.get("message") if isinstance(message, dict) else message
    return f": {' '.join(message.split())[:_MOST_ERROR_CHARACTERS]}" if isinstance(message, str) else ""


def translated(error: Exception) -> Fault:
    """The fault for an exception of a connection."""
    reason = getattr(error, "reason", None) or error
    is_cut = isinstance(reason, http.client.IncompleteRead | ConnectionResetError | BrokenPipeError)
    return Fault(str(reason) or type(reason).__name__, is_cut=is_cut)


def get_json(url: str, headers: Mapping[str, str]) -> tuple[Any, Mapping[str, str]]:
    """The JSON of an answer, and its headers.

    Raises:
        Fault: the request failed, or the answer is not JSON, arrives too slowly, or is larger than any listing.
    """
    deadline = time.monotonic() + _MOST_JSON_SECONDS
    with open_url(url, headers) as answer:
        return _json_of(answer, deadline), dict(answer.headers)


def exchange_json(url: str, headers: Mapping[str, str], question: Any = None, *, seconds: float) -> Any:
    """The JSON that `url` answers to GET, or to POST of `question` as JSON.

    Redirects are not followed, and a server on this machine is reached without the proxies of the environment: the
    question may be private.

    Raises:
        Fault: the request failed or was redirected, or the answer is not JSON, is too large, or takes longer than
            `seconds`.
    """
    # A server that sends a header letter by letter blocks urllib, whatever its timeout.
    answer = run_in_daemon_thread(lambda: _exchange(url, headers, question, seconds))
    try:
        return answer.result(seconds)
    except TimeoutError:
        raise Fault(f"no answer in {seconds:.0f} seconds") from None


def _exchange(url: str, headers: Mapping[str, str], question: Any, seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    body = None if question is None else json.dumps(question).encode()
    request_headers = {**headers, **({} if body is None else {"Content-Type": "application/json"})}
    opener, request = _opener_without_redirects(url), urllib.request.Request(url, body, request_headers)
    with _answer(opener, request, seconds, is_quoted=True) as answer:
        return _json_of(answer, deadline)


def is_loopback(url: str) -> bool:
    """Whether a URL names this machine."""
    host = urlsplit(url).hostname or ""
    try:
        address = ip_address(host)
        # Servers report that they listen on 0.0.0.0.
        return address.is_loopback or address.is_unspecified
    except ValueError:
        return host == "localhost"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        raise Fault(f"{urlsplit(req.full_url).netloc} redirects to {urlsplit(newurl).netloc or newurl}", code)


def _opener_without_redirects(url: str) -> urllib.request.OpenerDirector:
    proxies = [urllib.request.ProxyHandler({})] if is_loopback(url) else []
    return urllib.request.build_opener(_NoRedirects, *proxies)


def _json_of(answer: http.client.HTTPResponse, deadline: float) -> Any:
    body, length = bytearray(), answer.length
    try:
        while len(body) <= _MOST_JSON_BYTES and (chunk := answer.read1(1 << 16)):
            body += chunk
            if time.monotonic() > deadline:
                raise Fault("the answer takes longer than it may")
    except (OSError, http.client.HTTPException) as error:
        raise translated(error) from error
    if len(body) > _MOST_JSON_BYTES:
        raise Fault(f"the answer is larger than {_MOST_JSON_BYTES >> 20} MiB")
    # `read1` raises nothing if the connection ends early.
    if length is not None and len(body) < length:
        raise Fault(f"the connection ended {length - len(body):,} bytes before the end of the answer", is_cut=True)
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Fault("the answer is not JSON") from error
