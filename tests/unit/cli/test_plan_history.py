"""The table of `ascendtune plan --history`."""

from __future__ import annotations

import pytest

from ascendtune.cli import plan_time, terminal
from ascendtune.train.plan.history import Features, PastRun, new_run


def run(device: str, seconds: float) -> PastRun:
    features = Features("deepseek_v3", 1_234_567_890, 5, "preference", "lora", "bf16", "fsdp", False, 4096, 128)
    return new_run(
        device, "npu", features, flops_per_second=1e12, step_seconds=seconds, predicted_seconds=1.1, peak_bytes=1 << 36,
        predicted_bytes=1 << 35,
    )  # fmt: skip


@pytest.mark.parametrize("columns", [60, 80])
def test_past_runs_fit_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    for module in (terminal, plan_time):
        monkeypatch.setattr(module, "width", lambda _: columns)
    names = ["Ascend 910B3", "Intel(R) Xeon(R) Platinum 8480CL Processor with a long name @ 2.50GHz"]
    text = plan_time.history_text([run(names[0], 1.0), run(names[1], 2.0)])
    assert max(map(len, text.splitlines())) <= columns
    # The newest first, each device once; what is left out is not the error.
    assert text.index("Xeon") < text.index("910B3")
    assert text.count("-45.0%") == 2 and text.count("-50.0%") == 3


def test_past_runs_in_a_pipe_have_all_columns() -> None:
    text = plan_time.history_text([run("card", 1.0)])
    assert "128 × fsdp" in text and "preference lora" in text and "64.0 GiB" in text
