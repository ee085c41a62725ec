"""Families of Ascend chips: which names npu-smi and torch_npu have for them, and which package has their operators.

Directories of compiled operators: CANN's `opp/built-in/op_impl/ai_core/tbe/kernel`. Packages: the Dockerfiles of
github.com/Ascend/cann-container-image, 8.1.RC1 to 9.1.0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ascendtune.machine.compatibility import release_key

_FIRST_WITH_OPS = "8.5.0"
"""The release whose package of operators is called ops; those before call it kernels."""


@dataclass(frozen=True)
class ChipFamily:
    """`names`: a pattern for the whole name, without a leading "Ascend" where npu-smi leaves it out."""

    names: str
    directory: str
    kernels: str
    ops: str
    has_bf16: bool = True

    def package(self, cann: str) -> str:
        """The package of compiled operators that belongs to this release of CANN."""
        # 8.5.0-beta.1 and 8.5.0.alpha001 are before 8.5.0.
        return self.ops if release_key(cann)[:2] >= release_key(_FIRST_WITH_OPS)[:2] else self.kernels


_FAMILIES = (
    ChipFamily(r"(?:Ascend)?910B[1-9].*", "ascend910b", "Ascend-cann-kernels-910b", "Ascend-cann-910b-ops"),
    # npu-smi calls an A3 Ascend910, torch_npu Ascend910_9392.
    ChipFamily(r"Ascend910(?:_93.*)?", "ascend910_93", "Atlas-A3-cann-kernels", "Ascend-cann-A3-ops"),
    ChipFamily(
        r"(?:Ascend)?910(?:A|B|ProA|ProB|PremiumA)",
        "ascend910",
        "Ascend-cann-kernels-910",
        "Ascend-cann-910-ops",
        has_bf16=False,
    ),
    ChipFamily(r"(?:Ascend)?310P.*", "ascend310p", "Ascend-cann-kernels-310p", "Ascend-cann-310p-ops", has_bf16=False),
    ChipFamily(r"(?:Ascend)?950.*", "ascend950", "Ascend-cann-950-ops", "Ascend-cann-950-ops"),
)


def family_of(name: str) -> ChipFamily | None:
    """The family of a chip with this name; None for unknown ones."""
    return next((family for family in _FAMILIES if re.fullmatch(family.names, name)), None)
