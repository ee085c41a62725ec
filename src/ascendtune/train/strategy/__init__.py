"""How do several devices share the work?"""

from __future__ import annotations

TABLE = {
    "ddp": "ascendtune.train.strategy.ddp:DdpStrategy",
    "fsdp": "ascendtune.train.strategy.fsdp:FsdpStrategy",
}
