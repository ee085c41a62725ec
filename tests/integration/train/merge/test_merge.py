"""A merged model is what PEFT would have made, bit for bit in fp32, in the base's own files."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    MptConfig,
    MptForCausalLM,
    PhimoeConfig,
    PhimoeForCausalLM,
)

from ascendtune.core.errors import CheckFailed, InputError
from ascendtune.merge import arithmetic, write
from ascendtune.merge.arithmetic import Merger
from ascendtune.merge.merge import merge

FORMS = {
    "lora": {},
    "rslora": {"use_rslora": True},
    "dora": {"use_dora": True},
    "modules_to_save": {"modules_to_save": ["lm_head", "norm"]},
    "patterns": {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.1.mlp.down_proj": 3}},
    "embeddings": {"target_modules": ["embed_tokens", "q_proj"]},
    "dora on embeddings": {"target_modules": ["embed_tokens", "lm_head"], "use_dora": True},
    "bias": {"bias": "all"},
    "bias of lora": {"target_modules": ["q_proj", "v_proj"], "lora_bias": True},
}


def _weights(directory: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        found |= load_file(file)
    return found


def _require_equal(directory: Path, expected: dict[str, torch.Tensor]) -> None:
    found = _weights(directory)
    for name, tensor in found.items():
        assert tensor.dtype == expected[name].dtype, name
        assert torch.equal(tensor, expected[name]), name
    assert expected.keys() - found.keys() <= {"lm_head.weight"}


@pytest.mark.parametrize("form", FORMS)
def test_equals_peft_bit_for_bit(
    form: str, make_base: Any, make_adapter: Any, peft_merged: Any, tmp_path: Path
) -> None:
    base = make_base()
    adapter = make_adapter(base, **FORMS[form])
    merged = merge([str(adapter)], tmp_path / "merged")
    assert merged.files == 4
    assert merged.verification is not None
    assert merged.verification.difference < 1e-5 < merged.verification.effect
    expected = peft_merged(base, (adapter, 1.0))
    _require_equal(tmp_path / "merged", expected)
    # The same answer, too: files, index and config belong together.
    ids = torch.arange(3, 20)[None]
    with torch.inference_mode():
        ours = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto")
        theirs = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
        theirs.load_state_dict(expected)
        assert torch.equal(ours(ids).logits, theirs(ids).logits)


def test_weighted_adapters_merge_as_peft_merges_them(
    make_base: Any, make_adapter: Any, peft_merged: Any, tmp_path: Path
) -> None:
    base = make_base()
    one = make_adapter(base, "one")
    two = make_adapter(base, "two=1", r=2, target_modules=["q_proj", "o_proj"], use_rslora=True)
    merged = merge([f"{one}=0.7", f"{two}=-0.3"], tmp_path / "merged")
    assert [weight for _, weight in merged.adapters] == [0.7, -0.3]
    assert merged.verification is not None and merged.verification.difference < 1e-5
    _require_equal(tmp_path / "merged", peft_merged(base, (one, 0.7), (two, -0.3)))
    # A path that holds "=" and exists is a path.
    merge([str(two)], tmp_path / "alone", verify=False)
    _require_equal(tmp_path / "alone", peft_merged(base, (two, 1.0)))


@pytest.mark.parametrize("form", ["lora", "rslora", "patterns", "embeddings"])
def test_one_weighted_adapter_merges_as_peft_merges_it(
    form: str, make_base: Any, make_adapter: Any, peft_merged: Any, tmp_path: Path
) -> None:
    base = make_base()
    adapter = make_adapter(base, **FORMS[form])
    merged = merge([f"{adapter}=-0.5"], tmp_path / "merged")
    assert merged.verification is not None
    assert merged.verification.difference < 1e-5 < merged.verification.effect
    _require_equal(tmp_path / "merged", peft_merged(base, (adapter, -0.5)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_and_rounds_once(
    dtype: torch.dtype, make_base: Any, make_adapter: Any, peft_merged: Any, tmp_path: Path
) -> None:
    base = make_base(dtype=dtype)
    adapter = make_adapter(base, use_dora=dtype == torch.float16)
    merged = merge([str(adapter)], tmp_path / "merged")
    assert merged.verification is not None and merged.verification.agrees
    _require_equal(tmp_path / "merged", peft_merged(base, (adapter, 1.0)))
    other = make_adapter(base, "other")
    if dtype == torch.bfloat16:
        merge([str(adapter), str(other)], tmp_path / "both", verify=False)
        exact = peft_merged(base, (adapter, 1.0), (other, 1.0), dtype=torch.float32)
        _require_equal(tmp_path / "both", {name: tensor.to(dtype) for name, tensor in exact.items()})


def test_biases_of_several_adapters_are_rounded_once(
    make_base: Any, make_adapter: Any, peft_merged: Any, tmp_path: Path
) -> None:
    base = make_base(dtype=torch.bfloat16)
    options = {"target_modules": ["q_proj"], "lora_bias": True}
    adapters = [make_adapter(base, name, **options) for name in ("one", "two")]
    merge([str(each) for each in adapters], tmp_path / "merged")
    exact = peft_merged(base, *((each, 1.0) for each in adapters), dtype=torch.float32)
    _require_equal(tmp_path / "merged", {name: tensor.bfloat16() for name, tensor in exact.items()})


def test_a_bias_for_a_layer_without_one_is_not_blamed_on_the_base(
    make_base: Any, make_adapter: Any, tmp_path: Path
) -> None:
    adapter = make_adapter(make_base(), target_modules=["o_proj"], lora_bias=True)
    with pytest.raises(InputError) as caught:
        merge([str(adapter)], tmp_path / "merged")
    assert caught.value.code == "adapter-not-mergeable" and not (tmp_path / "merged").exists()


@pytest.mark.parametrize(
    "options",
    [
        # PEFT saves the whole embeddings beside their LoRA, unless it is told not to.
        {"target_modules": ["lm_head", "embed_tokens"], "save_embedding_layers": "auto"},
        {"modules_to_save": ["lm_head", "norm"]},
        {"target_modules": ["q_proj", "v_proj"], "lora_bias": True, "bias": "all"},
    ],
    ids=str,
)
def test_fp32_weights_of_an_adapter_replace_those_of_a_bf16_base(
    options: dict[str, Any], make_base: Any, make_adapter: Any, peft_merged: Any, tmp_path: Path
) -> None:
    adapter, base = make_adapter(make_base(), **options), make_base(dtype=torch.bfloat16)
    merged = merge([str(adapter)], tmp_path / "merged", onto=str(base))
    assert merged.verification is not None
    assert merged.verification.error < 1e-5 < merged.verification.difference < merged.verification.effect
    exact = peft_merged(base, (adapter, 1.0), dtype=torch.float32)
    _require_equal(tmp_path / "merged", {name: tensor.bfloat16() for name, tensor in exact.items()})


def test_the_effect_of_an_adapter_on_mpt_is_measured(tmp_path: Path, make_adapter: Any, tiny_model: Path) -> None:
    """PEFT gives MPT the rows of a batch without their adapters."""
    config = MptConfig(vocab_size=512, d_model=32, n_heads=2, n_layers=1, max_seq_len=64)
    base = tmp_path / "mpt"
    MptForCausalLM(config).save_pretrained(base)
    shutil.copyfile(tiny_model / "tokenizer.json", base / "tokenizer.json")
    merged = merge([str(make_adapter(base, target_modules=["Wqkv", "up_proj"]))], tmp_path / "merged")
    assert merged.verification is not None and merged.verification.is_conclusive


def test_an_adapter_that_peft_cannot_compute_is_merged_unverified(
    tmp_path: Path, make_adapter: Any, tiny_model: Path
) -> None:
    """PEFT's all-linear takes Phi-MoE's router, which answers with three tensors."""
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = PhimoeConfig(vocab_size=512, num_key_value_heads=2, num_local_experts=4, **shape)
    base = tmp_path / "phimoe"
    PhimoeForCausalLM(config).save_pretrained(base)
    shutil.copyfile(tiny_model / "tokenizer.json", base / "tokenizer.json")
    merged = merge([str(make_adapter(base, target_modules="all-linear"))], tmp_path / "merged")
    assert merged.verification is None and any("PEFT's model does not compute" in note for note in merged.notes)


def test_files_are_the_bases(make_base: Any, make_adapter: Any, tmp_path: Path) -> None:
    base = make_base(dtype=torch.bfloat16)
    adapter = make_adapter(base)
    (adapter / "tokenizer_config.json").write_text(
        json.dumps({**json.loads((base / "tokenizer_config.json").read_text()), "chat_template": None})
    )
    shutil.copyfile(base / "tokenizer.json", adapter / "tokenizer.json")
    (adapter / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    merge([str(adapter)], tmp_path / "merged", verify=False)
    names = {path.name for path in (tmp_path / "merged").iterdir()}
    assert names == {path.name for path in base.iterdir()} | {"chat_template.jinja"}
    for name in ("config.json", "generation_config.json"):
        assert (tmp_path / "merged" / name).read_bytes() == (base / name).read_bytes()
    index, same = (
        json.loads((each / "model.safetensors.index.json").read_text()) for each in (base, tmp_path / "merged")
    )
    assert index == same
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "merged")
    assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == "x"


def test_a_part_of_a_tokenizer_beside_an_adapter_does_not_replace_the_bases(
    make_base: Any, make_adapter: Any, tmp_path: Path
) -> None:
    base = make_base()
    adapter = make_adapter(base)
    (adapter / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    merge([str(adapter)], tmp_path / "merged", verify=False)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "merged" / name).read_bytes() == (base / name).read_bytes()


@pytest.mark.parametrize("is_link", [False, True])
def test_templates_beside_an_adapter_are_copied_but_not_a_folder_behind_a_link(
    is_link: bool, make_base: Any, make_adapter: Any, tmp_path: Path
) -> None:
    adapter = make_adapter(make_base())
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(make_base() / name, adapter / name)
    folder = tmp_path / "private" if is_link else adapter / "additional_chat_templates"
    folder.mkdir()
    os.mkfifo(folder / "pipe.jinja")
    for name in ("tool_use.jinja", "id_rsa"):
        (folder / name).write_text("x")
    if is_link:
        (adapter / "additional_chat_templates").symlink_to(folder)
    merge([str(adapter)], tmp_path / "merged", verify=False)
    copied = [path.name for path in (tmp_path / "merged").glob("additional_chat_templates/*")]
    assert copied == ([] if is_link else ["tool_use.jinja"])


def test_one_file_and_tied_embeddings(make_base: Any, make_adapter: Any, peft_merged: Any, tmp_path: Path) -> None:
    base = make_base(tie=True, files=1)
    adapter = make_adapter(base)
    merge([str(adapter)], tmp_path / "merged")
    _require_equal(tmp_path / "merged", peft_merged(base, (adapter, 1.0)))
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["tie_word_embeddings"] is True


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": ["lm_head", "q_proj"]},
        {"target_modules": ["embed_tokens", "q_proj"]},
        {"modules_to_save": ["embed_tokens"]},
        {"modules_to_save": ["lm_head", "embed_tokens"]},
    ],
    ids=str,
)
def test_tied_embeddings_part_when_the_adapter_parts_them(
    options: dict[str, Any], make_base: Any, make_adapter: Any, tmp_path: Path
) -> None:
    """PEFT's own merge would change both; the verification asks base and adapter, unmerged."""
    adapter = make_adapter(make_base(tie=True), **options)
    merged = merge([str(adapter)], tmp_path / "merged")
    assert merged.verification is not None and merged.verification.difference < 1e-5
    assert any("lm_head.weight is added" in note for note in merged.notes)
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["tie_word_embeddings"] is False


