"""Caches: only known layouts are listed and removed, links are not followed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ascendtune.core.errors import AscendtuneError
from ascendtune.machine.environment.caches import NAMES, describe, find_entries, remove


def _make(path: Path, size: int = 8192, age_seconds: float = 7200) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    then = time.time() - age_seconds
    os.utime(path, (then, then))
    for parent in path.parents[:3]:
        os.utime(parent, (then, then))
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    _make(home / ".cache/torch_extensions/py310_cpu/fused_adam/fused_adam.so", 40960)
    _make(home / ".cache/torch_extensions/notes/mine.txt")
    _make(home / ".triton/cache" / ("A2" * 26) / "kernel.json")
    _make(home / ".cache/huggingface/hub/models--Qwen--Qwen2.5-0.5B/blobs/weights", 81920)
    _make(home / ".cache/pip/http-v2/a/b")
    _make(home / "work/kernel_meta/kernel.o")
    return home


def _env(home: Path) -> dict[str, str]:
    return {"HOME": str(home), "USER": "nobody-at-all"}


def test_entries_are_listed_with_size_and_age(home: Path) -> None:
    found = find_entries(_env(home), home / "work")
    assert {(each.cache, each.path.name) for each in found} == {
        ("huggingface", "models--Qwen--Qwen2.5-0.5B"), ("torch_extensions", "py310_cpu"), ("triton", "A2" * 26),
        ("pip", "http-v2"), ("kernel_meta", "kernel_meta"),
    }  # fmt: skip
    sizes = [each.size_bytes for each in found]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] >= 81920
    assert all(7000 < each.age_seconds < 90000 and each.is_own for each in found)
    assert all(describe(name) for name in NAMES)


def test_removing_an_entry_leaves_what_its_links_lead_to(home: Path, tmp_path: Path) -> None:
    precious = _make(tmp_path / "precious/thesis.tex")
    entry = home / ".cache/torch_extensions/py310_cpu"
    (entry / "out").symlink_to(precious.parent, target_is_directory=True)
    (found,) = find_entries(_env(home), home, ["torch_extensions"])
    remove(found)
    assert not entry.exists() and precious.exists()
    assert (home / ".cache/torch_extensions/notes/mine.txt").exists()


def test_link_in_place_of_an_entry_is_neither_listed_nor_followed(home: Path, tmp_path: Path) -> None:
    precious = _make(tmp_path / "precious/thesis.tex")
    (found,) = find_entries(_env(home), home, ["torch_extensions"])
    entry = found.path
    entry.rename(tmp_path / "elsewhere")
    entry.symlink_to(precious.parent, target_is_directory=True)
    assert find_entries(_env(home), home, ["torch_extensions"]) == []
    with pytest.raises(AscendtuneError) as caught:
        remove(found)
    assert caught.value.code == "operation-not-permitted" and precious.exists()


def test_variable_that_names_a_home_directory_lists_nothing_of_it(home: Path) -> None:
    env = _env(home) | {name: str(home) for name in ("TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "HF_HUB_CACHE")}
    env |= {"PIP_CACHE_DIR": "relative/path"}
    assert find_entries(env, home, ["triton", "torch_extensions", "huggingface", "pip"]) == []


def test_file_with_two_names_counts_once(home: Path) -> None:
    (before,) = find_entries(_env(home), home, ["huggingface"])
    blobs = before.path / "blobs"
    os.link(blobs / "weights", blobs / "again")
    (after,) = find_entries(_env(home), home, ["huggingface"])
    assert after.size_bytes - before.size_bytes < 8192


def test_two_letter_directories_of_a_home_directory_are_not_a_cache(home: Path) -> None:
    _make(home / "go/src/main.go")
    _make(home / "wheels/a.whl")
    for place in (home, home.parent, Path("/")):
        env = _env(home) | {"TORCHINDUCTOR_CACHE_DIR": str(place), "PIP_CACHE_DIR": str(place)}
        assert find_entries(env, home, ["inductor", "pip"]) == []


def test_link_of_another_user_in_place_of_a_cache_is_not_listed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _make(home / "project/go/main.go")
    planted = tmp_path / "torchinductor"
    planted.symlink_to(home / "project")
    env = _env(home) | {"TORCHINDUCTOR_CACHE_DIR": str(planted)}
    assert [each.path for each in find_entries(env, home, ["inductor"])] == [home / "project/go"], "a link of one's own"
    owner = planted.lstat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    if owner:
        assert find_entries(env, home, ["inductor"]) == []
    else:
        os.lchown(planted, 12345, 12345)
        assert find_entries(env, home, ["inductor"]) == []


def test_directory_that_took_an_entrys_place_is_not_removed(home: Path, tmp_path: Path) -> None:
    (found,) = find_entries(_env(home), home, ["torch_extensions"])
    found.path.parent.rename(tmp_path / "elsewhere")
    precious = _make(found.path / "thesis.tex")
    with pytest.raises(AscendtuneError) as caught:
        remove(found)
    assert caught.value.code == "operation-not-permitted" and precious.exists()


def test_entry_that_vanishes_while_it_is_measured_is_passed_over(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = home / ".cache/torch_extensions/py310_cpu"

    def vanishing(path: Path) -> list[tuple[Path, list[str], list[str]]]:
        entry.rename(home / "gone")
        return [(path, [], ["fused_adam.so"])]

    monkeypatch.setattr("ascendtune.core.directories.walk", vanishing)
    assert find_entries(_env(home), home, ["torch_extensions"]) == []
