from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ascendtune.core.errors import InputError
from ascendtune.job.command import program


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, which is in PATH."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name, content, mode in (
        ("smoke", "#!/bin/sh\n", 0o755),
        ("train.py", "print()\n", 0o644),
        ("bare.py", "print()\n", 0o755),
        ("bare", "echo\n", 0o755),
    ):
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(mode)
    return tmp_path


def test_a_program_is_found_by_path_and_by_name(place: Path) -> None:
    assert program("smoke") == program("./smoke") == program(str(place / "smoke")) == str(place / "smoke")
    assert program("sh").endswith("/sh") and program(sys.executable) == sys.executable


@pytest.mark.parametrize(
    ("word", "what", "remedy"),
    [
        ("nothing", "no such program: 'nothing'", "PATH"),
        ("./smoek", "no such program: './smoek'", "did you mean 'smoke'?"),
        ("trainn.py", "no such program: 'trainn.py'", "did you mean 'train.py'?"),
        ("/usr", "this is a directory", "name a program"),
        ("train.py", "'train.py' is not executable", "start it as `python train.py`"),
        ("bare.py", "'bare.py' is neither a program nor", "start it as `python bare.py`"),
        ("bare", "'bare' is neither a program nor", "as `bash script`"),
    ],
)
def test_program_that_cannot_start_is_refused_with_a_remedy(word: str, what: str, remedy: str) -> None:
    with pytest.raises(InputError) as refused:
        program(word)
    assert what in refused.value.what and remedy in refused.value.remedy
