#!/usr/bin/env bash
# Written by `ascendtune submit`: 2 nodes × 2 NPU.
# On every node, with the same files at the same places:
#   NODE_RANK=0 MASTER_ADDR=<address of node 0> bash ascendtune-alpaca.docker.sh
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
  --network host \
  --env NNODES=2 \
  --env NODE_RANK="${NODE_RANK:?0, 1, …}" \
  --env MASTER_ADDR="${MASTER_ADDR:?the address of node 0}" \
  --env MASTER_PORT="${MASTER_PORT:-29500}" \
  --device /dev/davinci0 \
  --device /dev/davinci1 \
  --device /dev/davinci_manager \
  --device /dev/devmm_svm \
  --device /dev/hisi_hdc \
  --mount type=bind,source=/usr/local/Ascend/driver,target=/usr/local/Ascend/driver,readonly \
  --mount type=bind,source=/usr/local/dcmi,target=/usr/local/dcmi,readonly \
  --mount type=bind,source=/etc/ascend_install.info,target=/etc/ascend_install.info,readonly \
  --mount type=bind,source=/data/models/qwen,target=/data/models/qwen,readonly \
  --mount type=bind,source=/data/rows.jsonl,target=/data/rows.jsonl,readonly \
  --mount type=bind,source=/srv/alpaca/cache,target=/srv/alpaca/cache \
  --mount type=bind,source=/srv/alpaca/runs,target=/srv/alpaca/runs \
  --env XDG_CACHE_HOME=/srv/alpaca/cache \
  --env HF_TOKEN \
  registry.example.com/ascendtune:1 \
  bash -c 'if [ -n "${ASCEND_HOME_PATH:-}" ]; then :; elif [ -f /usr/local/Ascend/cann/set_env.sh ]; then . /usr/local/Ascend/cann/set_env.sh; elif [ -f /usr/local/Ascend/ascend-toolkit/set_env.sh ]; then . /usr/local/Ascend/ascend-toolkit/set_env.sh; fi
exec ascendtune train /srv/alpaca/recipe.yaml optim.epochs=2 --devices 2'
