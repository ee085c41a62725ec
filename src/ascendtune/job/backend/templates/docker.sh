#!/usr/bin/env bash
# <header>: <places>.
<if several_nodes>
# On every node, with the same files at the same places:
#   NODE_RANK=0 MASTER_ADDR=<address of node 0> bash <name>.docker.sh
<end>
# Follow: docker logs -f <name>   Stop with a checkpoint: docker stop <name>
# The same command again resumes.
set -euo pipefail
<if written>
mkdir -p <written>
<end>
# A container that has ended is in the way of its successor; one that runs is not removed.
docker rm <name> >/dev/null 2>&1 || true
## --init collects orphaned processes and passes SIGTERM on; without it the program is process 1, which ignores signals.
## --mount, not --volume, which makes an empty directory of a path that is not there.
exec docker run \
  --detach \
  --name <name> \
  --init \
  --stop-timeout <grace_seconds> \
  --security-opt no-new-privileges \
  --shm-size <shared_memory_gib>g \
  --workdir <directory> \
<if several_nodes>
  --network host \
  --env NNODES=<nodes> \
  --env NODE_RANK="${NODE_RANK:?0, 1, …}" \
  --env MASTER_ADDR="${MASTER_ADDR:?the address of node 0}" \
  --env MASTER_PORT="${MASTER_PORT:-<master_port>}" \
<end>
  --gpus <gpus> \
  --device <device_files> \
  --ulimit <ulimits> \
  --mount <mounts> \
  --env <variables> \
  --env <inherited> \
  <image> \
  <command>
