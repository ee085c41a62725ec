"""OFT adapters merge into what PEFT makes of them, and are held against base plus adapter."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import OFTConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Phi3Config, Phi3ForCausalLM

from ascendtune.core.errors import CheckFailed, InputError
from ascendtune.merge import arithmetic
from ascendtune.merge.merge import merge

FORMS = {
    "plain": {"oft_block_size": 8},
    "shared": {"oft_block_size": 4, "block_share": True},
    "solved": {"oft_block_size": 8, "use_cayley_neumann": False},
    "seven terms": {"oft_block_size": 8, "num_cayley_neumann_terms": 7},
    "constrained": {"oft_block_size": 8, "coft": True, "eps": 0.05},
    "blocks": {"oft_block_size": 0, "r": 4},
    "modules_to_save": {"modules_to_save": ["lm_head", "norm"]},
    "a head": {"target_modules": ["lm_head", "q_proj"]},
}
Rotated = Callable[..., Path]


@pytest.fixture
def rotated(tmp_path: Path) -> Rotated:
    """`rotated(base, coft=True)`: an OFT adapter by PEFT that has moved away from zero."""

    def make(base: Path, name: str = "adapter", **options: Any) -> Path:
        settings = {"target_modules": ["q_proj", "v_proj", "down_proj"], **options}
        with warnings.catch_warnings(action="ignore"), torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
            tuned = get_peft_model(model, OFTConfig(task_type="CAUSAL_LM", **settings))
            for each in tuned.parameters():
                if each.requires_grad:
                    each.data += 0.05 * torch.randn_like(each)
            tuned.save_pretrained(tmp_path / name, save_embedding_layers=False)
        return tmp_path / name

    return make


def weights_in(directory: Path) -> dict[str, torch.Tensor]:
    return {name: each for file in directory.glob("*.safetensors") for name, each in load_file(file).items()}


@pytest.mark.parametrize("form", FORMS)
def test_equals_what_peft_merges(form: str, make_base: Any, rotated: Rotated, peft_merged: Any, tmp_path: Path) -> None:
    base = make_base()
    adapter = rotated(base, **FORMS[form])
    merged = merge([str(adapter)], tmp_path / "merged")
    assert merged.verification is not None
    assert merged.verification.agrees
    assert merged.verification.error < 1e-5 < merged.verification.effect
    expected, before, found = peft_merged(base, (adapter, 1.0)), weights_in(base), weights_in(tmp_path / "merged")
    assert found.keys() == before.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6, msg=name)
    changed = {name for name in found if not torch.equal(found[name], before[name])}
    assert merged.changed == len(changed)
    assert any(name.endswith("q_proj.weight") for name in changed)
    assert not any(name.endswith("k_proj.weight") for name in changed)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(make_base: Any, rotated: Rotated, tmp_path: Path, dtype: torch.dtype) -> None:
    base = make_base(dtype=dtype)
    merged = merge([str(rotated(base, oft_block_size=8))], tmp_path / "merged")
    assert merged.verification is not None
    assert merged.verification.error < 1e-5
    assert 1e-5 < merged.verification.difference < merged.verification.effect / 5
    assert all(each.dtype == dtype for each in weights_in(tmp_path / "merged").values())


def test_a_tied_head_that_turns_becomes_its_own(make_base: Any, rotated: Rotated, tmp_path: Path) -> None:
    base = make_base(tie=True)
    merged = merge([str(rotated(base, target_modules=["lm_head"]))], tmp_path / "merged")
    assert merged.verification is not None and merged.verification.agrees
    found, before = weights_in(tmp_path / "merged"), weights_in(base)
    assert torch.equal(found["model.embed_tokens.weight"], before["model.embed_tokens.weight"])
    assert not torch.equal(found["lm_head.weight"], before["model.embed_tokens.weight"])


def test_a_wrong_rotation_is_noticed(
    make_base: Any, rotated: Rotated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = arithmetic._rotation_blocks
    monkeypatch.setattr(arithmetic, "_rotation_blocks", lambda change, inputs: original(change, inputs).mT)
    base = make_base()
    with pytest.raises(CheckFailed) as refused:
        merge([str(rotated(base))], tmp_path / "merged")
    assert refused.value.code == "merge-differs"
    assert not (tmp_path / "merged").exists()


def test_joined_matrices_turn_together(rotated: Rotated, peft_merged: Any, tiny_model: Path, tmp_path: Path) -> None:
    """Phi-3 has one matrix for queries, keys and values; it has inputs of its own, like any other."""
    config = Phi3Config(
        vocab_size=512, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, pad_token_id=0,
    )  # fmt: skip
    Phi3ForCausalLM(config).save_pretrained(tmp_path / "base")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tiny_model / name, tmp_path / "base" / name)
    adapter = rotated(tmp_path / "base", target_modules=["qkv_proj"])
    merge([str(adapter)], tmp_path / "merged")
    expected = peft_merged(tmp_path / "base", (adapter, 1.0))
    for name, tensor in weights_in(tmp_path / "merged").items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6, msg=name)


def test_rotations_are_neither_weighted_nor_summed(make_base: Any, rotated: Rotated, tmp_path: Path) -> None:
    base = make_base()
    one, two = rotated(base, "one"), rotated(base, "two")
    for named in ([f"{one}=0.5"], [str(one), str(two)]):
        with pytest.raises(InputError) as refused:
            merge(named, tmp_path / "merged")
        assert refused.value.code == "adapters-not-combinable" and "OFT" in refused.value.what


def test_adapters_that_mean_something_else_are_refused(make_base: Any, rotated: Rotated, tmp_path: Path) -> None:
    base = make_base()
    adapter = rotated(base)
    path, file = adapter / "adapter_config.json", adapter / "adapter_model.safetensors"
    config, weights = json.loads(path.read_text()), load_file(file)

    def refusal(weights: dict[str, torch.Tensor] = weights, **changes: Any) -> InputError:
        path.write_text(json.dumps({**config, **changes}))
        save_file(weights, file, metadata={"format": "pt"})
        with pytest.raises(InputError) as refused:
            merge([str(adapter)], tmp_path / "merged")
        return refused.value

    assert refusal(peft_version="0.17.1").code == "adapter-not-mergeable"
    assert refusal(peft_version=None).code == "adapter-not-mergeable"
    assert refusal(peft_type="VERA", r=8).code == "adapter-not-mergeable"
    assert refusal(peft_type="LORA", r=8).code == "adapter-not-mergeable"
    name = next(iter(weights))
    assert refusal({**weights, name: weights[name][:, :-1].contiguous()}).code == "adapter-damaged"
    assert refusal({**weights, name: torch.cat([weights[name]] * 2)}).code == "adapter-base-mismatch"
    embedding = {name.replace("oft_R", "oft_embedding_R"): each for name, each in weights.items()}
    assert refusal(embedding).code == "adapter-not-mergeable"
