"""Variants of messages of schedulers, servers, machines and trainings: each gets the remedy of its own cause."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]


@pytest.mark.parametrize(
    ("line", "known_as"),
    [
        (
            "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
            "slurm-submit-unanswered",
        ),
        ("ORTE has lost communication with a remote daemon.", "mpi-daemon-lost"),
        ("Pod ephemeral local storage usage exceeds the total limit of containers 10Gi.", "kubernetes-storage-limit"),
        ('Usage of EmptyDir volume "moon" exceeds the limit "1Gi".', "kubernetes-storage-limit"),
        ("ray.exceptions.ActorDiedError: The actor is dead because its owner has died. Owner", "ray-owner-ended"),
        (
            "ray.exceptions.ObjectStoreFullError: Failed to put object 00ff in object store because it is full. Object "
            "size is 17 bytes.",
            "ray-object-store-full",
        ),
        ("ray.exceptions.RaySystemError: System error: Broken pipe", "ray-system-error"),
        ("ValueError: Failed to look up actor with name 'tide_center'. This could because", "ray-named-actor"),
        ("ValueError: embed_dim must be divisible by num_heads (got 770 and 12).", "heads-do-not-divide-hidden"),
        ("ValueError: image height 333 must be divisible by 28", "size-indivisible"),
        ("ValueError: attention heads (14) must be divisible by tensor parallel size (4).", "parallel-divides"),
        (
            "ValueError: User-specified max_model_len (131072) is greater than the derived max_model_len "
            "(max_position_embeddings=32768)",
            "length-beyond-model",
        ),
        (
            "ValueError: Quantization method specified in the model config (awq) does not match the quantization "
            "method specified in the `quantization` argument (gptq).",
            "quantization-argument",
        ),
        ("openai.NotFoundError: The model `moon-9` does not exist or you do not have access to it.", "api-model-name"),
        ("fatal: Could not read from remote repository.", "git-remote-unread"),
        ("git@moon.example: Permission denied (publickey).", "git-publickey"),
        ("RuntimeError: [enforce fail at inline_container.cc:626] . unexpected pos 64 vs 0", "file-not-written"),
        ("PermissionError: [Errno 1] Operation not permitted: '/moon/x'", "operation-not-permitted"),
        ("PermissionError: [Errno 13] Permission denied: '/moon/x'", "permission"),
        ("zmq.error.Again: Resource temporarily unavailable", "zmq-no-answer"),
        ("bash: fork: retry: Resource temporarily unavailable", "shell-cannot-fork"),
        ("ImportError: libmoon.so.1: cannot enable executable stack as shared object requires", "executable-stack"),
        ("OSError: libmoon.so.1: cannot open shared object file: Permission denied", "permission"),
        ("kernel error: INFO: task python:4711 blocked for more than 120 seconds.", "hung-task"),
        ("RuntimeError: expected scalar type Long but found Float", "integers-expected"),
        ("RuntimeError: Found dtype Long but expected Float", "floats-expected"),
        ("RuntimeError: Found dtype Float but expected Half", "loss-of-two-precisions"),
        ("RuntimeError: expected scalar type Float but found Half", "dtype-mix"),
        ("IndexError: Target 5 is out of bounds.", "label-beyond-classes"),
        ("ValueError: cannot mmap an empty file", "mapped-file-short"),
        ("RuntimeError: a leaf Variable that requires grad is being used in an in-place", "leaf-written-in-place"),
        ("RuntimeError: \"LayerNormKernelImpl\" not implemented for 'Half'", "half-on-cpu"),
        ("RuntimeError: \"triu_tril_cuda_template\" not implemented for 'BFloat16'", "triangle-of-bfloat16"),
        ("RuntimeError: \"softmax_lastdim_kernel_impl\" not implemented for 'Long'", "float-function-of-integers"),
        (
            "NotImplementedError: The operator 'aten::x' is not currently implemented for the MPS",
            "operator-not-for-device",
        ),
        ("ValueError: Attempting to unscale FP16 gradients.", "scaler-half-weights"),
        ("RuntimeError: unscale_() has already been called on this optimizer", "scaler-unscaled-twice"),
        ("ValueError: Cannot merge LORA layers when the model is loaded in 8-bit mode", "merge-quantised"),
        (
            "ValueError: Unrecognized model in /moon. Should have a `model_type` key in its config.json, or contain "
            "one of the following strings in its name: albert",
            "model-type-absent",
        ),
        (
            "ValueError: Unrecognized configuration class <class 'transformers.models.moon.configuration_moon."
            "MoonConfig'> for this kind of AutoModel: AutoModelForCausalLM.",
            "auto-class-of-other-kind",
        ),
        ("ValueError: Due to a serious vulnerability issue in `torch.load`, even with", "torch-load-refused"),
        ("ModuleNotFoundError: No module named 'swift'", "module-of-other-package"),
        ("ModuleNotFoundError: No module named 'hydra'", "module-of-other-package"),
        ("ModuleNotFoundError: No module named 'vllm'", "package-of-one-device-missing"),
        ("ModuleNotFoundError: No module named 'torchvision'", "package-of-one-device-missing"),
        ("ModuleNotFoundError: No module named 'peft'", "known-package-missing"),
        ("bash: ./moon.sh: Permission denied", "script-not-executable"),
        ("docker: Error: unable to create session key: disk quota exceeded: unknown.", "session-keys-used-up"),
        ("failed to create fsnotify watcher: too many open files", "inotify-instances"),
        (
            "MemoryError: Unable to allocate 12.4 TiB for an array with shape (7, 7) and data type",
            "array-of-wrong-size",
        ),
        ("MemoryError: Unable to allocate 12.4 GiB for an array with shape (7, 7) and data type", "host-memory"),
    ],
)
def test_variant_of_a_message_has_an_entry_of_its_own(explained: Explained, line: str, known_as: str) -> None:
    assert entry_of(explained(f"{line}\n")) == known_as


@pytest.mark.parametrize(
    ("line", "not_known_as"),
    [
        ("RuntimeError: worker 3 exceeded memory limit of its sandbox", "slurm-oom"),
        (
            "F0922 16:53:58.742948 13745 server.go:198] failed to load Kubelet config file /moon/config.yaml, error "
            "failed to decode: strict decoding error",
            "kubelet-unconfigured",
        ),
        ("ConnectionResetError: [Errno 104] Connection reset by peer, port 8000", "ssh-broken-off"),
        (
            "RuntimeError: [moon/pair.cc:553] Connection closed by peer [127.0.0.1]:21217. This is typically caused by "
            "a remote worker crashing. Check the logs of the remote worker before reporting an error.",
            "ssh-broken-off",
        ),
        ("NotImplementedError: Could not run 'moon::tide' with arguments of another kind", "half-on-cpu"),
        ("ValueError: Invalid backend: 'tide', see `torch._dynamo.list_backends()`", "backend-unavailable"),
        ("RuntimeError: no room in the queue memory of the loader", "hardware-error"),
        ("KeyError: 'MoonHead is already in registry of models'", "zero-registry"),
        ("ValueError: column text requires strings but found a list", "version-required"),
        ("OSError: log file write failed: stream closed", "disk-full"),
    ],
)
def test_message_of_another_cause_is_not_taken(explained: Explained, line: str, not_known_as: str) -> None:
    assert entry_of(explained(f"{line}\n")) != not_known_as


def test_split_that_a_data_set_lacks_is_not_a_column(explained: Explained) -> None:
    log = (
        "Traceback (most recent call last):\n"
        '  File "/x/datasets/dataset_dict.py", line 72, in __getitem__\n'
        "    return super().__getitem__(k)\n"
        "KeyError: 'validation'\n"
    )

    assert entry_of(explained(log)) == "dataset-has-no-eval-split"


def test_name_of_shared_memory_is_not_a_path(explained: Explained) -> None:
    log = (
        "Traceback (most recent call last):\n"
        '  File "/x/multiprocessing/shared_memory.py", line 104, in __init__\n'
        "    self._fd = _posixshmem.shm_open(\n"
        "FileExistsError: [Errno 17] File exists: '/000000_moons'\n"
    )

    assert entry_of(explained(log)) == "shared-memory-name-taken"


def test_argument_that_a_loss_does_not_take_is_named(explained: Explained) -> None:
    said = explained("TypeError: MoonTrainer.compute_loss() got an unexpected keyword argument 'return_outputs'\n")

    assert "return_outputs" in said.headline()
    assert "num_items_in_batch" not in said.headline()
