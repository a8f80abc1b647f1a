"""Rates by layer: bounds and mean, what they are of, when they move, that they leave no trace."""

import copy
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import prodigyopt
import pytest
import pytorch_optimizer
import schedulefree
import torch
from rated_runs import (
    Blocks,
    blocks,
    each_optimizer,
    goes_on_untreated,
    leaves_schedules_alone,
    parameters_of,
    step,
)
from torch import nn

import optdoctor
from optdoctor.treatments import Refused
from optdoctor.treatments.layer_balance import SLACK, Balance, balanced
from optdoctor.treatments.layer_rates import LayerRates
from optdoctor.treatments.layer_units import SAMPLED, Movement, sample, units_of


def uneven(spread: float = 8.0) -> tuple[Blocks, Any]:
    """Three blocks with rates that differ by hand: 1, `spread` and 1 / `spread` times the first."""
    model = blocks()
    rates = (1e-3, 1e-3 * spread, 1e-3 / spread)
    groups = [{"params": b.parameters(), "lr": r} for b, r in zip(model.blocks, rates, strict=True)]
    return model, torch.optim.Adam(groups)


def mean_of_logs(rates: LayerRates) -> float:
    logs = [math.log(f) for f in rates.multipliers.values()]
    return sum(logs) / len(logs)


def test_layer_rates_stay_in_a_bounded_positive_range_with_mean_near_1_and_revert_cleanly() -> None:
    """H64: Per-layer LR scaling keeps multipliers in a bounded positive range, mean near 1, and
    reverts cleanly."""
    model, optimizer = uneven()
    rates = LayerRates(every=2).apply(optimizer, model)
    seen = []
    for number in range(120):
        step(model, optimizer, number)
        assert all(0.5 <= f <= 2.0 for f in rates.multipliers.values())
        assert mean_of_logs(rates) == pytest.approx(0.0, abs=1e-9)
        seen.append(tuple(rates.multipliers.values()))
    assert seen[0] == (1.0, 1.0, 1.0)
    first, fast, slow = seen[-1]
    assert fast < 0.65
    assert slow > 1.5
    assert 0.9 < first < 1.1
    other = copy.deepcopy(model)
    rates.undo()
    untreated = torch.optim.Adam([{"params": b.parameters()} for b in other.blocks])
    untreated.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for number in range(120, 140):
        step(model, optimizer, number)
        step(other, untreated, number)
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    assert [g["lr"] for g in optimizer.param_groups] == [1e-3, 8e-3, 1e-3 / 8]


def test_an_update_is_multiplied_by_the_factor_of_its_layer_and_no_other() -> None:
    model, twin = blocks(), blocks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    plain = torch.optim.SGD(twin.parameters(), lr=0.01)
    rates = LayerRates().apply(optimizer, model)
    factors = dict(zip(rates.multipliers, (0.5, 2.0, 0.8, 1.25), strict=False))
    state = rates.state_dict()
    for name, factor in factors.items():
        state["layers"][name][0] = math.log(factor)
    rates.load_state_dict(state)
    assert rates.multipliers == pytest.approx({**rates.multipliers, **factors})
    before = copy.deepcopy(model)
    step(model, optimizer, 0)
    step(twin, plain, 0)
    units = units_of(model, list(model.parameters()))
    for name, parameter in model.named_parameters():
        start, alone = before.get_parameter(name), twin.get_parameter(name)
        factor = rates.multipliers[units[id(parameter)]] if id(parameter) in units else 1.0
        assert torch.allclose(parameter - start, factor * (alone - start), rtol=1e-3, atol=1e-7)
    assert len({units[id(p)] for p in model.parameters() if id(p) in units}) >= 4


def test_layers_that_differ_by_less_than_the_slack_are_left_alone() -> None:
    balance = Balance(4, math.log(0.5), math.log(2), alpha=0.5)
    for _ in range(50):
        balance.learn([(1e-3 * f, 1.0) for f in (1.0, 1.3, 0.8, 1.1)])
        assert not balance.move()
    assert balance.logs == [0.0] * 4


