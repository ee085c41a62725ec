"""A training script as people write them by hand, for torchrun: loggers, warnings, counters with alarming names.

torchrun torchrun_job.py [key=value …], see `_DEFAULTS`.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

_DEFAULTS = {
    "wrap": "ddp",  # ddp | fsdp | none
    "log": "plain",  # plain | levels | glog | bars | print | json
    "noise": "",  # any of: warn retry restored counters skipped, joined by +
    "dtype": "float32",
    "steps": "12",
    "workers": "0",
    "save": "",  # a directory
    "leave": "destroy",  # destroy | exit
}
_LOG = logging.getLogger("job.train")


def main() -> None:
    given = {**_DEFAULTS, **dict(word.split("=", 1) for word in sys.argv[1:])}
    rank = int(os.environ.get("RANK", "0"))
    _set_up_logging(given["log"], rank)
    dist.init_process_group("gloo")
    _LOG.info("rank %d of %d is ready on %s", rank, dist.get_world_size(), os.environ.get("MASTER_ADDR"))
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 2)).to(getattr(torch, given["dtype"]))
    model = _wrapped(inner, given["wrap"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rows = TensorDataset(torch.randn(256, 16), torch.randint(0, 2, (256,)))
    loader = DataLoader(rows, batch_size=8, num_workers=int(given["workers"]))
    noise = set(given["noise"].split("+")) - {""}
    for step, (inputs, labels) in zip(range(1, int(given["steps"]) + 1), loader, strict=False):
        loss = nn.functional.cross_entropy(model(inputs.to(next(inner.parameters()).dtype)).float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        _report(given["log"], step, int(given["steps"]), float(loss.detach()), rank)
        _be_noisy(noise, step, rank)
    if given["save"]:
        _save(Path(given["save"]), model, rank)
    dist.barrier()
    del model, optimizer
    if given["leave"] == "destroy":
        dist.destroy_process_group()
    _LOG.info("rank %d is done, no errors", rank)


def _wrapped(model: nn.Module, how: str) -> nn.Module:
    if how == "ddp":
        return nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    if how == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        return fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model


def _set_up_logging(kind: str, rank: int) -> None:
    formats = {
        "plain": "%(asctime)s - %(name)s - %(levelname)s - %(message)s",
        "levels": f"[%(levelname)s] [rank {rank}] %(message)s",
        "glog": "%(levelname).1s%(asctime)s %(process)d %(filename)s:%(lineno)d] %(message)s",
        "json": '{"time": "%(asctime)s", "level": "%(levelname)s", "error": null, "message": "%(message)s"}',
    }
    stamp = "%m%d %H:%M:%S" if kind == "glog" else None
    logging.basicConfig(level=logging.DEBUG, format=formats.get(kind, "%(message)s"), datefmt=stamp)


def _report(kind: str, step: int, steps: int, loss: float, rank: int) -> None:
    if kind == "bars":
        if rank == 0:
            sys.stderr.write(
                f"\rEpoch 1: {100 * step // steps:3d}%|{'█' * step:<{steps}}| {step}/{steps}, loss={loss:.3f}"
            )
            sys.stderr.write("\n" if step == steps else "")
    elif kind == "print":
        print(
            f"[rank{rank}]: iter {step}/{steps} loss: {loss:.4f} | error_rate: {loss / 10:.3f} | skipped: 0", flush=True
        )
    else:
        _LOG.info("step %d loss %.4f eval_error=%.3f", step, loss, loss / 7)


def _be_noisy(noise: set[str], step: int, rank: int) -> None:
    if "warn" in noise and step == 2:
        warnings.warn("this may fail in a later version; an error will then be raised", FutureWarning, stacklevel=2)
        _LOG.warning("could not find flash attention, falling back to eager")
    if "retry" in noise and step in (3, 4):
        _LOG.warning("request failed with HTTP 503 (Connection refused), retrying in 1s, attempt %d of 5", step - 2)
        time.sleep(0.05)
    if "restored" in noise and step == 1:
        _LOG.info("no checkpoint found: starting anew, not an error")
        _LOG.debug("error handler installed; timeout=1800s; abort_on_failure=True")
    if "counters" in noise and step % 4 == 0:
        _LOG.info("errors: 0, failures: 0, exceptions: 0, killed: 0, nan: 0, inf: 0, overflow: 0, exit_code: 0")
    if "skipped" in noise and step == 5 and rank == 0:
        _LOG.warning("skipped 3 bad rows: KeyError 'text' in row 17, 18, 40")
        _LOG.info("OOM guard is on; watchdog is on; heartbeat every 10 s; ECC is on")


def _save(directory: Path, model: nn.Module, rank: int) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save({"model": model.state_dict()}, checkpoint_id=directory)
    _LOG.info("saved %s", directory.name)


if __name__ == "__main__":
    main()
