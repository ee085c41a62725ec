"""Mirrors of package indexes and hubs: what pip, conda, huggingface_hub and git are configured to use, and changing it.

pip and conda get the mirror in their own configuration files. huggingface_hub reads HF_ENDPOINT from the environment
only: it is noted in the state directory, and `ascendtune env export` prints it. git gets `url.….insteadOf` for
fetches; pushes keep going to github.com itself, so that no password reaches a proxy.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from ascendtune.core.directories import state_directory
from ascendtune.core.errors import InputError, MachineError
from ascendtune.core.files import parsed_record, read_record
from ascendtune.core.mask import without_secrets
from ascendtune.core.process import run
from ascendtune.machine.environment.user_files import FileChange, read_user_file

TOOLS = ("pip", "conda", "huggingface", "github")
_GITHUB = "https://github.com/"
_CONDA_DEFAULTS = "https://repo.anaconda.com/pkgs"
_INDEX = re.compile(r"^([ \t]*)index[-_]url[ \t]*[=:].*$", re.MULTILINE | re.IGNORECASE)
_ONLY_GITHUB = r"^https://github\.com/$"
_NOTHING_TO_UNSET = 5
"""Exit code of `git config --unset-all`."""
_SECTION = re.compile(r"^\[(.+?)\]", re.MULTILINE)


@dataclass(frozen=True)
class Mirror:
    """Addresses of one mirror site; None where the tool uses its own default there."""

    pip: str | None = None
    conda: str | None = None
    """The directory of pkgs/ and cloud/."""
    huggingface: str | None = None


MIRRORS = {
    "tuna": Mirror(
        "https://pypi.tuna.tsinghua.edu.cn/simple",
        "https://mirrors.tuna.tsinghua.edu.cn/anaconda",
        "https://hf-mirror.com",
    ),
    "aliyun": Mirror(
        "https://mirrors.aliyun.com/pypi/simple/", "https://mirrors.aliyun.com/anaconda", "https://hf-mirror.com"
    ),
    "official": Mirror(),
}
"""Neither university nor cloud serves a Hugging Face mirror: hf-mirror.com does."""
PROBES = {
    "pip official": "https://pypi.org/simple/pip/",
    "pip tuna": "https://pypi.tuna.tsinghua.edu.cn/simple/pip/",
    "pip aliyun": "https://mirrors.aliyun.com/pypi/simple/pip/",
    "huggingface official": "https://huggingface.co/api/models/gpt2",
    "huggingface hf-mirror": "https://hf-mirror.com/api/models/gpt2",
}
"""Small documents, by which `mirrors test` compares sites."""


@dataclass(frozen=True)
class Setting:
    """What a tool uses. `source`: the variable or the file that says so; None for the tool's default."""

    tool: str
    address: str
    source: str | None


def settings(env: Mapping[str, str]) -> list[Setting]:
    """What each tool is configured to use now; a variable of the environment wins over a file, as in the tools.

    Raises:
        MachineError: a configuration file cannot be read.
    """
    pip, conda = _pip_file(env), _conda_file(env)
    sections = _pip_settings(read_user_file(pip) or "", pip)
    # pip's section of a command wins over [global].
    index = sections.get("install", {}).get("index-url") or sections.get("global", {}).get("index-url")
    channels = _conda_channels(_conda_settings(conda))
    noted = shell_variables().get("HF_ENDPOINT")
    github = _git_proxy(env)
    return [
        Setting("pip", env["PIP_INDEX_URL"], "PIP_INDEX_URL") if env.get("PIP_INDEX_URL")
        else Setting("pip", index or "https://pypi.org/simple", str(pip) if index else None),
        Setting("conda", ", ".join(channels), str(conda)) if channels != [_CONDA_DEFAULTS]
        else Setting("conda", _CONDA_DEFAULTS, None),
        Setting("huggingface", env["HF_ENDPOINT"], "HF_ENDPOINT") if env.get("HF_ENDPOINT")
        else Setting("huggingface", noted or "https://huggingface.co", "ascendtune env export" if noted else None),
        Setting("github", github or _GITHUB, str(_git_file(env)) if github else None),
    ]  # fmt: skip


