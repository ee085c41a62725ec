"""How much arithmetic a token costs: the numerator of `mfu`."""

from __future__ import annotations

from typing import Any


def flops_per_token(model: Any, *, mean_length: float, trains_all: bool) -> float:
    """FLOPs per token of forward and backward.

    6 per parameter that is multiplied with (2 forward, 4 backward), plus attention, 12 × layers × width × length,
    halved because it is causal (Chowdhery et al. 2022, PaLM, appendix B). With a frozen base no weight gradients are
    computed: 4 per parameter. Embedding look-ups cost nothing; a tied head counts once, as a head.

    Args:
        mean_length: tokens of a document, on average: attention stops at its borders.
        trains_all: every weight has a gradient.
    """
    embeddings = model.get_input_embeddings().weight
    head = model.get_output_embeddings()
    parameters = sum(each.numel() for each in model.parameters()) - embeddings.numel()
    if head is not None and head.weight is embeddings:
        parameters += embeddings.numel()
    config = model.config.get_text_config()
    attention = 12 * config.num_hidden_layers * config.hidden_size * mean_length / 2
    per_token: float = (6 if trains_all else 4) * parameters + attention
    return per_token
