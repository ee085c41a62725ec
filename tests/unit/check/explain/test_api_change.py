"""Names that packages added, removed and renamed, in the messages of failed imports and calls."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.unit.check.explain.first_entry import entry_of

from ascendtune.check.explain.explain import Explanation
from ascendtune.check.explain.package.api_change import ApiChange, change_in, changes


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ("cannot import name 'EncoderDecoderCache' from 'transformers' (/x/transformers/__init__.py)", "added"),
        ("cannot import name 'EncoderDecoderCache' from 'transformers' (/home/me/transformers.py)", None),
        ("cannot import name 'EncoderDecoderCache' from 'transformers' (unknown location)", None),
        ("cannot import name 'Self' from 'typing' (/x/lib/python3.10/typing.py)", "python-added"),
        ("cannot import name 'Self' from 'typing' (C:\\moon\\Lib\\typing.py)", "python-added"),
        ("cannot import name 'Self' from 'typing' (/home/me/lib/typing.py)", None),
        ("cannot import name 'EncoderDecoderCache' from partially initialized module 'transformers'", None),
        ("cannot import name 'EncoderDecoderCache' from 'moon'", None),
        ("module 'transformers' has no attribute 'EncoderDecoderCache'", "added"),
        ("TrainingArguments.__init__() got an unexpected keyword argument 'eval_strategy'", "added"),
        ("TrainingArguments.__init__() got an unexpected keyword argument 'evaluation_strategy'", "renamed"),
        ("__init__() got an unexpected keyword argument 'evaluation_strategy'", "renamed"),
        ("Moon.__init__() got an unexpected keyword argument 'evaluation_strategy'", None),
        ("snapshot_download() got an unexpected keyword argument 'local_dir'", None),
        ("cannot import name 'TaskRunner' from 'verl.trainer.main_ppo' (/x/verl/trainer/main_ppo.py)", "renamed"),
        ("No module named 'verl.workers.actor'", "removed"),
        ("cannot import name 'get_tcp_uri' from 'vllm.utils' (/x/vllm/utils/__init__.py)", "renamed"),
        ("cannot import name 'SpecDecodeBaseProposer' from 'vllm.v1.spec_decode.eagle' (/x/vllm/eagle.py)", "added"),
        ("cannot import name 'print_model_info' from 'swift.utils' (/x/swift/utils/__init__.py)", "renamed"),
        ("No module named 'swift.plugin.tide'", "removed"),
        ("cannot import name 'apply_liger_kernel_to_qwen3_vl' from 'liger_kernel.transformers' (/x/a.py)", "added"),
        ("module 'torchtune.utils' has no attribute 'FullModelHFCheckpointer'", "renamed"),
        ("'Qwen3ForCausalLM' object has no attribute 'set_submodule'", "added"),
        ("'NoneType' object has no attribute 'set_submodule'", None),
        ("No module named 'asynchat'", "python-renamed"),
        ("No module named 'asynchat.moon'", None),
        ("No module named 'tomllib'", "python-added"),
        ("No module named 'tomllib'; 'tomllib' is not a package", None),
        ("module 'collections' has no attribute 'Mapping'", "python-renamed"),
    ],
)
def test_message_about_a_missing_name(message: str, found: str | None) -> None:
    change = change_in(message)

    assert (change.kind if change else None) == found


def test_direction_and_release_are_told(explained: Callable[..., Explanation]) -> None:
    explanation = explained(
        'Traceback (most recent call last):\n  File "/x/site-packages/moon/rise.py", line 7, in rise\n'
        "    arguments = TrainingArguments(eval_strategy=tide)\n"
        "TypeError: TrainingArguments.__init__() got an unexpected keyword argument 'eval_strategy'\n"
    )

    assert entry_of(explanation) == "api-added"
    assert "transformers is too old" in explanation.headline()
    assert "'transformers>=4.41'" in explanation.remedies()[0]


@pytest.mark.parametrize(
    ("message", "fitting"),
    [
        ("No module named 'vllm.v1.attention.backends.mla.prefill'", "'vllm>=0.21'"),
        ("No module named 'vllm.worker.worker_base'", "'vllm<0.11.1'"),
        ("No module named 'vllm.attention.backends.abstract'", "'vllm<0.14'"),
        ("cannot import name 'GiB_bytes' from 'vllm.utils' (/x/vllm/utils/__init__.py)", "'vllm<0.11.1'"),
        ("cannot import name 'Unpack' from 'transformers.processing_utils' (/x/a.py)", "'transformers>=4.42'"),
        ("TrainingArguments.__init__() got an unexpected keyword argument 'warmup_ratio'", "'transformers<5.15'"),
        ("'TideConfig' object has no attribute 'pad_token_id'", "'transformers<5.0'"),
        ("type object 'ModelType' has no attribute 'encoder_and_decoder'", "'megatron-core<0.18'"),
    ],
)
def test_release_is_told(message: str, fitting: str) -> None:
    change = change_in(message)

    assert change is not None and change.groupdict()["fitting"] == fitting


def test_an_older_release_is_asked_for_where_the_last_one_with_the_name_is_not_known() -> None:
    lost = ApiChange("moon", ("moon",), "Lunar", is_added=False)

    assert lost.groupdict()["fitting"] == "moon==VERSION"
    assert replace(lost, is_added=True).groupdict()["fitting"] == "moon"


def test_a_name_is_in_one_half_of_a_table_only() -> None:
    directions: dict[tuple[str, str], set[bool]] = {}
    for change in changes():
        directions.setdefault((change.library, change.name), set()).add(change.is_added)

    assert [name for name, both in directions.items() if len(both) > 1] == []


def test_releases_are_versions() -> None:
    assert [change for change in changes() if not re.fullmatch(r"(?:\d[\w.-]*)?", change.release)] == []