def test_rates_move_only_after_three_looks_in_a_row_and_slowly() -> None:
    balance = Balance(3, math.log(0.5), math.log(2), alpha=0.5)
    moved, logs = [], []
    for _ in range(40):
        factors = [math.exp(log) for log in balance.logs]
        ratios = [1e-3 * f for f in (1.0, 9.0, 1 / 9)]
        balance.learn([(r * f, 1.0) for r, f in zip(ratios, factors, strict=True)])
        moved.append(balance.move())
        logs.append(list(balance.logs))
    assert moved[:3] == [False, False, True]
    assert logs[2] == pytest.approx([0.0, -0.2 * math.log(2), 0.2 * math.log(2)])
    steps = [abs(b - a) for x, y in pairwise(logs) for a, b in zip(x, y, strict=True)]
    assert max(steps) <= 0.2 * math.log(2) + 1e-9
    assert not any(moved[-20:]), "once near what is wished nothing moves"
    assert logs[-1][1] < -0.4


def test_what_is_compared_is_the_movement_at_the_rate_of_the_user() -> None:
    balance = Balance(3, math.log(0.5), math.log(2), alpha=0.5)
    for _ in range(60):
        factors = [math.exp(log) for log in balance.logs]
        ratios = [1e-3 * f for f in (1.0, 3.0, 1 / 3)]
        balance.learn([(r * f, 1.0) for r, f in zip(ratios, factors, strict=True)])
        balance.move()
    wish = 0.5 * math.log(3)
    assert balance.wishes() == pytest.approx([0.0, -wish, wish])
    assert wish - SLACK <= balance.logs[2] <= wish


def test_one_odd_look_moves_nothing() -> None:
    balance = Balance(3, math.log(0.5), math.log(2), alpha=0.5)
    for number in range(60):
        odd = 4.0 if number % 15 == 7 else 1.0
        balance.learn([(1e-3 * odd, 1.0), (1e-3, 1.0), (1e-3, 1.0)])
        assert not balance.move()


def test_a_layer_that_stands_still_or_is_near_zero_keeps_its_rate() -> None:
    balance = Balance(4, math.log(0.5), math.log(2), alpha=0.5)
    for _ in range(30):
        balance.learn([(1e-3, 1.0), (1e-2, 1.0), (0.0, 1.0), (1.0, 0.05)])
        balance.move()
    assert balance.logs[2:] == [0.0, 0.0]
    assert balance.logs[0] == pytest.approx(-balance.logs[1])
    assert balance.logs[1] < -0.2


