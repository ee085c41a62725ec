"""Full disks by who writes, taken ports by whose they are, and values of the wrong type by where they stand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation

Explained = Callable[..., Explanation]

_TRACE = 'Traceback (most recent call last):\n  File "{file}", line 7, in {function}\n    tide()\n{error}\n'
_PACKAGES = "/v/lib/python3.11/site-packages/"
_FULL = "OSError: [Errno 28] No space left on device"
_BOUND = (
    "[W socket.cpp:7] [c10d] The server socket has failed to bind to [::]:{} (errno: 98 - Address already in use).\n"
)
_LISTENS = "[E socket.cpp:9] [c10d] The server socket has failed to listen on any local network address.\n"


@pytest.mark.parametrize(
    ("file", "function", "entry"),
    [
        ("fsspec/implementations/local.py", "write", "disk-full-of-dataset-cache"),
        ("datasets/arrow_writer.py", "write_batch", "disk-full-of-dataset-cache"),
        ("torch/serialization.py", "_save", "disk-full-of-checkpoints"),
        ("wandb/sdk/internal/datastore.py", "_write_record", "disk-full-of-wandb"),
        ("tensorboard/summary/writer/record_writer.py", "write", "disk-full-of-wandb"),
        ("ray/_private/external_storage.py", "_write_multiple_objects", "disk-full-of-ray"),
        ("pip/_internal/utils/unpacking.py", "unzip_file", "disk-full-of-pip"),
        ("triton/runtime/cache.py", "put", "disk-full-of-compile-cache"),
        ("moon/tide.py", "rise", "disk-full"),
    ],
)
def test_a_full_disk_is_that_of_the_program_that_writes(
    explained: Explained, file: str, function: str, entry: str
) -> None:
    assert entry_of(explained(_TRACE.format(file=_PACKAGES + file, function=function, error=_FULL))) == entry


@pytest.mark.parametrize(
    ("log", "entry"),
    [
        (_BOUND.format(29400) + _LISTENS, "port-of-torchrun-taken"),
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
            "port: 29400, useIpv6: 0, code: -98, name: EADDRINUSE, message: address already in use\n",
            "port-of-torchrun-taken",
        ),
        (_BOUND.format(29511) + _LISTENS, "port-taken"),
        (_LISTENS, "port-not-listening"),
        ("OSError: [Errno 98] Address already in use\n", "address-in-use"),
    ],
)
def test_a_taken_port_is_told_from_that_of_torchrun(explained: Explained, log: str, entry: str) -> None:
    explanation = explained(log)

    assert entry_of(explanation) == entry
    assert all("end it" not in remedy for remedy in explanation.remedies())


@pytest.mark.parametrize(
    ("file", "error", "entry"),
    [
        (_PACKAGES + "moon/tide.py", "'float' object has no attribute 'rise'", "number-in-place-of-object-in-package"),
        ("/x/tide.py", "'float' object has no attribute 'rise'", "plain-type-attribute"),
        ("/x/tide.py", "'tuple' object has no attribute 'rise'", "several-values-attribute"),
        ("/x/tide.py", "'dict' object has no attribute 'rise'", "text-or-table-attribute"),
        ("/x/tide.py", "'function' object has no attribute 'rise'", "plain-type-attribute"),
    ],
)
def test_a_value_of_another_type_is_told_by_what_it_is(explained: Explained, file: str, error: str, entry: str) -> None:
    explanation = explained(_TRACE.format(file=file, function="ebb", error=f"AttributeError: {error}"))

    assert entry_of(explanation) == entry


@pytest.mark.parametrize(
    ("file", "entry"),
    [
        (
            "/x/miniconda3/envs/moon/site-packages/unsloth/__init__.py",
            "unsloth-cuda-not-loaded-in-conda",
        ),
        ("/x/venv/lib/python3.11/site-packages/unsloth/__init__.py", "unsloth-cuda-not-loaded"),
    ],
)
def test_cuda_that_unsloth_does_not_find_depends_on_the_environment(
    explained: Explained, file: str, entry: str
) -> None:
    log = _TRACE.format(file=file, function="<module>", error="ImportError: CUDA is not linked properly.")

    assert entry_of(explained(log)) == entry


def test_a_copy_that_does_not_fit_names_where_it_was_to_go(explained: Explained) -> None:
    assert "holds /data/moon.pt" in explained(f"{_FULL}: 'tide/moon.pt' -> '/data/moon.pt'\n").headline()


def test_the_place_to_look_at_is_a_file_and_no_prompt(explained: Explained) -> None:
    called = '  File "<stdin>", line 1, in <module>\n  File "/me/moon.py", line 7, in rise\n    ebb()\n'
    prompt = '  File "<string>", line 1, in <module>\n'
    end = "RuntimeError: the tide is behind the moon\n"

    of_file = explained(f"Traceback (most recent call last):\n{called}{end}")
    of_none = explained(f"Traceback (most recent call last):\n{prompt}{end}")

    assert of_file.remedies()[0].startswith("look at /me/moon.py:7")
    assert not any("<string>" in remedy for remedy in of_none.remedies())
