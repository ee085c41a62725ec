"""Files of a tracker's client that cannot be started."""

from __future__ import annotations

import gc
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

from ascendtune.core.errors import AscendtuneError
from ascendtune.train.report.trackers import Destination, Identity, open_tracker


class Unreachable(ModuleType):
    """A client of wandb whose server does not answer."""

    Settings = dict

    def init(self, **options: object) -> NoReturn:
        self.options = options
        raise ConnectionError("no route to the moon")


def test_client_that_does_not_start_leaves_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    client = Unreachable("wandb")
    monkeypatch.setitem(sys.modules, "wandb", client)
    monkeypatch.setenv("WANDB_SILENT", "true")
    with pytest.raises(AscendtuneError, match="no route to the moon"):
        open_tracker(Destination("wandb", "p"), Identity("1", "tide", "tide", {}, tmp_path))
    gc.collect()
    assert not list((tmp_path / "temporary").iterdir())
    # The server's run of this id is continued where there is one.
    assert (client.options["id"], client.options["resume"]) == ("1", "allow")
