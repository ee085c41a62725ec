"""Adapters on mixtures of experts and state-space models, held against plain PEFT."""

from __future__ import annotations

import json
import logging
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file
from tests.integration.train.test_experts import MLA, SHAPE

from ascendtune.core.errors import RecipeError
from ascendtune.machine.torch_backend.cpu import CpuDevice
from ascendtune.merge.merge import merge
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.kernel import install
from ascendtune.train.kernel.experts import multiply_by_group
from ascendtune.train.model import apply_tuner
from families.configs import tiny_config

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train

STEPS = {"max_steps": 3, "learning_rate": 0.01}
IDS = torch.arange(5, 69).view(2, 32)
BOTH = ["all-linear", "all-experts"]
STATE_SPACE = {
    "state_size": 8, "ssm_state_size": 8, "mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 1, "chunk_size": 16,
    "n_mamba_heads": 2, "mamba_dt_rank": 4,
}  # fmt: skip
MOE = {"num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4}
# config class, what differs from SHAPE, families of linear modules that all-linear takes.
ATTENTION = ["self_attn.k_proj", "self_attn.o_proj", "self_attn.q_proj", "self_attn.v_proj"]
LATENT = [f"self_attn.{each}" for each in ("kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "q_a_proj", "q_b_proj")]
DENSE = [f"mlp.{each}" for each in ("down_proj", "gate_proj", "up_proj")]


def shared(name: str) -> list[str]:
    return [f"mlp.{name}.{each}" for each in ("down_proj", "gate_proj", "up_proj")]


FAMILIES: list[tuple[str, dict[str, Any], list[str]]] = [
    ("Qwen2MoeConfig", {**MOE, "shared_expert_intermediate_size": 24}, ATTENTION + shared("shared_expert")),
    ("Qwen3MoeConfig", MOE, ATTENTION),
    ("MixtralConfig", MOE, ATTENTION),
    ("PhimoeConfig", MOE, ATTENTION),
    ("GptOssConfig", MOE, ATTENTION),
    ("DeepseekV3Config", MLA, LATENT + DENSE + shared("shared_experts")),
    ("Glm4MoeConfig", {**MLA, "num_key_value_heads": 2}, ATTENTION + DENSE + shared("shared_experts")),
    (
        "NemotronHConfig",
        {**MOE, **STATE_SPACE, "layers_block_type": ["mamba", "moe", "attention"],
         "moe_shared_expert_intermediate_size": 24},
        [f"mixer.{each}" for each in ("in_proj", "k_proj", "o_proj", "q_proj", "v_proj")]
        + ["mixer.shared_experts.down_proj", "mixer.shared_experts.up_proj"],
    ),
]  # fmt: skip
NAMES = [each[0].removesuffix("Config") for each in FAMILIES]
HALF = ["DeepseekV3", "GptOss", "NemotronH"]
"""Experts apart in the files, together, and with other names."""
every_family = pytest.mark.parametrize(("name", "changes", "linear"), FAMILIES, ids=NAMES)
every_target = pytest.mark.parametrize("target", ["all-linear", BOTH], ids=["linear", "experts too"])


def config_of(name: str, changes: dict[str, Any]) -> Any:
    import transformers

    shape = {key: value for key, value in SHAPE.items() if key != "num_hidden_layers"}
    layers = {} if "layers_block_type" in changes else {"num_hidden_layers": 2}
    return getattr(transformers, name)(**{**shape, **layers, **changes})


@pytest.fixture(autouse=True)
def _what_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


@pytest.fixture
def base(variant: Callable[..., Path]) -> Callable[..., Path]:
    """`base("Qwen3MoeConfig", {...})`: a directory of random weights, three times as large as usual."""

    def make(name: str, changes: dict[str, Any]) -> Path:
        def widen(model: Any) -> None:
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter *= 3

        return variant(config_of(name, changes), widen)

    return make


def load(directory: Path, dtype: torch.dtype = torch.float32) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()


def with_adapter(directory: Path, adapter: Path) -> Any:
    """As anybody would load it."""
    from peft import PeftModel

    return PeftModel.from_pretrained(load(directory), adapter).eval()


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    output: torch.Tensor = model(input_ids=IDS, use_cache=False).logits
    return output


def lora(target: Any = "all-linear", **keys: Any) -> dict[str, Any]:
    return {"tuner": "lora", "lora": {"rank": 3, "target": target, **keys}}


def families(names: Any) -> set[str]:
    """`model.layers.1.mlp.gate` -> `mlp.gate`."""
    return {name.split(".layers.")[1].partition(".")[2] for name in names}


@every_family
def test_all_linear_takes_linear_modules_but_routers_and_experts(
    name: str, changes: dict[str, Any], linear: list[str], train: Train, base: Callable[..., Path], exported: list[Any],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    directory = base(name, changes)
    trained = train(model={"path": str(directory)}, method=lora(), optim=STEPS)
    weights = trained.weights()
    assert families(each.partition(".lora_")[0] for each in weights) == set(linear)
    assert all(min(weight.shape) == 3 for weight in weights.values())
    assert all(weight.abs().max() > 0 for weight in weights.values())
    assert caplog.text.count("leaves out the experts") == 1
    torch.testing.assert_close(
        logits(with_adapter(directory, trained.run.model)), logits(exported[-1].eval()), rtol=1e-5, atol=1e-5
    )


@every_family
def test_experts_get_adapters_of_the_rank_asked_for(
    name: str, changes: dict[str, Any], linear: list[str], train: Train, base: Callable[..., Path], exported: list[Any]
) -> None:
    directory = base(name, changes)
    trained = train(model={"path": str(directory)}, method=lora(BOTH), optim=STEPS)
    experts = {name: weight for name, weight in trained.weights().items() if ".experts." in name}
    assert experts and all(min(weight.shape) == 3 * 4 for weight in experts.values())
    torch.testing.assert_close(
        logits(with_adapter(directory, trained.run.model)), logits(exported[-1].eval()), rtol=1e-5, atol=1e-5
    )
    assert not torch.allclose(logits(load(directory)), logits(exported[-1].eval()), atol=1e-2)


@pytest.fixture
def adapter(tmp_path: Path, recipe: Callable[..., Recipe]) -> Callable[..., Path]:
    """An adapter of ours with B, or the rotations, away from zero."""
    from ascendtune.train.tuner.peft_names import write_for_peft

    def make(directory: Path, method: dict[str, Any], *, size: float = 0.02) -> Path:
        torch.manual_seed(0)
        tuned = apply_tuner(load(directory), recipe(method=method).method)
        with torch.no_grad():
            for name, parameter in tuned.named_parameters():
                if ".lora_B." in name or ".oft_R." in name:
                    parameter.normal_(std=size)
        path = tmp_path / "adapter"
        with warnings.catch_warnings(action="ignore"):
            tuned.save_pretrained(path, save_embedding_layers=False)
        write_for_peft(tuned, path)
        return path

    return make


@every_family
@every_target
def test_merge_equals_peft_bit_for_bit(
    target: Any, name: str, changes: dict[str, Any], linear: list[str], base: Callable[..., Path],
    adapter: Callable[..., Path], tmp_path: Path,
) -> None:  # fmt: skip
    directory = base(name, changes)
    # Another scale than the rank's, for some.
    path = adapter(directory, lora(target, rslora="MoeConfig" in name, alpha=5))
    merged = merge([str(path)], tmp_path / "merged")
    assert merged.verification is not None
    assert merged.verification.difference < 1e-5 < merged.verification.effect
    expected = with_adapter(directory, path).merge_and_unload().state_dict()
    for key, weight in load(tmp_path / "merged").state_dict().items():
        assert torch.equal(weight, expected[key]), key
    names = [set(load_file(each / "model.safetensors")) for each in (directory, tmp_path / "merged")]
    assert names[0] == names[1]


@pytest.mark.parametrize(("name", "changes", "linear"), [FAMILIES[NAMES.index(each)] for each in HALF], ids=HALF)
@every_target
def test_merge_onto_bf16_rounds_once(
    target: Any, name: str, changes: dict[str, Any], linear: list[str], base: Callable[..., Path],
    adapter: Callable[..., Path], tmp_path: Path,
) -> None:  # fmt: skip
    directory = base(name, changes)
    path = adapter(directory, lora(target))
    load(directory, torch.bfloat16).save_pretrained(tmp_path / "half")
    for each in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(directory / each, tmp_path / "half")
    merged = merge([str(path)], tmp_path / "merged", onto=str(tmp_path / "half"))
    assert merged.verification is not None and merged.verification.error < 1e-5 < merged.verification.difference
    exact = with_adapter(tmp_path / "half", path).merge_and_unload().state_dict()
    for key, weight in load(tmp_path / "merged").state_dict().items():
        assert torch.equal(weight, exact[key].bfloat16().float()), key


def test_merge_of_an_adapter_that_peft_converted_equals_peft(base: Callable[..., Path], tmp_path: Path) -> None:
    """PEFT's own all-linear: rank and alpha of gate_up are doubled, and the router is adapted."""
    from peft import LoraConfig, get_peft_model

    directory = base("Qwen3MoeConfig", MOE)
    tuned = get_peft_model(load(directory), LoraConfig(task_type="CAUSAL_LM", r=2, target_modules="all-linear"))
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(std=0.02)
    tuned.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert list(config["rank_pattern"].values()) == [4]
    merge([str(tmp_path / "adapter")], tmp_path / "merged")
    expected = with_adapter(directory, tmp_path / "adapter").merge_and_unload().state_dict()
    for key, weight in load(tmp_path / "merged").state_dict().items():
        assert torch.equal(weight, expected[key]), key


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (lora(BOTH, dropout=0.1), ["method.lora.dropout with all-experts"]),
        (lora(BOTH, dora=True), ["method.lora.dora with all-experts"]),
        (lora(BOTH, init="pissa"), ["method.lora.init: pissa with all-experts"]),
    ],
    ids=["dropout", "dora", "pissa"],
)
def test_forms_that_experts_cannot_have_are_refused_in_the_recipe(
    method: dict[str, Any], words: list[str], recipe: Callable[..., Recipe]
) -> None:
    with pytest.raises(RecipeError) as refused:
        recipe(method=method)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("name", "method", "words"),
    [
        ("Qwen3Moe", lora(["experts"], dropout=0.1), ["method.lora.dropout with experts"]),
        ("Qwen3Moe", lora(["experts"], dora=True), ["method.lora.dora with experts"]),
        ("Qwen3Moe", lora(["gate"], dora=True), ["method.lora.dora with routers"]),
        ("Qwen3Moe", lora(["gate_up_projj"]), ["did you mean 'gate_up_proj'?"]),
        ("Qwen3Moe", lora(["mlp"]), ["'mlp' has no matrix"]),
        ("DeepseekV3", lora(["gate_proj"], dora=True), ["method.lora.dora with gate_proj"]),
        ("NemotronH", lora(["out_proj"]), ["mixer.out_proj would do nothing"]),
        ("NemotronH", lora(["conv1d"]), ["'conv1d' has no matrix"]),
    ],
)
def test_targets_that_cannot_be_adapted_are_refused_in_words(
    name: str, method: dict[str, Any], words: list[str], recipe: Callable[..., Recipe], base: Callable[..., Path]
) -> None:
    _, changes, _ = FAMILIES[NAMES.index(name)]
    with pytest.raises(RecipeError) as refused:
        apply_tuner(load(base(f"{name}Config", changes)), recipe(method=method).method)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("target", "adapted"),
    [
        (["experts.down_proj"], {"mlp.experts"}),
        (["gate"], {"mlp.gate"}),
        (["q_b_proj", "experts"], {"self_attn.q_b_proj", "mlp.experts", "mlp.experts.base_layer"}),
        (["down_proj"], {"mlp.down_proj", "mlp.shared_experts.down_proj"}),
    ],
)
def test_experts_and_routers_can_be_named(
    target: list[str], adapted: set[str], train: Train, base: Callable[..., Path], exported: list[Any]
) -> None:
    directory = base("DeepseekV3Config", MLA)
    trained = train(model={"path": str(directory)}, method=lora(target), optim=STEPS)
    assert families(each.partition(".lora_")[0] for each in trained.weights()) == adapted
    torch.testing.assert_close(
        logits(with_adapter(directory, trained.run.model)), logits(exported[-1].eval()), rtol=1e-5, atol=1e-5
    )