@pytest.mark.parametrize("save_embedding_layers", [False, "auto"])
@pytest.mark.parametrize(
    ("dtype", "use_dora", "tied"),
    [(torch.float32, False, True), (torch.bfloat16, False, False), (torch.float32, True, False)],
    ids=["fp32", "bf16", "dora"],
)
def test_embeddings_that_peft_ties_stay_one_where_their_adapters_did(
    dtype: torch.dtype, use_dora: bool, tied: bool, save_embedding_layers: Any, make_base: Any, make_adapter: Any,
    tmp_path: Path,
) -> None:  # fmt: skip
    """On a base in bf16 PEFT casts its two adapters to fp32, and trains them apart; a magnitude is not tied either."""
    options = {"ensure_weight_tying": True, "save_embedding_layers": save_embedding_layers, "use_dora": use_dora}
    adapter = make_adapter(make_base(tie=True, dtype=dtype), target_modules=["embed_tokens", "q_proj"], **options)
    merged = merge([str(adapter)], tmp_path / "merged")
    assert merged.verification is not None and merged.verification.agrees
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["tie_word_embeddings"] is tied


def test_embeddings_of_a_name_that_peft_does_not_tie_part(tmp_path: Path, make_adapter: Any, tiny_model: Path) -> None:
    base = tmp_path / "gpt2"
    GPT2LMHeadModel(GPT2Config(vocab_size=512, n_embd=32, n_layer=1, n_head=2, n_positions=64)).save_pretrained(base)
    shutil.copyfile(tiny_model / "tokenizer.json", base / "tokenizer.json")
    adapter = make_adapter(base, target_modules=["wte"], ensure_weight_tying=True)
    merged = merge([str(adapter)], tmp_path / "merged")
    assert merged.verification is not None and merged.verification.agrees
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["tie_word_embeddings"] is False


