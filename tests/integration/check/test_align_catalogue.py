"""Planted faults are named by stage, step and module from dumps alone; honest pairs are aligned."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ascendtune.check.align.dump_comparison import BatchComparison
from ascendtune.check.align.loss_noise import expected_noise
from ascendtune.check.align.stages import TrainingComparison, compare_trainings
from ascendtune.check.align.training_record import read_training_record
from bare_loop import VOCABULARY, Bare, Rows, model_of, rows_of

Run = Callable[[Bare], Path]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    made: dict[int, tuple[Bare, Path]] = {}

    def train(bare: Bare) -> Path:
        if id(bare) not in made:
            made[id(bare)] = bare, bare.run(tmp_path_factory.mktemp("bare") / "run")
        return made[id(bare)][1]

    return train


def align(reference: Path, candidate: Path) -> TrainingComparison:
    one, other = read_training_record(reference), read_training_record(candidate)
    return compare_trainings(one, other, expected_noise(one, other))


def named(found: TrainingComparison) -> tuple[str, int, str, str] | None:
    """Stage, step, phase and module of the verdict; without the last two if the records name the cause."""
    place = found.dumps.place
    if found.divergence is None:
        assert place is None
        return None
    if place is None:
        assert found.step is not None
        return found.divergence.code, found.step, "", ""
    return found.divergence.code, place.step, place.row.key.phase, place.module


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


PLAIN = Bare()
PACKED = Bare(is_packed=True)
TWO_RANKS = Bare(ranks=2)
ACCUMULATED = Bare(accumulate=2)
HALF = Bare(autocast=torch.bfloat16)
HALF_FP16 = Bare(autocast=torch.float16)
WARMING = Bare(rate=lambda step: 1e-3 * step / 10)


def _lora(alpha: int, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from peft import LoraConfig, get_peft_model

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            wanted = LoraConfig(r=4, lora_alpha=alpha, target_modules=["q_proj", "down_proj"], **options)
            return get_peft_model(model_of(), wanted).train()

    return make


def _untied() -> nn.Module:
    model: Any = model_of(tie_word_embeddings=True)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    return model  # type: ignore[no-any-return]


def _capped(**config: Any) -> nn.Module:
    """A Gemma 2 whose attention scores and logits reach the caps."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "query_pre_attn_scalar": 12,
        "sliding_window": 8,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 1.0,
        "attn_implementation": "eager",
    }
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = Gemma2ForCausalLM(Gemma2Config(**{**settings, **config}))
        for parameter in model.parameters():
            parameter.mul_(4)
    return model.train()


ADAPTED = Bare(model=_lora(8))
DECOMPOSED = Bare(model=_lora(8, use_dora=True))
TIED = Bare(model=lambda: model_of(tie_word_embeddings=True))
CAPPED = Bare(model=_capped)


def _one_row_changed(step: int) -> Rows:
    rows = rows_of(step)
    if step == 2:
        tokens, kept = rows[5]
        rows[5] = [*tokens[:4], tokens[4] % 100 + 1, *tokens[5:]], kept
    return rows


def _perturbed(model: nn.Module) -> None:
    with torch.no_grad():
        model.get_parameter("model.layers.1.mlp.down_proj.weight").mul_(1 + 1e-3)


def _zeroed(model: nn.Module) -> None:
    model.get_parameter("model.layers.1.mlp.up_proj.weight").register_hook(torch.zeros_like)


def _detached(model: nn.Module) -> None:
    model.get_submodule("model.layers.1.self_attn.o_proj").register_forward_hook(lambda *call: call[-1].detach())


def _stale(step: int, models: Sequence[nn.Module]) -> None:
    if step == 2:
        models[1].load_state_dict(model_of().state_dict())


