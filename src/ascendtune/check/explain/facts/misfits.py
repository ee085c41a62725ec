"""Packages whose versions in a log are known not to fit each other.

torchvision: https://github.com/pytorch/vision#installation
torchaudio: https://docs.pytorch.org/audio/stable/installation.html
triton: the requirements of torch's wheels
numpy 2: https://github.com/pytorch/pytorch/issues/107302 (torch 2.3 is the first that is built for it)
sentencepiece 0.1.92: https://github.com/google/sentencepiece/issues/505
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

_RELEASE = re.compile(r"(\d{1,4})\.(\d{1,4})")
_CUDA = re.compile(r"\+cu(?:da)?(\d{2,3})\b|\+cu(\d{2,3})(?=torch)")
_NAME = re.compile(r"[a-z]\w*")
_OF_TORCH = re.compile(r"torch(\d\.\d{1,2})")
"""Part of the version of a wheel that names the torch for which it was built: flash_attn 2.5.8+cu122torch2.3."""
_TRITON = {
    (2, 0): "2.0",
    (2, 1): "2.1",
    (2, 2): "2.2",
    (2, 3): "2.3",
    (2, 4): "3.0",
    (2, 5): "3.1",
    (2, 6): "3.2",
    (2, 7): "3.3",
    (2, 8): "3.4",
    (2, 9): "3.5",
}
"""By torch's release: the release of triton that its wheels for CUDA require."""
_MOST = (2, 9)
"""Newest release of torch for which these rules are known."""


@dataclass(frozen=True)
class Misfit:
    packages: tuple[str, ...]
    pair: str
    """The packages with their versions, as "torch 2.1.0, torchvision 0.20.1"."""
    use: str
    """Package to install in their place, with its release and options for pip."""
    is_of_crashes: bool = False
    """The misfit shows only as a crash without a message."""

    @property
    def shown(self) -> tuple[str, ...]:
        """Packages whose installed versions decide."""
        installed = _NAME.search(self.use)
        named = (installed[0],) if installed else ()
        return tuple(dict.fromkeys(name.replace("_", ".") for name in (*self.packages, *named)))


def misfits_in(versions: Mapping[str, tuple[str, ...]]) -> Iterator[Misfit]:
    """Misfits among packages of which the log has one version each; the most certain first.

    Args:
        versions: by package.
    """
    only = {name: values[0] for name, values in versions.items() if len(values) == 1}
    torch = _release(only.get("torch", ""))
    if not torch or "torch_npu" in versions:
        # torch_npu's own releases decide there.
        return
    for name, wanted in _companions(torch):
        if name in only and not re.match(rf"{re.escape(wanted)}(?![0-9])", only[name]):
            yield _misfit(only, ("torch", name), f"'{name}=={wanted}.*'")
    for name in ("torchvision", "torchaudio"):
        if len({cuda for each in ("torch", name) if (cuda := _cuda(only.get(each, "")))}) > 1:
            build = only["torch"].partition("+")[2].replace("cuda", "cu")
            yield _misfit(only, ("torch", name), f"{name} --index-url https://download.pytorch.org/whl/{build}")
    for name in ("flash_attn", "flashinfer"):
        built_for = _OF_TORCH.search(only.get(name, ""))
        if built_for is not None and _release(built_for[1]) != torch:
            yield _misfit(
                only, ("torch", name), f"{name.replace('_', '-')} (its wheel for torch {torch[0]}.{torch[1]})"
            )
    if _release(only.get("numpy", "")) >= (2, 0) and torch < (2, 3):
        yield _misfit(only, ("torch", "numpy"), "'numpy<2'")
    # transformers loads sentencepiece, whose release of 2020 crashes beside an older torch.
    other = "sentencepiece" if "sentencepiece" in only else "transformers"
    if torch < (1, 5) and only.get(other, "") not in ("", "0.1.91"):
        yield replace(_misfit(only, ("torch", other), "sentencepiece==0.1.91"), is_of_crashes=True)


def _companions(torch: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    """Packages of which each release is built for one release of torch, with that release."""
    major, minor = torch
    if torch > _MOST or torch < (1, 4):
        return
    yield "torchvision", f"0.{minor + 15}" if major == 2 else f"0.{minor + 1}"
    yield "torchaudio", f"2.{minor}" if major == 2 else f"0.{minor}"
    if torch in _TRITON:
        yield "triton", _TRITON[torch]


def _misfit(only: Mapping[str, str], packages: tuple[str, ...], use: str) -> Misfit:
    return Misfit(packages, ", ".join(f"{name} {only[name]}" for name in packages), use)


def _release(version: str) -> tuple[int, ...]:
    match = _RELEASE.match(version)
    return (int(match[1]), int(match[2])) if match else ()


def _cuda(version: str) -> str:
    match = _CUDA.search(version)
    return (match[1] or match[2]) if match else ""
