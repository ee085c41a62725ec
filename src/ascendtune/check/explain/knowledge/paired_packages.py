"""Packages whose releases must match on Ascend, and packages for which makers of accelerators have their own builds: a
command that installs PyPI's release of one package breaks them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ascendtune.check.explain.facts.facts import Facts
from ascendtune.check.explain.language import say


@dataclass(frozen=True)
class _Twin:
    name: str
    releases: str
    """Page that lists the matching releases."""


_TWINS = {
    "torch": _Twin("torch_npu", "https://github.com/Ascend/pytorch"),
    "vllm": _Twin("vllm-ascend", "https://docs.vllm.ai/projects/ascend/en/latest/community/versioning_policy.html"),
    "triton": _Twin("triton-ascend", "https://gitcode.com/Ascend/triton-ascend"),
}
_NAMES = "|".join(_TWINS)
_CHANGE = re.compile(
    r"pip install (?P<options>(?:-\S+ )*)(?:(?<=-U )[\w.\[\]]+ )?(?P<quote>['\"]?)"
    rf"(?P<library>{_NAMES})(?P<bound>[<>=!~][^\s'\"`;,)]*)?(?P=quote)(?![\w-])"
    r"(?P<rest>(?: torch(?:vision|audio))*)(?P<index> --(?:extra-)?index-url https://download\.pytorch\.org/whl/cu\w+)?"
)
"""A command that installs one of them."""
_TRITON = "triton"
"""On Ascend another package contains the module of this name; PyPI's wheel would overwrite it."""
_OF_ASCEND_ALSO = ("vllm", _TRITON)
"""Packages whose failures seldom show whether the machine has NPUs."""
_OF_CUDA = re.compile(r"cuda|nvidia|nccl|cudnn|cublas|xformers|marlin|flash_attn|flashinfer", re.IGNORECASE)
"""Words of machines without NPUs."""
_FOR_MANY_CHIPS = re.compile(r"\bflag_?(?:gems|tree)\b", re.IGNORECASE)
"""Packages that contain the module triton for chips of many vendors, or are used with it."""
_MADE_FOR_CUDA = re.compile(
    r"pip install (?:(?:-\S+ )*['\"]?(?P<package>xformers|flashinfer-python|transformer[-_]engine)|[^;`；]*?"
    r"(?<![\w-])flash[-_]attn)(?!\w)"
)
"""A command that installs a package that Ascend does not have: by name, or flash-attn."""
_OF_ASCEND = re.compile(r"ascend|(?<![a-z])npu|昇腾", re.IGNORECASE)

_WHICH_TRITON = (
    "`pip list | grep -i -e triton -e flagtree -e torch.npu`: flagtree, triton-ascend or torch-npu is there: the "
    "module triton is the vendor's, which follows an older Triton: do not install triton of PyPI over it: take the "
    "release of the package that asks for the name which goes with it, or a newer flagtree or triton-ascend"
)


def releases_of_pair(one: str, other: str) -> str | None:
    """Page that lists the matching releases of two packages; None if they are not such a pair."""
    names = {one.replace("-", "_"), other.replace("-", "_")}
    return next((twin.releases for name, twin in _TWINS.items() if names == {name, twin.name.replace("-", "_")}), None)


_MAKERS = {
    "amd": "AMD (https://download.pytorch.org/whl, directories rocm…; https://repo.radeon.com)",
    "hygon": "Hygon (https://developer.sourcefind.cn)",
    "moore-threads": "Moore Threads (https://github.com/MooreThreads/torch_musa)",
    "metax": "MetaX (https://developer.metax-tech.com)",
    "iluvatar": "Iluvatar CoreX (https://support.iluvatar.com)",
    "cambricon": "Cambricon (https://developer.cambricon.com)",
    "intel": "Intel (https://download.pytorch.org/whl/xpu)",
    "jetson": "NVIDIA for Jetson (https://pypi.jetson-ai-lab.io)",
}
"""By the value of the fact `accelerator`: the maker that builds torch and its dependents for these devices, and the
source of its builds."""
_BUILT_BY_MAKERS = re.compile(
    r"pip install (?!.*(?:rocm|/xpu|jetson))(?:-\S+ )*['\"]?"
    r"(?P<library>torch|triton|vllm|sglang|xformers|cupy[\w-]*)"
    r"(?=[ '\"<>=!~`,;:)]|$)"
)


