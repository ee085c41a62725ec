"""The weights between two dumped steps: only the optimizer may change them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ascendtune.check.align.dump import RankDump, TensorKey
from ascendtune.check.align.paired_tensors import rows_of_pair
from ascendtune.check.align.tensor_row import TensorRow


class LastWeights:
    """The weights after the last compared step; on each side the next step must begin with the same bits."""

    def __init__(self) -> None:
        self._step = 0
        self._is_unbroken = True
        self._digests: list[dict[tuple[int, str], str]] = [{}, {}]

    def changed(self, step: int, sides: Sequence[Mapping[int, RankDump]]) -> TensorRow | None:
        """The first parameter, of any shape, that only one side changed between its last update and `step`."""
        changed: list[dict[tuple[int, str], TensorKey]] = []
        for before, side in zip(self._digests, sides, strict=True):
            now = digests_of(side, "parameter_before") if step == self._step + 1 else {}
            changed.append({at: key for at, (key, digest) in now.items() if before.get(at, digest) != digest})
        for at, key in {**changed[0], **changed[1]}.items():
            pair = [side[at[0]].tensors.get(key) if at[0] in side else None for side in sides]
            if (at in changed[0]) != (at in changed[1]) and pair[0] is not None and pair[1] is not None:
                (row,) = rows_of_pair(step, at[0], key, pair[0], pair[1])
                if row.exceeds_limit:
                    return row
        return None

    def covers_all_before(self, step: int) -> bool:
        """Whether all steps before `step` were compared."""
        return self._is_unbroken and step == self._step + 1

    def remember(self, step: int, sides: Sequence[Mapping[int, RankDump]]) -> None:
        self._is_unbroken = self.covers_all_before(step)
        self._step = step
        self._digests = [
            {at: digest for at, (_, digest) in digests_of(side, "parameter_after").items()} for side in sides
        ]


def digests_of(side: Mapping[int, RankDump], phase: str) -> dict[tuple[int, str], tuple[TensorKey, str]]:
    """(rank, name) -> key and hash of the tensors of `phase` that have a hash."""
    return {
        (rank, key.name): (key, tensor.digest)
        for rank, dump in side.items()
        for key, tensor in dump.tensors.items()
        if key.phase == phase and tensor.digest
    }
