"""Mirrors of package indexes and hubs: the configuration of pip, conda, huggingface_hub and git, and its changes.

The mirrors of pip and conda are set in their own configuration files. huggingface_hub reads HF_ENDPOINT from the
environment only: it is recorded in the state directory, and `ascendtune env export` prints it. For git
`url.….insteadOf` is set for fetches; pushes still go to github.com itself, so that no password reaches a proxy.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from ascendtune.core.directories import state_directory
from ascendtune.core.errors import InputError, MachineError
from ascendtune.core.mask import without_secrets
from ascendtune.core.process import run
from ascendtune.core.records import read_json_record
from ascendtune.machine.environment.conda_files import (
    CONDA_DEFAULTS,
    all_settings,
    conda_channels,
    conda_file,
    conda_settings,
    listed,
    merged,
    with_channels,
)
from ascendtune.machine.environment.pip_files import indexes, pip_file, with_index
from ascendtune.machine.environment.user_files import FileChange, config_home, home, read_user_file

TOOLS = ("pip", "conda", "huggingface", "github")
_GITHUB = "https://github.com/"
_ONLY_GITHUB = r"^https://github\.com/$"
_NOTHING_TO_UNSET = 5
"""Exit code of `git config --unset-all`."""


@dataclass(frozen=True)
class Mirror:
    """Addresses of one mirror site; None if the tool keeps its own default."""

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
"""The universities' and clouds' sites have no Hugging Face mirror: hf-mirror.com does."""
PROBES = {
    "pip official": "https://pypi.org/simple/pip/",
    "pip tuna": "https://pypi.tuna.tsinghua.edu.cn/simple/pip/",
    "pip aliyun": "https://mirrors.aliyun.com/pypi/simple/pip/",
    "huggingface official": "https://huggingface.co/api/models/gpt2",
    "huggingface hf-mirror": "https://hf-mirror.com/api/models/gpt2",
}
"""Small documents with which `mirrors test` compares sites."""


@dataclass(frozen=True)
class ToolSetting:
    """The address that a tool uses. `source`: the variable or file that sets it; None for the tool's default."""

    tool: str
    address: str
    source: str | None


def settings(env: Mapping[str, str], root: Path = Path("/")) -> list[ToolSetting]:
    """The current setting of each tool; a variable of the environment takes precedence over a file, as in the tools.

    Args:
        root: root of the paths of the machine's files, such as /etc/pip.conf.

    Raises:
        MachineError: a configuration file cannot be read.
    """
    found = indexes(env, root)
    # pip's section of a command takes precedence over [global].
    index = next((each for each in reversed(found) if each.section == "install"), None) or next(
        (each for each in reversed(found) if each.section == "global"), None
    )
    files = all_settings(env, root)
    channels = conda_channels(merged(files))
    noted = shell_variables().get("HF_ENDPOINT")
    github = _git_proxy(env)
    return [
        ToolSetting("pip", env["PIP_INDEX_URL"], "PIP_INDEX_URL") if env.get("PIP_INDEX_URL")
        else ToolSetting("pip", index.address, str(index.path)) if index
        else ToolSetting("pip", "https://pypi.org/simple", None),
        ToolSetting("conda", ", ".join(channels), ", ".join(map(str, files))) if channels != [CONDA_DEFAULTS]
        else ToolSetting("conda", CONDA_DEFAULTS, None),
        ToolSetting("huggingface", env["HF_ENDPOINT"], "HF_ENDPOINT") if env.get("HF_ENDPOINT")
        else ToolSetting("huggingface", noted or "https://huggingface.co", "ascendtune env export" if noted else None),
        ToolSetting("github", github or _GITHUB, str(_git_file(env)) if github else None),
    ]  # fmt: skip


def bypasses(
    name: str, env: Mapping[str, str], tools: Sequence[str], root: Path = Path("/")
) -> Iterator[tuple[str, str]]:
    """Settings due to which a tool uses another address than that of the configured mirror: (setting, remedy).

    Args:
        root: as in `settings`.

    Raises:
        MachineError: a configuration file cannot be read.
    """
    mirror = MIRRORS[name]
    for tool, variable, expected in (
        ("pip", "PIP_INDEX_URL", mirror.pip),
        ("huggingface", "HF_ENDPOINT", mirror.huggingface),
    ):
        if tool in tools and (given := env.get(variable)) and given.rstrip("/") != (expected or "").rstrip("/"):
            yield (
                f"{tool} uses {without_secrets(given)}: {variable} is set, and wins over the file",
                f"unset {variable}",
            )
    if "pip" in tools and env.get("PIP_CONFIG_FILE") == os.devnull:
        yield f"pip reads no configuration file: PIP_CONFIG_FILE={os.devnull}", "unset PIP_CONFIG_FILE"
    elif "pip" in tools:
        yield from _other_indexes(mirror.pip, env, root)
    if "conda" in tools:
        yield from _other_channels(mirror.conda, env, root)


