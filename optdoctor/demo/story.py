"""Tells the story of a demo: what was trained, what was found when, and what the treatment did."""

import importlib
import tempfile
import textwrap
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import click
import numpy as np
import torch

from optdoctor.demo.training import Plan, Result
from optdoctor.findings import Finding, Verdict
from optdoctor.report import curve
from optdoctor.report.tensors import fold
from optdoctor.report.wording import number
from optdoctor.sinks import report_page
from optdoctor.store import Series

FRAMEWORKS = {"huggingface": "huggingface", "lightning": "lightning", "torch": "plain"}
FAULTS = {
    "underflow": Plan("float16", 5e-4, 80, "linear"),
    "rounding": Plan("bfloat16", 1e-5, 300),
}
"""A fast one, that breaks the loss in a few steps, and a slow one, that the loss hides."""
WIDTH = 80
SHOWN, WINDOW, LASTING = 0.03, 30, 5
"""The loss shows a fault where its mean over so many steps is so far above that of the treated
run, for so many steps in a row."""


def run(framework: str, fault: str) -> int:
    """Tells it; 0 if the cause was found and the second run recovered."""
    torch.set_num_threads(1)
    module = importlib.import_module(f"optdoctor.demo.{FRAMEWORKS[framework]}")
    folder = Path(tempfile.mkdtemp(prefix="optdoctor-demo-"))  # stays: its pages are to be read
    plan = replace(FAULTS[fault], out=folder / "sick")
    _tell(f"1  {module.MODEL} in pure {plan.dtype}, AdamW at {plan.rate:g}. One line is added:")
    _say(f"     {module.LINE}\n")
    sick = module.train(plan)
    number_of_part = _tell_of_the_log(sick)
    cause = _cause(sick)
    if cause is None or not cause.treatments:
        _say("\nNo cause was found: the demo did not go as it should.")
        return 1
    treatment = cause.treatments[0]
    _say("")
    _tell(f"{number_of_part}  The treatment, applied: {treatment.title}.")
    _say("")
    changed = {new for _, new in treatment.changes.values()}
    if changed != {"float32"}:
        _say(f"The demo cannot apply {dict(treatment.changes)}.")
        return 1
    treated = _train_treated(module, replace(plan, out=folder / "treated"))
    _say(f"\n{number_of_part + 1}  Both runs:\n")
    for title, result in ((plan.dtype, sick), ("treated", treated)):
        loss = _loss(result)
        _say(f"   {title}: {_ending(result)}")
        _say("\n".join(curve.draw(loss, result.trace.steps)) + "\n")
    recovered = treated.diagnosis.verdict is Verdict.HEALTHY
    _say(f"   cause      {cause.rule}")
    _say(f"   since      step {max(cause.steps[0], 1)}")
    _tell(f"   loss       {_when_the_loss_shows_it(sick, treated)}", 14)
    if cause.tensors:
        _tell(f"   where      {fold(cause.tensors, sick.trace.tensors)}", 14)
        _tell(f"   worst      {', '.join(cause.tensors[:3])}", 14)
    _say(f"   recovered  {'yes' if recovered else 'no'}")
    for title in ("sick", "treated"):
        _say(f"   page       {folder / title / report_page.PAGE}")
    return 0 if recovered else 1


def _train_treated(module: ModuleType, plan: Plan) -> Result:
    result: Result = module.train(replace(plan, dtype="float32"))
    return result


def _tell_of_the_log(sick: Result) -> int:
    """Tells what the framework's own log shows, where it has one; returns the next part."""
    if sick.from_log is None:
        return 2
    _say("\n2  What the Trainer itself logged:")
    for row in _around_the_break(sick.printed):
        shown = ("step", "loss", "train_loss", "grad_norm")
        _say("     " + "   ".join(f"{name} {row[name]:.4g}" for name in shown if name in row))
    found = [finding.rule for finding in sick.from_log.findings]
    _tell(f"   From this log alone optdoctor finds {', '.join(found) or 'nothing'}, and no cause.")
    return 3


def _cause(result: Result) -> Finding | None:
    """The root of the worst symptom, else the worst cause that is found before any symptom."""
    causes = result.diagnosis.causes
    roots = [c.rule for c in causes if c.explains] or [c.rule for c in causes]
    return next((f for f in result.diagnosis.findings if roots and f.rule == roots[0]), None)


def _around_the_break(rows: tuple[dict[str, float], ...]) -> tuple[dict[str, float], ...]:
    losses = [row.get("loss", row.get("train_loss", np.nan)) for row in rows]
    broken = [i for i, loss in enumerate(losses) if loss == 0 or not np.isfinite(loss)]
    first = broken[0] if broken else len(rows) - 2
    return rows[max(first - 2, 0) : first + 2]


def _when_the_loss_shows_it(sick: Result, treated: Result) -> str:
    here, there = _loss(sick), _loss(treated)
    if not np.isfinite(here.values).all():
        return f"not finite from step {int(here.steps[~np.isfinite(here.values)][0])}"
    window = np.full(WINDOW, 1 / WINDOW)
    means = [np.convolve(loss.values, window, "valid") for loss in (here, there)]
    above = (means[0] > (1 + SHOWN) * means[1]).astype(int)
    lasting = np.convolve(above, np.ones(LASTING, int), "valid") == LASTING
    if not lasting.any():
        return f"never {SHOWN * 100:g} % above that of the treated run"
    step = int(here.steps[WINDOW - 1 + int(np.argmax(lasting))])
    return f"{SHOWN * 100:g} % above that of the treated run from step {step} (mean of {WINDOW})"


def _ending(result: Result) -> str:
    loss = _loss(result)
    first, last = (number(float(loss.values[i])) for i in (0, -1))
    return f"loss {first} -> {last}, {result.diagnosis.verdict}"


def _loss(result: Result) -> Series:
    loss = curve.loss_of(result.trace)
    if loss is None:
        raise RuntimeError("the training logged no loss")
    return loss


def _tell(text: str, indent: int = 3) -> None:
    """Says one paragraph; `indent` is that of its later lines."""
    _say(textwrap.fill(text, WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False))


def _say(text: str) -> None:
    click.echo(text)
