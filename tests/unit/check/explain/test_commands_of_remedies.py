"""Text of a log in commands that people copy cannot begin another command."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from ascendtune.check.explain.event.event import _is_word
from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]


@pytest.mark.parametrize(
    "path", ["/x;touch${IFS}/tmp/y;", "/$(id)/x", "/a`id`/x", "/a&id", "/a|id", "/a>/etc/x", "/x /tmp", "/a\\n/b'"]
)
def test_path_that_would_be_more_than_a_word_is_not_put_into_a_command(explained: Explained, path: str) -> None:
    remedies = explained(f'PermissionError: [Errno 13] Permission denied: "{path}"\n').remedies()
    commands = [command for remedy in remedies for command in re.findall(r"`([^`]*)`", remedy)]
    assert any("namei -l PATH" in command for command in commands)
    assert not any(path in remedy for remedy in remedies)


def test_last_word_of_a_path_with_blanks_is_not_put_into_a_command(explained: Explained) -> None:
    remedies = explained("ls: cannot access '/moon /tide': Permission denied\n").remedies()
    assert any("namei -l PATH" in remedy for remedy in remedies)


def test_option_that_runs_a_command_is_not_a_word() -> None:
    assert not _is_word("host", "-oProxyCommand=id", "`ssh {host} true`")
    assert _is_word("option", "--moe-layers", "`vllm serve --help=all | grep -e {option}`")


def test_plain_path_is_put_into_a_command(explained: Explained) -> None:
    remedies = explained("PermissionError: [Errno 13] Permission denied: '/data/a-b_c.d'\n").remedies()
    assert any("`id; namei -l /data/a-b_c.d`" in remedy for remedy in remedies)