@pytest.mark.parametrize("seed", range(20))
def test_wishes_are_within_bounds_and_balanced_however_far_they_go(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    wanted: list[float | None] = (torch.randn(7, generator=generator) * 3).tolist()
    wanted[3] = None
    found = balanced(wanted, math.log(0.5), math.log(3))
    assert all(math.log(0.5) <= one <= math.log(3) for one in found)
    assert sum(found) == pytest.approx(0.0, abs=1e-9)
    assert found[3] == 0
    order = [found[i] for i in sorted((0, 1, 2, 4, 5, 6), key=lambda i: wanted[i] or 0.0)]
    assert order == sorted(order)


def test_a_layer_is_what_a_block_has_of_one_kind_or_a_module_outside_of_blocks() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn = nn.MultiheadAttention(8, 2)
            self.mlp = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
            self.ln = nn.LayerNorm(8)

    model = nn.Module()
    model.wte = nn.Embedding(20, 8)
    model.h = nn.ModuleList([Block(), Block()])
    model.fc1 = nn.Linear(8, 8)
    model.tiny = nn.Linear(8, 2)
    model.lm_head = nn.Linear(8, 20)
    units = units_of(model, list(model.parameters()))
    names = {n: units.get(id(p)) for n, p in model.named_parameters()}
    assert {n for n, unit in names.items() if unit == "h.1 attention"} == {
        "h.1.attn.in_proj_weight",
        "h.1.attn.in_proj_bias",
        "h.1.attn.out_proj.weight",
        "h.1.attn.out_proj.bias",
    }
    assert names["h.0.mlp.2.bias"] == names["h.0.mlp.0.weight"] == "h.0 mlp"
    assert names["fc1.weight"] == names["fc1.bias"] == "fc1"
    without = ("wte.weight", "h.0.ln.weight", "tiny.weight", "tiny.bias", "lm_head.weight")
    assert all(names[name] is None for name in without)


def test_movement_is_the_change_over_the_size_of_the_weights() -> None:
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(*shape)) for shape in ((10, 10), (20, 40), (16, 16))]
    units = dict(zip(map(id, weights), ("a", "a", "b"), strict=True))
    movement = Movement(units, weights)
    movement.keep()
    before = [w.detach().clone() for w in weights]
    with torch.no_grad():
        for weight in weights:
            weight += 0.01 * torch.randn_like(weight)
    (first, size), (second, _) = movement.ratios()
    both = [torch.cat([t.detach().flatten() for t in several[:2]]) for several in (weights, before)]
    assert first == pytest.approx(float((both[0] - both[1]).norm() / both[1].norm()), rel=1e-5)
    assert size == pytest.approx(float(both[1].square().mean().sqrt()), rel=1e-5)
    assert second == pytest.approx(
        float((weights[2] - before[2]).detach().norm() / before[2].norm()), rel=1e-5
    )


def test_what_a_look_keeps_of_a_tensor_is_bounded() -> None:
    for shape in ((64, 64), (64, 65), (1000, 1000)):
        kept = sample(torch.zeros(shape, dtype=torch.bfloat16))
        assert kept.dtype == torch.float32
        assert SAMPLED / 2 < kept.numel() <= SAMPLED


def test_a_change_is_told_with_numbers() -> None:
    model, optimizer = uneven()
    rates = LayerRates(every=1).apply(optimizer, model)
    for number in range(40):
        step(model, optimizer, number)
    assert 1 <= len(rates.notes) <= 15
    assert rates.notes[0].startswith("layer-rates: the rate of blocks.")
    rates.undo()
    assert rates.notes[-1].startswith("layer-rates leaves: rates of layers go from 0.6 to 1.67")
    assert rates.multipliers == {}


def test_a_resumed_one_goes_on_where_it_was() -> None:
    model, optimizer = uneven()
    first = LayerRates(every=2).apply(optimizer, model)
    for number in range(25):
        step(model, optimizer, number)
    other = copy.deepcopy(model)
    resumed = torch.optim.Adam([{"params": b.parameters()} for b in other.blocks])
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    second = LayerRates(every=2).apply(resumed, other)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for number in range(25, 50):
        step(model, optimizer, number)
        step(other, resumed, number)
    assert first.multipliers == second.multipliers
    assert min(first.multipliers.values()) < 0.8
    assert all(map(torch.equal, model.parameters(), other.parameters()))


def test_a_state_of_other_layers_is_not_taken() -> None:
    model, optimizer = uneven()
    rates = LayerRates().apply(optimizer, model)
    rates.load_state_dict({})
    rates.load_state_dict({"taken": 3, "layers": {"h.0 mlp": [0.5, 0.0, None, 0]}})
    assert set(rates.multipliers.values()) == {1.0}


def test_while_all_factors_are_1_the_run_is_bit_identical_to_an_untreated_one() -> None:
    model, other = blocks(), blocks()
    optimizer = torch.optim.AdamW(parameters_of(model))
    untreated = torch.optim.AdamW(parameters_of(other))
    LayerRates(every=1000).apply(optimizer, model)
    for number in range(10):
        step(model, optimizer, number)
        step(other, untreated, number)
    assert all(map(torch.equal, model.parameters(), other.parameters()))


