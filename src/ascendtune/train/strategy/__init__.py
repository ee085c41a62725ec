"""How do several devices share the work?"""

from __future__ import annotations

TABLE = {
    "ddp": "ascendtune.train.strategy.ddp:DdpStrategy",
    "deepspeed": "ascendtune.train.strategy.deepspeed:DeepSpeedStrategy",
    "fsdp": "ascendtune.train.strategy.fsdp:FsdpStrategy",
}
