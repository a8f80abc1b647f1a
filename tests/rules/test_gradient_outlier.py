"""What the contract cannot know of `gradient-outlier`."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from optdoctor.curves.deviations import norm_level
from optdoctor.curves.spikes import NORMS, spikes_of
from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.gradient_outlier import RULE, SPREAD
from optdoctor.synthetic import falling_loss, gradient_norms, make_trace
from optdoctor.trace import Recorder, Trace

Floats = NDArray[np.float64]
Norms = Callable[[int, np.random.Generator], Floats]

HEALTHY: Mapping[str, Norms] = {
    "log-normal": lambda n, rng: np.exp(0.3 * rng.standard_normal(n)),
    "batches of four": lambda n, rng: np.exp(0.7 * rng.standard_normal(n)),
    "now and then three to five times": lambda n, rng: np.exp(
        0.15 * rng.standard_normal(n) + np.log(np.where(rng.random(n) < 0.01, 5, 1))
    ),
    "growing tenfold": lambda n, rng: np.exp(0.3 * rng.standard_normal(n) + 2.3 * np.arange(n) / n),
    "large at first": lambda n, rng: np.exp(
        0.25 * rng.standard_normal(n) + 4 * np.exp(-50 * np.arange(n) / n)
    ),
    "a hump at warm-up": lambda n, rng: np.exp(
        0.25 * rng.standard_normal(n) + 2 * np.exp(-(((np.arange(n) / n - 0.08) / 0.03) ** 2))
    ),
    "another level": lambda n, rng: np.exp(
        0.25 * rng.standard_normal(n) + 2.3 * (np.arange(n) > 0.6 * n)
    ),
    "slow noise": lambda n, rng: np.exp(
        np.convolve(rng.standard_normal(n + 29), 0.3 * 0.9 ** np.arange(30), "valid")
    ),
}
"""(rows, generator) -> norms that call for no word."""


def outlying(
    factor: float = 20.0,
    at: int = 250,
    noise: float = 0.05,
    usual: float = 1.0,
    **more: object,
) -> Trace:
    norm = usual * np.exp(noise * np.random.default_rng(2).standard_normal(400))
    norm[at] = usual * factor
    return make_trace({"grad_norm": norm, **more})


def figure(trace: Trace, name: str) -> float:
    _, level = norm_level(trace.series["grad_norm"])
    spikes = spikes_of(level, NORMS, least_height=0.5, least_spread=SPREAD)
    best = max(spikes, key=lambda spike: spike.height, default=None)
    if best is None:
        return 0.0
    return round(float(np.exp(best.height)), 2) if name == "factor" else round(best.clearness, 2)


def where(name: str, value: float, make: Callable[[float], Trace]) -> Trace:
    """The trace of a rising family of them whose figure is exactly `value`."""
    low, high = 1.0, 1000.0
    for _ in range(80):
        middle = (low * high) ** 0.5
        found = figure(make(middle), name)
        if found == value:
            return make(middle)
        low, high = (middle, high) if found < value else (low, middle)
    raise AssertionError(f"no trace with {name} {value}")


def noisy(factor: float) -> Trace:
    return outlying(factor, noise=0.5)


def clipped(used: float) -> Trace:
    """Norms of exactly 1 with an outlier of which the update sees `used`."""
    norm = np.ones(400)
    norm[250] = 20
    return make_trace(grad_norm=norm, max_grad_norm=used)


AT_LIMIT = {
    "factor": (
        lambda: where("factor", 8.0, outlying),
        lambda: where("factor", 8.01, outlying),
    ),
    "clearness": (
        lambda: where("clearness", 1.0, noisy),
        lambda: where("clearness", 1.01, noisy),
    ),
    "update": (lambda: clipped(3.0), lambda: clipped(3.01)),
}


def findings(trace: Trace) -> tuple[Finding, ...]:
    outcome = examine(RULE, trace)
    assert outcome.status in (Status.FOUND, Status.CLEAR), outcome.reason
    return outcome.findings


def only(trace: Trace) -> Finding:
    (finding,) = findings(trace)
    return finding


def said(finding: Finding) -> str:
    return " ".join(evidence.what for evidence in finding.evidence)


def test_a_norm_of_twenty_times_the_usual_is_an_alarm_with_its_numbers() -> None:
    finding = only(outlying())
    assert (finding.severity, finding.steps) == (Severity.WARN, (251, 254))
    assert finding.summary.startswith("Gradient outlier: the norm jumps from ")
    assert "to 20, 2" in finding.summary
    assert "at step 251, and nobody recorded whether it was clipped" in finding.summary


@pytest.mark.parametrize("family", HEALTHY)
def test_healthy_norms_are_silent(family: str) -> None:
    found = []
    for seed in range(40):
        rng = np.random.default_rng([seed, 5])
        trace = make_trace(grad_norm=HEALTHY[family]((60, 150, 400, 1500)[seed % 4], rng))
        found += [(seed, finding.summary) for finding in findings(trace)]
    assert found == []


@pytest.mark.parametrize("family", ["log-normal", "growing tenfold", "large at first"])
def test_one_outlier_in_them_is_found_at_its_step(family: str) -> None:
    found = []
    for seed in range(20):
        rng = np.random.default_rng([seed, 6])
        norm = HEALTHY[family](400, rng)
        at = int(rng.integers(80, 390))
        norm[at] *= 20
        found += [f.steps[0] == at + 1 for f in findings(make_trace(grad_norm=norm))]
    assert sum(found) >= 19


@pytest.mark.parametrize(
    ("count", "severity"), [(20, Severity.WARN), (40, Severity.WARN), (41, Severity.NOTE)]
)
def test_outliers_in_more_than_a_tenth_of_the_rows_are_a_kind_of_batches(
    count: int, severity: Severity
) -> None:
    rng = np.random.default_rng(7)
    norm = np.exp(0.1 * rng.standard_normal(400))
    norm[rng.choice(np.arange(15, 130), count, replace=False) * 3] *= 30
    finding = only(make_trace(grad_norm=norm))
    assert finding.severity is severity
    assert ("a kind of batches has them" in finding.summary) == (severity is Severity.NOTE)
    assert "share of the rows that are outliers" in said(finding)


def test_clipped_to_the_usual_size_it_is_a_note() -> None:
    finding = only(outlying(usual=2.0, max_grad_norm=1.0))
    assert finding.severity is Severity.NOTE
    assert "of which 1 times the usual reached the update" in finding.summary
    assert not any(t.changes for t in finding.treatments)


def test_a_clip_far_above_the_usual_norm_lets_it_through() -> None:
    finding = only(outlying(usual=0.05, max_grad_norm=1.0))
    assert finding.severity is Severity.WARN
    (change,) = [t.changes for t in finding.treatments if t.changes]
    assert change == {"max_grad_norm": (1.0, pytest.approx(0.075, rel=0.1))}


def test_the_norm_after_clipping_tells_what_the_update_saw() -> None:
    used = np.ones(400)
    assert only(outlying(grad_norm_used=used)).severity is Severity.NOTE
    used[250] = 20
    assert only(outlying(grad_norm_used=used)).severity is Severity.WARN


def test_one_that_the_loss_follows_is_an_alarm_however_it_was_clipped() -> None:
    loss = falling_loss()
    assert only(outlying(loss=loss, max_grad_norm=1.0)).severity is Severity.NOTE
    loss[251] *= 2
    finding = only(outlying(loss=loss, max_grad_norm=1.0))
    assert finding.severity is Severity.WARN
    assert "largest loss at most 2 rows away" in said(finding)


def test_several_are_one_finding_with_their_number_by_thirds() -> None:
    norm = gradient_norms(600)
    at = [100, 220, 290, 410, 440, 470, 500, 520, 540, 570]
    norm[at] *= np.linspace(20, 40, len(at))
    finding = only(make_trace(grad_norm=norm))
    assert "outliers: the norm jumps 10 times since step 101, most from" in finding.summary
    assert "1, 2 and 7 in the thirds of the run" in finding.summary
    assert finding.steps[0] == 101
    assert "outliers, at steps 101, 221, 291, 411, 441, ..." in said(finding)


def test_beside_norms_that_are_not_finite_nothing_is_said() -> None:
    norm = gradient_norms()
    norm[250] *= 30
    assert only(make_trace(grad_norm=norm))
    norm[252] = np.inf
    assert findings(make_trace(grad_norm=norm)) == ()


def test_an_outlier_is_found_in_a_thinned_series() -> None:
    norm = gradient_norms(4000)
    norm[3001] *= 60
    recorder = Recorder(step_capacity=512)
    recorder.extend("grad_norm", np.arange(1, 4001), norm)
    finding = only(recorder.trace({}))
    assert finding.steps[0] == 3002
    assert "at step 3002" in finding.summary


def test_an_explosion_in_the_third_row_is_the_optimizers() -> None:
    norm = gradient_norms()
    norm[2] *= 50
    assert findings(make_trace(grad_norm=norm)) == ()


@pytest.mark.parametrize("usual", [1e-300, 1e-6, 1e6, 1e300])
def test_the_scale_of_the_norm_does_not_matter(usual: float) -> None:
    assert only(outlying(usual=usual)).steps == (251, 254)


def test_norms_that_the_optimizer_saw_are_judged_unless_they_were_clipped() -> None:
    norm = outlying().series["grad_norm"].values
    finding = only(make_trace(grad_norm_used=norm))
    assert (finding.severity, finding.steps[0]) == (Severity.WARN, 251)
    assert {e.channel for e in finding.evidence} == {"grad_norm_used"}
    assert only(make_trace(grad_norm_used=norm, max_grad_norm=0.0))
    clipped_ones = make_trace(grad_norm_used=np.minimum(norm, 1.005), max_grad_norm=1.0)
    assert examine(RULE, clipped_ones).status is Status.ABSTAINED
    assert only(make_trace(grad_norm_used=norm, max_grad_norm=1.0)), "a copy was clipped"


def test_a_norm_that_grew_over_rows_is_the_runs_own_swing() -> None:
    norm = np.exp(0.05 * np.random.default_rng(2).standard_normal(400))
    sudden, swing = norm.copy(), norm.copy()
    sudden[250:256] *= [20, 16, 12, 8, 4, 2]
    swing[245:256] *= [1.5, 2.5, 4, 7, 12, 20, 12, 7, 4, 2.5, 1.5]
    assert only(make_trace(grad_norm=sudden)).steps[0] == 251
    assert findings(make_trace(grad_norm=swing)) == ()


def test_norms_of_zero_are_left_out() -> None:
    outcome = examine(RULE, make_trace(grad_norm=np.zeros(100)))
    assert outcome.status is Status.ABSTAINED
    assert "0 norms are positive numbers" in str(outcome.reason)


@pytest.mark.parametrize("later", [3, 4, 5, 8])
def test_it_is_known_three_rows_later(later: int) -> None:
    norm = outlying().series["grad_norm"].values
    assert findings(make_trace(grad_norm=norm[:253])) == ()
    assert only(make_trace(grad_norm=norm[: 251 + later])).steps == (251, 254)