def test_the_groups_are_whole_again_after_a_step_that_fails() -> None:
    model, optimizer = uneven()
    rates = LayerRates().apply(optimizer, model)
    groups = list(optimizer.param_groups)

    def broken() -> Any:
        raise RuntimeError("no loss")

    with pytest.raises(RuntimeError, match="no loss"):
        optimizer.step(broken)
    rates.undo()
    assert all(a is b for a, b in zip(optimizer.param_groups, groups, strict=True))


def test_a_doctor_watches_a_run_with_layer_rates(tmp_path: Path) -> None:
    model, optimizer = uneven()
    rates = LayerRates(every=2)
    with optdoctor.watch(model, optimizer, out=tmp_path, treat=[rates]) as doctor:
        for number in range(30):
            doctor.log(loss=step(model, optimizer, number))
        assert rates.applied
        assert min(rates.multipliers.values()) < 0.8
    assert not rates.applied
    assert len(optimizer.param_groups) == 3


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda ps: torch.optim.LBFGS(list(ps)), "moves all along one direction"),
        (lambda ps: prodigyopt.Prodigy(ps), "estimates one for all"),
        (lambda ps: pytorch_optimizer.Prodigy(ps), "estimates one for all"),
        (lambda ps: pytorch_optimizer.DAdaptAdam(ps), "estimates one for all"),
        (lambda ps: pytorch_optimizer.DAdaptSGD(ps), "estimates one for all"),
        (lambda ps: schedulefree.AdamWScheduleFree(ps), "averages the weights of a group"),
        (lambda ps: torch.optim.Rprop(ps), "reads its own only at the first step"),
    ],
)
def test_optimizers_with_something_of_all_tensors_are_refused(make: Any, why: str) -> None:
    model = blocks()
    optimizer = make(model.parameters())
    with pytest.raises(Refused, match=why):
        LayerRates().apply(optimizer, model)
    assert not optimizer._optimizer_step_pre_hooks


def test_one_layer_and_no_model_are_refused() -> None:
    model = blocks()
    optimizer = torch.optim.AdamW(model.blocks[0].parameters())
    with pytest.raises(Refused, match=r"the optimizer has only blocks\.0 other"):
        LayerRates().apply(optimizer, model)
    with pytest.raises(Refused, match="give it the model"):
        LayerRates().apply(torch.optim.AdamW(model.parameters()))
    with pytest.raises(Refused, match="has none"):
        LayerRates().apply(torch.optim.AdamW(model.norm.parameters()), model)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"floor": 0.0}, "must be around 1 and above 0"),
        ({"ceiling": 1.0}, "must be around 1 and above 0"),
        ({"alpha": 1.5}, "alpha must be above 0"),
        ({"every": 0}, "every must be at least 1"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(options: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        LayerRates(**options)


@each_optimizer
def test_after_undo_the_run_is_bit_identical_to_one_that_goes_on_untreated(make: Any) -> None:
    goes_on_untreated(LayerRates(every=1), make)


@each_optimizer
def test_schedules_are_left_alone(make: Any) -> None:
    leaves_schedules_alone(lambda: LayerRates(every=3), make)


def test_half_precision_weights_have_rates_by_layer_too() -> None:
    model, _ = uneven()
    model.bfloat16()
    groups = [
        {"params": b.parameters(), "lr": r} for b, r in zip(model.blocks, (1, 9, 1), strict=True)
    ]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    rates = LayerRates(every=1).apply(optimizer, model)
    for number in range(30):
        for parameter in model.parameters():
            generator = torch.Generator().manual_seed(number)
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.grad = (0.01 * noise).bfloat16()
        optimizer.step()
    assert rates.multipliers["blocks.1 other"] < 0.75
    assert all(math.isfinite(f) for f in rates.multipliers.values())
