"""A report of a treated run says so, in every form."""

import pytest

from optdoctor.engine import diagnose
from optdoctor.report import markdown, page, text
from optdoctor.report.treated import treated
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Event, Trace

EVENTS = (
    Event(0, "treatment", "Float32State() is switched on from step 1", None, "float32-state"),
    Event(9, "treatment", "StepGuard() is switched on from step 10", None, "step-guard"),
    Event(12, "treatment", "step-guard left out a step: ..", None, None),
    Event(40, "undo", "step-guard is switched off", "step-guard", None),
)
SAID = "float32-state from step 1 and step-guard from step 10 to 40"


def run(*, sick: bool = False, events: tuple[Event, ...] = EVENTS) -> Trace:
    loss = falling_loss(200)
    if sick:
        loss[150:] = float("nan")
    return make_trace({"loss": loss}, events=events)


def test_when_treatments_acted_is_read_from_the_events() -> None:
    assert treated(run()) == SAID
    assert treated(run(events=())) == ""


@pytest.mark.parametrize("sick", [False, True])
def test_every_form_says_that_the_run_was_treated(sick: bool) -> None:
    trace = run(sick=sick)
    diagnosis = diagnose(trace)
    assert bool(diagnosis.findings) == sick
    several = [(diagnosis, trace)]
    for form in (text.render(diagnosis, trace), markdown.render(several), page.render(several)):
        told = " ".join(form.split())
        assert "float32-state from step 1" in told
        assert "treated" in told.lower()


def test_the_one_line_of_a_healthy_run_says_it_too() -> None:
    trace = run()
    assert f"Treated: {SAID}." in text.one_line(diagnose(trace), trace)
    assert "reated" not in text.one_line(diagnose(run(events=())), run(events=()))
