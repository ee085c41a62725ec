"""Variants of messages of Python, containers, builds and pip: each gets the remedy of its own cause."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]
_REGISTRY = 'Error response from daemon: Get "https://moon.example/v2/": '
_LORA = (
    "RuntimeError: Error(s) in loading state_dict for Moon: size mismatch for base_model.model.layers.0.q_proj.lora_B."
    "default.weight: copying a param with shape torch.Size([{}]) from checkpoint, the shape in current model is "
    "torch.Size([{}])."
)
_SIZE = "ValueError: numpy.dtype size changed, may indicate binary incompatibility. "


@pytest.mark.parametrize(
    ("line", "known_as"),
    [
        (f"{_REGISTRY}tls: failed to verify certificate: x509: certificate signed by moon", "registry-certificate"),
        (f"{_REGISTRY}http: server gave HTTP response to HTTPS client", "registry-not-https"),
        (f"{_REGISTRY}unauthorized: authentication required", "image-login-missing"),
        (f"{_REGISTRY}dial tcp: lookup moon.example: no such host", "registry-unreachable"),
        ("RuntimeError: Invalid device string: 'npu:None'", "device-string-malformed"),
        ("RuntimeError: Invalid device string: 'cuda:-1'", "device-string-malformed"),
        ("RuntimeError: Invalid device string: 'npu:8'", "npu-device-number"),
        ("*** stack smashing detected ***: terminated", "stack-smashed"),
        (
            "moon:1:2 [0] NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-x (size 7)",
            "nccl-shared-memory-of-peer",
        ),
        ("moon:1:2 [0] NCCL WARN Call to ftruncate failed: No space left on device", "nccl-shared-memory"),
        (_LORA.format("4096, 16", "4096, 8"), "adapter-rank"),
        (_LORA.format("4096, 16", "2048, 16"), "adapter-shape"),
        ("ValueError: Target modules all-linear not found in the base model.", "all-linear-unknown"),
        ("EOFError: EOF when reading a line", "stdin-ended"),
        ("EOFError: [Errno 104] the store has ended", "store-lost"),
        ("IsADirectoryError: [Errno 21] Is a directory: '/moon'", "path-of-other-kind"),
        ("omegaconf.errors.MissingMandatoryValue: Missing mandatory value: moon.path", "omegaconf-mandatory"),
        ("UnicodeEncodeError: 'gbk' codec can't encode character '\\u2022' in position 7", "output-not-utf-8"),
        ("OSError: [Errno 16] Device or resource busy: '/dev/davinci0'", "device-file-busy"),
        ("OSError: [Errno 16] Device or resource busy: '/moon/.nfs0001'", "nfs-file-open"),
        ("OSError: [Errno 26] Text file busy: '/usr/bin/moon'", "program-running"),
        ("error: RPC failed; HTTP 413 curl 22 The requested URL returned error: 413", "git-push-too-large"),
        ("ImportError: /x/libtorch_cpu.so: undefined symbol: _ZN3c1010MoonlightEv", "torch-of-two-builds"),
        ("ImportError: /x/moon.so: undefined symbol: _ZN3c1010MoonlightEv", "symbol-of-torch"),
        ("ERROR: mmap(addr=0x7, len=4096) failed (err=-11): Resource temporarily unavailable", "locked-memory-of-mmap"),
        ("RuntimeError: Version mismatch: The cluster was started with:", "ray-version-differs"),
    ],
)
def test_variant_of_a_message_has_an_entry_of_its_own(explained: Explained, line: str, known_as: str) -> None:
    assert entry_of(explained(f"{line}\n")) == known_as


@pytest.mark.parametrize("key", ["model", "epoch", "network"])
def test_key_that_any_table_may_lack_is_not_a_checkpoint(explained: Explained, key: str) -> None:
    assert entry_of(explained(f"KeyError: '{key}'\n")) != "checkpoint-key-missing"


def test_certificate_in_the_retries_of_pip_is_a_failure_at_the_end_of_an_excerpt(explained: Explained) -> None:
    retry = (
        "  WARNING: Retrying (Retry(total=4, connect=None)) after connection broken by 'SSLError(SSLCertVerification"
        "Error(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed (_ssl.c:7)'))': /simple/moon/\n"
    )
    assert entry_of(explained("Collecting moon\n" * 8 + retry)) == "pip-certificate"
    assert explained(
        "Collecting moon\n" * 8 + retry + "Collecting tide\n" * 30 + "Successfully installed moon\n"
    ).is_healthy
