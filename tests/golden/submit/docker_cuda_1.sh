#!/usr/bin/env bash
# Written by `ascendtune submit`: 2 GPU.
# Follow: docker logs -f ascendtune-alpaca   Stop with a checkpoint: docker stop ascendtune-alpaca
# The same command again resumes.
set -euo pipefail
mkdir -p /srv/alpaca/cache /srv/alpaca/runs
# A container that has ended is in the way of its successor; one that runs is not removed.
docker rm ascendtune-alpaca >/dev/null 2>&1 || true
exec docker run \
  --detach \
  --name ascendtune-alpaca \
  --init \
  --stop-timeout 600 \
  --security-opt no-new-privileges \
  --shm-size 16g \
  --workdir /srv/alpaca \
  --gpus '"device=0,1"' \
  --ulimit memlock=-1 \
  --ulimit stack=67108864 \
  --mount type=bind,source=/data/models/qwen,target=/data/models/qwen,readonly \
  --mount type=bind,source=/data/rows.jsonl,target=/data/rows.jsonl,readonly \
  --mount type=bind,source=/srv/alpaca/cache,target=/srv/alpaca/cache \
  --mount type=bind,source=/srv/alpaca/runs,target=/srv/alpaca/runs \
  --env XDG_CACHE_HOME=/srv/alpaca/cache \
  --env HF_TOKEN \
  registry.example.com/ascendtune:1 \
  ascendtune train /srv/alpaca/recipe.yaml optim.epochs=2 --devices 2
