"""Package managers and downloads without a connection: the reason within the error decides."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_CONDA = (
    "CondaHTTPError: HTTP 000 CONNECTION FAILED for url <https://moon.example/linux-64/repodata.json>\nElapsed: -\n"
)
_POOL = "HTTPSConnectionPool(host='moon.example', port=443): Max retries exceeded with url: /x (Caused by {})"
_REFUSED = "ProxyError('Cannot connect to proxy.', NewConnectionError('<X>: [Errno {}] Tide'))"
_PIP = (
    "WARNING: Retrying (Retry(total=0)) after connection broken by '{}': /simple/tide/\n"
    "ERROR: Could not find a version that satisfies the requirement tide (from versions: none)\n"
)
_DNF = "Errors during downloading metadata for repository 'tide':\n  - Curl error ({}): Tide for {} [{}]\n"
_NOT_FETCHED = "Error: Failed to download metadata for repo 'tide': Cannot download repomd.xml\n"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_CONDA + "SSLError(MaxRetryError(" + _POOL.format("SSLError(CERTIFICATE_VERIFY_FAILED)"), "conda-certificate"),
        (_CONDA + _POOL.format("NewConnectionError('[Errno -2] Tide')"), "conda-name-unresolved"),
        (_CONDA + _POOL.format("Temporary fa" + 29 * " " + "ilure in name resolution"), "conda-name-unresolved"),
        (_CONDA + _POOL.format("ConnectTimeoutError('Connection to moon.example timed out.')"), "conda-no-network"),
        (_CONDA + _POOL.format("NewConnectionError('[WinError 10060] Tide')"), "conda-no-network"),
        (_CONDA + _POOL.format("('Connection aborted.', RemoteDisconnected('Tide'))"), "conda-connection-cut"),
        (_CONDA + _POOL.format("ProxyError('Cannot connect to proxy.', tide [Errno 111])"), "conda-proxy"),
        (_CONDA + _POOL.format("SSLError(the SSL module is not available.)"), "pip-python-without-ssl"),
        (_CONDA, "conda-channel"),
        (
            "UnavailableInvalidChannel: HTTP 404 NOT FOUND for channel tide <https://moon.example>",
            "conda-channel-absent",
        ),
        ("CondaHTTPError: HTTP 401 UNAUTHORIZED for url <https://moon.example/t/>", "conda-channel-refuses"),
        ("CondaHTTPError: HTTP 429 TOO MANY REQUESTS for url <https://moon.example/>", "conda-server-busy"),
        (_PIP.format("SSLError('CERTIFICATE_VERIFY_FAILED] certificate verify failed: x')"), "pip-index-certificate"),
        (_PIP.format("NewConnectionError('<X>: [Errno -2] Name or service not known')"), "pip-index-name"),
        (_PIP.format("NewConnectionError('<X>: [Errno 101] Network is unreachable')"), "pip-index-silent"),
        (_PIP.format("ReadTimeoutError('Read timed out. (read timeout=15)')"), "pip-index-silent"),
        (
            "Looking in indexes: http://127.0.0.1:9/simple\n"
            + _PIP.format("NewConnectionError('<X>: [Errno 111] Connection refused')"),
            "pip-chosen-index-silent",
        ),
        (_PIP.format(_REFUSED.format(111)), "pip-index-proxy"),
        (_PIP.format(_REFUSED.format(-2)), "pip-index-proxy"),
        (_PIP.format("ProtocolError('Connection broken: IncompleteRead(7 bytes read)')"), "pip-no-connection"),
        (
            "critical libmamba Multiple errors\n    Download error (28) Timeout was reached [https://moon.example/x]\n",
            "mamba-no-connection",
        ),
        (
            "error    libmamba Could not solve for environment specs\n"
            "critical libmamba Download error (6) Could not resolve hostname [https://moon.example/linux-64/x]\n"
            "    Could not resolve host: moon.example\n",
            "mamba-no-connection",
        ),
        (
            "Err:1 http://moon.example jammy InRelease\n"
            "E: Failed to fetch http://moon.example/x  Unable to connect to moon.example:http:\n",
            "apt-unreachable",
        ),
        ("E: Failed to fetch http://moon.example/x.deb  404  Not Found [IP: 10.0.0.7 80]\n", "apt-fetch"),
        ("E: Failed to fetch http://moon/x  407  Proxy Authentication Required\n", "apt-fetch-refused"),
        ("E: Failed to fetch http://moon/x  File has unexpected size (7 != 8). Mirror sync?\n", "apt-fetch-damaged"),
        ("E: Failed to fetch http://moon/x.deb  503  Service Unavailable [IP: 10.0.0.7 3128]\n", "apt-fetch-damaged"),
        (_DNF.format(60, "https://moon.example/x", "self-signed certificate") + _NOT_FETCHED, "dnf-certificate"),
        (_DNF.format(7, "https://moon.example/x", "Failed to connect") + _NOT_FETCHED, "dnf-no-connection"),
        (_DNF.format(6, "http://mirrorlist.centos.org/?x", "Could not resolve host") + _NOT_FETCHED, "yum-mirrors"),
        ("ERROR: http://moon.example/alpine/v7/main: temporary error (try again later)\n", "apk-no-connection"),
        (
            "WARNING: updating and opening https://moon.example/v7/main: temporary error (try again later)\n"
            "ERROR: unable to select packages:\n  git (no such package):\n",
            "apk-no-connection",
        ),
        (
            "  - Curl error (5): Couldn't resolve proxy name for https://x [Could not resolve proxy: tide]\n",
            "proxy-name-unresolved",
        ),
        (
            "[INFO] Fetching image manifest\n"
            "[ERROR] URL https://moon.example/v2/tide/sun/manifests/7 returned error code: 403 Forbidden\n",
            "enroot-registry-login",
        ),
        (
            'FATAL: Unable to handle moon uri: pinging container registry moon.example: Get "https://moon/v2/": '
            "dial tcp 10.0.0.7:443: i/o timeout\n",
            "apptainer-registry-unreachable",
        ),
    ],
)
def test_entry(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry


def test_name_that_is_not_resolved_stands_in_headline_and_command(explained: Explained) -> None:
    explanation = explained("Error message: Could not resolve host: moon.example\n")

    assert "moon.example" in explanation.headline()
    assert "getent hosts moon.example" in explanation.remedies()[0]