@pytest.mark.parametrize("tie", [True, False])
def test_merge_keeps_the_embeddings_of_new_tokens(tie: bool, make_base: Any, make_adapter: Any, tmp_path: Path) -> None:
    adapter = make_adapter(make_base(tie=tie), save_embedding_layers=True)
    merged = merge([str(adapter)], tmp_path / "merged")
    assert merged.verification is not None and merged.verification.difference < 1e-5
    config = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert (config["vocab_size"], config["tie_word_embeddings"]) == (520, tie)


@pytest.mark.parametrize("save_embedding_layers", [True, "auto"])
def test_table_is_the_base_of_a_tied_head_that_peft_saved_alone(
    save_embedding_layers: Any, make_base: Any, tmp_path: Path
) -> None:
    """A LoRA of the head of a larger vocabulary: what is below it is the table as well, and is saved as the head's."""
    base = make_base(tie=True)
    model = AutoModelForCausalLM.from_pretrained(base)
    model.resize_token_embeddings(520, mean_resizing=False)
    tuned = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", target_modules=["lm_head", "q_proj"]))
    for name, each in tuned.named_parameters():
        each.data += 0.1 * torch.randn_like(each) * ("lora_" in name)
    tuned.save_pretrained(tmp_path / "adapter", save_embedding_layers=save_embedding_layers)
    assert not any("embed_tokens" in name for name in load_file(tmp_path / "adapter" / "adapter_model.safetensors"))
    merged = merge([str(tmp_path / "adapter")], tmp_path / "merged")
    assert merged.verification is not None and merged.verification.difference < 1e-5
    ids = torch.arange(500, 520)[None]
    with torch.inference_mode():
        expected = tuned.eval()(ids).logits
        found = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")(ids).logits
    assert torch.allclose(found, expected, atol=1e-5)


