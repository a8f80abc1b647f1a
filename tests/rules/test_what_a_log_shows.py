"""Rules that look at tensors find some illnesses in a log too: by rates, norms and settings."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Severity, Status
from optdoctor.rules import RULES
from optdoctor.synthetic import falling_loss, gradient_norms, make_trace, small_gpt
from optdoctor.trace import Trace

RULE = {rule.name: rule for rule in RULES}
STEPS = np.arange(10, 301, 10)
ROWS = STEPS.size
FLAT = 2.3 + 0.01 * np.sin(np.arange(ROWS))
BACK = FLAT * np.where(STEPS > 100, 1.0, 0.7)
"""A loss that had fallen, and came back."""


def log(**channels: Any) -> Trace:
    """A run of AdamW on ten classes, of which each tenth update is logged."""
    usual: dict[str, Any] = {
        "loss": falling_loss(ROWS, start=2.3, end=0.2, noise=0.05),
        "lr": np.full(ROWS, 1e-3),
        "grad_norm": gradient_norms(ROWS),
        "optimizer": "AdamW",
        "optimizer_family": "adam",
        "beta2": 0.999,
        "eps": 1e-8,
        "weight_decay": 0.1,
        "num_parameters": 10_000,
        "num_classes": 10,
        "loss_base": "nats",
        "total_steps": 300,
        "max_grad_norm": 0.0,
    }
    given = usual | channels
    steps = {name: STEPS for name, value in given.items() if isinstance(value, np.ndarray)}
    return make_trace(given, steps=steps)


def kept(growth: float, noise: float) -> np.ndarray:
    """Gradient norms that grow from the tenth row on, as a sum of all gradients does, or not."""
    norms = gradient_norms(ROWS)
    rng = np.random.default_rng(1)
    rows = np.arange(ROWS - 10)
    grown = 2.0 * growth ** (rows / rows[-1])
    norms[10:] = grown * np.exp(noise * rng.standard_normal(rows.size))
    return norms


SICK = {
    "decay-shrinks-weights": log(weight_decay=60.0),
    "epsilon-dominates": log(eps=0.1, loss=FLAT),
    "learning-rate-absurd": log(lr=np.full(ROWS, 0.5), loss=FLAT),
    "step-too-small": log(lr=np.full(ROWS, 1e-6), loss=FLAT),
    "clipping-too-low": log(
        optimizer="SGD", optimizer_family="sgd", max_grad_norm=1e-3, lr=np.full(ROWS, 0.1)
    ),
    "gradients-not-zeroed": log(grad_norm=kept(100.0, 0.01), loss=BACK),
    "gradient-abnormal-at-start": log(
        loss=np.concatenate([[1e6, 1e4, 100.0], FLAT[3:]]),
        grad_norm=np.concatenate([[1e7, 1e5, 1e3], gradient_norms(ROWS)[3:]]),
    ),
    "nothing-trainable": log(num_parameters=0, grad_norm=np.zeros(ROWS)),
}
"""{rule: a log in which it finds its illness}."""
SOUND = {
    "decay-shrinks-weights": log(weight_decay=10.0),
    "epsilon-dominates": log(eps=1e-3, loss=FLAT),
    "learning-rate-absurd": log(lr=np.full(ROWS, 0.05), loss=FLAT),
    "step-too-small": log(lr=np.full(ROWS, 1e-6)),  # it learns all the same
    "gradients-not-zeroed": log(grad_norm=kept(100.0, 0.3), loss=BACK),  # noise, as of batches
    "gradient-abnormal-at-start": log(  # targets a thousand times too large
        num_classes=None,
        loss=np.concatenate([[1e6, 1e5, 1e4], FLAT[3:]]),
        grad_norm=np.concatenate([[1e3, 1e3, 1e2], gradient_norms(ROWS)[3:]]),
    ),
    "second-moment-stale": log(grad_norm=np.where(STEPS == 250, 9.0, 1.0) * gradient_norms(ROWS)),
}
"""{rule: a log that looks like it and is sound}."""


@pytest.mark.parametrize("name", SICK)
def test_a_log_shows_the_illness(name: str) -> None:
    outcome = examine(RULE[name], SICK[name])
    assert outcome.status is Status.FOUND, outcome.reason or outcome.missing
    (finding,) = outcome.findings
    assert finding.severity is not Severity.NOTE
    assert finding.treatments


@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_found_in_a_sound_log_and_nothing_is_ruled_out(name: str) -> None:
    outcome = examine(RULE[name], SOUND[name])
    assert outcome.findings == ()
    assert outcome.status is Status.SKIPPED
    assert outcome.missing


@pytest.mark.parametrize("name", [name for name in SICK if RULE[name].on_log])
def test_where_tensors_are_known_they_decide(name: str) -> None:
    outcome = examine(RULE[name], replace(SICK[name], tensors=small_gpt()))
    assert outcome.findings == ()


def test_no_sound_log_is_called_sick_by_any_of_them() -> None:
    found = [f.summary for rule in RULES if rule.on_log for f in examine(rule, log()).findings]
    assert found == []


def test_gradients_that_grow_a_thousandfold_are_beyond_what_the_moment_remembers() -> None:
    grown = log(grad_norm=np.where(STEPS > 240, 1.0, 1e-3) * gradient_norms(ROWS))
    (finding,) = examine(RULE["second-moment-stale"], grown).findings
    assert finding.steps[0] == 250
    assert finding.evidence[0].observed == pytest.approx(5, rel=0.1)  # sqrt((1-0.999^250)/10) of it
    assert finding.awaits_symptom


def test_a_run_at_an_unheard_rate_that_learns_is_a_note() -> None:
    (finding,) = examine(RULE["learning-rate-absurd"], log(lr=np.full(ROWS, 0.5))).findings
    assert finding.severity is Severity.NOTE
    assert finding.awaits_symptom


def test_a_restless_loss_that_never_beats_a_guess_stands_still() -> None:
    swings = np.exp(0.05 * np.where(np.arange(ROWS) % 2, 1, -1))
    (finding,) = examine(RULE["early-plateau"], log(loss=2.31 * swings)).findings
    assert "a guess among the classes has 2.303" in finding.summary
    learns = log(loss=np.geomspace(2.31, 1.9, ROWS) * swings)
    assert not any("guess" in f.summary for f in examine(RULE["early-plateau"], learns).findings)


def test_a_curve_of_few_weights_may_be_fitted_at_any_rate() -> None:
    few = log(lr=np.full(ROWS, 0.5), loss=FLAT, num_parameters=20)
    assert examine(RULE["learning-rate-absurd"], few).findings == ()


def test_lion_bears_a_third() -> None:
    lion = log(lr=np.full(ROWS, 0.05), loss=FLAT, optimizer="Lion", optimizer_family="lion")
    (finding,) = examine(RULE["learning-rate-absurd"], lion).findings
    assert finding.severity is Severity.WARN


def test_an_epsilon_with_a_rate_of_its_own_is_a_note() -> None:
    meant = log(eps=0.1, loss=FLAT, lr=np.full(ROWS, 0.05))
    (finding,) = examine(RULE["epsilon-dominates"], meant).findings
    assert finding.severity is Severity.NOTE


@pytest.mark.parametrize("loss", [FLAT, falling_loss(ROWS, start=2.3, end=1.2, noise=0.01)])
def test_a_gradient_that_grows_while_the_loss_stands_or_falls_is_no_sum(loss: np.ndarray) -> None:
    """As that of layers which begin at zero."""
    assert examine(RULE["gradients-not-zeroed"], log(grad_norm=kept(100.0, 0.01), loss=loss)) == (
        examine(RULE["gradients-not-zeroed"], log())
    )


def test_a_loss_that_explodes_with_its_gradient_is_no_sum() -> None:
    together = log(grad_norm=kept(100.0, 0.01), loss=2.3 * kept(100.0, 0.01))
    assert examine(RULE["gradients-not-zeroed"], together).findings == ()


def test_sgd_that_cannot_get_anywhere_is_found_by_its_gradients() -> None:
    slow = log(optimizer="SGD", optimizer_family="sgd", lr=np.full(ROWS, 1e-5), loss=FLAT)
    (finding,) = examine(RULE["step-too-small"], slow).findings
    assert finding.severity is Severity.WARN


def test_a_fine_tune_that_moves_little_is_a_note() -> None:
    tuned = log(lr=np.full(ROWS, 1e-6), loss=FLAT / 4)
    (finding,) = examine(RULE["step-too-small"], tuned).findings
    assert finding.severity is Severity.NOTE
