"""Mirrors in the configuration files of pip, conda, huggingface_hub and git: written, read, put back."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
import yaml

from ascendtune.core.errors import AscendtuneError
from ascendtune.machine.environment import mirrors, user_files
from ascendtune.machine.environment.conda_files import all_settings
from ascendtune.machine.environment.mirrors import MIRRORS, bypasses, changes_for, proxied, settings, shell_variables
from ascendtune.machine.environment.pip_files import indexes

_TUNA = MIRRORS["tuna"]


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    # Not the files of this machine and of its Python environment.
    monkeypatch.setattr(mirrors, "indexes", lambda env, root: indexes(env, tmp_path))
    monkeypatch.setattr(mirrors, "all_settings", lambda env, root: all_settings(env, tmp_path))
    return {"HOME": str(tmp_path / "home"), "VIRTUAL_ENV": str(tmp_path / "venv")}


def _files(env: dict[str, str]) -> dict[str, bytes]:
    home = Path(env["HOME"])
    return {str(path.relative_to(home)): path.read_bytes() for path in home.rglob("*") if path.is_file()}


def _addresses(env: dict[str, str]) -> dict[str, str]:
    return {each.tool: each.address for each in settings(env)}


def test_use_writes_every_tool_and_official_takes_it_back(env: dict[str, str]) -> None:
    default = _addresses(env)
    user_files.apply(changes_for("tuna", env, github_proxy="https://gh-proxy.com"))
    assert _addresses(env) == {
        "pip": _TUNA.pip,
        "conda": f"{_TUNA.conda}/pkgs/main, {_TUNA.conda}/pkgs/r",
        "huggingface": "https://hf-mirror.com",
        "github": "https://gh-proxy.com/https://github.com/",
    }
    assert shell_variables() == {"HF_ENDPOINT": "https://hf-mirror.com"}
    user_files.apply(changes_for("official", env))
    assert _addresses(env) == default and shell_variables() == {}
    assert changes_for("official", env) == []


@pytest.mark.parametrize(
    ("condarc", "shown"),
    [
        ("channels: [https://a/main]\ndefault_channels: [https://b/main]\n", "https://a/main"),
        ("channels: [conda-forge, defaults]\ndefault_channels: [https://b/main]\ncustom_channels: {conda-forge: https://b/c}\n",
         "https://b/c/conda-forge, https://b/main"),
        ("channels: [conda-forge]\n", "conda-forge"),
        ("channels: [defaults]\n", "https://repo.anaconda.com/pkgs"),
        ("default_channels: [https://b/main]\n", "https://b/main"),
    ],
)  # fmt: skip
def test_channels_that_conda_searches_are_shown(env: dict[str, str], condarc: str, shown: str) -> None:
    Path(env["HOME"]).mkdir()
    (Path(env["HOME"]) / ".condarc").write_text(condarc)
    assert _addresses(env)["conda"] == shown


def test_index_of_pip_install_is_shown_before_that_of_all_commands(env: dict[str, str]) -> None:
    file = Path(env["HOME"]) / ".config/pip/pip.conf"
    file.parent.mkdir(parents=True)
    file.write_text("[install]\nindex-url = https://inner/simple\n")
    user_files.apply(changes_for("tuna", env, tools=("pip",)))
    assert _addresses(env)["pip"] == "https://inner/simple"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# mine\n[install]\nuser = yes\n", "# mine\n[install]\nuser = yes\n[global]\nindex-url = {}\n"),
        ("[global]\ntimeout = 9\nindex-url = https://a:b@c/ # x\n[list]\nindex-url=no\n",
         "[global]\ntimeout = 9\nindex-url = {}\n[list]\nindex-url=no\n"),
        ("[global]\ntimeout = 9", "[global]\nindex-url = {}\ntimeout = 9"),
        ("[list]\nindex-url=no", "[list]\nindex-url=no\n[global]\nindex-url = {}\n"),
        ("", "[global]\nindex-url = {}\n"),
        ("[global]\n  Index_URL = x\n  timeout = 9\n", "[global]\n  index-url = {}\n  timeout = 9\n"),
        ("[global]\n# c\n  timeout = 9\n", "[global]\n  index-url = {}\n# c\n  timeout = 9\n"),
    ],
)  # fmt: skip
def test_pip_conf_keeps_all_other_lines(env: dict[str, str], before: str, after: str) -> None:
    path = Path(env["HOME"]) / ".config/pip/pip.conf"
    path.parent.mkdir(parents=True)
    path.write_text(before)
    (change,) = changes_for("tuna", env, tools=("pip",))
    assert change.after == after.format(_TUNA.pip)


def test_condarc_keeps_other_keys_and_own_channels(env: dict[str, str]) -> None:
    path = Path(env["HOME"]) / ".condarc"
    path.parent.mkdir()
    path.write_text("channels: [mine]\ncustom_channels: {mine: https://example.org}\n")
    (change,) = changes_for("aliyun", env, tools=("conda",))
    assert change.after is not None
    content = yaml.safe_load(change.after)
    assert content["channels"] == ["mine"]
    assert content["custom_channels"] == {
        "mine": "https://example.org",
        "conda-forge": f"{MIRRORS['aliyun'].conda}/cloud",
    }
    path.write_text("channels: [a\n")
    with pytest.raises(AscendtuneError) as caught:
        changes_for("tuna", env, tools=("conda",))
    assert caught.value.code == "invalid-yaml"


def test_variables_of_the_environment_win_over_files(env: dict[str, str]) -> None:
    user_files.apply(changes_for("tuna", env))
    found = {
        each.tool: each for each in settings({**env, "PIP_INDEX_URL": "https://x/simple", "HF_ENDPOINT": "https://y"})
    }
    assert (found["pip"].address, found["pip"].source) == ("https://x/simple", "PIP_INDEX_URL")
    assert (found["huggingface"].address, found["huggingface"].source) == ("https://y", "HF_ENDPOINT")


def test_undo_restores_bytes_and_permissions_step_by_step(env: dict[str, str]) -> None:
    path = Path(env["HOME"]) / ".config/pip/pip.conf"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"[global]\n# \xff\nindex-url = https://user:secret@corp/simple\n")
    path.chmod(0o600)
    before = _files(env)
    user_files.apply(changes_for("tuna", env))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first = _files(env)
    user_files.apply(changes_for("aliyun", env))
    history = next((Path(os.environ["XDG_STATE_HOME"])).rglob("step_0001.json"))
    assert stat.S_IMODE(history.stat().st_mode) == 0o600, "it holds a password"
    user_files.undo()
    assert _files(env) == first
    user_files.undo()
    assert _files(env) == before
    with pytest.raises(AscendtuneError) as caught:
        user_files.undo()
    assert caught.value.code == "nothing-to-undo"


def test_undo_changes_nothing_where_one_file_was_edited_since(env: dict[str, str]) -> None:
    user_files.apply(changes_for("tuna", env))
    (Path(env["HOME"]) / ".condarc").write_text("channels: []\n")
    held = _files(env)
    with pytest.raises(AscendtuneError) as caught:
        user_files.undo()
    assert caught.value.code == "file-differs" and _files(env) == held


def test_interrupted_step_can_be_undone(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    changes = changes_for("tuna", env)
    put = user_files._put

    def killed(path: Path, content: str | None) -> None:
        if path.name == ".condarc":
            raise KeyboardInterrupt
        put(path, content)

    monkeypatch.setattr(user_files, "_put", killed)
    with pytest.raises(KeyboardInterrupt):
        user_files.apply(changes)
    monkeypatch.setattr(user_files, "_put", put)
    assert "pip.conf" in str(_files(env))
    user_files.undo()
    assert _files(env) == {}


def test_link_to_a_configuration_file_stays_a_link(env: dict[str, str], tmp_path: Path) -> None:
    dotfiles = tmp_path / "dotfiles"
    dotfiles.write_text("channels: []\n")
    link = Path(env["HOME"]) / ".condarc"
    link.parent.mkdir()
    link.symlink_to(dotfiles)
    user_files.apply(changes_for("tuna", env, tools=("conda",)))
    assert link.is_symlink() and "tuna" in dotfiles.read_text()


@pytest.mark.parametrize("proxy", ["ftp://x", "gh-proxy.com", "https://me:key@x", "--upload-pack=x", "https://x y"])
def test_proxy_that_is_not_a_plain_address_is_refused(proxy: str) -> None:
    with pytest.raises(AscendtuneError) as caught:
        proxied("https://github.com/", proxy)
    assert caught.value.code == "invalid-option-value" and "me:key" not in str(caught.value)


@pytest.mark.parametrize("content", ["[global\nx = 1\n", "[global]\nindex-url =\n  https://x/simple\n", "[a]\n[a]\n"])
def test_pip_conf_that_cannot_be_changed_safely_is_refused(env: dict[str, str], content: str) -> None:
    path = Path(env["HOME"]) / ".config/pip/pip.conf"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(AscendtuneError) as caught:
        changes_for("tuna", env, tools=("pip",))
    assert caught.value.code == "invalid-ini"


def test_condarc_that_is_a_list_is_not_overwritten(env: dict[str, str]) -> None:
    path = Path(env["HOME"]) / ".condarc"
    path.parent.mkdir()
    path.write_text("- mine\n")
    with pytest.raises(AscendtuneError) as caught:
        changes_for("tuna", env, tools=("conda",))
    assert caught.value.code == "not-a-mapping"


def test_gitconfig_that_git_cannot_read_is_an_error(env: dict[str, str]) -> None:
    path = Path(env["HOME"]) / ".gitconfig"
    path.parent.mkdir()
    path.write_text("[user\nbroken")
    with pytest.raises(AscendtuneError) as caught:
        changes_for("tuna", env, tools=("github",), github_proxy="https://gh-proxy.com")
    assert caught.value.code == "git-failed"


def test_github_proxy_leaves_other_rules_of_git(env: dict[str, str]) -> None:
    path = Path(env["HOME"]) / ".gitconfig"
    path.parent.mkdir()
    rules = '[url "https://github.com/"]\n\tinsteadOf = gh:\n\tpushInsteadOf = gh:\n\tpushInsteadOf = hub:\n'
    path.write_text(rules)
    user_files.apply(changes_for("tuna", env, tools=("github",), github_proxy="https://gh-proxy.com"))
    assert _addresses(env)["github"] == "https://gh-proxy.com/https://github.com/"
    assert path.read_text().startswith(rules) and "pushInsteadOf = https://github.com/" in path.read_text()
    user_files.apply(changes_for("official", env, tools=("github",)))
    assert path.read_text() == rules


def test_file_of_another_user_is_not_replaced(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(env["HOME"]) / ".condarc"
    path.parent.mkdir()
    path.write_text("channels: []\n")
    changes = changes_for("tuna", env, tools=("conda", "huggingface"))
    monkeypatch.setattr("os.geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(AscendtuneError) as caught:
        user_files.apply(changes)
    assert caught.value.code == "owned-by-another-user"
    assert path.read_text() == "channels: []\n" and _addresses(env)["huggingface"] == "https://huggingface.co"


def test_passwords_in_addresses_are_not_shown(env: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    from ascendtune.cli.env import mirrors

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", env["HOME"])
        patch.setenv("PIP_INDEX_URL", "https://me:sekret@x/simple")
        patch.setenv("HF_ENDPOINT", "https://conda.example.org/t/sekret/channel")
        for as_json in (False, True):
            mirrors("show", None, only=None, github_proxy=None, as_json=as_json)
    shown = capsys.readouterr().out
    assert "sekret" not in shown and "***@x/simple" in shown


@pytest.mark.parametrize(
    "record", [{}, {"files": [{"path": 5, "before": None, "after": None}]}, {"files": [{"path": "/x", "before": 1}]}]
)
def test_damaged_record_of_a_step_is_an_error(env: dict[str, str], tmp_path: Path, record: dict[str, object]) -> None:
    history = tmp_path / "state/ascendtune/mirrors"
    history.mkdir(parents=True)
    (history / "step_copy.json").write_text("{}")
    user_files.apply(changes_for("tuna", env, tools=("pip",)))
    (history / "step_0001.json").write_text(json.dumps(record))
    with pytest.raises(AscendtuneError) as caught:
        user_files.undo()
    assert caught.value.code == "record-damaged"


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        (".config/pip/pip.conf", "[install]\nindex-url = https://a:b@inner/simple\n", ["`pip install` uses https://"]),
        (".config/pip/pip.conf", "[download]\nindex_url = https://d/\n[install]\nuser = 1\n", ["`pip download`"]),
        (".config/pip/pip.conf", "[global]\nindex-url = https://old/simple\n", []),
        (".condarc", "channels: [https://a/main]\n", ["conda also searches https://a/main"]),
        (".condarc", "channels: [nvidia, conda-forge, defaults]\n", ["conda also searches nvidia:"]),
        (".condarc", "channels: [conda-forge, defaults]\n", []),
    ],
)
def test_settings_that_override_a_mirror_are_named(
    env: dict[str, str], file: str, content: str, said: list[str]
) -> None:
    path = Path(env["HOME"]) / file
    path.parent.mkdir(parents=True)
    path.write_text(content)
    user_files.apply(changes_for("tuna", env))
    found = list(bypasses("tuna", env, ("pip", "conda", "huggingface")))
    assert len(found) == len(said) and all(each in what for each, (what, _) in zip(said, found, strict=True)), found
    assert all("a:b" not in what and str(path) in what for what, _ in found)
    assert list(bypasses("tuna", env, ("huggingface",))) == []


def test_variables_and_leftovers_that_pass_a_mirror_by_are_named(env: dict[str, str]) -> None:
    user_files.apply(changes_for("tuna", env))
    set_to_it = {**env, "PIP_INDEX_URL": f"{_TUNA.pip}/", "HF_ENDPOINT": "https://hf-mirror.com"}
    assert list(bypasses("tuna", set_to_it, ("pip", "huggingface"))) == []
    found = list(bypasses("official", set_to_it, ("pip", "huggingface")))
    assert [remedy for _, remedy in found] == ["unset PIP_INDEX_URL", "unset HF_ENDPOINT"]
    no_file = {**env, "PIP_CONFIG_FILE": os.devnull}
    assert [remedy for _, remedy in bypasses("tuna", no_file, ("pip",))] == ["unset PIP_CONFIG_FILE"]
    (Path(env["HOME"]) / ".condarc").write_text("channels: [nvidia, defaults]\n")
    assert list(bypasses("official", env, ("conda",))) == []
    (Path(env["HOME"]) / ".condarc").write_text(f"channels: ['{_TUNA.conda}/pkgs/main']\n")
    assert len(list(bypasses("official", env, ("conda",)))) == 1


_PIP = "[global]\nindex-url = https://other/simple\n"


@pytest.mark.parametrize(
    ("file", "variables", "wins"),
    [
        ("etc/pip.conf", {}, False),
        ("etc/xdg/pip/pip.conf", {}, False),
        ("site/pip/pip.conf", {"XDG_CONFIG_DIRS": "/site"}, False),
        ("home/.pip/pip.conf", {}, None),
        ("venv/pip.conf", {}, True),
        ("conda/pip.conf", {"VIRTUAL_ENV": "", "CONDA_PREFIX": "{}/conda"}, True),
    ],
)
def test_other_files_of_pip_are_read_in_its_order(
    env: dict[str, str], tmp_path: Path, file: str, variables: dict[str, str], wins: bool | None
) -> None:
    env |= {name: value.format(tmp_path) for name, value in variables.items()}
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(_PIP)
    (pip,) = (each for each in settings(env) if each.tool == "pip")
    assert (pip.address, pip.source) == ("https://other/simple", str(tmp_path / file))

    user_files.apply(changes_for("tuna", env, tools=("pip",)))

    assert _addresses(env)["pip"] == ("https://other/simple" if wins else _TUNA.pip)
    found = list(bypasses("tuna", env, ("pip",)))
    assert [str(tmp_path / file) in what and "wins over" in what for what, _ in found] == [True] * bool(wins)
    user_files.apply(changes_for("official", env, tools=("pip",)))
    found = list(bypasses("official", env, ("pip",)))
    # The old place of the user's own file is the one that is changed.
    assert [remedy for _, remedy in found] == (
        [] if wins is None else [f"remove index-url from [global] in {tmp_path / file}"]
    )


def test_no_file_of_the_user_counts_beside_pip_config_file(env: dict[str, str], tmp_path: Path) -> None:
    user_files.apply(changes_for("tuna", env, tools=("pip",)))
    (tmp_path / "own.conf").write_text("[global]\ntimeout = 9\n")
    assert _addresses({**env, "PIP_CONFIG_FILE": str(tmp_path / "own.conf")})["pip"] == "https://pypi.org/simple"
    assert _addresses({**env, "PIP_CONFIG_FILE": os.devnull})["pip"] == "https://pypi.org/simple"


@pytest.mark.parametrize(
    "file",
    [
        "etc/conda/.condarc",
        "etc/conda/condarc.d/10.yml",
        "opt/conda/condarc",
        "home/.config/conda/.condarc",
        "home/.conda/condarc",
        "prefix/.condarc",
    ],
)
def test_other_files_of_conda_add_channels(env: dict[str, str], tmp_path: Path, file: str) -> None:
    env |= {"CONDA_EXE": str(tmp_path / "opt/conda/bin/conda"), "CONDA_PREFIX": str(tmp_path / "prefix")}
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text("channels: [nvidia, defaults]\ndefault_channels: ['https://inner/main']\n")

    user_files.apply(changes_for("tuna", env, tools=("conda",)))

    shown = _addresses(env)["conda"].split(", ")
    assert set(shown) == {"nvidia", f"{_TUNA.conda}/pkgs/main", f"{_TUNA.conda}/pkgs/r", "https://inner/main"}
    ((what, _),) = bypasses("tuna", env, ("conda",))
    assert f"nvidia, https://inner/main: {tmp_path / file}" in what


def test_conda_asks_first_what_the_last_file_names(env: dict[str, str], tmp_path: Path) -> None:
    for file, content in (
        ("etc/conda/.condarc", "channels: [a, b]\ncustom_channels: {a: 'https://old', c: 'https://c'}\n"),
        ("home/.condarc", "channels: [b, c]\ncustom_channels: {a: 'https://new'}\n"),
    ):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(content)
    assert _addresses(env)["conda"] == "b, https://c/c, https://new/a"
