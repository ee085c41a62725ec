"""Masks secrets, names of users and hosts, and addresses in texts that leave the machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import PurePath

# The groups are atomic: a name is tried at its beginning only, and a long word is read once.
_SECRET_NAME = (
    r"(?>[\w.-]*token(?![\w.-])"
    r"|[\w.-]*(?:secret|passw(?:or)?d|passphrase|credential|api[ _-]?key|access[_-]?key|private[_-]?key|sshpass|_pwd)"
    r"[\w.-]*+)"
)
_QUOTE = r"""(?:\\*["'])"""
"""Of text within JSON within JSON, too."""
_VALUE = (
    r"""(?:\*{3}(?![^\s"',;)}\]])|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|\\+(["']).*?\\+\2"""
    rf"""|{_QUOTE}?(?:[^\s"',;}}\]]|[,;](?=[^\s"'}}\]]))+)"""
)
_SIGN = rf"""{_QUOTE}?\]?\s*(?:==|=>|[=:])\s*[\[(]?(?:[a-z]\w{{,30}}\(?(?=\\*["']|\*{{3}}))?"""
"""As in `{"token": `, `environ["TOKEN"] = ` and `token=str(`."""
_ASSIGNED = re.compile(rf"(?i)((?<![\w.-]){_SECRET_NAME}{_SIGN}){_VALUE}")
_OPTION = re.compile(rf"(?i)((?<![\w.-])--?(?=[a-z]){_SECRET_NAME}(?:{_QUOTE},)?[ \t]+(?!{_QUOTE}?-)){_VALUE}")
"""`--token VALUE`, and the same in a list of Python."""
_BEARER = re.compile(r"""(?i)(\b(?:bearer|basic|authorization["']?:\s*["']?\w+))\s+[\w.~+/=-]{8,}""")
# A password may hold '@': the last one before the path ends it.
_IN_URL = re.compile(r"""(://)[^/\s:@]*(?::[^/\s"'<>]*)?@""")
_IN_PATH = re.compile(r"(://[^/\s]+/t/)[^/\s]+(?=/)")
"""The token of a conda channel."""
_IN_QUERY = re.compile(r"""(?i)([?&][\w-]*sig(?:nature)?=)[^&\s"'<>]+""")
"""Of a link that lets everybody in who has it."""
_PRIVATE_KEY = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----)[^-]*")
_KEY = re.compile(
    r"\b(?:(?:hf_|sk-|gh[oprsu]_|github_pat_|glpat-|A[KS]IA|AIza|nvapi-|xox[bp]-|ms-)[A-Za-z0-9_-]{12,}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
)
_V4 = re.compile(r"(?<![A-Za-z0-9.])\d{1,3}(?:\.\d{1,3}){3}(?![A-Za-z0-9.]*\d)")
_V6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f]*+:[0-9A-Fa-f:.]*+(?!\w)")
_MAC = re.compile(r"\b(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}\b")
_IS_SECRET = re.compile(_SECRET_NAME, re.IGNORECASE)
_SURE_KEY = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{30,}|sk-(?:[\w]+-)*[A-Za-z0-9]{20,}|gh[po]_[A-Za-z0-9]{30,}|github_pat_\w{20,}|glpat-[\w-]{20,}"
    r"|AKIA[A-Z0-9]{16}|xox[bp]-[\w-]{20,}|ms-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b"
)
_TOO_COMMON = ("root", "localhost", "user", "admin", "ubuntu", "node", "master", "worker")


def without_secrets(text: str) -> str:
    """The text with *** in place of everything that looks like a password, a token or a key."""
    text = _IN_URL.sub(r"\1***@", text)
    text = _IN_PATH.sub(r"\1***", text)
    text = _IN_QUERY.sub(r"\1***", text)
    text = _PRIVATE_KEY.sub(r"\1***", text)
    text = _ASSIGNED.sub(r"\1***", text)
    text = _OPTION.sub(r"\1***", text)
    text = _BEARER.sub(r"\1 ***", text)
    return _KEY.sub("***", text)


def is_name_of_secret(name: str) -> bool:
    """Whether `name`, of a variable or a key, is the name of a password, a token or a key."""
    return _IS_SECRET.fullmatch(name) is not None


def holds_secret(text: str) -> bool:
    """Whether `text` certainly contains a secret: a URL with credentials, or a key in a known service's format.

    Stricter than `without_secrets`, which may mask too much: a model may well be called ms-marco-MiniLM-L-6-v2.
    """
    return bool(_IN_URL.search(text) or _SURE_KEY.search(text))


def command_without_secrets(argv: Sequence[str]) -> list[str]:
    """The same for a command, where a secret may also follow its option: `--token VALUE`."""
    return [
        "***"
        if before.startswith("-") and _IS_SECRET.fullmatch(before) and not argument.startswith("-")
        else without_secrets(argument)
        for before, argument in zip(["", *argv], argv, strict=False)
    ]


class Mask:
    """The same thing gets the same mask throughout, so that a reader can still tell two machines apart."""

    def __init__(self, *, users: Iterable[str] = (), hosts: Iterable[str] = (), versions: Iterable[str] = ()) -> None:
        """`versions` are numbers that look like addresses (driver 23.0.2.1) and stay as they are."""
        names = [(each, "user") for each in users] + [(each, "host") for each in hosts]
        self._names = {name: kind for name, kind in names if len(name) > 2 and name.lower() not in _TOO_COMMON}
        self._kept = frozenset(versions)
        self._seen: dict[str, str] = {}

    @classmethod
    def of_this_machine(cls, env: Mapping[str, str], versions: Iterable[str] = ()) -> Mask:
        """Masks the names of this host and of its user."""
        host = os.uname().nodename
        users = {env.get("USER", ""), PurePath(env.get("HOME", "")).name, _user()} - {""}
        return cls(users=users, hosts=dict.fromkeys((host, host.partition(".")[0])), versions=versions)

    def text(self, text: str) -> str:
        text = without_secrets(text)
        text = _MAC.sub(lambda found: self._named("mac", found[0]), text)
        text = _V6.sub(lambda found: self._v6(found[0]), text)
        text = _V4.sub(lambda found: self._address(found[0]), text)
        for name, kind in self._names.items():
            # As in torchinductor_NAME, and in the NAME_PID_RANK of torchrun.
            text = re.sub(
                rf"(?<![A-Za-z0-9-]){re.escape(name)}(?![A-Za-z0-9-]|_[^\W\d])", self._named(kind, name), text
            )
        return text

    def environment(self, env: Mapping[str, str]) -> str:
        """NAME=value lines, sorted; values of names of secrets are removed."""
        lines = (
            f"{name}=***" if _IS_SECRET.fullmatch(name) else self.text(f"{name}={value}") for name, value in env.items()
        )
        return "".join(f"{line}\n" for line in sorted(lines))

    def _v6(self, text: str) -> str:
        """`text` may end with a sentence, or with the colon before a message."""
        address = text.rstrip(".")
        address = address if address.endswith("::") else address.rstrip(":")
        return self._address(address) + text[len(address) :]

    def _address(self, text: str) -> str:
        try:
            address = ip_address(text)
        except ValueError:
            return text
        # Network masks and addresses of the machine itself reveal nothing.
        if text in self._kept or address.is_loopback or address.is_unspecified or text.startswith("255."):
            return text
        return self._named("ip", text)

    def _named(self, kind: str, text: str) -> str:
        if text not in self._seen:
            count = sum(each.startswith(f"<{kind}-") for each in self._seen.values())
            self._seen[text] = f"<{kind}-{count + 1}>"
        return self._seen[text]


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