def test_new_tokens_whose_embeddings_were_not_saved_are_told(make_base: Any, make_adapter: Any, tmp_path: Path) -> None:
    adapter = make_adapter(make_base(tie=True), save_embedding_layers=True, target_modules=["lm_head", "q_proj"])
    path = adapter / "adapter_model.safetensors"
    save_file({name: each for name, each in load_file(path).items() if ".base_layer." not in name}, path)
    with pytest.raises(InputError) as caught:
        merge([str(adapter)], tmp_path / "merged")
    assert caught.value.code == "adapter-base-mismatch" and "save_embedding_layers" in caught.value.remedy


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize(
    "other", [{"target_modules": ["q_proj"]}, {"target_modules": ["embed_tokens"], "r": 2}], ids=str
)
def test_unchanged_embeddings_beside_an_adapter_do_not_prevent_a_sum(
    other: dict[str, Any], tie: bool, make_base: Any, make_adapter: Any, tmp_path: Path
) -> None:
    """PEFT saves the base's embeddings beside a LoRA of them, in the dtype that the base was loaded in."""
    base = make_base(tie=tie, dtype=torch.bfloat16)
    one = make_adapter(base, "one", target_modules=["embed_tokens", "v_proj"], save_embedding_layers="auto")
    path = one / "adapter_model.safetensors"
    weights = load_file(path)
    name = "base_model.model.model.embed_tokens.base_layer.weight"
    save_file({**weights, name: weights[name].float()}, path)
    two = make_adapter(base, "two", **other)
    merged = merge([f"{one}=0.7", str(two)], tmp_path / "merged")
    assert merged.verification is not None and merged.verification.agrees
    save_file({**weights, name: weights[name] * 1.01}, path)
    with pytest.raises(InputError) as caught:
        merge([f"{one}=0.7", str(two)], tmp_path / "again")
    assert caught.value.code == "adapters-not-combinable"