_NEWEST = re.compile(
    r"pip install (?:-\S+ )*(?:-U|--upgrade) (?:-\S+ )*"
    r"(?P<name>transformers|torch|vllm|sglang|numpy|huggingface_hub|tokenizers|datasets|protobuf|pydantic|triton)"
    r"(?=[\s,;:.)，；：。）]|$)"
)
"""A command that installs the newest release of a package on which many others depend."""
_TELLS_LIMIT = re.compile(r"pip check|--no-deps|--dry-run|requirements|[<=]=?\d|that (?:belong|fit)|its release names")
_CHECK = (
    "{remedy} (after the upgrade `pip check`: does it name a package that needs an older {name}? then the newest "
    "{name} that this one allows)"
)


_FLASH_ATTENTION = re.compile(r"(?!.*(?:wheel|releases|\.whl|ROCm)).*pip install [^;`；]*\bflash[-_]attn\b")
_LONG = 200
"""Characters of a remedy from which on no note is added to it: an answer has twelve lines."""
_WHEEL = (
    "{remedy} (a wheel for your torch, CUDA and Python from https://github.com/Dao-AILab/flash-attention/releases "
    "spares a compilation of up to an hour)"
)


def with_notes(remedies: tuple[str, ...], texts: Iterable[str], facts: Facts, *, names_ascend: bool) -> tuple[str, ...]:
    """Add notes to remedies that install packages; see the functions below."""
    is_ascend = names_ascend and "nvidia" not in facts.get("accelerator", ())
    checked = with_check(remedies)
    return with_pairs(checked if is_ascend else with_wheel(checked), texts, facts, names_ascend=names_ascend)


def with_wheel(remedies: tuple[str, ...]) -> tuple[str, ...]:
    """Add a note on prebuilt wheels to the first remedy that installs flash-attn."""
    index = next((index for index, each in enumerate(remedies) if _FLASH_ATTENTION.match(each)), None)
    if index is None or len(remedies[index]) > _LONG:
        return remedies
    return (*remedies[:index], say(_WHEEL, remedy=remedies[index]), *remedies[index + 1 :])


def with_check(remedies: tuple[str, ...]) -> tuple[str, ...]:
    """Add a compatibility check to the first remedy that installs the newest release of a package that others depend
    on."""
    for index, remedy in enumerate(remedies):
        newest = _NEWEST.search(remedy)
        if newest is not None:
            if _TELLS_LIMIT.search(remedy) or len(remedy) > _LONG:
                return remedies
            checked = say(_CHECK, remedy=remedy.rstrip("."), name=newest["name"])
            return (*remedies[:index], checked, *remedies[index + 1 :])
    return remedies


def with_pairs(remedies: tuple[str, ...], texts: Iterable[str], facts: Facts, *, names_ascend: bool) -> tuple[str, ...]:
    """Add a note on Ascend to remedies that change one package of a pair, and the required build to remedies that
    change a package which a maker of accelerators builds itself.

    In logs of Ascend the commands install both packages of the pair.

    Args:
        texts: texts of the logs.
        facts: facts of the logs.
        names_ascend: whether the logs name Ascend.
    """
    if (of_maker := _build_of_maker(remedies, facts)) is not None:
        return (of_maker, *remedies)
    changes = (match for remedy in remedies for match in _CHANGE.finditer(remedy))
    library = next((match["library"] for match in changes if _is_change(match)), None)
    names_twin = library is not None and any(_names(_TWINS[library].name, remedy) for remedy in remedies)
    if names_ascend:
        remedies = _on_ascend(remedies) if "nvidia" not in facts.get("accelerator", ()) else remedies
        return remedies if library is None or names_twin else (_together(library), *remedies)
    if names_twin:
        return remedies
    sentences = list(texts)
    if library == _TRITON and any(map(_FOR_MANY_CHIPS.search, sentences)):
        rest = (_CHANGE.search(remedy) for remedy in remedies)
        unless = (
            say("none of them is there: {remedy}", remedy=remedy) if change else remedy
            for remedy, change in zip(remedies, rest, strict=True)
        )
        return (say(_WHICH_TRITON), *unless)
    if (
        library not in _OF_ASCEND_ALSO
        or "nvidia" in facts.get("accelerator", ())
        or any(map(_OF_CUDA.search, sentences))
    ):
        return remedies
    return (*remedies, _together(library))


