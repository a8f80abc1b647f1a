"""What the contract cannot know of `learning-rate-absurd`."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from optdoctor.engine import diagnose, examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.learning_rate_absurd import BOUNDED, RULE
from optdoctor.synthetic import make_trace, small_gpt
from optdoctor.trace import TensorInfo, Trace


def make(ratio: float, *, used: Any = None, family: str = "adam", tensors: Any = None) -> Trace:
    """A planned rate of so many sizes of weights of size 1, and those that updates used."""
    channels = {} if used is None else {"lr": np.asarray(used, float)}
    facts = {"optimizer_family": family, "weights_rms": 1.0, "peak_lr": ratio}
    return make_trace({**channels, **facts}, tensors=small_gpt() if tensors is None else tensors)


def above(number: float) -> float:
    return float(np.nextafter(number, np.inf))


def growing(growth: float, ratio: float = 2.0, family: str = "adam", samples: int = 8) -> Trace:
    """Matrices that grow so many times at a rate of so many sizes."""
    tensors = small_gpt()
    sizes = np.geomspace(1.0, growth, samples)[:, None] * np.ones(len(tensors))
    facts = {"optimizer_family": family, "weights_rms": 1.0, "peak_lr": ratio}
    return make_trace({"lr": np.full(samples, ratio), "param_rms": sizes, **facts}, tensors=tensors)


def grouped(ratio: float, growth: float = 1.0, **more: Any) -> Trace:
    """Attention in a group of its own at so many of its sizes, the rest at a hundredth of one."""
    tensors = tuple(
        replace(t, group=1, kind="attention", **more) if ".attn." in t.name else t
        for t in small_gpt()
    )
    own = np.array([t.group for t in tensors])
    sizes = np.where(own, np.geomspace(0.5, 0.5 * growth, 8)[:, None], 0.5)
    rates = np.where(own, 0.5 * ratio, 0.005) * np.ones((8, 1))
    facts = {"optimizer_family": "adam", "weights_rms": 0.5, "peak_lr": 0.005}
    channels = {"lr": np.full(8, 0.005), "param_rms": sizes, "tensor_lr": rates}
    return make_trace({**channels, **facts}, tensors=tensors)


AT_LIMIT = {
    "grown": (lambda: growing(10.0), lambda: growing(10.01)),
    "noted": (lambda: make(1.0), lambda: make(above(1.0))),
    "far": (lambda: make(6.0, used=[6.0]), lambda: make(above(6.0), used=[above(6.0)])),
    "lost": (lambda: make(30.0, used=[30.0]), lambda: make(above(30.0), used=[above(30.0)])),
    "lion": (lambda: make(1 / 3, family="lion"), lambda: make(above(1 / 3), family="lion")),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


def test_a_planned_rate_is_a_note_until_an_update_uses_it() -> None:
    assert only_finding(make(100.0)).severity is Severity.NOTE
    used = only_finding(make(100.0, used=[100.0]))
    assert (used.severity, used.steps) == (Severity.CRITICAL, (0, 0))
    assert only_finding(make(10.0, used=[10.0])).severity is Severity.WARN


def near_zero(size: float, rate: float) -> Trace:
    """Three matrices of 64 inputs, which hand on what they take in at a size of 1/8."""
    tensors = [TensorInfo(f"h.{i}.weight", (32, 64), kind="mlp") for i in range(3)]
    facts = {"optimizer_family": "adam", "weights_rms": size, "peak_lr": rate}
    return make_trace({"lr": np.full(3, rate), **facts}, tensors=tensors)


def test_weights_that_begin_near_0_on_purpose_have_yet_to_grow_to_their_size() -> None:
    assert status(near_zero(1e-3, 0.0124)) is Status.CLEAR
    assert status(near_zero(0.02, 0.03)) is Status.FOUND
    finding = only_finding(near_zero(1e-3, 0.1))
    assert finding.severity is Severity.WARN
    assert "8 times the least size that the weights it moves have to grow to, 0.0125" in (
        finding.summary
    )


def test_a_base_rate_that_a_scheduler_scales_down_is_no_finding_once_updates_are_made() -> None:
    """The schedule of the first transformer is a factor of a base rate of 1."""
    rates = 2e-4 * np.minimum(np.arange(1, 400) / 100, 1)
    assert status(make(50.0, used=rates)) is Status.CLEAR


def test_a_warm_up_comes_to_the_planned_rate_before_it_is_more_than_nothing() -> None:
    rates = 12.0 * np.minimum(np.arange(1, 21) / 20, 1)
    assert status(make(12.0, used=rates[:1])) is Status.CLEAR
    assert only_finding(make(12.0, used=rates[:8])).severity is Severity.NOTE
    full = only_finding(make(12.0, used=rates))
    assert (full.severity, full.steps) == (Severity.WARN, (0, 0))


def test_a_rate_above_the_planned_one_is_told_from_the_step_on_at_which_it_was_used() -> None:
    finding = only_finding(make(0.01, used=[0.01] * 9 + [9.0] * 3 + [0.01]))
    assert (finding.severity, finding.steps) == (Severity.WARN, (10, 12))


def test_a_model_of_one_matrix_gets_a_note_only() -> None:
    probe = (TensorInfo("head.weight", (10, 768), kind="head"), TensorInfo("head.bias", (10,)))
    assert only_finding(make(50.0, used=[50.0], tensors=probe)).severity is Severity.NOTE


def test_frozen_matrices_and_embeddings_make_no_depth() -> None:
    head = TensorInfo("head.weight", (10, 768))
    frozen = TensorInfo("h.0.weight", (768, 768), trainable=False)
    held_by_none = TensorInfo("h.1.weight", (768, 768), in_optimizer=False)
    table = TensorInfo("wte.weight", (500, 64), kind="embedding")
    tensors = (head, frozen, held_by_none, table)
    assert only_finding(make(50.0, used=[50.0], tensors=tensors)).severity is Severity.NOTE


@pytest.mark.parametrize("family", ["sgd", "adafactor", "muon", "prodigy", "adan", "other"])
def test_optimizers_whose_updates_follow_another_size_are_not_judged(family: str) -> None:
    assert status(make(1e4, used=[1e4], family=family)) is Status.CLEAR


@pytest.mark.parametrize("family", sorted(BOUNDED))
def test_all_that_move_a_weight_by_the_rate_are(family: str) -> None:
    assert only_finding(make(1e4, used=[1e4], family=family)).severity is Severity.CRITICAL


def test_lion_bears_a_third_of_what_adam_bears() -> None:
    assert only_finding(make(3.0, used=[3.0])).severity is Severity.NOTE
    assert only_finding(make(3.0, used=[3.0], family="lion")).severity is Severity.WARN


@pytest.mark.parametrize(("family", "ratio"), [("adam", 2.0), ("lion", 0.5)])
def test_a_note_is_a_warning_where_the_weights_have_grown_far(family: str, ratio: float) -> None:
    finding = only_finding(growing(20.0, ratio, family))
    assert finding.severity is Severity.WARN
    assert finding.summary.endswith("; they have grown to 20 times that (limit 10).")
    assert [e.observed for e in finding.evidence] == [ratio, 20.0]
    assert only_finding(growing(5.0, ratio, family)).severity is Severity.NOTE


def test_weights_may_grow_at_a_usual_rate() -> None:
    """Tenfold growth over a long run is no harm by itself."""
    assert status(growing(50.0, 0.9)) is Status.CLEAR


def test_growth_is_that_of_matrices_which_did_not_begin_near_zero() -> None:
    trace = growing(2.0)
    sizes = np.array(trace.series["param_rms"].values, float)
    sizes[0] = 1e-6
    facts = {"optimizer_family": "adam", "weights_rms": 1.0, "peak_lr": 2.0}
    began_small = make_trace(
        {"lr": np.full(8, 2.0), "param_rms": sizes, **facts}, tensors=trace.tensors
    )
    assert only_finding(began_small).severity is Severity.NOTE


def test_a_group_with_a_rate_of_its_own_is_judged_by_its_own_matrices() -> None:
    far = only_finding(grouped(7.0))
    assert far.severity is Severity.WARN
    assert far.tensors
    assert all(".attn." in name for name in far.tensors)
    assert far.summary.startswith(
        "A learning rate of 3.5 was used with adam, 7 times the size of the"
    )
    assert f"the {len(far.tensors)} matrices of its group, as h." in far.summary
    assert far.treatments[0].changes == {}, "no knob of the whole run"
    assert only_finding(grouped(2.0)).severity is Severity.NOTE
    assert only_finding(grouped(2.0, growth=12.0)).severity is Severity.WARN
    assert only_finding(grouped(40.0)).severity is Severity.CRITICAL
    assert status(grouped(0.9)) is Status.CLEAR


def test_the_first_update_is_no_part_of_the_size_that_weights_began_with() -> None:
    """Without a warm-up it is as large as the rate."""
    trace = grouped(7.0)
    own = np.array([t.group for t in trace.tensors])
    update = np.where(own, 3.5, 0.005) * np.ones((8, 1))
    size = np.hypot(0.5, update)
    rates = trace.series["tensor_lr"].values
    facts = {"optimizer_family": "adam", "weights_rms": 0.5, "peak_lr": 0.005}
    channels = {"lr": np.full(8, 0.005), "param_rms": size, "tensor_lr": rates}
    there = make_trace({**channels, "update_rms": update, **facts}, tensors=trace.tensors)
    assert only_finding(there).evidence[0].observed == pytest.approx(7.0, rel=1e-3)


def test_a_table_that_is_no_layer_may_learn_fast() -> None:
    tables = grouped(50.0)
    tensors = tuple(
        replace(t, kind="other", layer="") if t.group == 1 else t for t in tables.tensors
    )
    assert status(replace(tables, tensors=tensors)) is Status.CLEAR
    frozen = tuple(replace(t, trainable=t.group != 1) for t in tables.tensors)
    assert status(replace(tables, tensors=frozen)) is Status.CLEAR


def test_a_note_becomes_a_warning_beside_a_divergence() -> None:
    loss = np.concatenate([np.full(60, 2.0), np.geomspace(2.0, 2e6, 60)])
    trace = make_trace(
        optimizer_family="adam",
        weights_rms=1.0,
        peak_lr=2.0,
        lr=np.full(120, 2.0),
        loss=loss,
        tensors=small_gpt(),
    )
    diagnosis = diagnose(trace)
    (finding,) = [f for f in diagnosis.findings if f.rule == RULE.name]
    assert finding.severity is Severity.WARN
    assert diagnosis.causes[0].rule == RULE.name


def test_the_proposed_rate_passes_and_no_sentence_promises_more() -> None:
    finding = only_finding(make(2.0))
    (_, new) = finding.treatments[0].changes["peak_lr"]
    assert new == pytest.approx(0.03)
    assert status(make(float(new or 0))) is Status.CLEAR
    assert finding.summary == (
        "A learning rate of 2 is planned with adam, 2 times the size of the weights that it moves,"
        " 1 (limit 1)."
    )


def test_a_rate_of_0_or_none_is_no_rate() -> None:
    assert status(make(0.0)) is Status.CLEAR
    assert status(make(2.0, used=[np.nan, np.nan])) is Status.FOUND
