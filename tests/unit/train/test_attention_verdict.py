"""A verdict is remembered by what decides it, and not read where somebody else could have written it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ascendtune.core.directories import cache_directory
from ascendtune.train.attention.verdict import Verdict, remembered

FOUND = Verdict("sdpa", packed=True, without_gradient=["model.gate"])


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def counted() -> tuple[Callable[[], Verdict], list[int]]:
    calls: list[int] = []

    def find() -> Verdict:
        calls.append(1)
        return FOUND

    return find, calls


def files() -> list[Path]:
    return list((cache_directory() / "attention").iterdir())


def test_a_verdict_is_found_once_for_each_config() -> None:
    find, calls = counted()
    assert [remembered({"width": width}, find) for width in (1, 1, 2, 1)] == [FOUND] * 4
    assert len(calls) == 2


@pytest.mark.parametrize("spoil", ["writable by others", "folder writable by others", "not JSON", "other fields"])
def test_what_cannot_be_trusted_is_found_again(spoil: str) -> None:
    find, calls = counted()
    remembered("key", find)
    (file,) = files()
    if spoil == "writable by others":
        file.chmod(0o666)
    elif spoil == "folder writable by others":
        file.parent.chmod(0o777)
    else:
        file.write_text("{" if spoil == "not JSON" else '{"attention": "sdpa", "new": 1}')
    assert remembered("key", find) == FOUND
    assert len(calls) == 2


def test_without_a_cache_every_start_tries_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    find, calls = counted()
    assert [remembered("key", find) for _ in range(2)] == [FOUND] * 2
    assert len(calls) == 2
