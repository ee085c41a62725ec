"""A program of a user's: it meets the other ranks by MASTER_ADDR and MASTER_PORT."""

import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
for _ in range(20):
    dist.all_reduce(total)
    total /= dist.get_world_size()
    time.sleep(0.2)
print("all", dist.get_world_size(), "ranks:", total.item())