def test_embeddings_part_where_one_of_two_adapters_does_not_tie_its_own(
    make_base: Any, make_adapter: Any, tmp_path: Path
) -> None:
    base = make_base(tie=True)
    one = make_adapter(base, "one", ensure_weight_tying=True)
    two = make_adapter(base, "two", target_modules=["embed_tokens"])
    merged = merge([str(one), str(two)], tmp_path / "merged")
    assert merged.verification is not None and merged.verification.agrees
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["tie_word_embeddings"] is False


def test_sum_of_two_adapters_that_tie_stays_tied_though_peft_loads_a_part_of_it(
    make_base: Any, make_adapter: Any, tmp_path: Path
) -> None:
    base = make_base(tie=True)
    options = {"target_modules": ["embed_tokens"], "ensure_weight_tying": True}
    adapters = [make_adapter(base, name, **options) for name in ("one", "two")]
    merged = merge([str(each) for each in adapters], tmp_path / "merged")
    assert merged.verification is None and any("PEFT does not load" in note for note in merged.notes)
    name = "model.embed_tokens.weight"
    expected = _weights(base)[name]
    for adapter in adapters:
        a, b = (_weights(adapter)[f"base_model.model.model.embed_tokens.lora_embedding_{each}"] for each in "AB")
        expected = expected + 2 * (b @ a).T
    found = _weights(tmp_path / "merged")
    assert torch.allclose(found[name], expected, atol=1e-6) and "lm_head.weight" not in found


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("saved", [["embed_tokens"], ["lm_head", "embed_tokens"]], ids=str)
def test_embeddings_that_peft_saved_three_times_are_merged(
    saved: list[str], tie: bool, make_base: Any, make_adapter: Any, tmp_path: Path
) -> None:
    """As modules_to_save, as what they replace, and as the embeddings of a larger vocabulary."""
    adapter = make_adapter(make_base(tie=tie), modules_to_save=saved, save_embedding_layers=True)
    assert any(".original_module." in name for name in load_file(adapter / "adapter_model.safetensors"))
    merged = merge([str(adapter)], tmp_path / "merged")
    assert merged.verification is not None and merged.verification.difference < 1e-5
    config = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert (config["vocab_size"], config["tie_word_embeddings"]) == (520, False)


