"""A traced step against arithmetic that is exact.

Few layers against all: tests/integration/train/test_few_layers.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ascendtune.machine.torch_backend.cpu import CpuDevice
from ascendtune.machine.torch_backend.device import Device
from ascendtune.recipe.recipe import Recipe
from ascendtune.train.objective.head import HeadForm
from ascendtune.train.plan import traced_strategies
from ascendtune.train.plan.live_bytes import StepMemory
from ascendtune.train.plan.modelled_kernels import modelled_attention
from ascendtune.train.plan.planned_device import PlannedDevice
from ascendtune.train.plan.request import DocumentSize, Target
from ascendtune.train.plan.traced_step import trace_step
from ascendtune.train.plan.training_choices import TrainingChoices

_MODEL = {
    "model_type": "llama", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 9,
    "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False, "pad_token_id": 0,
}  # fmt: skip
_PARAMETERS = 2 * 512 * 64 + 9 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 176 + 2 * 64) + 64
_ROWS = (DocumentSize(100, 80), DocumentSize(60, 59))


_CARD = PlannedDevice(Target("cuda", "card", 1 << 40, 1))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    (directory / "config.json").write_text(json.dumps(_MODEL))
    return directory


@pytest.fixture(scope="module")
def usual(model: Path) -> StepMemory:
    """Full training on one device."""
    return _trace(model)


@pytest.fixture(scope="module")
def divided(model: Path) -> StepMemory:
    """Full training on four ranks with FSDP."""
    return _trace(model, ranks=4, parallel={"strategy": "fsdp"})


def _trace(
    model: Path,
    ranks: int = 1,
    documents: Any = _ROWS,
    device: Device | None = None,
    init: str = "pretrained",
    **keys: Any,
) -> StepMemory:
    recipe = Recipe.check({
        "model": {"path": str(model), "init": init}, "data": {"train": [{"path": "x.jsonl"}]},
        "precision": "fp32", **keys,
    })  # fmt: skip
    setting = TrainingChoices.of(recipe, model, device or CpuDevice(), ranks=ranks, vocabulary=0, pad_id=0)
    return trace_step(setting, documents)


@pytest.mark.long
def test_full_training_holds_weights_gradients_and_two_moments(usual: StepMemory) -> None:
    assert (usual.parameters, usual.trainable) == (_PARAMETERS, _PARAMETERS)
    update = usual.moments["update"]
    for category, share in (("weights", 1), ("gradients", 1), ("optimizer", 2)):
        assert update[category] == pytest.approx(share * 4 * _PARAMETERS, rel=0.01)
    assert usual.resting.total() == pytest.approx(3 * 4 * _PARAMETERS, rel=0.01)


@pytest.mark.long
def test_sgd_has_no_moments(model: Path) -> None:
    assert _trace(model, optim={"optimizer": "sgd"}).resting.total() == pytest.approx(4 * _PARAMETERS, rel=0.01)


@pytest.mark.long
def test_adafactor_holds_a_row_and_a_column_of_each_matrix(model: Path) -> None:
    traced = _trace(model, optim={"optimizer": "adafactor"})
    matrices = [(512, 64)] * 2 + 9 * ([(64, 64), (64, 32)] * 2 + [(64, 176)] * 3)
    vectors = 64 * (2 * 9 + 1)
    # And the number of the step of each.
    steps = len(matrices) + 2 * 9 + 1
    assert traced.resting["optimizer"] == 4 * (sum(map(sum, matrices)) + vectors + steps)


@pytest.mark.long
def test_noise_on_embeddings_is_traced(model: Path, usual: StepMemory) -> None:
    traced = _trace(model, method={"sft": {"neftune_alpha": 5.0}})
    assert traced.how == usual.how and traced.moments["forward"].total() > usual.moments["forward"].total()


@pytest.mark.long
def test_adapters_alone_have_gradients_and_moments(model: Path) -> None:
    traced = _trace(model, method={"tuner": "lora", "lora": {"rank": 4}})
    pairs = [(64, 64), (64, 32), (64, 32), (64, 64), (64, 176), (64, 176), (176, 64)]
    adapters = 9 * 4 * sum(map(sum, pairs))
    assert traced.trainable == adapters
    assert traced.resting["adapters"] == 4 * adapters
    assert traced.resting["optimizer"] == pytest.approx(2 * 4 * adapters, rel=0.05)


@pytest.mark.long
def test_rotations_hold_the_halves_of_their_blocks(model: Path) -> None:
    traced = _trace(model, method={"tuner": "oft", "oft": {"block_size": 16}})
    rotations = 9 * (6 * 64 + 176) // 16 * 16 * 15 // 2
    assert traced.trainable == rotations
    assert traced.resting["adapters"] == 4 * rotations
    assert traced.resting["optimizer"] == pytest.approx(2 * 4 * rotations, rel=0.05)
    # Where each number stands in its block: row and column, int64.
    assert traced.resting["weights"] == pytest.approx(4 * _PARAMETERS + 9 * 7 * 2 * 8 * 16 * 15 / 2, rel=0.01)


@pytest.mark.long
def test_dropped_rotations_can_be_traced(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**_MODEL, "num_hidden_layers": 2}))
    method = {"tuner": "oft", "oft": {"block_size": 16, "module_dropout": 0.5}}
    for ranks, parallel in ((1, {}), (2, {"strategy": "ddp"}), (2, {"strategy": "fsdp"})):
        for device in (None, _CARD):
            assert _trace(tmp_path, ranks=ranks, device=device, method=method, parallel=parallel).trainable > 0


@pytest.mark.long
def test_ddp_keeps_buckets_of_all_gradients(model: Path, usual: StepMemory) -> None:
    together = _trace(model, ranks=2, parallel={"strategy": "ddp"})
    assert together.resting.total() - usual.resting.total() == pytest.approx(4 * _PARAMETERS, rel=0.01)


@pytest.mark.long
def test_fsdp_divides_weights_and_moments(divided: StepMemory, usual: StepMemory) -> None:
    assert divided.resting.total() == pytest.approx(usual.resting.total() / 4, rel=0.05)
    assert not traced_strategies.dist.is_initialized(), "the group of fake ranks is gone afterwards"


@pytest.mark.long
def test_fsdp_loads_its_share_and_one_block(model: Path, divided: StepMemory) -> None:
    fsdp = {"parallel": {"strategy": "fsdp"}}
    outside, block = 512 * 64, (_PARAMETERS - 2 * 512 * 64 - 64) // 9
    # On an accelerator block by block in any case; the largest part that is whole is the table of embeddings.
    for init in ("pretrained", "random"):
        traced = _trace(model, ranks=4, device=_CARD, init=init, **fsdp)
        assert traced.moments["sharding"].total() == pytest.approx(4 * (_PARAMETERS / 4 + outside), rel=0.05)
        assert traced.moments["sharding"]["communication"] == 0
    # The CPU loads block by block, too.
    assert divided.moments["sharding"].total() == pytest.approx(4 * (_PARAMETERS / 4 + outside), rel=0.05)
    # Random weights are made whole in host memory, which is where the CPU's ranks hold them.
    whole = _trace(model, ranks=4, init="random", **fsdp)
    assert whole.moments["sharding"].total() >= 4 * (_PARAMETERS + block / 4)


@pytest.mark.long
def test_weights_that_fsdp_gathers_are_communication(divided: StepMemory) -> None:
    # In the loss: the head and the final norm, and the last two blocks; more where the largest is gathered.
    gathered = divided.moments["loss"]["communication"]
    assert 4 * 512 * 64 < gathered < 4 * (512 * 64 + 64 + 4 * (_PARAMETERS // 9))


@pytest.mark.long
def test_gradients_that_fsdp_has_reduced_are_gradients(divided: StepMemory) -> None:
    at_first_block = divided.moments["backward 0"]["gradients"]
    # All but those of the first blocks and of the embeddings.
    assert 0.5 * _PARAMETERS < at_first_block <= _PARAMETERS
    assert divided.moments["backward -1"]["gradients"] < 0.5 * at_first_block


@pytest.mark.long
def test_two_copies_hold_twice_the_share(model: Path, usual: StepMemory) -> None:
    copied = _trace(model, ranks=4, parallel={"strategy": "fsdp", "fsdp": {"replicas": 2}})
    assert copied.resting.total() == pytest.approx(usual.resting.total() / 2, rel=0.05)


@pytest.mark.long
def test_gradients_that_are_reduced_once_wait_whole(model: Path) -> None:
    batch = {"accumulate": 2}
    each = _trace(model, ranks=4, parallel={"strategy": "fsdp"}, batch=batch)
    once = _trace(model, ranks=4, parallel={"strategy": "fsdp", "fsdp": {"sync_each_batch": False}}, batch=batch)
    # Whole ones in the place of a quarter.
    added = once.moments["loss"]["gradients"] - each.moments["loss"]["gradients"]
    assert added == pytest.approx(3 * _PARAMETERS, rel=0.05)


@pytest.mark.long
def test_offloading_keeps_saved_tensors_in_host_memory(model: Path) -> None:
    rows = (DocumentSize(512, 500),)
    stays = _trace(model, documents=rows, device=_CARD)
    moved = _trace(model, documents=rows, device=_CARD, memory={"offload_activations": True})
    # At least the input of each matrix: three of the hidden size, one of the feed-forward's.
    assert moved.offloaded > 9 * 4 * 512 * (3 * 64 + 176) and stays.offloaded == 0
    assert moved.moments["loss"]["activations"] < 0.1 * stays.moments["loss"]["activations"]
    assert moved.resting == stays.resting
    assert _trace(model, documents=rows, memory={"offload_activations": True}).offloaded == 0


@pytest.mark.long
def test_operators_of_ascend_are_those_that_the_recipe_allows(model: Path) -> None:
    npu = PlannedDevice(Target("npu", "card", 1 << 40, 1))

    def activations(**keys: Any) -> int:
        return _trace(model, device=npu, **keys).moments["loss"]["activations"]

    every, without_norms, none = activations(), activations(kernel={"rms_norm": False}), activations(kernel="off")
    assert every < without_norms < none
    assert activations(kernel={"rms_norm": False, "swiglu": False}) == none


@pytest.mark.long
def test_checkpointing_keeps_the_input_of_each_block(model: Path) -> None:
    rows = (DocumentSize(512, 500),)
    kept, computed = (
        _trace(model, documents=rows, memory={"gradient_checkpointing": each}).moments for each in (False, True)
    )
    per_block = computed["forward -1"]["activations"] - computed["forward -2"]["activations"]
    assert per_block == pytest.approx(4 * 512 * 64, rel=0.1)
    assert computed["forward -1"].total() < kept["forward -1"].total()


def test_a_capped_head_is_found_where_the_config_says_bf16(tmp_path: Path) -> None:
    gemma = {**_MODEL, "model_type": "gemma2", "head_dim": 16, "num_hidden_layers": 2, "dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps({**gemma, "final_logit_softcapping": 20.0}))
    recipe = Recipe.check({
        "model": {"path": str(tmp_path)}, "data": {"train": [{"path": "x.jsonl"}]}, "precision": "fp32",
    })  # fmt: skip
    setting = TrainingChoices.of(recipe, tmp_path, CpuDevice(), ranks=1, vocabulary=0, pad_id=0)
    assert setting.head_form == HeadForm(scale=1.0, cap=20.0)


@pytest.mark.long
def test_leaves_the_random_state_as_it_was(model: Path) -> None:
    import torch

    before = torch.get_rng_state()
    _trace(model)
    assert torch.equal(torch.get_rng_state(), before)


def test_modelled_attention_takes_the_mask_by_its_name_too() -> None:
    """AFMoE gives it so."""
    import torch

    parts = (torch.ones(1, 2, 4, 8) for _ in range(3))
    output, _ = modelled_attention(1)(torch.nn.Module(), *parts, attention_mask=None, scaling=0.5)
    assert output.shape == (1, 4, 2, 8)


def test_modelled_attention_keeps_so_many_numbers_for_each_head_and_token() -> None:
    import torch

    def kept(numbers: int) -> int:
        sizes: list[int] = []
        query, key, value = (torch.ones(1, 2, 4, 8, requires_grad=True) for _ in range(3))
        with torch.autograd.graph.saved_tensors_hooks(lambda each: sizes.append(each.numel()), lambda _: None):
            modelled_attention(numbers)(torch.nn.Module(), query, key, value, attention_mask=None)
        return sum(sizes)

    assert kept(3) - kept(1) == 2 * (2 * 4)


def test_modelled_attention_keeps_the_zeros_of_narrow_values() -> None:
    import torch

    def kept(*, pads_values: bool) -> int:
        sizes: list[int] = []
        parts = (torch.ones(1, 2, 4, width, requires_grad=True) for width in (8, 8, 6))
        with torch.autograd.graph.saved_tensors_hooks(lambda each: sizes.append(each.numel()), lambda _: None):
            output, _ = modelled_attention(1, pads_values=pads_values)(torch.nn.Module(), *parts, attention_mask=None)
        assert output.shape == (1, 4, 2, 6)
        return sum(sizes)

    # Of the values and of the output.
    assert kept(pads_values=True) - kept(pads_values=False) == 2 * (2 * 4 * 2)


@pytest.mark.long
def test_a_config_that_does_not_let_its_layers_be_set_is_traced(tmp_path: Path) -> None:
    config = {
        "model_type": "prophetnet", "architectures": ["ProphetNetForCausalLM"], "vocab_size": 64, "hidden_size": 32,
        "num_decoder_layers": 2, "num_encoder_layers": 2, "num_decoder_attention_heads": 2, "pad_token_id": 0,
        "num_encoder_attention_heads": 2, "decoder_ffn_dim": 32, "encoder_ffn_dim": 32, "max_position_embeddings": 64,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = _trace(tmp_path, documents=(DocumentSize(16, 15),), data={"train": "x.jsonl", "packing": False})
    assert found.how == "2 of 2 layers traced"
    assert found.resting["weights"] == pytest.approx(4 * found.parameters, rel=0.01)
