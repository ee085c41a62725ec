"""Packages that on Ascend go together in one release each: changing one of them alone breaks both."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ascendtune.check.explain.language import say


@dataclass(frozen=True)
class _Twin:
    name: str
    releases: str
    """Where the pairs are listed."""


_TWINS = {
    "torch": _Twin("torch_npu", "https://github.com/Ascend/pytorch"),
    "vllm": _Twin("vllm-ascend", "https://docs.vllm.ai/projects/ascend/en/latest/community/versioning_policy.html"),
    "triton": _Twin("triton-ascend", "https://gitcode.com/Ascend/triton-ascend"),
}
_NAMES = "|".join(_TWINS)
_CHANGE = re.compile(
    rf"pip install (?:-\S+ )*(?:(?<=-U )|(?<=--upgrade )|(?=['\"]?(?:{_NAMES})[<>=!~]))"
    rf"['\"]?(?P<library>{_NAMES})(?![\w-])"
)
"""A command that installs another release of such a package, not the same one anew."""
_OF_ASCEND_ALSO = "vllm"
"""Of its failures alone a log seldom tells whether the machine has NPUs,"""
_OF_CUDA = re.compile(r"cuda|nvidia|nccl|cudnn|cublas|xformers|marlin|flash_attn|flashinfer", re.IGNORECASE)
"""unless it has words of the other kind."""


def releases_of_pair(one: str, other: str) -> str | None:
    """Where the releases that go together are listed; None if the two packages are not such a pair."""
    names = {one.replace("-", "_"), other.replace("-", "_")}
    return next((twin.releases for name, twin in _TWINS.items() if names == {name, twin.name.replace("-", "_")}), None)


def with_twins(remedies: tuple[str, ...], texts: Iterable[str], *, names_ascend: bool) -> tuple[str, ...]:
    """The remedies; where they change one package of a pair, what is to be kept in mind on Ascend.

    Args:
        texts: what the logs say.
        names_ascend: whether the logs speak of Ascend.
    """
    change = next(filter(None, map(_CHANGE.search, remedies)), None)
    if change is None:
        return remedies
    library = change["library"]
    twin = _TWINS[library]
    if any(twin.name in remedy or twin.name.replace("-", "_") in remedy for remedy in remedies):
        return remedies
    if not names_ascend and (library != _OF_ASCEND_ALSO or any(map(_OF_CUDA.search, texts))):
        return remedies
    together = say(
        "on Ascend do not change {library} alone, {twin} is made for one release of it: install both in releases that "
        "go together ({list}), {twin} last",
        twin=twin.name,
        library=library,
        list=twin.releases,
    )
    return (together, *remedies) if names_ascend else (*remedies, together)
