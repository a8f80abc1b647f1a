"""What the contract cannot know of `parameters-without-optimizer`."""

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pytest

from optdoctor.engine import diagnose, examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules import RULES
from optdoctor.rules.parameters_without_optimizer import RULE
from optdoctor.synthetic import make_trace
from optdoctor.trace import Kind, TensorInfo, Trace


def run(tensors: Collection[TensorInfo]) -> Trace:
    held = sum(t.num_elements for t in tensors if t.in_optimizer and t.trainable)
    return make_trace(num_parameters=held, tensors=tuple(tensors))


def layers(held: Collection[int], count: int = 6, name: str = "h.{}.mlp.weight") -> Trace:
    return run(
        [
            TensorInfo(name.format(i), (8, 8), kind="mlp", order=i, in_optimizer=i in held)
            for i in range(count)
        ]
    )


AT_LIMIT = {
    "one left out": (lambda: layers(range(6)), lambda: layers(range(5))),
    "as many held as left out": (
        lambda: layers((0, 3), count=4),
        lambda: layers((0, 3, 4), count=5),
    ),
    "the first": (lambda: layers((1, 2, 3)), lambda: layers((0, 2, 3, 4, 5))),
    "the last alone": (lambda: layers((0, 1, 2, 3)), lambda: layers((0, 1, 2, 3, 4))),
    "the last of a few": (lambda: layers((0,), count=2), lambda: layers((0, 1), count=3)),
    "two gaps": (lambda: layers((0, 2, 4, 5)), lambda: layers((0, 3, 4, 5))),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def test_a_layer_forgotten_between_others_is_a_warning_before_step_1() -> None:
    finding = only_finding(layers((0, 1, 3, 4, 5)))
    assert (finding.severity, finding.steps) == (Severity.WARN, (0, 0))
    assert finding.tensors == ("h.2.mlp.weight",)
    assert finding.evidence[0].observed == pytest.approx(1 / 6)
    assert finding.treatments[0].title.startswith("If they were forgotten")
    assert not finding.awaits_symptom
    assert finding.summary == (
        "1 of 6 trainable tensors, 16.7 % of the trainable elements, is in no optimizer and stays"
        " as it is, 1 of them between layers that are held (limit 0)."
    )


def test_what_no_gradient_comes_to_is_not_judged() -> None:
    trace = layers((0, 1, 3, 4, 5))
    for reached, status in (("no", Status.CLEAR), ("yes", Status.FOUND), ("", Status.FOUND)):
        tensors = tuple(
            replace(t, reached="" if t.in_optimizer else reached) for t in trace.tensors
        )
        assert examine(RULE, run(tensors)).status is status
    unreached = [replace(t, reached="no") for t in trace.tensors if not t.in_optimizer]
    beside = replace(unreached[0], name="score.weight", kind="head", order=9, reached="yes")
    finding = only_finding(run([*layers((0, 1, 3, 4, 5)).tensors[:2], *unreached, beside]))
    assert finding.tensors == ("score.weight",)


@pytest.mark.parametrize(
    "name", ["net.{}.weight", "features.{}.conv.weight", "decoder.block.{}.layer.1.wi.weight"]
)
def test_the_row_may_be_numbered_anywhere_in_the_name(name: str) -> None:
    finding = only_finding(layers((0, 1, 3, 4, 5), name=name))
    assert finding.severity is Severity.WARN
    assert finding.tensors == (name.format(2),)


@pytest.mark.parametrize(
    "name",
    [
        "h.1.experts.{}.weight",
        "heads.{}.weight",
        "critics.{}.fc.weight",
        "tasks.{}.weight",
    ],
)
def test_parts_that_stand_side_by_side_have_no_gap(name: str) -> None:
    assert only_finding(layers((0, 1, 3, 4, 5), name=name)).severity is Severity.NOTE


@pytest.mark.parametrize("kind", ["norm", "bias", "embedding", "head", "adapter"])
def test_kinds_that_recipes_leave_out_have_no_gap(kind: str) -> None:
    trace = layers((0, 1, 3, 4, 5))
    others = tuple(replace(t, kind=kind) for t in trace.tensors)
    assert only_finding(replace(trace, tensors=others)).severity is Severity.NOTE


def test_vectors_have_no_gap() -> None:
    trace = layers((0, 1, 3, 4, 5))
    vectors = tuple(replace(t, shape=(64,)) for t in trace.tensors)
    assert only_finding(replace(trace, tensors=vectors)).severity is Severity.NOTE


@pytest.mark.parametrize(
    "held", [(5,), (4, 5), (3, 4, 5), (0,), (2,), (2, 3), (0, 1, 2, 3), (0, 2, 4), range(1, 6)]
)
def test_the_last_the_first_or_one_stretch_of_layers_alone_is_a_note(held: Collection[int]) -> None:
    finding = only_finding(layers(held))
    assert finding.severity is Severity.NOTE
    assert finding.treatments[0].title.startswith("If they are meant to stay")


def with_end(name: str, kind: Kind, *, held: bool = False, order: int = 6) -> Trace:
    """Six layers that are held, and something after them that is not."""
    end = TensorInfo(name, (10, 8), kind=kind, order=order, in_optimizer=held)
    return run((*layers(range(6)).tensors, end))


@pytest.mark.parametrize(
    ("name", "kind"), [("head.weight", "head"), ("lm_head.weight", "head"), ("out.weight", "other")]
)
def test_a_forgotten_last_weight_is_a_warning(name: str, kind: Kind) -> None:
    finding = only_finding(with_end(name, kind))
    assert (finding.severity, finding.tensors) == (Severity.WARN, (name,))
    assert "1 of them the last weight of the network" in finding.summary
    bias = TensorInfo(name.replace("weight", "bias"), (10,), kind="bias", order=7)
    with_bias = run((*with_end(name, kind).tensors, replace(bias, in_optimizer=False)))
    assert only_finding(with_bias).severity is Severity.WARN
    assert only_finding(with_end(name, kind, order=-1)).severity is Severity.NOTE


@pytest.mark.parametrize(
    ("name", "kind"),
    [("value_head.weight", "other"), ("lora_A.weight", "adapter")],
)
def test_a_part_of_its_own_at_the_end_is_a_note(name: str, kind: Kind) -> None:
    assert only_finding(with_end(name, kind)).severity is Severity.NOTE


def test_several_at_the_end_may_be_a_network_of_their_own() -> None:
    trace = with_end("vgg.0.weight", "conv")
    second = TensorInfo("vgg.2.weight", (8, 8), kind="conv", order=7, in_optimizer=False)
    assert only_finding(run((*trace.tensors, second))).severity is Severity.NOTE


def frozen_by_omission(**of_second: object) -> Trace:
    """A plateau from the start, and a network of whose two layers one is in no optimizer."""
    first = TensorInfo("body.weight", (8, 8), kind="mlp", order=0)
    second = TensorInfo("tail.weight", (8, 8), kind="mlp", order=1)
    tensors = (first, replace(second, **of_second))
    held = sum(t.num_elements for t in tensors if t.in_optimizer)
    flat = 4.6 + 0.02 * np.random.default_rng(0).standard_normal(3000)
    return make_trace(
        num_parameters=held, tensors=tensors, loss=flat, optimizer_family="adam", num_classes=100
    )


def test_only_what_may_be_forgotten_becomes_a_warning_beside_a_symptom() -> None:
    last = frozen_by_omission(in_optimizer=False)
    assert only_finding(last).awaits_symptom
    probe = replace(
        last,
        tensors=tuple(replace(t, in_optimizer=not t.in_optimizer) for t in last.tensors),
    )
    assert not only_finding(probe).awaits_symptom
    head = replace(probe, tensors=(probe.tensors[0], replace(probe.tensors[1], kind="head")))
    assert not only_finding(head).awaits_symptom
    early = replace(head, tensors=tuple(replace(t, order=-t.order) for t in head.tensors))
    assert not only_finding(early).awaits_symptom


@pytest.mark.parametrize(
    ("held", "left", "shape", "awaits"),
    [
        ("net.{}.weight", "target.net.{}.weight", (8, 8), False),
        ("online.net.{}.weight", "target.net.{}.weight", (8, 8), False),
        ("net.{}.weight", "other.{}.weight", (8, 9), True),
        ("net.{}.weight", "net.1{}.weight", (8, 8), True),
    ],
)
def test_copies_of_what_is_held_await_no_symptom(
    held: str, left: str, shape: tuple[int, ...], awaits: bool
) -> None:
    own = [TensorInfo(held.format(i), (8, 8), kind="mlp", order=i) for i in range(3)]
    copies = [
        TensorInfo(left.format(i), shape, kind="mlp", order=3 + i, in_optimizer=False)
        for i in range(3)
    ]
    finding = only_finding(run([*own, *copies]))
    assert (finding.severity, finding.awaits_symptom) == (Severity.NOTE, awaits)


def test_what_another_optimizer_holds_is_held() -> None:
    trace = layers((0, 1, 3, 4, 5))
    elsewhere = tuple(replace(t, held_elsewhere=not t.in_optimizer) for t in trace.tensors)
    assert examine(RULE, replace(trace, tensors=elsewhere)).status is Status.CLEAR


def test_layers_of_another_optimizer_are_the_neighbours_of_a_forgotten_one() -> None:
    trace = layers((0, 1))
    others = tuple(replace(t, held_elsewhere=t.order > 2) for t in trace.tensors)
    finding = only_finding(replace(trace, tensors=others))
    assert (finding.severity, finding.tensors) == (Severity.WARN, ("h.2.mlp.weight",))


@pytest.mark.parametrize(
    "other", [{"trainable": False}, {"in_model": False}, {"shape": (0, 8)}], ids=str
)
def test_frozen_foreign_and_empty_tensors_are_not_missed(other: dict[str, object]) -> None:
    trace = layers((0, 1, 3, 4, 5))
    tensors = tuple(t if t.in_optimizer else replace(t, **other) for t in trace.tensors)
    assert examine(RULE, replace(trace, tensors=tensors)).status is Status.CLEAR


def test_an_optimizer_of_nothing_or_of_another_model_is_other_rules_matter() -> None:
    trace = layers(())
    foreign = TensorInfo("group0.0", (8, 8), in_model=False)
    assert examine(RULE, trace).status is Status.CLEAR
    with_foreign = make_trace(num_parameters=64, tensors=(*trace.tensors, foreign))
    assert examine(RULE, with_foreign).status is Status.CLEAR


def test_without_tensors_it_abstains() -> None:
    assert examine(RULE, make_trace(num_parameters=64)).status is Status.ABSTAINED


def test_a_gap_is_a_cause_and_a_note_is_none() -> None:
    assert [c.rule for c in diagnose(layers((0, 1, 3, 4, 5)), RULES).causes] == [RULE.name]
    assert diagnose(layers((4, 5)), RULES).causes == ()
