"""Several treatments of rates at once: their factors multiply, and each gives its own back."""

import copy

import pytest
import torch
from rated_runs import Seen, blocks, falling, held, parameters_of, same, step

from optdoctor.treatments.layer_rates import LayerRates
from optdoctor.treatments.momentum_warmup import MomentumWarmup
from optdoctor.treatments.plateau_decay import PlateauDecay
from optdoctor.treatments.slow_warmup import SlowWarmup
from optdoctor.treatments.warmup_restart import WarmupRestart


@pytest.mark.parametrize("layers_first", [True, False])
def test_factors_of_several_multiply(layers_first: bool) -> None:
    model = blocks()
    optimizer = torch.optim.SGD(parameters_of(model), lr=0.01, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, falling)
    decay = PlateauDecay(patience=0)
    several = [WarmupRestart(10), decay, SlowWarmup(20, shape="slow"), MomentumWarmup(10)]
    several.insert(0 if layers_first else 4, LayerRates(every=2))
    seen = Seen(optimizer)
    for one in several:
        one.apply(optimizer, model)
    decay.observe({"eval_loss": 1.0})
    decay.observe({"eval_loss": 1.0})
    slow = SlowWarmup(20, shape="slow")
    for number in range(8):
        groups = list(optimizer.param_groups)
        step(model, optimizer, number)
        assert all(a is b for a, b in zip(optimizer.param_groups, groups, strict=True))
        for group in optimizer.param_groups:
            assert group["lr"] == 0.01 * falling(number)
            assert group["momentum"] == 0.9
        schedule.step()
    k = range(1, 9)
    expected = [0.01 * falling(n - 1) * n / 10 * 0.5 * slow.share(n / 20) for n in k]
    assert seen.of("lr") == pytest.approx(expected), "no layer of the first part has moved yet"
    assert seen.of("momentum") == pytest.approx([0.9 * n / 10 for n in k])
    for one in several[::2] + several[1::2]:
        one.undo()
    twin = blocks()
    untreated = torch.optim.SGD(parameters_of(twin), lr=0.01, momentum=0.9)
    twin.load_state_dict(model.state_dict())
    untreated.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for number in range(8, 20):
        step(model, optimizer, number)
        step(twin, untreated, number)
    assert all(map(torch.equal, model.parameters(), twin.parameters()))
    assert all(map(same, held(optimizer), held(untreated)))