def _together(library: str) -> str:
    twin = _TWINS[library]
    if library == _TRITON:
        return say(
            "on Ascend the module triton comes from {twin} (or flagtree): do not install triton of PyPI over it; `pip "
            "list | grep -i triton` shows which: {twin} in the release for this torch_npu and CANN ({list}), and the "
            "release of the package that uses it which goes with that",
            twin=twin.name,
            list=twin.releases,
        )
    return say(
        "on Ascend do not change {library} alone, {twin} is made for one release of it: install both in releases that "
        "go together ({list}), {twin} last",
        twin=twin.name,
        library=library,
        list=twin.releases,
    )


def _on_ascend(remedies: tuple[str, ...]) -> tuple[str, ...]:
    """Let the remedies install both packages of a pair, and remove those that install packages for CUDA."""
    pairs = tuple(_CHANGE.sub(_of_both, remedy) for remedy in remedies)
    for_cuda = next(filter(None, map(_MADE_FOR_CUDA.search, pairs)), None)
    if for_cuda is None:
        return pairs
    package = for_cuda["package"] or "flash-attn"
    kept = tuple(each for each in pairs if _OF_ASCEND.search(each) or not _MADE_FOR_CUDA.search(each))
    is_told = any(_OF_ASCEND.search(each) and _names(package, each) for each in kept)
    return kept if is_told else (_without(package), *kept)


def _without(package: str) -> str:
    if package.startswith("transformer"):
        return say("on Ascend {package} does not run, it is made for CUDA: MindSpeed stands in for it", package=package)
    return say(
        'on Ascend {package} does not run, it is made for CUDA: leave it out, with attn_implementation="sdpa": '
        "torch_npu has fused attention of its own",
        package=package,
    )


def _names(package: str, remedy: str) -> bool:
    return package in remedy or package.replace("-", "_") in remedy


def _is_change(command: re.Match[str]) -> bool:
    """Whether a command may install another release or another vendor's build, and not only reinstall the same one."""
    is_upgrade = any(option in command["options"].split() for option in ("-U", "--upgrade"))
    is_anew = "--force-reinstall" in command["options"]
    is_bound = command["bound"] is not None and not is_anew
    return is_upgrade or is_bound or command["index"] is not None or (command["library"] == _TRITON and not is_anew)


def _of_both(command: re.Match[str]) -> str:
    """Let the command install both packages of the pair, without the index of builds for CUDA."""
    if not _is_change(command) or _names(_TWINS[command["library"]].name, command.string):
        return command[0]
    library, bound = command["library"], command["bound"] or "==VERSION"
    twin = f"{_TWINS[library].name.replace('_', '-')}==VERSION"
    if library == _TRITON:
        return f"pip install {twin}"
    quote = "'" if command["quote"] else ""
    return f"pip install {quote}{library}{bound}{quote} {twin}{command['rest']}"


def _build_of_maker(remedies: tuple[str, ...], facts: Facts) -> str | None:
    """Note on the build to install, if the log shows one maker whose devices PyPI's builds do not support."""
    shown = facts.get("accelerator", ())
    change = next(filter(None, map(_BUILT_BY_MAKERS.search, remedies)), None)
    if change is None or len(shown) != 1 or shown[0] not in _MAKERS:
        return None
    return say(
        "`pip show {library}`: here it has to be a build of {maker}: take the release that the remedies name from "
        "there, not from PyPI, whose build is for NVIDIA's CUDA",
        library=change["library"],
        maker=_MAKERS[shown[0]],
    )
