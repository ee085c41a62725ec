import pytest
import torch

from ascendtune.recipe.sections import OptimSection
from ascendtune.train.optimizer import Schedule


@pytest.mark.parametrize("scheduler", ["linear", "cosine", "constant"])
@pytest.mark.parametrize("warmup", [0, 7])
def test_rates_are_those_of_transformers(scheduler, warmup):
    from transformers import get_scheduler

    name = "constant_with_warmup" if scheduler == "constant" else scheduler
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=3e-4)
    theirs = get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=50)
    ours = Schedule(OptimSection(scheduler=scheduler, warmup_steps=warmup), 3e-4, 50)
    for step in range(50):
        assert ours.learning_rate(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12), step
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize(("scheduler", "at_a_quarter"), [("linear", 0.775), ("cosine", 0.1 + 0.9 * 0.8535533906)])
def test_the_floor_is_a_share_of_the_peak(scheduler, at_a_quarter):
    section = OptimSection(scheduler=scheduler, min_learning_rate_ratio=0.1)
    rates = [Schedule(section, 2.0, 100).learning_rate(step) for step in range(101)]
    assert rates[0] == 2 and rates[25] == pytest.approx(2 * at_a_quarter)
    assert rates[50] == pytest.approx(1.1) and rates[100] == pytest.approx(0.2)
    assert min(rates) == rates[100]


def test_warm_up_as_a_ratio_is_rounded_up():
    assert Schedule(OptimSection(warmup_ratio=0.05), 1.0, 30).warmup_steps == 2
