"""Weights, checkpoints and KV caches that fail with words of several causes: what stands beside decides."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_STARTED = "OCI runtime create failed: unable to retrieve OCI runtime error (open /run/{}/log.json: no such file or "
_NO_RUNTIME = "directory): fork/exec /moon/nvidia-container-runtime: no such file or directory: unknown\n"
_SHAPES = (
    "RuntimeError: Error(s) in loading state_dict for GPT: size mismatch for {name}: copying a param with shape "
    "torch.Size([{saved}, 8]) from checkpoint, the shape in current model is torch.Size([{here}, 8]).\n"
)
_GATED = "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/moon/tide\n"
_ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
_SHARDS = "AssertionError: {} parallel size should be divisible by partial DistOpt shard factor\n"
_MISSING = "RuntimeError: Error(s) in loading state_dict for GPTModel: Missing key(s) in state_dict: {}\n"
_POOL = "ERROR 08-22 06:43:02 [moon.py:7] Failed to {} 7 keys out of 17. error_codes=[{}]. Check memory and moon.\n"


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (f"docker: Error response from daemon: {_STARTED.format('moby')}{_NO_RUNTIME}", "docker-runtime-missing"),
        (
            f"Failed to create pod sandbox: rpc error: {_STARTED.format('k8s.io')}{_NO_RUNTIME}",
            "containerd-runtime-missing",
        ),
        (_SHAPES.format(name="transformer.h.7.attn.attn.lora_B", saved=777, here=518), "adapter-other-targets"),
        (_SHAPES.format(name="model.layers.7.mlp.up_proj.lora_B.default.weight", saved=777, here=518), "adapter-shape"),
        (f"Token is valid (permission: fineGrained).\nLogin successful\n{_GATED}", "token-without-gated-right"),
        (_GATED, "gated-model"),
        (f"scheduled_spec_decode_tokens={{'tide': [-1, -1]}}\n{_ILLEGAL}", "illegal-access-in-speculation"),
        (f"scheduled_spec_decode_tokens={{}}, num_tokens=7\n{_ILLEGAL}", "cuda-illegal-access"),
        (_SHARDS.format("Expert data"), "megatron-optimizer-expert-shards"),
        (_SHARDS.format("Data"), "megatron-optimizer-shard-factor"),
        (_MISSING.format('"decoder.tide._extra_state", "decoder.ebb._extra_state"'), "extra-state-absent"),
        (_MISSING.format('"decoder.tide._extra_state", "decoder.tide.weight"'), "state-dict"),
        (_POOL.format("put", "-200"), "kv-pool-full"),
        (_POOL.format("get", "-704"), "kv-pool-block-gone"),
        (_POOL.format("get", "-800"), "kv-pool-transfer-failed"),
        (_POOL.format("put", "-600"), "kv-pool-code"),
        (
            "ERROR 08-22 06:43:02 [moon.py:7] Access metaserver fail. error=[Errno 111] Connection refused. \n",
            "kv-metaserver-unreachable",
        ),
        ("ValueError: Integer parameters are unsupported\n", "fsdp-quantised"),
    ],
)
def test_the_cause_is_told_by_what_stands_beside(explained: Explained, log: str, entry: str) -> None:
    assert entry_of(explained(log)) == entry
