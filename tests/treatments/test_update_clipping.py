"""Update clipping against StableAdamW's own arithmetic, tensor by tensor."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from treated import MAKERS, Make, check_true_units, check_undo, odd_gradients, same, small, step

from optdoctor.treatments import Refused
from optdoctor.treatments.update_clipping import UpdateClipping

LR, BETAS, EPS, DECAY = 1e-2, (0.9, 0.99), 1e-8, 0.1


def ordinary(model: nn.Module, optimizer: Any, number: int, spike: float = 1.0) -> None:
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(number))
    optimizer.zero_grad()
    (model(inputs) - 1).square().mean().backward()
    model[0].weight.grad.mul_(spike)
    optimizer.step()


class Slowly:
    """AdamW with a rate for each tensor, as the paper's algorithm 2 has it, in float64."""

    def __init__(self, weights: list[Tensor], threshold: float) -> None:
        self.weights = [w.detach().double() for w in weights]
        self.m = [torch.zeros_like(w) for w in self.weights]
        self.v = [torch.zeros_like(w) for w in self.weights]
        self.threshold, self.t, self.largest = threshold, 0, 0.0

    def step(self, gradients: list[Tensor]) -> None:
        self.t += 1
        b1, b2 = BETAS
        for i, g in enumerate(g.detach().double() for g in gradients):
            self.m[i] = b1 * self.m[i] + (1 - b1) * g
            self.v[i] = b2 * self.v[i] + (1 - b2) * g.square()
            m, v = self.m[i] / (1 - b1**self.t), self.v[i] / (1 - b2**self.t)
            rms = (g.square() / v.clamp(min=EPS**2)).mean().sqrt().item()
            self.largest = max(self.largest, rms)
            rate = LR / max(1.0, rms / self.threshold)
            self.weights[i] = self.weights[i] * (1 - rate * DECAY) - rate * m / (v.sqrt() + EPS)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("threshold", [1.0, 2.5])
def test_the_rate_of_a_tensor_falls_as_the_paper_has_it(threshold: float, fused: bool) -> None:
    model = small()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, fused=fused
    )
    clip = UpdateClipping(threshold).apply(optimizer, model)
    slowly = Slowly(list(model.parameters()), threshold)
    for number in range(25):
        ordinary(model, optimizer, number, 20.0 if number in (12, 18) else 1.0)
        slowly.step([p.grad for p in model.parameters()])
    for weight, expected in zip(model.parameters(), slowly.weights, strict=True):
        assert torch.allclose(weight.double(), expected, rtol=1e-4, atol=1e-6)
    assert slowly.largest > 2.9
    clip.undo()
    assert f"the largest RMS was {slowly.largest:.3g}" in clip.notes[-1]
    assert "most often of 0." in clip.notes[-1] or threshold == 1.0


def test_below_its_threshold_it_changes_no_bit() -> None:
    model, other = small(), small()
    optimizer, plain = (MAKERS["AdamW"](m.parameters()) for m in (model, other))
    clip = UpdateClipping(1000.0).apply(optimizer)
    for number in range(15):
        step(model, optimizer, number)
        step(other, plain, number)
    assert same(model, optimizer, other, plain)
    clip.undo()
    assert not clip.notes


def test_groups_and_their_rates_are_the_users_between_steps() -> None:
    model = small()
    optimizer = torch.optim.AdamW(
        [{"params": model[0].parameters(), "lr": 1e-3}, {"params": model[2].parameters()}], lr=1e-2
    )
    UpdateClipping(1.0).apply(optimizer)
    groups = list(optimizer.param_groups)
    for number in range(10):
        ordinary(model, optimizer, number, 20.0 if number == 5 else 1.0)
        assert all(a is b for a, b in zip(optimizer.param_groups, groups, strict=True))
        assert [group["lr"] for group in groups] == [1e-3, 1e-2]


