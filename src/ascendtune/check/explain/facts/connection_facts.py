"""Why a connection of pip or conda broke, by the exception of urllib3 that they quote."""

from __future__ import annotations

import re
from collections.abc import Iterator

_OF_PIP = re.compile(r"[Cc]onnection broken by '(?P<error>\w+)\((?P<rest>.*)\)': (?P<path>/\S+)")
_REASON = re.compile(
    r"Tunnel connection failed: [^'\")]+|CERTIFICATE_VERIFY_FAILED[^'\"(]*|\[Errno -?\d+\] [^'\")]+|"
    r"[Tt]imed out|timeout=\d+|Missing dependencies for SOCKS support|EOF occurred in violation of protocol|"
    r"Remote end closed connection without response|Connection reset by peer"
)
"""Cause of a broken connection, in the urllib3 exceptions that pip quotes."""
_PROXY = "ProxyError"
_CONDA = "condahttperror: http 000"
_LONGEST_MESSAGE = 1600
_WRAP = re.compile(r"\s{9,}")
"""Blanks of a terminal that has wrapped a line, also within a word."""
_SERVER = re.compile(r"host=\\?['\"](?P<server>[\w.-]+)|Connection to (?P<other>[\w.-]+) timed out")
_KINDS = (
    ("proxy", re.compile(r"ProxyError|[Cc]annot connect to proxy|Tunnel connection failed")),
    ("certificate", re.compile(r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|self.signed certificate")),
    ("module", re.compile(r"SSL module is not available")),
    ("name", re.compile(r"Errno (?:-\d|8|11001)\b|getaddrinfo|Failed to resolve|ame resolution|Name or service not")),
    (
        "",
        re.compile(
            r"Connection refused|Network is unreachable|No route to host|[Tt]imed out|"
            r"\[(?:Errno 1(?:01|10|11|13)|WinError 1006[01])\]"
        ),
    ),
    (
        "cut",
        re.compile(r"Connection aborted|reset by peer|RemoteDisconnected|IncompleteRead|EOF occurred|bad handshake"),
    ),
)
"""Kinds of reasons with the words of each. Without a kind, the last words that match are told. The proxy's come first,
because its exception contains that of its own connection."""
_WITHOUT_SSL = "module"
"""A kind that has an entry of its own, whatever the program."""


def of_connections(text: str, lower: str) -> Iterator[tuple[str, str]]:
    """`pip_broken`: the reason of each broken connection of pip, after "proxy: " if it is the one to a proxy;
    `conda_broken`: "KIND @ SERVER" of conda's errors without an answer (HTTP 000), where KIND is "proxy",
    "certificate", "name", "cut" or, if there was no connection, the reason.

    Args:
        lower: `text` in lower case.
    """
    if "onnection broken by" in text:
        for broken in _OF_PIP.finditer(text):
            reason = _REASON.search(broken["rest"])
            of_proxy = "proxy: " if broken["error"] == _PROXY else ""
            yield "pip_broken", of_proxy + (reason[0] if reason else broken["error"])
    at = lower.find(_CONDA)
    while at >= 0:
        yield from _of_conda(_WRAP.sub("", text[at : at + _LONGEST_MESSAGE]))
        at = lower.find(_CONDA, at + 1)


def _of_conda(message: str) -> Iterator[tuple[str, str]]:
    server = _SERVER.search(message)
    if server is None:
        return
    for kind, words in _KINDS:
        if reasons := words.findall(message):
            if kind != _WITHOUT_SSL:
                yield "conda_broken", f"{kind or reasons[-1]} @ {server['server'] or server['other']}"
            return
