"""Percentile clipping against numpy's percentile of the last norms."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from treated import (
    MAKERS,
    Fed,
    Make,
    check_true_units,
    check_undo,
    odd_gradients,
    same,
    small,
    train,
)

from optdoctor.treatments import Refused
from optdoctor.treatments.percentile_clipping import PercentileClipping


def test_percentile_clipping_is_available_and_warns_with_too_few_samples() -> None:
    """H62: percentile clipping (default 99.9 over >= 1000 samples) is available and warns with too
    few samples."""
    fed = Fed(PercentileClipping())
    assert fed.treatment.notes[-1] == (
        "percentile-clipping has 0 of the 1000 norms that it needs, and does not clip before"
    )
    norms = np.random.default_rng(0).lognormal(size=1060)
    norms[:1000:100] *= 50
    for i, norm in enumerate(norms.tolist()):
        used = fed.used(norm)[0]
        window = norms[max(i - 1000, 0) : i]
        limit = np.percentile(window, 99.9, method="lower") if i >= 1000 else math.inf
        assert used == pytest.approx(min(norm, limit), rel=1e-4)
    assert used < norms[:1000].max()
    fed.treatment.undo()


@pytest.mark.parametrize(("percentile", "samples"), [(90.0, 30), (75.0, 8), (50.0, 5), (99.0, 100)])
def test_the_limit_is_the_percentile_of_the_last_norms(percentile: float, samples: int) -> None:
    fed = Fed(PercentileClipping(percentile, samples=samples))
    norms = np.random.default_rng(1).lognormal(size=3 * samples)
    clipped = 0
    for i, norm in enumerate(norms.tolist()):
        used = fed.used(norm)[0]
        limit = math.inf
        if i >= samples:
            limit = np.percentile(norms[i - samples : i], percentile, method="lower")
        clipped += norm > limit
        assert used == pytest.approx(min(norm, limit), rel=1e-4)
    assert clipped
    fed.treatment.undo()
    assert fed.treatment.notes[-1] == f"percentile-clipping clipped {clipped} steps"
    told = [note for note in fed.treatment.notes if "clips at" in note]
    assert len(told) == 1
    first = np.percentile(norms[:samples], percentile, method="lower")
    assert told[0] == f"percentile-clipping clips at {first:.4g} from now"


def test_norms_that_are_not_finite_are_no_samples() -> None:
    fed, quiet = (Fed(PercentileClipping(75.0, samples=8)) for _ in range(2))
    for i, norm in enumerate(np.random.default_rng(2).lognormal(size=20).tolist()):
        assert fed.used(norm) == quiet.used(norm)
        if i % 3 == 0:
            fed.used(math.nan)
            fed.used(math.inf)
            fed.weights[0].data.zero_()
    assert torch.equal(fed.treatment.state_dict()["ring"], quiet.treatment.state_dict()["ring"])


def test_one_spike_does_not_become_the_limit_and_it_leaves_with_the_window() -> None:
    fed = Fed(PercentileClipping(90.0, samples=10))
    for _ in range(10):
        fed.used(1.0)
    assert fed.used(1e6)[0] == pytest.approx(1.0)
    assert fed.used(2.0)[0] == pytest.approx(1.0)
    assert fed.used(2.0)[0] == pytest.approx(2.0), "two of ten are above it now"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"samples": 999}, "999 samples are too few.*at least 1000"),
        ({"percentile": 99.0, "samples": 99}, "at least 100"),
        ({"percentile": 100.0}, "between 0 and 100"),
        ({"percentile": 0.0}, "between 0 and 100"),
        ({"percentile": math.nan}, "between 0 and 100"),
    ],
)
def test_a_percentile_that_would_be_the_maximum_is_refused(options: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        PercentileClipping(**options)


@pytest.mark.parametrize("percentile", [99.0, 99.5, 99.9, 99.99])
def test_the_least_number_of_samples_is_enough(percentile: float) -> None:
    PercentileClipping(percentile, samples=round(100 / (100 - percentile)))


def test_undone_too_early_it_says_what_it_lacked() -> None:
    fed = Fed(PercentileClipping())
    fed.used(1.0)
    fed.treatment.undo()
    assert fed.treatment.notes[-1].endswith("clipped 0 steps: it had seen 1 of 1000 norms")


def test_it_is_refused_where_the_loop_clips_and_where_a_step_takes_its_own_gradients() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    with pytest.raises(Refused, match="this run clips at 1; set max_grad_norm to 0"):
        PercentileClipping().apply(optimizer, facts={"max_grad_norm": 1.0})
    with pytest.raises(Refused, match="LBFGS"):
        PercentileClipping().apply(torch.optim.LBFGS(small().parameters()))


def test_gradients_of_every_kind_are_no_trouble() -> None:
    optimizer, weights = odd_gradients(lambda ps: torch.optim.SGD(ps, lr=0.1))
    clip = PercentileClipping(50.0, samples=4).apply(optimizer)
    for scale in (1.0, 1.0, 1.0, 1.0, 100.0):
        for weight in weights[:-2]:
            weight.grad = torch.full_like(weight, 0.5 * scale)
        optimizer.step()
    assert weights[2].grad[0].item() == pytest.approx(0.5, rel=1e-3)
    clip.undo()
    assert clip.notes[-1] == "percentile-clipping clipped 1 steps"


def test_a_resumed_run_clips_as_one_that_never_stopped() -> None:
    model, other = small(), small()
    optimizer, resumed = (MAKERS["SGD"](m.parameters()) for m in (model, other))
    clip = PercentileClipping(75.0, samples=8).apply(optimizer)
    train(model, optimizer, range(13))
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    again = PercentileClipping(75.0, samples=8).apply(resumed)
    again.load_state_dict(clip.state_dict())
    train(model, optimizer, range(13, 40))
    train(other, resumed, range(13, 40))
    assert same(model, optimizer, other, resumed)
    again.load_state_dict({"ring": torch.ones(3)})  # of other arguments


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_undone_it_is_as_if_it_had_never_been_from_there(make: Make) -> None:
    notes = check_undo(make, PercentileClipping(75.0, samples=8))
    assert int(notes[-1].split()[-2]) > 2


def test_under_a_scale_that_grows_it_clips_in_true_units() -> None:
    notes = check_true_units(*(PercentileClipping(75.0, samples=8) for _ in range(2)))
    assert notes[0] == notes[1]
    assert "clipped 0" not in notes[0]