def test_a_head_that_the_files_call_by_another_name_is_replaced(
    make_adapter: Any, peft_merged: Any, tiny_model: Path, tmp_path: Path
) -> None:
    """Pythia's is `lm_head` in the model and `embed_out` in its files."""
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = GPTNeoXConfig(vocab_size=512, tie_word_embeddings=False, **shape)
    base = tmp_path / "pythia"
    GPTNeoXForCausalLM(config).save_pretrained(base)
    shutil.copyfile(tiny_model / "tokenizer.json", base / "tokenizer.json")
    adapter = make_adapter(base, target_modules=["query_key_value"], modules_to_save=["lm_head"])
    merge([str(adapter)], tmp_path / "merged")
    expected = peft_merged(base, (adapter, 1.0))
    _require_equal(tmp_path / "merged", {**expected, "embed_out.weight": expected["lm_head.weight"]})


def test_a_wrong_result_is_not_kept(
    make_base: Any, make_adapter: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = make_adapter(make_base())
    right = Merger.compute
    monkeypatch.setattr(Merger, "compute", lambda merger, output: right(merger, output) * 1.02)
    with pytest.raises(CheckFailed, match="merge-differs"):
        merge([str(adapter)], tmp_path / "merged")
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]
    merge([str(adapter)], tmp_path / "merged", verify=False)


