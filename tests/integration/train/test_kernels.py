"""Kernels are found by structure in every family, tested before they are used, and taken out when they are wrong.

The kernels here are plain torch: right ones, and wrong ones of the kind that nobody would notice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn.functional import silu

from ascendtune.core.errors import MachineError
from ascendtune.machine.torch_backend.cpu import CpuDevice
from ascendtune.machine.torch_backend.find import find_device
from ascendtune.recipe.sections import KernelSection
from ascendtune.train.kernel import install
from ascendtune.train.kernel.install import install_kernels
from ascendtune.train.kernel.rotary import rotate_by_halves
from ascendtune.train.kernel.swiglu import FusableMlp
from ascendtune.train.precision import Precision

if TYPE_CHECKING:
    from tests.integration.train.conftest import Train

HERE = f"{__name__}:"
CALLS: list[str] = []
OWN = "the model's own"
SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
MIXTURE = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
MLA = {
    "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "num_key_value_heads": 4, "first_k_dense_replace": 1,
}  # fmt: skip
# config class, what differs from SHAPE, how many norms, rotary attentions and gated MLPs are found in two layers.
FAMILIES: list[tuple[str, dict[str, Any], int, int, int]] = [
    ("LlamaConfig", {}, 5, 2, 2),
    ("Qwen2Config", {}, 5, 2, 2),
    ("Qwen3Config", {}, 9, 2, 2),  # norms of queries and keys too
    ("Qwen3MoeConfig", {**MIXTURE, "num_experts": 4}, 9, 2, 0),
    ("MistralConfig", {}, 5, 2, 2),
    ("GlmConfig", {}, 5, 0, 2),  # rotates neighbours
    ("Glm4Config", {}, 9, 0, 2),
    ("Phi3Config", {}, 5, 2, 2),  # gate and up are one projection
    ("Phi3Config", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
     5, 2, 2),
    ("GemmaConfig", {"hidden_act": "gelu_pytorch_tanh"}, 5, 2, 0),  # 1 + weight; GELU
    ("Gemma2Config", {"query_pre_attn_scalar": 8}, 9, 2, 0),
    ("Gemma3TextConfig", {"query_pre_attn_scalar": 8}, 13, 2, 0),
    ("DeepseekV3Config", {**MIXTURE, **MLA}, 9, 0, 2),  # rotates neighbours
    ("Olmo2Config", {}, 9, 2, 2),
    ("GraniteConfig", {}, 5, 2, 2),
    ("CohereConfig", {}, 0, 0, 2),  # subtracts the mean; rotates neighbours
    ("GPT2Config", {"n_embd": 32, "n_head": 4, "n_layer": 2}, 0, 0, 0),
]  # fmt: skip


def plain_rms_norm(hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    CALLS.append("rms_norm")
    wide = hidden.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return (normed * weight.float()).to(hidden.dtype)


def plain_rotary(*arguments: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    CALLS.append("rotary")
    return rotate_by_halves(*arguments)


def plain_swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    CALLS.append("swiglu")
    return silu(gate) * up


def without_epsilon(hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return plain_rms_norm(hidden, weight, 10 * epsilon + 0.01)


def without_a_gradient(hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return plain_rms_norm(hidden, weight.detach() + 0 * weight, epsilon)


def swapped(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return silu(up) * gate


def of_neighbours(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    def rotate(x: torch.Tensor) -> torch.Tensor:
        pairs = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
        return x * cos.unsqueeze(1) + pairs * sin.unsqueeze(1)

    return rotate(query), rotate(key)


def that_fails(*arguments: Any) -> Any:
    raise RuntimeError("aclnnSomething is not supported\nand more")


PLAIN = {"rms_norm": plain_rms_norm, "rotary": plain_rotary, "swiglu": plain_swiglu}
FP32 = Precision("fp32", "fp32", "", "cpu")
BF16 = Precision("bf16", "bf16", "", "cpu")


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`kernels(swiglu=swapped)`: the CPU has these operators, plain ones where nothing else is said."""
    CALLS.clear()
    functions: dict[str, Callable[..., Any]] = {}
    monkeypatch.setattr(CpuDevice, "kernels", "plain")
    monkeypatch.setitem(install.TABLE, "plain", {part: part for part in PLAIN})
    monkeypatch.setattr(install, "resolve_name", lambda part: functions[part])

    def choose(**others: Callable[..., Any]) -> None:
        functions.update(PLAIN | others)

    choose()
    return choose


