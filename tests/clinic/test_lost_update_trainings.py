"""Real small trainings behind the limits and treatments of `update-lost-to-rounding`.

A byte-level language model on the texts that ship with Python: 6 runs sick on purpose (weights in
bfloat16 at small rates, two seeds), their float32 twins, healthy runs of several kinds, and both
treatments applied to every sick run. `pytest -s` prints the table.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import optdoctor
from optdoctor.findings import Diagnosis, Finding, Severity
from optdoctor.rules.update_lost_to_rounding import RULE

CONTEXT, BATCH, STEPS, TAIL = 8, 64, 400, 40
RECOVERED = 1.05
"""Largest final loss, over that of the float32 twin, of a run that recovered."""
RATES, SEEDS = (1e-5, 3e-5, 1e-4), (0, 1)
Schedule = Callable[[int], float]
pytestmark = pytest.mark.slow


class StochasticAdamW(torch.optim.AdamW):
    """AdamW in float32 whose result is rounded to bfloat16 at random, true on average."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr=lr)
        self._wide = [p.detach().float() for g in self.param_groups for p in g["params"]]
        self._inner = torch.optim.AdamW(self._wide, lr=lr)
        self._generator = torch.Generator().manual_seed(0)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        trained = [p for g in self.param_groups for p in g["params"]]
        self._inner.param_groups[0]["lr"] = self.param_groups[0]["lr"]
        for parameter, wide in zip(trained, self._wide, strict=True):
            wide.copy_(parameter.float())
            wide.grad = parameter.grad.float()
        self._inner.step()
        for parameter, wide in zip(trained, self._wide, strict=True):
            bits = wide.view(torch.int32)
            dither = torch.randint(
                1 << 16, bits.shape, generator=self._generator, dtype=torch.int32
            )
            parameter.copy_(((bits + dither) & -(1 << 16)).view(torch.float32))


@dataclass(frozen=True)
class Run:
    final_loss: float
    fall: float
    """By how much the loss fell."""
    shares: np.ndarray
    """[T]: share of unmoved weights at each sample."""
    diagnosis: Diagnosis

    @property
    def finding(self) -> Finding | None:
        return next(iter(self.diagnosis.outcomes[RULE.name].findings), None)


@cache
def _texts() -> torch.Tensor:
    return torch.tensor(list("".join(topics.values())[:300_000].encode()))


def _warm_up(step: int) -> float:
    return min((step + 1) / 200, 1.0)


def _cosine(step: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * step / STEPS))


@cache
def train(
    rate: float,
    seed: int = 0,
    *,
    dtype: torch.dtype = torch.bfloat16,
    make: Any = torch.optim.AdamW,
    autocast: bool = False,
    schedule: Schedule = lambda step: 1.0,
    steps: int = STEPS,
) -> Run:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Embedding(256, 32),
        nn.Flatten(),
        nn.Linear(32 * CONTEXT, 128),
        nn.LayerNorm(128),
        nn.ReLU(),
        nn.Linear(128, 256),
    )
    nn.init.normal_(model[0].weight, std=0.02)
    model = model.to(dtype)
    optimizer = make(model.parameters(), lr=rate)
    generator, losses = torch.Generator().manual_seed(seed), []
    with optdoctor.watch(model, optimizer, out=None, sinks=(), interval=10) as doctor:
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = rate * schedule(step)
            at = torch.randint(len(_texts()) - CONTEXT, (BATCH,), generator=generator)
            inputs = torch.stack([_texts()[a : a + CONTEXT] for a in at])
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                logits = model(inputs)
            loss = nn.functional.cross_entropy(logits.float(), _texts()[at + CONTEXT])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.log(loss=loss)
            losses.append(loss.item())
    trace = doctor.runs[0].trace
    unmoved = np.asarray(trace.series["update_unchanged"].values, np.float64)  # [T, P]
    final = float(np.mean(losses[-TAIL:]))
    return Run(
        final_loss=final,
        fall=losses[0] - final,
        shares=np.nansum(unmoved * trace.num_elements, axis=1) / trace.num_elements.sum(),
        diagnosis=doctor.diagnosis,
    )


def twin(rate: float, seed: int) -> Run:
    return train(rate, seed, dtype=torch.float32)


every_sick_run = [(rate, seed) for rate in RATES for seed in SEEDS]


@pytest.mark.parametrize(("rate", "seed"), every_sick_run)
def test_a_bfloat16_run_at_a_small_rate_is_found_in_its_first_samples(rate, seed):
    run, healthy = train(rate, seed), twin(rate, seed)
    share, harm = float(np.median(run.shares)), run.final_loss / healthy.final_loss
    fall = run.fall / healthy.fall
    print(f"\n{rate:g} {seed}: share {share:.3f}, {harm:.3f} x loss, {fall:.2f} x fall")
    assert run.finding is not None
    assert run.finding.steps[0] <= 11
    assert 1.07 < harm < 1.35
    if share > RULE.limits.total:
        assert run.finding.severity is Severity.CRITICAL
        assert fall < 1 / 3
    else:
        assert run.finding.severity is Severity.WARN


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rate", [1e-3, 2e-3])
def test_a_bfloat16_run_at_a_large_rate_loses_little_and_is_healthy(rate, seed):
    run = train(rate, seed)
    print(f"\n{rate:g} {seed}: share {run.shares.max():.3f}, loss {run.final_loss:.3f}")
    assert {finding.rule for finding in run.diagnosis.findings} == {"half-precision-state"}
    assert run.shares.max() < 0.55
    assert run.final_loss < 1.02 * twin(rate, seed).final_loss


HEALTHY: dict[str, dict[str, Any]] = {
    "float32, 1e-5": {"rate": 1e-5, "dtype": torch.float32},
    "float32 under bfloat16 autocast, 1e-5": {
        "rate": 1e-5,
        "dtype": torch.float32,
        "autocast": True,
    },
    "rounded stochastically, 1e-5": {"rate": 1e-5, "make": StochasticAdamW},
    "rounded stochastically, 1e-4": {"rate": 1e-4, "make": StochasticAdamW},
    "long warm-up": {"rate": 2e-3, "schedule": _warm_up},
    "still in its warm-up": {"rate": 2e-3, "schedule": _warm_up, "steps": 60},
    "cosine to 0": {"rate": 2e-3, "schedule": _cosine},
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_is_silent(name):
    run = train(**HEALTHY[name])
    print(f"\n{name}: shares up to {run.shares.max():.3f}, loss {run.final_loss:.3f}")
    assert run.finding is None


def test_the_look_alikes_do_leave_as_many_weights_where_they_are():
    for name in ("rounded stochastically, 1e-5", "still in its warm-up", "cosine to 0"):
        assert train(**HEALTHY[name]).shares.max() > RULE.limits.share, name


@pytest.mark.parametrize(("rate", "seed"), every_sick_run)
def test_float32_weights_under_autocast_recover(rate, seed):
    treated = train(rate, seed, dtype=torch.float32, autocast=True)
    assert treated.finding is None
    assert treated.final_loss < RECOVERED * twin(rate, seed).final_loss


@pytest.mark.parametrize(("rate", "seed"), every_sick_run)
def test_stochastic_rounding_recovers(rate, seed):
    treated = train(rate, seed, make=StochasticAdamW)
    print(f"\n{rate:g} {seed}: {treated.final_loss / twin(rate, seed).final_loss:.3f} x loss")
    assert treated.finding is None
    assert treated.final_loss < RECOVERED * twin(rate, seed).final_loss