def bypasses(name: str, env: Mapping[str, str], tools: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What makes a tool use another address than the mirror whose changes were written: (what, remedy).

    Raises:
        MachineError: a configuration file cannot be read.
    """
    mirror = MIRRORS[name]
    for tool, variable, wanted in (
        ("pip", "PIP_INDEX_URL", mirror.pip),
        ("huggingface", "HF_ENDPOINT", mirror.huggingface),
    ):
        if tool in tools and (given := env.get(variable)) and given.rstrip("/") != (wanted or "").rstrip("/"):
            yield (
                f"{tool} uses {without_secrets(given)}: {variable} is set, and wins over the file",
                f"unset {variable}",
            )
    if "pip" in tools and env.get("PIP_CONFIG_FILE") == os.devnull:
        yield f"pip reads no configuration file: PIP_CONFIG_FILE={os.devnull}", "unset PIP_CONFIG_FILE"
    elif "pip" in tools:
        path = _pip_file(env)
        for section, options in _pip_settings(read_user_file(path) or "", path).items():
            if section != "global" and (index := options.get("index-url")) and index != mirror.pip:
                what = f"`pip {section}` uses {without_secrets(index)}: [{section}] of {path} wins over [global]"
                yield what, f"remove index-url from [{section}] in {path}"
    if "conda" in tools:
        path, site = _conda_file(env), mirror.conda or _CONDA_DEFAULTS
        others = [each for each in _conda_channels(_conda_settings(path)) if not each.startswith(f"{site}/")]
        if not mirror.conda:
            others = [each for each in others if "://" in each and each != _CONDA_DEFAULTS]
        if others:
            named = without_secrets(", ".join(others))
            yield (
                f"conda also searches {named}: {path} names them",
                "replace there by defaults or conda-forge those whose packages the mirror has",
            )


def changes_for(
    name: str, env: Mapping[str, str], *, tools: tuple[str, ...] = TOOLS, github_proxy: str | None = None
) -> list[FileChange]:
    """The changes that configure a mirror; changes nothing itself.

    Args:
        tools: which of TOOLS to change. git is changed where a proxy is given, and for `official`.
        github_proxy: the address that is put before https://github.com/….

    Raises:
        InputError: the proxy's address is not http or https.
        MachineError: a configuration file cannot be read.
    """
    mirror, found = MIRRORS[name], []
    if "pip" in tools:
        path = _pip_file(env)
        text = read_user_file(path)
        found.append(FileChange(path, text, _with_index(text, mirror.pip, path)))
    if "conda" in tools:
        path = _conda_file(env)
        text = read_user_file(path)
        found.append(FileChange(path, text, _with_channels(text, _conda_settings(path), mirror.conda)))
    if "huggingface" in tools:
        path = _noted_file()
        noted = {key: value for key, value in shell_variables().items() if key != "HF_ENDPOINT"}
        noted |= {"HF_ENDPOINT": mirror.huggingface} if mirror.huggingface else {}
        text = read_user_file(path)
        found.append(FileChange(path, text, json.dumps(noted, indent=2) + "\n" if noted or text is not None else None))
    if "github" in tools and (github_proxy or name == "official"):
        found.append(_git_change(env, github_proxy))
    return [each for each in found if each.before != each.after]


def shell_variables() -> dict[str, str]:
    """The variables that a mirror needs in each shell, as they were noted; empty where none were.

    Raises:
        MachineError: the note is damaged, or belongs to another user.
    """
    path = _noted_file()
    if not path.exists():
        return {}
    record = parsed_record(read_record(path, own=True), path)
    return {name: value for name, value in record.items() if name == "HF_ENDPOINT" and isinstance(value, str)}


def _noted_file() -> Path:
    return state_directory() / "mirrors.json"


def _home(env: Mapping[str, str]) -> Path:
    home = env.get("HOME", "")
    if not home.startswith("/"):
        raise MachineError("HOME is not set", code="path-missing", remedy="export HOME=<your home directory>")
    return Path(home)


def _config_home(env: Mapping[str, str]) -> Path:
    given = env.get("XDG_CONFIG_HOME", "")
    return Path(given) if given.startswith("/") else _home(env) / ".config"


def _pip_file(env: Mapping[str, str]) -> Path:
    """The user's file that pip reads: PIP_CONFIG_FILE, the old place where a file is there, or the new one."""
    given = env.get("PIP_CONFIG_FILE", "")
    if given and given != os.devnull:
        return Path(given)
    old = _home(env) / ".pip/pip.conf"
    new = _config_home(env) / "pip/pip.conf"
    return old if old.exists() and not new.exists() else new


def _pip_settings(text: str, path: Path) -> dict[str, dict[str, str]]:
    """Section -> option -> value, read as pip reads its file."""
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise MachineError(
            f"pip cannot read its configuration: {error.message.splitlines()[0]}",
            code="invalid-ini",
            remedy="correct or remove it",
            where=path,
        ) from error
    return {
        section: {name.replace("_", "-"): value for name, value in parser.items(section)}
        for section in parser.sections()
    }


def _of_global(text: str) -> tuple[int, int] | None:
    """Where the lines of [global] begin and end."""
    sections = list(_SECTION.finditer(text))
    for number, section in enumerate(sections):
        if section[1].strip() == "global":
            end = sections[number + 1].start() if number + 1 < len(sections) else len(text)
            return section.end(), end
    return None


def _with_index(text: str | None, index: str | None, path: Path) -> str | None:
    """pip.conf with another index-url in [global]; everything else stays as it is, comments too.

    Raises:
        MachineError: pip cannot read the file, or would read the changed file in another way.
    """
    wanted = _pip_settings(text or "", path)
    if index is not None:
        wanted.setdefault("global", {})["index-url"] = index
    else:
        wanted.get("global", {}).pop("index-url", None)
    after = _with_index_line(text, index)
    if _pip_settings(after or "", path) != wanted:
        raise MachineError(
            "this file sets index-url in a form that ascendtune cannot change",
            code="invalid-ini",
            remedy=f"write it by hand, on one line below [global]: index-url = {index or '…'}",
            where=path,
        )
    return after


def _with_index_line(text: str | None, index: str | None) -> str | None:
    place = _of_global(text or "")
    found = _INDEX.search(text or "", *place) if place else None
    line = f"index-url = {index}" if index else ""
    if text is not None and found:
        end = found.end() if index else found.end() + text.startswith("\n", found.end())
        return text[: found.start()] + (found[1] + line if index else "") + text[end:]
    if index is None:
        return text
    if text is None:
        return f"[global]\n{line}\n"
    if place:
        # A line that is indented more than the option above it would continue that option's value.
        following = re.compile(r"\n([ \t]*)[^\s#;\[]").search(text, *place)
        return f"{text[: place[0]]}\n{following[1] if following else ''}{line}{text[place[0] :]}"
    gap = "\n" if text and not text.endswith("\n") else ""
    return f"{text}{gap}[global]\n{line}\n"


def _conda_file(env: Mapping[str, str]) -> Path:
    given = env.get("CONDARC", "")
    return Path(given) if given else _home(env) / ".condarc"


def _conda_settings(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(read_user_file(path) or "")
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise MachineError("not valid YAML", code="invalid-yaml", remedy="correct or remove it", where=path) from error
    if content is not None and not isinstance(content, dict):
        raise MachineError(
            "conda needs a mapping here, with keys such as channels",
            code="not-a-mapping",
            remedy="correct or remove it",
            where=path,
        )
    return content or {}


def _conda_channels(settings: Mapping[str, Any]) -> list[str]:
    """The addresses of the channels that conda searches; `default_channels` stands for `defaults` alone."""
    named, defaults, custom = (settings.get(key) for key in ("channels", "default_channels", "custom_channels"))
    found: list[str] = []
    for channel in map(str, named if isinstance(named, list) and named else ["defaults"]):
        if channel == "defaults":
            found += map(str, defaults) if isinstance(defaults, list) and defaults else [_CONDA_DEFAULTS]
        elif "://" in channel or not (isinstance(custom, dict) and channel in custom):
            found.append(channel)
        else:
            found.append(f"{str(custom[channel]).rstrip('/')}/{channel}")
    return found


def _with_channels(text: str | None, now: dict[str, Any], site: str | None) -> str | None:
    """.condarc with the channels of a site; the keys that name no site stay."""
    kept = {key: value for key, value in now.items() if key not in ("default_channels", "custom_channels")}
    others = now.get("custom_channels")
    custom = {key: value for key, value in others.items() if key != "conda-forge"} if isinstance(others, dict) else {}
    if site is None and "default_channels" not in now and not isinstance(others, dict):
        return text
    if site is not None:
        kept["default_channels"] = [f"{site}/pkgs/main", f"{site}/pkgs/r"]
        custom["conda-forge"] = f"{site}/cloud"
    if custom:
        kept["custom_channels"] = custom
    return yaml.safe_dump(kept, sort_keys=False, allow_unicode=True) if kept else ""


def _git_file(env: Mapping[str, str]) -> Path:
    given = env.get("GIT_CONFIG_GLOBAL", "")
    plain, other = _home(env) / ".gitconfig", _config_home(env) / "git/config"
    return Path(given) if given else other if other.exists() and not plain.exists() else plain


def _git_proxies(path: Path) -> list[str]:
    """The addresses that stand for https://github.com/ in a git configuration."""
    asked = run(["git", "config", "--file", str(path), "--get-regexp", r"^url\..*\.insteadof$"])
    pairs = (line.rpartition(" ") for line in asked.output.splitlines())
    return [name[len("url.") : -len(".insteadof")] for name, _, value in pairs if value == _GITHUB]


def _git_proxy(env: Mapping[str, str]) -> str | None:
    path = _git_file(env)
    return next(iter(_git_proxies(path)), None) if path.is_file() else None


def _git_change(env: Mapping[str, str], proxy: str | None) -> FileChange:
    """git's own command line changes a copy, so that the syntax is git's."""
    path = _git_file(env)
    text = read_user_file(path)
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "gitconfig"
        copy.write_bytes((text or "").encode(errors="surrogateescape"))
        for old in _git_proxies(copy):
            _git(copy, path, "--unset-all", f"url.{old}.insteadOf", _ONLY_GITHUB)
            if proxy is None:
                _git(copy, path, "--unset-all", f"url.{_GITHUB}.pushInsteadOf", _ONLY_GITHUB)
        if proxy is not None:
            _git(copy, path, "--add", f"url.{proxied(_GITHUB, proxy)}.insteadOf", _GITHUB)
            _git(copy, path, "--replace-all", f"url.{_GITHUB}.pushInsteadOf", _GITHUB, _ONLY_GITHUB)
        after = copy.read_bytes().decode(errors="surrogateescape")
    return FileChange(path, text, after if after or text is not None else None)


def _git(copy: Path, path: Path, *words: str) -> None:
    """Change a copy of the configuration at `path`.

    Raises:
        MachineError: git is not installed, or cannot read the file.
    """
    done = run(["git", "config", "--file", str(copy), *words])
    if done.exit_code == 127:
        raise MachineError("git is not installed", code="program-missing", remedy="install git")
    if done.exit_code not in (0, _NOTHING_TO_UNSET):
        raise MachineError(
            f"git cannot read or change its configuration (exit code {done.exit_code})",
            code="git-failed",
            remedy=f"correct it; git config --file {shlex.quote(str(path))} --list names the line",
            where=path,
        )


def proxied(url: str, proxy: str) -> str:
    """The address of `url` behind a proxy that takes whole addresses: https://proxy/https://github.com/….

    Raises:
        InputError: the proxy is not an http or https address, or holds a password.
    """
    parts = urlsplit(proxy)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or re.search(r"\s", proxy):
        raise InputError(
            f"not the address of a proxy: {without_secrets(proxy)}",
            code="invalid-option-value",
            remedy="give one like https://gh-proxy.com",
        )
    return f"{proxy.rstrip('/')}/{url}"
