"""Commands of other package managers than apt, with the names that they have for Debian's packages."""

from __future__ import annotations

import re
from functools import partial

_APT = re.compile(
    r"(?P<root>sudo )?(?:apt-get update && (?:sudo )?)?apt(?:-get)? install (?P<anew>--reinstall )?(?:-y )?"
    r"(?P<packages>(?!-)[\w.+-]+(?:\$\(uname -r\))?"
    r"(?: (?!and |or |in |on |of |the |for |from |with |&& )[a-z][\w.+-]*(?:\$\(uname -r\))?)*)(?![\w=<])"
)
_TWICE = re.compile(r"(?<= )(?P<name>[a-z][\w.+-]+) \((?P=name)\)")
_RPM_NAMED = re.compile(r"\b(?:yum|dnf)\b|RHEL|openEuler")
_NAMED_BESIDE = re.compile(
    r"(?:(?<=: )|(?<=：))(?:iproute2|iputils-ping|netcat-openbsd|openmpi-bin|build-essential)(?=[;)；）])"
)
"""Debian packages that a remedy names for single programs."""
_OF_DEBIAN = re.compile(r"[\w.+-]+-dev\b(?!-)|\b(?:iputils-ping|netcat-openbsd|build-essential|openmpi-bin)\b")
"""Package names of Debian only."""
_RPM = {
    "build-essential": "gcc gcc-c++ make",
    "g++": "gcc-c++",
    "ibverbs-providers": "libibverbs",
    "iproute2": "iproute",
    "iputils-ping": "iputils",
    "libaio-dev": "libaio-devel",
    "libaio1": "libaio",
    "libcurl4-openssl-dev": "libcurl-devel",
    "libgl1": "mesa-libGL",
    "libglib2.0-0": "glib2",
    "libgomp1": "libgomp",
    "libibverbs1": "libibverbs",
    "libnuma1": "numactl-libs",
    "libopenmpi-dev": "openmpi-devel",
    "librdmacm1": "librdmacm",
    "libsm6": "libSM",
    "libsndfile1": "libsndfile",
    "libssl-dev": "openssl-devel",
    "libxext6": "libXext",
    "libxrender1": "libXrender",
    "linux-headers-$(uname -r)": "kernel-devel-$(uname -r)",
    "netcat-openbsd": "nmap-ncat",
    "nfs-common": "nfs-utils",
    "openmpi-bin": "openmpi",
    "pkg-config": "pkgconf-pkg-config",
    "python3-dev": "python3-devel",
}
"""Package names of Debian, and those of RPM systems if they differ."""
_SAME = frozenset(("ca-certificates", "cmake", "gcc", "git", "git-lfs", "hostname", "kmod", "make", "ninja-build"))
_SAME |= frozenset(("pdsh", "sudo", "mpich", "dkms"))


_APK = {
    "build-essential": "build-base",
    "libssl-dev": "openssl-dev",
    "ninja-build": "samurai",
    "pkg-config": "pkgconf",
}
"""Package names of Debian, and those of Alpine."""
_OF_DEBIAN_ALONE = re.compile(r"lib(?!aio-dev)|linux-headers|iputils-ping|netcat-openbsd|openmpi-bin|\S*-\$")
_BREW = {
    "cmake": "cmake",
    "ffmpeg": "ffmpeg",
    "git": "git",
    "git-lfs": "git-lfs",
    "libcurl4-openssl-dev": "curl",
    "libsndfile1": "libsndfile",
    "ninja-build": "ninja",
    "openmpi-bin": "open-mpi",
    "pkg-config": "pkgconf",
    "python3-dev": "python",
    "wget": "wget",
}
"""Package names of Debian, and Homebrew's formulae."""
_OF_XCODE = frozenset(("build-essential", "g++", "gcc", "make"))
"""Debian packages whose programs are in Apple's command line tools."""


def for_brew(remedy: str) -> str:
    """Homebrew's commands in place of apt's."""
    return _APT.sub(_with_brew, remedy)


def for_zypper(remedy: str) -> str:
    """zypper's commands in place of apt's."""
    return for_rpm(remedy, "zypper {verb} -y").replace("zypper reinstall -y", "zypper install -f")


def for_apk(remedy: str) -> str:
    """apk's commands in place of apt's."""
    return _APT.sub(_with_apk, remedy)


def _with_brew(command: re.Match[str]) -> str:
    """Homebrew's command instead of apt's; unchanged if the name of a package is unknown."""
    names = command["packages"].split()
    if set(names) <= _OF_XCODE:
        return "xcode-select --install"
    return f"brew install {' '.join(_BREW[name] for name in names)}" if set(names) <= _BREW.keys() else command[0]


def for_rpm(remedy: str, command: str) -> str:
    """The command of an RPM system instead of apt's.

    Args:
        command: of the package manager, with {verb} for "install" or "reinstall".
    """
    if _RPM_NAMED.search(remedy):
        return remedy
    of_rpm = _TWICE.sub(r"\g<name>", _APT.sub(partial(_with_rpm_names, manager=command), remedy))
    if of_rpm != remedy:
        of_rpm = _NAMED_BESIDE.sub(lambda name: _RPM[name[0]], of_rpm)
    return remedy if _OF_DEBIAN.search(of_rpm) else of_rpm


def _with_rpm_names(command: re.Match[str], *, manager: str) -> str:
    """`manager` instead of apt; unchanged if the name of a package is unknown."""
    names = [_of_rpm(name) for name in re.split(r" (?!-r\))", command["packages"])]
    if not all(names):
        return command[0]
    root, verb = command["root"] or "", "reinstall" if command["anew"] else "install"
    return f"{root}{manager.format(verb=verb)} {' '.join(dict.fromkeys(names))}"


def _with_apk(command: re.Match[str]) -> str:
    """apk's command instead of apt's; unchanged for Debian's libraries, whose names differ."""
    names = [_APK.get(name, name) for name in command["packages"].split()]
    return command[0] if any(map(_OF_DEBIAN_ALONE.match, names)) else f"apk add {' '.join(dict.fromkeys(names))}"


def _of_rpm(name: str) -> str:
    if name in _RPM or name in _SAME:
        return _RPM.get(name, name)
    if re.fullmatch(r"(?!lib|ffmpeg)[a-z]+", name):
        return name
    python = re.fullmatch(r"(python3\.\d+)-dev", name)
    return f"{python[1]}-devel" if python else ""
