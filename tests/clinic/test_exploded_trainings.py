"""What `nan-pulse` proposes for a loss that had exploded, applied: a tenth of the rate.

SGD with momentum on a small regression, at a rate that ends in NaN, on three seeds. `pytest -s`
prints the table.
"""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from sick import SICK
from torch.optim import SGD
from trainings import Result, train

SEEDS = (0, 1, 3)
RATE = 0.9
pytestmark = pytest.mark.slow


def with_rate(rate: float, parameters: Any) -> SGD:
    return SGD(parameters, lr=rate, momentum=0.9)


@cache
def run(seed: int, rate: float) -> Result:
    training = next(t for t in SICK if t.name == "rate too high for SGD")
    return train(replace(training, seed=seed, optimizer=partial(with_rate, rate)))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_tenth_of_the_rate_trains_where_the_loss_had_exploded(seed: int) -> None:
    sick, treated = run(seed, RATE), run(seed, RATE / 10)
    (finding,) = sick.diagnosis.outcomes["nan-pulse"].findings
    if not finding.causes.found:  # else its cause says what to do
        assert "a tenth of the rate" in finding.treatments[0].title
        assert finding.treatments[0].basis == "measured"
    assert not np.isfinite(sick.losses[-1])
    assert np.isfinite(treated.losses).all()
    first, last = treated.losses[0], np.mean(treated.losses[-20:])
    print(f"seed {seed}: NaN at {RATE}; at {RATE / 10:g} the loss goes {first:.2f} -> {last:.2f}")
    assert last < 0.7 * first
    assert not treated.diagnosis.outcomes["nan-pulse"].findings