def test_under_a_scale_that_grows_it_measures_in_true_units() -> None:
    notes = check_true_units(UpdateClipping(1.5), UpdateClipping(1.5))
    assert notes[0] == notes[1]
    assert "lowered the rate" in notes[0]


def test_a_count_that_is_a_number_is_as_good_as_a_tensor() -> None:
    kinds = (torch.optim.AdamW, pytest.importorskip("bitsandbytes").optim.AdamW)
    told = []
    for kind in kinds:
        model = small()
        optimizer = kind(list(model.parameters()), lr=1e-4, betas=BETAS, weight_decay=0.0)
        clip = UpdateClipping(1.5).apply(optimizer, model)
        for number in range(5):
            ordinary(model, optimizer, number, 20.0 if number == 4 else 1.0)
        clip.undo()
        told.append(clip.notes[-1])
    assert told[0] == told[1]


@pytest.mark.parametrize(
    "make",
    [
        lambda ps: torch.optim.NAdam(ps, lr=1e-2),
        lambda ps: torch.optim.RAdam(ps, lr=1e-2),
        lambda ps: torch.optim.Adam(ps, lr=1e-2, amsgrad=True),
        lambda ps: torch.optim.Adam(ps, lr=torch.tensor(1e-2), weight_decay=0.1),
        lambda ps: pytest.importorskip("bitsandbytes").optim.AdamW8bit(ps, lr=1e-2),
        lambda ps: pytest.importorskip("pytorch_optimizer").AdEMAMix(ps, lr=1e-2),
    ],
    ids=["NAdam", "RAdam", "amsgrad", "a rate that is a tensor", "8 bits", "AdEMAMix"],
)
def test_kin_of_adam_are_clipped_too(make: Make) -> None:
    model = small()
    optimizer = make(list(model.parameters()))
    clip = UpdateClipping().apply(optimizer, model)
    for number in range(30):
        ordinary(model, optimizer, number, 100.0 if number == 20 else 1.0)
    assert clip.applied, list(clip.notes)
    clip.undo()
    assert "most often of 0.weight" in clip.notes[-1]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (MAKERS["SGD"], "SGD keeps none that it knows; use adaptive-clipping"),
        (MAKERS["sign"], "SignOfMomentum keeps none that it knows"),
        (MAKERS["Adafactor"], "Adafactor clips its updates by itself"),
        (torch.optim.Adamax, "Adamax keeps none"),
        (torch.optim.RMSprop, "RMSprop keeps none"),
        (torch.optim.LBFGS, "LBFGS takes them within it"),
    ],
)
def test_optimizers_without_a_mean_of_squares_are_refused(make: Make, why: str) -> None:
    optimizer = make(list(small().parameters()))
    with pytest.raises(Refused, match=why):
        UpdateClipping().apply(optimizer)
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize("threshold", [0.9, float("inf"), float("nan")])
def test_a_threshold_below_one_is_refused(threshold: float) -> None:
    with pytest.raises(ValueError, match="threshold must be at least 1"):
        UpdateClipping(threshold)


def test_gradients_of_every_kind_are_no_trouble() -> None:
    optimizer, weights = odd_gradients(lambda ps: torch.optim.AdamW(ps, lr=0.1, foreach=False))
    clip = UpdateClipping(1.0).apply(optimizer)
    for number in range(5):
        optimizer.step()
        for weight in weights[:-2]:
            weight.grad = torch.full_like(weight, 0.5 * 10.0**number)
    assert clip.applied, list(clip.notes)
    groups = optimizer.param_groups
    assert len(groups) == 2
    assert [id(p) for p in groups[0]["params"]] == [id(w) for w in weights]


@pytest.mark.parametrize("name", ["AdamW", "fused AdamW"])
def test_undone_it_is_as_if_it_had_never_been_from_there(name: str) -> None:
    assert "lowered the rate" in check_undo(MAKERS[name], UpdateClipping())[-1]