def _not_a_number(step: int, models: Sequence[nn.Module]) -> None:
    if step == 3:

        def spoil(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
            changed = output.clone()
            changed[0, 0, 0] = math.nan
            return changed

        models[0].get_submodule("model.layers.1.mlp.down_proj").register_forward_hook(spoil)


def _adam(**changes: Any) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.AdamW(parameters, **{"lr": 1e-3, **changes})


class WithoutBiasCorrection(torch.optim.AdamW):
    """AdamW that believes to have made many steps."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure) if not self.state else None
        for state in self.state.values():
            state["step"] += 100_000
        return super().step(closure)


def _all_of_bf16() -> nn.Module:
    return model_of().to(torch.bfloat16)


LAYER = "model.layers.0"
FAULTS: dict[str, tuple[Bare, Bare, tuple[str, int, str, str]]] = {
    "another seed": (PLAIN, replace(PLAIN, rows=lambda step: rows_of(step, seed=1)), ("data", 1, "gradient", "")),
    "shuffled data": (
        PLAIN,
        replace(PLAIN, rows=lambda step: rows_of({2: 3, 3: 2}.get(step, step))),
        ("data", 2, "gradient", ""),
    ),
    "one changed row": (PLAIN, replace(PLAIN, rows=_one_row_changed), ("data", 2, "forward", "model.embed_tokens")),
    "truncated differently": (
        PLAIN,
        replace(PLAIN, rows=lambda step: [(tokens[:16], kept) for tokens, kept in rows_of(step)]),
        ("data", 1, "gradient", ""),
    ),
    "LoRA scale": (ADAPTED, replace(ADAPTED, model=_lora(16)), ("backward", 1, "backward", "lora_B")),
    "LoRA instead of DoRA": (
        DECOMPOSED,
        replace(DECOMPOSED, model=_lora(8)),
        # While lora_B is 0 both compute the same, but DoRA has parameters of its own.
        ("backward", 1, "gradient", "lora_magnitude_vector"),
    ),
    "untied head": (TIED, replace(TIED, model=_untied), ("backward", 1, "gradient", "lm_head.weight")),
    "attention not capped": (
        CAPPED,
        replace(CAPPED, model=lambda: _capped(attn_logit_softcapping=None)),
        ("forward", 1, "forward", f"{LAYER}.self_attn"),
    ),
    "logits not capped": (
        CAPPED,
        replace(CAPPED, model=lambda: _capped(final_logit_softcapping=None)),
        ("forward", 1, "forward", ""),
    ),
    "dropout": (
        PLAIN,
        replace(PLAIN, model=lambda: model_of(attention_dropout=0.1)),
        ("forward", 1, "forward", f"{LAYER}.self_attn"),
    ),
    "RoPE base": (
        PLAIN,
        replace(PLAIN, model=lambda: model_of(rope_parameters={"rope_type": "default", "rope_theta": 5e3})),
        ("forward", 1, "forward", "model.rotary_emb"),
    ),
    "RMSNorm epsilon": (
        PLAIN,
        replace(PLAIN, model=lambda: model_of(rms_norm_eps=1e-5)),
        ("forward", 1, "forward", f"{LAYER}.input_layernorm"),
    ),
    "perturbed weights": (
        PLAIN,
        replace(PLAIN, edit=_perturbed),
        ("start", 1, "parameter_before", "model.layers.1.mlp.down_proj.weight"),
    ),
    "missing causal mask": (
        PACKED,
        replace(PACKED, is_causal=False),
        ("forward", 1, "forward", f"{LAYER}.self_attn"),
    ),
    "leaked documents": (PACKED, replace(PACKED, leaks=True), ("forward", 1, "forward", f"{LAYER}.self_attn")),
    "zeroed gradient": (
        PLAIN,
        replace(PLAIN, edit=_zeroed),
        ("backward", 1, "gradient", "model.layers.1.mlp.up_proj.weight"),
    ),
    "detached attention": (
        PLAIN,
        replace(PLAIN, edit=_detached),
        ("backward", 1, "gradient", "model.layers.1.self_attn.o_proj.weight"),
    ),
    "gradient not averaged over ranks": (TWO_RANKS, replace(TWO_RANKS, averages=False), ("ranks", 1, "gradient", "")),
    "accumulation divisor": (
        ACCUMULATED,
        replace(ACCUMULATED, divisor=lambda step, micro_batch: micro_batch),
        ("forward", 1, "loss", ""),
    ),
    "AdamW epsilon": (PLAIN, replace(PLAIN, optimizer=_adam(eps=1e-6)), ("update", 1, "parameter_after", "")),
    "AdamW beta": (PLAIN, replace(PLAIN, optimizer=_adam(betas=(0.9, 0.99))), ("update", 2, "parameter_after", "")),
    "AdamW weight decay": (
        PLAIN,
        replace(PLAIN, optimizer=_adam(weight_decay=0)),
        ("update", 1, "parameter_after", ""),
    ),
    "AdamW bias correction": (
        PLAIN,
        replace(PLAIN, optimizer=lambda parameters: WithoutBiasCorrection(parameters, lr=1e-3)),
        ("update", 1, "parameter_after", ""),
    ),
    "no master weights": (HALF, replace(HALF, model=_all_of_bf16), ("update", 1, "parameter_after", "")),
    "scheduler off by one": (
        WARMING,
        replace(WARMING, rate=lambda step: 1e-3 * (step + 1) / 10),
        ("update", 1, "", ""),
    ),
    "stale weights on one rank": (
        TWO_RANKS,
        replace(TWO_RANKS, before_step=_stale),
        ("ranks", 2, "parameter_before", "model.embed_tokens.weight"),
    ),
    "NaN in one module": (
        PLAIN,
        replace(PLAIN, before_step=_not_a_number),
        ("forward", 3, "forward", "model.layers.1.mlp.down_proj"),
    ),
}


@pytest.mark.parametrize(("reference", "candidate", "expected"), FAULTS.values(), ids=FAULTS)
def test_planted_fault_is_named(
    run: Run, reference: Bare, candidate: Bare, expected: tuple[str, int, str, str]
) -> None:
    found = align(run(reference), run(candidate))
    place = named(found)
    assert place is not None and place[:3] == expected[:3], place
    assert expected[3] in place[3], place


SHOWN_IN_16_BITS = (
    *("another seed", "shuffled data", "truncated differently", "LoRA scale", "LoRA instead of DoRA", "untied head"),
    *(
        "logits not capped",
        "dropout",
        "missing causal mask",
        "leaked documents",
        "zeroed gradient",
        "AdamW weight decay",
    ),
    *("detached attention", "accumulation divisor", "AdamW bias correction", "scheduler off by one"),
    "NaN in one module",
)
"""Faults that are larger than the rounding of 16 bits; the others are of a few thousandths."""


@pytest.mark.parametrize("compute", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("case", SHOWN_IN_16_BITS)
def test_planted_fault_is_named_in_16_bits(tmp_path: Path, case: str, compute: torch.dtype) -> None:
    *sides, expected = FAULTS[case]
    runs = [replace(side, autocast=compute).run(tmp_path / str(at)) for at, side in enumerate(sides)]
    place = named(align(*runs))
    assert place is not None and place[:3] == expected[:3] and expected[3] in place[3], place


def test_rows_that_both_batches_have_are_counted(run: Run) -> None:
    reference, candidate, _ = FAULTS["one changed row"]
    place = align(run(reference), run(candidate)).dumps.place
    assert place is not None and place.batch == BatchComparison(rows=8, rows_of_candidate=8, common=7)


def test_row_that_no_sample_shows_in_bf16_is_told_by_the_hashes(tmp_path: Path) -> None:
    sides = [replace(HALF, rows=rows).run(tmp_path / str(at)) for at, rows in enumerate((rows_of, _one_row_changed))]
    finding = next(each for each in align(*sides).findings if each.code == "data")
    assert finding.status != "ok" and "7 of 8 rows" in f"{finding.measured} {finding.evidence}", finding


def test_same_rows_in_another_order_are_aligned_with_a_warning(run: Run) -> None:
    turned = replace(PLAIN, rows=lambda step: rows_of(step)[::-1] if step == 2 else rows_of(step))
    found = align(run(PLAIN), run(turned))
    assert named(found) is None and {"backward", "update"} <= found.dumps.agreeing
    warned = [each for each in found.findings if each.status not in ("ok", "unknown")]
    assert [(each.code, each.status) for each in warned] == [("data", "warning")]
    assert warned[0].measured.endswith("in another order")
    wrong = replace(turned, edit=_zeroed)
    assert named(align(run(PLAIN), run(wrong))) == ("backward", 1, "gradient", "model.layers.1.mlp.up_proj.weight")


def test_weights_that_parted_in_a_step_without_dump_are_told_from_what_follows(tmp_path: Path) -> None:
    wrong = Bare(rate=lambda step: 1e-2 if step == 1 else 1e-3)
    sides = [each.run(tmp_path / name) for name, each in (("one", Bare()), ("other", wrong))]
    assert named(align(*sides)) == ("update", 1, "", "")
    for side in sides:
        shutil.rmtree(side / "dump" / "step-0000002")
        shutil.rmtree(side / "dump" / "step-0000001")
    found = align(*sides)
    # The recorded rates tell the step; the losses diverge at the next one.
    assert found.divergence is not None and (found.divergence.code, found.step, found.dumps.place) == (
        "update",
        1,
        None,
    )
    assert found.dumps.consequence is not None and found.dumps.consequence.step == 3


@pytest.mark.parametrize(("case", "word"), [("LoRA instead of DoRA", "DoRA"), ("logits not capped", "logits")])
def test_remedy_names_what_the_module_computes(run: Run, case: str, word: str) -> None:
    reference, candidate, _ = FAULTS[case]
    divergence = align(run(reference), run(candidate)).divergence
    assert divergence is not None and word in divergence.remedy


def test_softmax_in_bf16_is_named(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = run(PLAIN)
    softmax = nn.functional.softmax

    def in_bf16(values: torch.Tensor, dim: int, dtype: torch.dtype) -> torch.Tensor:
        return softmax(values.bfloat16(), dim=dim).to(dtype)

    monkeypatch.setattr(nn.functional, "softmax", in_bf16)
    found = named(align(reference, PLAIN.run(tmp_path / "run")))
    assert found == ("forward", 1, "forward", f"{LAYER}.self_attn")


def _recomputing(model: Any) -> None:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


HONEST: dict[str, tuple[Bare, Bare]] = {
    "fp32 again": (PLAIN, Bare()),
    "packed beside padded": (PLAIN, PACKED),
    "two ranks beside one": (PLAIN, TWO_RANKS),
    "two ranks again": (TWO_RANKS, Bare(ranks=2)),
    "activation checkpointing": (PLAIN, Bare(edit=_recomputing)),
    "bf16 beside fp32": (PLAIN, HALF),
    "accumulation": (PLAIN, ACCUMULATED),
    "SDPA beside eager": (PLAIN, Bare(model=lambda: model_of("sdpa"))),
    "SDPA beside eager, bf16": (HALF, Bare(model=lambda: model_of("sdpa"), autocast=torch.bfloat16)),
    "SDPA beside eager, fp16": (HALF_FP16, replace(HALF_FP16, model=lambda: model_of("sdpa"))),
    "packed beside padded, fp16": (HALF_FP16, replace(HALF_FP16, is_packed=True)),
    "accumulation, bf16": (HALF, replace(HALF, accumulate=2)),
    "LoRA on two ranks, bf16": (
        replace(ADAPTED, autocast=torch.bfloat16),
        replace(ADAPTED, autocast=torch.bfloat16, ranks=2),
    ),
    "more steps": (Bare(steps=8), Bare(steps=8, model=lambda: model_of("sdpa"))),
    "foreach optimizer": (PLAIN, Bare(optimizer=_adam(foreach=True))),
    "LoRA": (ADAPTED, replace(ADAPTED, ranks=2)),
    "DoRA": (DECOMPOSED, replace(DECOMPOSED, ranks=2)),
    "tied head": (TIED, replace(TIED, ranks=2)),
    "capped logits": (CAPPED, replace(CAPPED, accumulate=2)),
}


@pytest.mark.parametrize(("reference", "candidate"), HONEST.values(), ids=HONEST)
def test_honest_pair_is_aligned(run: Run, reference: Bare, candidate: Bare) -> None:
    found = align(run(reference), run(candidate))
    assert named(found) is None
    assert {each.status for each in found.findings} <= {"ok", "unknown"}, found.findings


def test_other_thread_count_is_aligned(run: Run, tmp_path: Path) -> None:
    torch.set_num_threads(2)
    threads = Bare().run(tmp_path / "run")
    torch.set_num_threads(1)
    assert named(align(Bare().run(tmp_path / "one"), threads)) is None