def model_of(name: str, changes: dict[str, Any], dtype: torch.dtype = torch.float32) -> Any:
    import transformers

    config = getattr(transformers, name)(**{**SHAPE, **changes})
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
        for parameter in model.parameters():
            # Norms begin as ones or zeros, which hides what is multiplied with what.
            if parameter.ndim == 1:
                parameter += 0.3 * torch.randn(parameter.shape)
    return model


def installed(*arguments: Any) -> dict[str, str]:
    """What `install_kernels` says of each part."""
    return {part: choice.description for part, choice in install_kernels(*arguments).items()}


def loss_and_gradients(model: Any, precision: Precision) -> tuple[float, dict[str, torch.Tensor]]:
    ids = torch.arange(3, 33)[None]
    model.eval().zero_grad()
    with precision.autocast():
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    return loss.item(), {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def relative(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    assert ours.keys() == theirs.keys()
    largest = max(float(each.abs().max()) for each in theirs.values())
    return max(float((ours[name] - each).abs().max()) for name, each in theirs.items()) / largest


@pytest.mark.parametrize(
    ("name", "changes", "norms", "rotary", "mlps"),
    FAMILIES,
    ids=[f"{each[0][:-6]}-{number}" for number, each in enumerate(FAMILIES)],
)
def test_kernels_are_found_in_each_family_and_agree(
    kernels: Callable[..., None], name: str, changes: dict[str, Any], norms: int, rotary: int, mlps: int
) -> None:
    model = model_of(name, changes)
    before = loss_and_gradients(model, FP32)
    outcome = installed(model, "auto", find_device(), FP32)
    counts = {"rms_norm": norms, "rotary": rotary, "swiglu": mlps}
    for part, count in counts.items():
        expected = (
            f"{count} of {count} modules, {PLAIN[part].__name__}" if count else f"{OWN}: nothing of this form in it"
        )
        assert outcome[part] == expected
    CALLS.clear()
    after = loss_and_gradients(model, FP32)
    assert {part: CALLS.count(part) for part in counts} == counts
    assert after[0] == pytest.approx(before[0], rel=1e-6)
    assert relative(after[1], before[1]) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32 weights", "bf16 weights"])
@pytest.mark.parametrize(("name", "changes"), [("Qwen3Config", {}), ("GemmaConfig", {"hidden_act": "silu"})])
def test_kernels_under_autocast_agree(
    kernels: Callable[..., None], name: str, changes: dict[str, Any], dtype: torch.dtype
) -> None:
    model = model_of(name, changes, dtype)
    before = loss_and_gradients(model, BF16)
    outcome = installed(model, "auto", find_device(), BF16)
    assert all(outcome[part].endswith(PLAIN[part].__name__) for part in PLAIN), outcome
    after = loss_and_gradients(model, BF16)
    assert after[0] == pytest.approx(before[0], rel=5e-3)
    assert relative(after[1], before[1]) < 0.1


def test_other_models_in_this_process_keep_their_own(kernels: Callable[..., None]) -> None:
    from transformers.models.llama import modeling_llama

    function = modeling_llama.apply_rotary_pos_emb
    ours, theirs = model_of("LlamaConfig", {}), model_of("LlamaConfig", {})
    install_kernels(ours, "auto", find_device(), FP32)
    CALLS.clear()
    loss_and_gradients(theirs, FP32)
    assert CALLS == [] and modeling_llama.apply_rotary_pos_emb is function
    assert all("forward" not in vars(type(module)).keys() - {"forward"} for module in ours.modules())


def test_a_copy_computes_with_its_own_weights(kernels: Callable[..., None]) -> None:
    from copy import deepcopy

    model = model_of("LlamaConfig", {})
    install_kernels(model, "auto", find_device(), FP32)
    copied = deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert loss_and_gradients(copied, FP32)[0] != loss_and_gradients(model, FP32)[0]
    assert copied.model.norm.forward.__self__ is copied.model.norm


@pytest.mark.parametrize(
    ("part", "wrong", "said"),
    [
        ("rms_norm", without_epsilon, "output 0 ("),
        ("rms_norm", without_a_gradient, "gradient 1 ("),
        ("swiglu", swapped, "output 0 ("),
        ("rotary", of_neighbours, "output 0 ("),
        ("swiglu", that_fails, "fails: aclnnSomething is not supported"),
    ],
)
@pytest.mark.parametrize("precision", [FP32, BF16], ids=["fp32", "bf16"])
def test_a_wrong_kernel_is_found_and_taken_out(
    kernels: Callable[..., None], caplog: pytest.LogCaptureFixture,
    part: str, wrong: Callable[..., Any], said: str, precision: Precision,
) -> None:  # fmt: skip
    kernels(**{part: wrong})
    model = model_of("LlamaConfig", {})
    before = loss_and_gradients(model, FP32)
    outcome = installed(model, "auto", find_device(), precision)
    assert outcome[part].startswith(f"{OWN}: {wrong.__name__}") and said in outcome[part]
    others = [each for each in PLAIN if each != part]
    assert all(outcome[each].endswith(PLAIN[each].__name__) for each in others)
    assert f"kernel.{part}: {wrong.__name__} is not used" in caplog.text
    after = loss_and_gradients(model, FP32)
    assert after[0] == pytest.approx(before[0], rel=1e-6) and relative(after[1], before[1]) < 1e-5


def test_a_device_that_computes_wrong_after_a_failure_is_not_trained_on(
    kernels: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Ascend, where a failed operator can spoil all that follow."""
    spoilt = []

    def spoil(*arguments: Any) -> Any:
        spoilt.append(True)
        raise RuntimeError("EZ9999: inner error")

    kernels(swiglu=spoil)
    run = FusableMlp.run
    monkeypatch.setattr(
        FusableMlp, "run", lambda self, *samples: tuple(each + len(spoilt) for each in run(self, *samples))
    )
    with pytest.raises(MachineError) as stopped:
        install_kernels(model_of("LlamaConfig", {}), "auto", find_device(), FP32)
    assert stopped.value.code == "device-unusable" and "spoil fails: EZ9999: inner error" in stopped.value.what


def test_recipe_switches_kernels_off(kernels: Callable[..., None]) -> None:
    device = find_device()
    off = installed(model_of("LlamaConfig", {}), "off", device, FP32)
    assert set(off.values()) == {f"{OWN}, as asked"}
    some = installed(model_of("LlamaConfig", {}), KernelSection(rms_norm=False, rotary=False), device, FP32)
    assert some == {
        "rms_norm": f"{OWN}, as asked",
        "rotary": f"{OWN}, as asked",
        "swiglu": "2 of 2 modules, plain_swiglu",
        "experts": f"{OWN}: no fused operator on cpu",
    }


def test_cpu_has_no_fused_operators() -> None:
    outcome = installed(model_of("LlamaConfig", {}), "auto", find_device(), FP32)
    assert set(outcome.values()) == {f"{OWN}: no fused operator on cpu"}


@pytest.mark.parametrize("tuner", ["full", "lora"])
def test_run_json_names_the_kernels(
    kernels: Callable[..., None], train: Train, caplog: pytest.LogCaptureFixture, tuner: str
) -> None:
    method = {"tuner": tuner, "lora": {"rank": 4, "modules_to_save": ["norm"]}} if tuner == "lora" else {"tuner": tuner}
    changes = {"method": method, "optim": {"max_steps": 4, "learning_rate": 0.01}}
    with caplog.at_level("INFO", logger="ascendtune"):
        swapped_in = train(**changes)
    assert "kernels plain_rms_norm, plain_rotary, plain_swiglu;" in caplog.text
    said = swapped_in.run.read()["resolved"]["kernel"]
    assert said["rotary"] == "2 of 2 modules, plain_rotary" and CALLS
    plain = train(**changes, kernel="off", name="off")
    assert swapped_in.losses() == pytest.approx(plain.losses(), rel=1e-5)
    assert swapped_in.losses()[-1] < swapped_in.losses()[0]
    for name, weight in swapped_in.weights().items():
        torch.testing.assert_close(weight, plain.weights()[name], rtol=1e-3, atol=1e-4)


def test_kernels_in_a_sharded_model_change_no_loss(
    kernels: Callable[..., None], train: Train, train_on_ranks: Train
) -> None:
    changes = {"optim": {"max_steps": 3, "learning_rate": 0.01}, "memory": {"gradient_checkpointing": True}}
    both = train_on_ranks(2, **changes, batch={"per_device": 2}, parallel={"strategy": "fsdp"})
    assert both.run.read()["resolved"]["kernel"]["rms_norm"] == "5 of 5 modules, plain_rms_norm"
    assert both.losses() == pytest.approx(train(**changes, kernel="off", name="off").losses(), rel=1e-5)


class BaichuanNorm(nn.Module):
    def __init__(self, width: int, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        variance = hidden_states.to(torch.float32).pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.epsilon)
        if self.weight.dtype in (torch.float16, torch.bfloat16):
            hidden_states = hidden_states.to(self.weight.dtype)
        return self.weight * hidden_states


class BaichuanMlp(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return out


class BaichuanAttention(nn.Module):
    """W_pack: query, key and value from one matrix; ALiBi: the distance is a bias of the scores, nothing is rotated."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, width // heads
        self.W_pack = nn.Linear(width, 3 * width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        rows, tokens, _ = hidden_states.shape
        packed = self.W_pack(hidden_states).view(rows, tokens, 3, self.heads, self.head_dim)
        query, key, value = packed.permute(2, 0, 3, 1, 4)
        positions = torch.arange(tokens)
        slopes = 2.0 ** -torch.arange(1.0, self.heads + 1)
        bias = slopes[:, None, None] * (positions[None] - positions[:, None]).clamp(max=0)
        bias = bias.masked_fill(positions[None] > positions[:, None], -torch.inf)
        output = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias.to(query.dtype)[None])
        projected: torch.Tensor = self.o_proj(output.transpose(1, 2).flatten(2))
        return projected


class NormHead(nn.Module):
    """Logits of a head whose rows have length one: a norm, but none of hidden states."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocabulary, width))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(hidden_states, nn.functional.normalize(self.weight))


class Baichuan(nn.Module):
    """The structures of Baichuan2's own code (13B), without the code."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(64, 32)
        self.layers = nn.ModuleList(
            nn.ModuleDict({
                "input_layernorm": BaichuanNorm(32), "self_attn": BaichuanAttention(32, 4),
                "post_attention_layernorm": BaichuanNorm(32), "mlp": BaichuanMlp(32, 48),
            }) for _ in range(2)
        )  # fmt: skip
        self.norm, self.lm_head = BaichuanNorm(32), NormHead(32, 64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embed_tokens(ids)
        for layer in self.layers:
            hidden = hidden + layer["self_attn"](layer["input_layernorm"](hidden))
            hidden = hidden + layer["mlp"](layer["post_attention_layernorm"](hidden))
        logits: torch.Tensor = self.lm_head(self.norm(hidden))
        return logits


def test_kernels_are_found_in_the_structures_of_baichuan2(kernels: Callable[..., None]) -> None:
    torch.manual_seed(0)
    model, ids = Baichuan(), torch.arange(20)[None]
    before = model(ids)
    outcome = installed(model, "auto", find_device(), FP32)
    assert outcome["rms_norm"] == "5 of 5 modules, plain_rms_norm"
    assert outcome["swiglu"] == "2 of 2 modules, plain_swiglu"
    assert outcome["rotary"] == f"{OWN}: nothing of this form in it"
    torch.testing.assert_close(model(ids), before, rtol=1e-5, atol=1e-5)


def test_forms_that_only_look_alike_are_left_alone(kernels: Callable[..., None]) -> None:
    """A norm that is handed a gate, one that subtracts the mean, an MLP with another function, one that drops out."""

    class Gated(BaichuanNorm):
        def forward(self, hidden_states: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
            return super().forward(hidden_states)

    class Centred(BaichuanNorm):
        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            return super().forward(hidden_states - hidden_states.mean(-1, keepdim=True))

    class Scaled(BaichuanMlp):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    dropping = BaichuanMlp(8, 16)
    dropping.dropout = nn.Dropout(0.1)
    model = nn.ModuleList([Gated(8), Centred(8), Scaled(8, 16), dropping])
    assert set(installed(model, "auto", find_device(), FP32).values()) == {
        f"{OWN}: nothing of this form in it", f"{OWN}: no fused operator on cpu"
    }  # fmt: skip