def _other_indexes(index: str | None, env: Mapping[str, str], root: Path) -> Iterator[tuple[str, str]]:
    found, own_file = indexes(env, root), pip_file(env)
    for each in found:
        if each.section != "global" and each.address != index:
            used = without_secrets(each.address)
            what = f"`pip {each.section}` uses {used}: [{each.section}] of {each.path} wins over [global]"
            yield what, f"remove index-url from [{each.section}] in {each.path}"
    of_all = [each for each in found if each.section == "global"]
    if of_all and (last := of_all[-1]).path != own_file and last.address != index:
        wins = f", and wins over {own_file}" if index else ""
        what = f"pip uses {without_secrets(last.address)}: {last.path} sets it{wins}"
        yield what, f"remove index-url from [global] in {last.path}"


def _other_channels(site: str | None, env: Mapping[str, str], root: Path) -> Iterator[tuple[str, str]]:
    files = all_settings(env, root)
    together = merged(files)
    uses_defaults = not together["channels"] or "defaults" in together["channels"]
    for path, settings in files.items():
        named, defaults = (listed(settings, key) for key in ("channels", "default_channels"))
        if defaults and uses_defaults and "defaults" not in named:
            named.append("defaults")
        if not named:
            continue
        # With the addresses that all files together define for names.
        own = {"channels": named, "default_channels": defaults, "custom_channels": together["custom_channels"]}
        others = [each for each in conda_channels(own) if not each.startswith(f"{site or CONDA_DEFAULTS}/")]
        if others := [each for each in others if each != CONDA_DEFAULTS and (site or "://" in each)]:
            shown = without_secrets(", ".join(others))
            yield (
                f"conda also searches {shown}: {path} names them",
                "replace there by defaults or conda-forge those whose packages the mirror has",
            )


def changes_for(
    name: str, env: Mapping[str, str], *, tools: tuple[str, ...] = TOOLS, github_proxy: str | None = None
) -> list[FileChange]:
    """The changes that configure a mirror; nothing is written.

    Args:
        tools: those of TOOLS to change. git is changed if a proxy is given, and for `official`.
        github_proxy: the address that is put before https://github.com/….

    Raises:
        InputError: the proxy's address is not http or https.
        MachineError: a configuration file cannot be read.
    """
    mirror, found = MIRRORS[name], []
    if "pip" in tools:
        path = pip_file(env)
        text = read_user_file(path)
        found.append(FileChange(path, text, with_index(text, mirror.pip, path)))
    if "conda" in tools:
        path = conda_file(env)
        text = read_user_file(path)
        found.append(FileChange(path, text, with_channels(text, conda_settings(path), mirror.conda)))
    if "huggingface" in tools:
        path = _record_file()
        noted = {key: value for key, value in shell_variables().items() if key != "HF_ENDPOINT"}
        noted |= {"HF_ENDPOINT": mirror.huggingface} if mirror.huggingface else {}
        text = read_user_file(path)
        found.append(FileChange(path, text, json.dumps(noted, indent=2) + "\n" if noted or text is not None else None))
    if "github" in tools and (github_proxy or name == "official"):
        found.append(_git_change(env, github_proxy))
    return [each for each in found if each.before != each.after]


def shell_variables() -> dict[str, str]:
    """The recorded variables that a mirror needs in each shell; empty if none were recorded.

    Raises:
        MachineError: the record is damaged, or belongs to another user.
    """
    path = _record_file()
    if not path.exists():
        return {}
    record = read_json_record(path, own=True)
    return {name: value for name, value in record.items() if name == "HF_ENDPOINT" and isinstance(value, str)}


def _record_file() -> Path:
    return state_directory() / "mirrors.json"


def _git_file(env: Mapping[str, str]) -> Path:
    given = env.get("GIT_CONFIG_GLOBAL", "")
    plain, other = home(env) / ".gitconfig", config_home(env) / "git/config"
    return Path(given) if given else other if other.exists() and not plain.exists() else plain


def _git_proxies(path: Path) -> list[str]:
    """The addresses that replace https://github.com/ in a git configuration."""
    result = run(["git", "config", "--file", str(path), "--get-regexp", r"^url\..*\.insteadof$"])
    pairs = (line.rpartition(" ") for line in result.output.splitlines())
    return [name[len("url.") : -len(".insteadof")] for name, _, value in pairs if value == _GITHUB]


def _git_proxy(env: Mapping[str, str]) -> str | None:
    path = _git_file(env)
    return next(iter(_git_proxies(path)), None) if path.is_file() else None


def _git_change(env: Mapping[str, str], proxy: str | None) -> FileChange:
    """The change of git's configuration, made by git itself on a copy, so that the syntax is git's."""
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
    """The address of `url` behind a proxy to which whole addresses are appended: https://proxy/https://github.com/….

    Raises:
        InputError: the proxy is not an http or https address, or contains a password.
    """
    parts = urlsplit(proxy)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or re.search(r"\s", proxy):
        raise InputError(
            f"not the address of a proxy: {without_secrets(proxy)}",
            code="invalid-option-value",
            remedy="give one like https://gh-proxy.com",
        )
    return f"{proxy.rstrip('/')}/{url}"