def _keeps(share: float) -> Callable[..., torch.Tensor]:
    """`arithmetic._add`, with only a share of the adapter's change."""
    right = arithmetic._add

    def add(weight: torch.Tensor, *others: Any) -> torch.Tensor:
        before = weight.float()
        after = right(weight.clone(), *others).float()
        return (before + share * (after - before)).to(weight.dtype)

    return add


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, -1.0])
@pytest.mark.parametrize("form", ["lora", "dora", "modules_to_save"])
def test_a_part_of_an_ordinary_adapter_is_not_taken_for_rounding(
    share: float, form: str, make_base: Any, make_adapter: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = make_adapter(make_base(dtype=torch.bfloat16), **FORMS[form])
    whole = merge([str(adapter)], tmp_path / "whole")
    assert whole.verification is not None and not whole.notes
    assert whole.verification.error < 1e-5 < whole.verification.difference < 0.2 * whole.verification.effect
    monkeypatch.setattr(arithmetic, "_add", _keeps(share))
    with pytest.raises(CheckFailed, match="merge-differs"):
        merge([str(adapter)], tmp_path / "merged")


def test_a_wrong_number_in_half_precision_is_not_taken_for_rounding(
    make_base: Any, make_adapter: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is computed is right, and another thing is written."""
    adapter = make_adapter(make_base(dtype=torch.bfloat16))
    right = arithmetic.as_bytes

    def wrong_where_written(tensor: torch.Tensor) -> Any:
        is_written = sys._getframe(1).f_code.co_name == write._write.__name__
        return right(tensor * (1 + 2**-7) if is_written else tensor)

    monkeypatch.setattr(arithmetic, "as_bytes", wrong_where_written)
    with pytest.raises(CheckFailed, match="merge-differs"):
        merge([str(adapter)], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize(
    ("alpha", "told"),
    [(0.0001, "almost nothing"), (0.001, "too little to distinguish"), (0.005, "rounding to bf16 loses")],
)
def test_a_change_that_rounding_takes_is_told(
    alpha: float, told: str, make_base: Callable[..., Path], make_adapter: Any, tmp_path: Path
) -> None:
    adapter = make_adapter(make_base(dtype=torch.bfloat16), lora_alpha=alpha)
    merged = merge([str(adapter)], tmp_path / "merged")
    assert any(told in note for note in merged.notes), merged.notes
    assert merged.verification is not None and math.isfinite(merged.verification.difference)


@pytest.mark.parametrize(("dtype", "weight"), [(torch.float16, "1e6"), (torch.bfloat16, "1e300"), (None, "1e300")])
def test_numbers_that_the_bases_dtype_cannot_hold_are_refused(
    dtype: torch.dtype | None, weight: str, make_base: Any, make_adapter: Any, tmp_path: Path
) -> None:
    """The logits may hide them: a softmax turns any of them into a one."""
    adapter = make_adapter(make_base(dtype=dtype or torch.float32))
    with pytest.raises(InputError) as refused:
        merge([f"{adapter}={weight}"], tmp_path / "merged")
    assert refused.value.code == "weights-not-finite"
    assert not (tmp_path / "merged").exists()


def test_adapters_of_transposed_matrices_are_merged(
    tmp_path: Path, make_adapter: Any, peft_merged: Any, tiny_model: Path
) -> None:
    """GPT-2 keeps (in, out), also in square matrices, and its files may lack the prefix of its modules."""
    config = GPT2Config(vocab_size=512, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=2)
    base = tmp_path / "gpt2"
    GPT2LMHeadModel(config).transformer.save_pretrained(base)
    (base / "config.json").write_text(json.dumps({**config.to_dict(), "architectures": ["GPT2LMHeadModel"]}))
    shutil.copyfile(tiny_model / "tokenizer.json", base / "tokenizer.json")
    adapter = make_adapter(base, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True, use_dora=True)
    mixed = make_adapter(base, "mixed", target_modules=["c_attn", "c_proj", "lm_head"])
    merged = merge([str(adapter)], tmp_path / "merged")
    assert merged.verification is not None and merged.verification.difference < 1e-5
    expected = peft_merged(base, (adapter, 1.0))
    _require_equal(
        tmp_path / "merged",
        {name.removeprefix("transformer."): tensor for name, tensor in expected.items()},
    )
    # PEFT writes into its config what the last module is, here the head, which is not transposed.
    assert json.loads((mixed / "adapter_config.json").read_text())["fan_in_fan_out"] is False
    merged = merge([str(mixed)], tmp_path / "with a head")
    assert merged.verification is not None and merged.verification.difference < 1e-5


def test_a_reward_model_gets_its_score(make_base: Any, tmp_path: Path) -> None:
    base = make_base(dtype=torch.bfloat16)
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, dtype="auto")
    tuned = get_peft_model(model, LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["q_proj"]))
    tuned.save_pretrained(tmp_path / "adapter")
    merged = merge([str(tmp_path / "adapter")], tmp_path / "merged")
    assert merged.verification is not None and merged.verification.agrees
    loaded, info = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "merged", dtype="auto", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert loaded.config.num_labels == 1
    assert torch.equal(loaded.score.weight, tuned.base_model.model.score.modules_to_save["default"].weight)


def test_a_classifier_whose_config_leaves_its_two_labels_out(make_base: Any, tmp_path: Path) -> None:
    base, source = tmp_path / "classifier", make_base()
    model = AutoModelForSequenceClassification.from_pretrained(source, num_labels=2)
    model.save_pretrained(base)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(source / name, base / name)
    assert "id2label" not in json.loads((base / "config.json").read_text())
    model.name_or_path = str(base)
    tuned = get_peft_model(model, LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["q_proj"]))
    tuned.save_pretrained(tmp_path / "adapter")

    merged = merge([str(tmp_path / "adapter")], tmp_path / "merged", onto=str(base))

    assert merged.verification is not None and merged.verification.agrees


def test_turn_end_of_the_adapters_template_stops_the_merged_model(
    make_base: Any, make_adapter: Any, tmp_path: Path
) -> None:
    base = make_base(dtype=torch.bfloat16)
    adapter = make_adapter(base)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(base / name, adapter / name)
    (adapter / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_start|>{% endfor %}"
    )
    merge([str(adapter)], tmp_path / "merged", verify=False)
    before, after = (
        json.loads((each / "generation_config.json").read_text())["eos_token_id"]
        for each in (base, tmp_path / "merged")
    )
    turn_end = AutoTokenizer.from_pretrained(base).convert_tokens_to_ids("<|im_start|>")
    assert after[0] == before and turn_end in after