def test_dora_leaves_out_what_peft_loads_as_parameters(
    train: Train, base: Callable[..., Path], exported: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    directory = base("DeepseekV3Config", MLA)
    trained = train(model={"path": str(directory)}, method=lora(dora=True), optim=STEPS)
    assert families(each.partition(".lora_")[0] for each in trained.weights()) == set(LATENT)
    assert "leaves out down_proj, gate_proj, up_proj: PEFT loads" in caplog.text
    torch.testing.assert_close(
        logits(with_adapter(directory, trained.run.model)), logits(exported[-1].eval()), rtol=1e-5, atol=1e-5
    )


def test_tensors_that_peft_would_rename_are_written_under_their_name_in_files(
    train: Train, base: Callable[..., Path], exported: list[Any], tmp_path: Path
) -> None:
    """A rule of transformers for this type turns `shared_experts.` into `shared_experts..`."""
    directory = base("LagunaConfig", {**MOE, "shared_expert_intermediate_size": 24})
    trained = train(model={"path": str(directory)}, method=lora(), optim=STEPS)
    expected = logits(exported[-1].eval())
    torch.testing.assert_close(logits(with_adapter(directory, trained.run.model)), expected, rtol=1e-5, atol=1e-5)
    merged = merge([str(trained.run)], tmp_path / "merged")
    assert merged.verification is not None and merged.verification.difference < 1e-5
    still = {"max_steps": 1, "warmup_steps": 1}
    model = {"path": str(directory)}
    again = train(name="again", model=model, method=lora(start_from=[str(trained.run)]), optim=still)
    before = trained.weights()
    assert all(torch.equal(weight, before[name]) for name, weight in again.weights().items())


@pytest.mark.parametrize(
    "keys", [{"dropout": 0.2, "plus_ratio": 4}, {"init": "pissa"}, {"target": BOTH, "plus_ratio": 4}],
    ids=["dropout", "pissa", "experts"],
)  # fmt: skip
def test_resume_restores_adapters_of_a_mixture(train: Train, base: Callable[..., Path], keys: dict[str, Any]) -> None:
    changes = {
        "model": {"path": str(base("DeepseekV3Config", MLA))},
        "method": lora(**keys),
        "optim": {"max_steps": 4, "learning_rate": 0.01},
    }
    whole = train(**changes, checkpoint={"every_steps": 2})
    losses, weights = whole.losses(), whole.weights()
    again = train(**changes, checkpoint={"every_steps": 2, "resume": str(whole.run.checkpoint(2))})
    assert again.losses() == losses
    for name, weight in again.weights().items():
        assert torch.equal(weight, weights[name]), name


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("target", ["all-linear", BOTH], ids=["default", "experts"])
def test_two_ranks_train_as_one_device(
    train: Train, train_on_ranks: Train, base: Callable[..., Path], strategy: str, target: Any
) -> None:
    changes = {"model": {"path": str(base("DeepseekV3Config", MLA))}, "method": lora(target), "optim": STEPS}
    alone = train(name="alone", **changes, batch={"per_device": 2})
    recompute = {"memory": {"gradient_checkpointing": strategy == "fsdp"}}
    both = train_on_ranks(
        2, name="both", **changes, **recompute, batch={"per_device": 1}, parallel={"strategy": strategy}
    )
    assert both.losses() == pytest.approx(alone.losses(), rel=1e-5)
    assert both.curve("grad_norm") == pytest.approx(alone.curve("grad_norm"), rel=1e-4)
    ours, theirs = both.weights(), alone.weights()
    assert ours.keys() == theirs.keys()


def test_the_kernel_for_experts_computes_with_adapters(
    train: Train, base: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bool] = []

    def grouped(rows: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        calls.append(weight.requires_grad)
        return multiply_by_group(rows, weight, counts)

    monkeypatch.setattr(CpuDevice, "kernels", "plain")
    monkeypatch.setitem(install.TABLE, "plain", {"experts": "plain"})
    monkeypatch.setattr(install, "resolve_name", lambda name: grouped)
    changes = {"model": {"path": str(base("Qwen3MoeConfig", MOE))}, "method": lora(BOTH), "optim": STEPS}
    ours = train(**changes)
    assert ours.run.read()["resolved"]["kernel"]["experts"] == "2 of 2 modules, grouped; in 2 of 2 for adapters, too"
    # The last calls are training's: each of four products with frozen weights, and with A and B.
    assert calls[-12:] == [False, True, True] * 4
    own = train(**changes, kernel={"experts": False}, name="own")
    assert ours.losses() == pytest.approx(own.losses(), rel=1e-5)
    assert ours.curve("grad_norm") == pytest.approx(own.curve("grad_norm"), rel=1e-4)


@pytest.mark.parametrize("target", ["all-linear", BOTH], ids=["default", "experts"])
@pytest.mark.parametrize("name", ["Qwen3Moe", "DeepseekV3"])
def test_a_run_continues_from_adapters_of_a_mixture(
    train: Train, base: Callable[..., Path], exported: list[Any], target: Any, name: str
) -> None:
    directory = base(f"{name}Config", FAMILIES[NAMES.index(name)][1])
    model = {"path": str(directory)}
    first = train(name="first", model=model, method=lora(target), optim=STEPS)
    still = {"max_steps": 1, "warmup_steps": 1}
    again = train(name="again", model=model, method=lora(start_from=[str(first.run)]), optim=still)
    before, after = first.weights(), again.weights()
    assert before.keys() == after.keys()
    assert all(torch.equal(weight, before[key]) for key, weight in after.items())
    other = train(name="other", model=model, method=lora("all-linear"), optim=STEPS)
    several = lora(start_from=[str(first.run), str(other.run)])
    if target == BOTH:
        with pytest.raises(RecipeError, match="it changes experts"):
            train(name="several", model=model, method=several, optim=STEPS)
        return
    summed = train(name="several", model=model, method=several, optim=STEPS)
    torch.testing.assert_close(
        logits(with_adapter(directory, summed.run.model)), logits(exported[-1].eval()), rtol=1e-5, atol=1e-5
    )


def test_modules_that_only_choose_tokens_are_left_out(recipe: Callable[..., Recipe], base: Callable[..., Path]) -> None:
    """The indexer of sparse attention: its output is an order, which has no gradient."""
    directory = base("DeepseekV32Config", {**MLA, "index_topk": 64, "index_n_heads": 2, "index_head_dim": 16})
    tuned = apply_tuner(load(directory), recipe(method=lora()).method)
    adapted = families(name.partition(".lora_")[0] for name, each in tuned.named_parameters() if each.requires_grad)
    assert adapted == {*LATENT, *DENSE, *shared("shared_experts")}
    with pytest.raises(RecipeError, match=r"indexer\.wk") as refused:
        apply_tuner(load(directory), recipe(method=lora(["wk"])).method)
    assert refused.value.code == "lora-target-without-effect"


@pytest.mark.parametrize("tuner", ["lora", "oft"])
@pytest.mark.parametrize("name", ["zamba", "zamba2"])
def test_merge_gives_layers_that_share_weights_their_own(
    name: str, tuner: str, variant: Callable[..., Path], adapter: Callable[..., Path], tmp_path: Path
) -> None:
    """Each layer has an adapter of its own on the one weight."""
    directory = variant(tiny_config(name))
    target = ["feed_forward.down_proj"]
    method = lora(target) if tuner == "lora" else {"tuner": "oft", "oft": {"target": target}}
    # A usual one changes the tiny zamba by 2e-6 only, which is ten times what rounding does.
    path = adapter(directory, method, size=10.0 if (name, tuner) == ("zamba", "lora") else 0.02)
    merged = merge([str(path)], tmp_path / "merged")
    assert merged.verification is not None
    assert 100 * merged.verification.difference < merged.verification.effect
    torch.testing.assert_close(
        logits(load(tmp_path / "merged")), logits(with_adapter(directory, path)), rtol=1e-5, atol=1e-5
    )


def test_all_linear_leaves_out_modules_whose_adapters_peft_would_rename(
    variant: Callable[..., Path], adapter: Callable[..., Path], recipe: Callable[..., Recipe], caplog: Any
) -> None:
    directory = variant(tiny_config("inkling2_text"))
    path = adapter(directory, lora())
    assert "weight_proj: PEFT would load the adapters of these modules under another name" in caplog.text
    assert "of this adapter differently" not in caplog.text
    assert not any("weight_proj" in name for name in load_file(path / "adapter_model.safetensors"))
    with pytest.raises(RecipeError) as refused:
        apply_tuner(load(directory), recipe(method=lora(["weight_proj"])).method)
    assert refused.value.code == "lora-target-not-loadable"


@pytest.mark.parametrize("form", [{}, {"dora": True}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("target", [["q_proj", "gate_proj"], "all-linear"])
def test_merge_adds_to_parts_of_joined_tensors(
    target: Any, dtype: torch.dtype, form: dict[str, Any], variant: Callable[..., Path], adapter: Callable[..., Path],
    tmp_path: Path,
) -> None:  # fmt: skip
    """hrm_text's files join the gate with q, k and v, and with the up projection."""

    def widen(model: Any) -> None:
        model.to(dtype)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter *= 10

    directory = variant(tiny_config("hrm_text"), widen)
    path = adapter(directory, lora(target, **form))
    merged = merge([str(path)], tmp_path / "merged")
    assert merged.verification is not None
    assert merged.verification.agrees
    assert merged.verification.is_conclusive
    if dtype == torch.float32:
        adapted = logits(with_adapter(directory, path))
        torch.testing.assert_close(logits(load(tmp_path / "merged")), adapted, rtol=1e-5, atol=1e-5)


def test_the_model_of_a_run_answers(train: Train, base: Callable[..., Path]) -> None:
    from ascendtune.infer.engine import Sampling, find_weights
    from ascendtune.infer.transformers_model import TransformersModel
    from ascendtune.machine.torch_backend.find import find_device

    directory = base("DeepseekV3Config", MLA)
    trained = train(model={"path": str(directory)}, method=lora(BOTH, plus_ratio=2), optim=STEPS)
    loaded = TransformersModel.load(find_weights(trained.run.path), find_device(), vocabulary=512)
    plain = with_adapter(directory, trained.run.model)
    expected = plain.generate(input_ids=IDS[:1], max_new_tokens=5, do_sample=False, eos_token_id=1, pad_token_id=0)
    answer = loaded.generate([IDS[0].tolist()], Sampling(5), stop_ids=[1], pad_id=0)
    assert answer == [expected[0, 32:].tolist()]
