"""What the contract cannot know of `step-too-large`."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.report.slots import where
from optdoctor.rules.step_too_large import BEGUN, GROWING, RULE, WANDERING
from optdoctor.synthetic import make_trace
from optdoctor.trace import TensorInfo, Trace

SAMPLES, SPACING = 60, 4
AT = np.arange(1, SAMPLES * SPACING, SPACING)
WEIGHTS = tuple(TensorInfo(f"h.{i}.weight", (8, 8), kind="mlp") for i in range(3))


def run(
    ratios: Any, *, tensors: tuple[TensorInfo, ...] = WEIGHTS, size: Any = 1.0, **more: Any
) -> Trace:
    """Samples of that relative update, the same of all tensors unless [T, P] is given."""
    ratio = np.broadcast_to(np.asarray(ratios, float).T, (len(tensors), SAMPLES)).T
    weights = np.broadcast_to(np.asarray(size, float), ratio.shape)
    return make_trace(
        {"update_rms": ratio * weights, "param_rms": weights, **more},
        tensors=tensors,
        steps={"update_rms": AT, "param_rms": AT},
    )


def late(ratio: float, samples: int = 20, **more: Any) -> Trace:
    """The last samples with that relative update."""
    ratios = np.full(SAMPLES, 0.01)
    ratios[SAMPLES - samples :] = ratio
    return run(ratios, **more)


def standing(at: float) -> Trace:
    """Every step of 240: the loss begins at 1 and stands there at the end."""
    losses = np.full(240, at)
    losses[:20] = 1.0
    return late(0.5, loss=losses)


def exactly(ratio: float) -> Trace:
    """One tensor of 64 elements and size 1, with updates in float64: no rounding on the way."""
    trace = late(1.0, tensors=WEIGHTS[:1])
    series = trace.series["update_rms"]
    values = np.array(series.values, np.float64)
    values[-20:] = ratio
    moved = replace(series, values=values)
    return replace(trace, series={**trace.series, "update_rms": moved})


def growing(by: float) -> Trace:
    """Two samples with large updates, over which the weights grow that many times; in float64."""
    size = np.ones((SAMPLES, 3))
    size[41:] = by
    ratios = np.full(SAMPLES, 0.01)
    ratios[40:42] = 0.5
    trace = run(ratios, size=size)
    fine = replace(trace.series["param_rms"], values=size)
    return replace(trace, series={**trace.series, "param_rms": fine})


def unsampled(pace: float) -> Trace:
    """Weights that grow by that part an update between two samples, neither of which shows it."""
    size = np.ones(SAMPLES)
    size[40:] = np.exp(SPACING * pace * np.minimum(np.arange(1, SAMPLES - 39), 20))
    return run(np.full(SAMPLES, 0.01), size=size[:, None])


AT_LIMIT = {
    "grown": (lambda: growing(4.0), lambda: growing(float(np.nextafter(4.0, 5)))),
    "ratio": (lambda: exactly(0.1), lambda: exactly(float(np.nextafter(0.1, 1)))),
    "lasting": (lambda: late(0.5, 2), lambda: late(0.5, 3)),
    "fallen": (lambda: standing(float(np.nextafter(0.71, 0))), lambda: standing(0.71)),
    "loss at its start": (lambda: standing(1.0), lambda: standing(float(np.nextafter(1.0, 2)))),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.09])
def test_ordinary_steps_are_silent(ratio: float) -> None:
    assert status(late(ratio)) is Status.CLEAR


def test_the_stretch_and_its_middle_are_told() -> None:
    finding = only_finding(late(0.25))
    assert finding.steps == (int(AT[-20]), int(AT[-1]))
    assert finding.summary == (
        "Each update moves the weights by 25 % of their size (limit 10 %), in 20 samples from step"
        " 161 on."
    )
    assert finding.tensors == ("h.0.weight", "h.1.weight", "h.2.weight")


def test_weights_that_grow_from_zero_are_silent_at_any_pace() -> None:
    for power in (1, 2):
        size = (AT / 100.0) ** power
        assert status(run(power / AT, size=size[:, None])) is Status.CLEAR
    faster = np.minimum(1.0, 1.1 * np.maximum(GROWING / AT, WANDERING / np.sqrt(AT)))
    assert status(run(faster, size=AT[:, None])) is Status.FOUND


def test_weights_that_wander_from_zero_under_noise_are_silent() -> None:
    noisy = np.minimum(1.0, 1 / np.sqrt(AT))
    assert status(run(noisy, size=np.sqrt(AT)[:, None])) is Status.CLEAR


def test_a_resumed_run_is_as_young_as_its_first_sample() -> None:
    def resumed(factor: float) -> Trace:
        ratios = np.minimum(BEGUN, factor / AT)  # its weights did not begin near 0
        later = run(ratios)
        return make_trace(
            {name: series.values for name, series in later.series.items()},
            tensors=WEIGHTS,
            steps=dict.fromkeys(("update_rms", "param_rms"), AT + 5000),
        )

    assert status(resumed(0.9 * GROWING)) is Status.CLEAR
    assert status(resumed(1.1 * GROWING)) is Status.FOUND


def test_a_layer_that_begins_at_zero_is_outweighed_by_the_others() -> None:
    size = np.ones((SAMPLES, 3))
    size[:, 0] = 1e-6
    ratios = np.full((SAMPLES, 3), 0.01)
    ratios[:, 0] = 1.0
    assert status(run(ratios, size=size)) is Status.CLEAR


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "norm"},
        {"kind": "bias"},
        {"kind": "adapter"},
        {"shape": (64,)},
        {"shape": (7, 9)},
        {"trainable": False},
        {"in_optimizer": False},
    ],
    ids=str,
)
def test_tensors_whose_size_is_no_measure_are_not_counted(change: dict[str, Any]) -> None:
    ratios = np.full((SAMPLES, 3), 0.01)
    ratios[30:, 0] = 50.0
    assert status(run(ratios)) is Status.FOUND
    other = (replace(WEIGHTS[0], **change), *WEIGHTS[1:])
    assert status(run(ratios, tensors=other)) is Status.CLEAR


def test_a_sample_of_few_weights_is_not_judged() -> None:
    ratios = np.full((SAMPLES, 3), 0.01)
    ratios[30:, 0] = 0.5
    ratios[30:, 1:] = np.nan
    assert status(run(ratios)) is Status.CLEAR


@pytest.mark.parametrize(
    ("at", "severity"),
    [(0.3, Severity.NOTE), (0.9, Severity.WARN), (1.5, Severity.CRITICAL)],
)
def test_where_the_loss_stands_tells_how_bad_it_is(at: float, severity: Severity) -> None:
    finding = only_finding(standing(at))
    assert finding.severity is severity
    assert finding.awaits_symptom is (severity is Severity.NOTE)


def test_without_a_loss_it_waits_for_a_symptom() -> None:
    finding = only_finding(late(0.5))
    assert (finding.severity, finding.awaits_symptom) == (Severity.NOTE, True)


def test_a_loss_that_turns_negative_tells_nothing() -> None:
    losses = np.linspace(1.0, -3.0, 240)
    assert only_finding(late(0.5, loss=losses - 2)).severity is Severity.NOTE


def test_a_third_of_the_peak_rate_is_proposed_where_it_is_known() -> None:
    rates = np.full(240, 0.003)
    (change, check) = only_finding(late(0.5, lr=rates)).treatments
    assert change.changes == {"lr": (0.003, 0.001)}
    assert check.when == "check"
    assert only_finding(late(0.5)).treatments[0].changes == {}


def test_only_tensors_that_move_with_the_rest_are_named() -> None:
    ratios = np.full((SAMPLES, 3), 0.01)
    ratios[30:, 1:] = 0.5
    assert only_finding(run(ratios)).tensors == ("h.1.weight", "h.2.weight")


@pytest.mark.parametrize("kind", ["reward", "adversarial"])
def test_a_loss_that_need_not_fall_tells_nothing(kind: str) -> None:
    assert only_finding(replace(standing(1.5), facts={"loss_kind": kind})).severity is Severity.NOTE


def test_a_loss_that_has_recovered_since_makes_it_a_note() -> None:
    losses = np.concatenate([np.ones(20), np.full(200, 2.0), np.full(20, 0.5)])
    assert only_finding(late(0.5, loss=losses)).severity is Severity.NOTE


def test_growth_between_samples_tells_of_updates_that_none_of_them_shows() -> None:
    assert status(unsampled(0.09)) is Status.CLEAR
    finding = only_finding(unsampled(0.12))
    assert finding.summary.startswith("Each update moves the weights by 11.3 % of their size")
    assert finding.steps[0] == int(AT[40])


def test_no_raw_update_stands_beside_its_part_of_the_weights() -> None:
    trace = late(0.25, size=3.0)
    assert where(only_finding(trace), trace) == "all 3 tensors"


def test_no_growth_moves_more_than_all_of_the_weights() -> None:
    finding = only_finding(unsampled(0.5))
    assert finding.summary.startswith("Each update moves the weights by 39.3 % of their size")


def test_weights_that_shrink_are_not_taken_for_growing_ones() -> None:
    size = np.exp(-0.12 * AT)
    assert status(run(np.full(SAMPLES, 0.01), size=size[:, None])) is Status.CLEAR
