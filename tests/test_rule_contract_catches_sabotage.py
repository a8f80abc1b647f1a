"""A contract that nothing breaks proves nothing: here rules are spoiled, and it must object."""

import ast
import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import wraps
from pathlib import Path
from typing import Any

import contract
import numpy as np
import pytest

from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.rule import Rule
from optdoctor.rules import RULES, nan_pulse
from optdoctor.rules import epsilon_below_precision as epsilon
from optdoctor.rules import second_moment_underflow as underflow
from optdoctor.trace import Trace

NAN_PULSE, EPSILON, UNDERFLOW = nan_pulse.RULE, epsilon.RULE, underflow.RULE
STRICTER = {ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Lt: ast.LtE, ast.LtE: ast.Lt}
NAMES_TENSORS_ONLY = "by_tensor > limits.share"  # held by test_second_moment_underflow.py

Loader = Callable[[Rule, str], Rule]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loader:
    """The rule as another source text would define it."""

    def loaded(rule: Rule, source: str) -> Rule:
        name = rule.check.__module__.rpartition(".")[2]
        path = tmp_path / f"{name}.py"
        path.write_text(source, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(source, str(path), "exec"), module.__dict__)
        spoiled: Rule = module.RULE
        return spoiled

    return loaded


def source_of(rule: Rule) -> str:
    return Path(sys.modules[rule.check.__module__].__file__ or "").read_text(encoding="utf-8")


def returning(rule: Rule, change: Callable[[Finding], Finding]) -> Rule:
    """The rule with each of its findings changed."""

    @wraps(rule.check)
    def check(trace: Trace, limits: Any) -> list[Finding] | Abstain:
        found = rule.check(trace, limits)
        return found if isinstance(found, Abstain) else [change(finding) for finding in found]

    return replace(rule, check=check)


def first(rule: Rule, act: Callable[[Trace], object]) -> Rule:
    """The rule with an act before each of its checks."""

    @wraps(rule.check)
    def check(trace: Trace, limits: Any) -> list[Finding] | Abstain:
        act(trace)
        return rule.check(trace, limits)

    return replace(rule, check=check)


def fail(trace: Trace) -> None:
    raise ZeroDivisionError


def fail_on_nonsense(trace: Trace) -> None:
    for name in trace.facts:
        assert trace.facts[name] != "garbage"


def dosed(rule: Rule, knob: str, old: float, new: float) -> Rule:
    useless = Treatment("Turn a knob", {knob: (old, new)}, source="nowhere")
    return returning(rule, lambda f: replace(f, treatments=(*f.treatments, useless)))


def cites(channel: str, observed: float = 1.0) -> Callable[[Finding], Finding]:
    extra = Evidence(channel, "a number", observed, 0.0, "1")
    return lambda finding: replace(finding, evidence=(*finding.evidence, extra))


def at_steps(move: Callable[[int, int], tuple[int, int]]) -> Rule:
    return returning(NAN_PULSE, lambda f: replace(f, steps=move(*f.steps)))


def saying(rule: Rule, summary: str) -> Rule:
    return returning(rule, lambda f: replace(f, summary=summary))


def rewritten(old: str, new: str) -> Rule:
    assert old in NAN_PULSE.doc
    return replace(NAN_PULSE, doc=NAN_PULSE.doc.replace(old, new))


SPOILED = [
    ("prints NaN in a number", returning(NAN_PULSE, cites("loss", np.nan))),
    ("prints NaN in a sentence", saying(UNDERFLOW, f"{np.nan:.1%} of 7 entries are zero.")),
    ("prints infinity in a sentence", saying(UNDERFLOW, f"All 7 entries move {np.inf} rates.")),
    (
        "prints numpy's wrapping",
        saying(UNDERFLOW, f"Share {np.float64(0.5)!r} of entries is zero."),
    ),
    ("leaves a knob as it was", dosed(EPSILON, "eps", 1e-8, 1e-8)),
    ("cures nothing", dosed(EPSILON, "beta2", 0.999, 0.95)),
    ("proposes an epsilon too small", dosed(UNDERFLOW, "eps", 1e-8, 1e-6)),
    ("proposes an epsilon that is 0 in float16", dosed(UNDERFLOW, "eps", 1e-8, 1e-9)),
    ("prescribes nothing", returning(NAN_PULSE, lambda f: replace(f, treatments=()))),
    ("starts at step 1", at_steps(lambda a, b: (1, b))),
    ("starts too early", at_steps(lambda a, b: (a - 50, b))),
    ("starts too late", at_steps(lambda a, b: (a + 50, b))),
    ("starts at a fixed step", at_steps(lambda a, b: (301, b))),
    ("ends at its start", at_steps(lambda a, b: (a, a - 1))),
    ("ends beyond the run", at_steps(lambda a, b: (a, b + 1))),
    ("has no steps", at_steps(lambda a, b: (0, 0))),
    ("is named after another file", replace(NAN_PULSE, name="nan-loss")),
    ("is named in another case", replace(NAN_PULSE, name="nan_pulse")),
    ("is named after a remedy", replace(NAN_PULSE, name="no-nan-loss")),
    *((f"lacks {heading}", rewritten(f"## {heading}\n", "")) for heading in contract.SECTIONS),
    ("has an empty section", rewritten(NAN_PULSE.section("What to do"), "")),
    ("has one heading in place of another", rewritten("Why it matters", "What to do")),
    ("has a section twice", rewritten("## What to do", "## What it finds\n\n## What to do")),
    ("swaps its examples", replace(NAN_PULSE, sick=NAN_PULSE.healthy, healthy=NAN_PULSE.sick)),
    ("has a sick example that is healthy", replace(NAN_PULSE, sick=NAN_PULSE.healthy)),
    ("has a healthy example that is sick", replace(NAN_PULSE, healthy=NAN_PULSE.sick)),
    ("has an example that another rule calls sick", replace(EPSILON, healthy=UNDERFLOW.sick)),
    ("has a healthy example that it cannot examine", replace(NAN_PULSE, healthy=EPSILON.healthy)),
    ("reads an undeclared fact", first(NAN_PULSE, lambda trace: trace.facts.get("eps"))),
    ("reads an undeclared series", first(NAN_PULSE, lambda trace: trace.series.get("batch_index"))),
    ("cites an undeclared channel", returning(NAN_PULSE, cites("batch_index"))),
    ("gives no evidence", returning(NAN_PULSE, lambda f: replace(f, evidence=()))),
    ("explains a rule that nobody knows", replace(EPSILON, explains=("nan-puls",))),
    ("explains itself", replace(EPSILON, explains=("epsilon-below-precision",))),
    ("explains its own cause", replace(NAN_PULSE, explains=("second-moment-underflow",))),
    ("raises", first(NAN_PULSE, fail)),
    ("raises on nonsense only", first(EPSILON, fail_on_nonsense)),
    ("needs a channel that nobody knows", replace(NAN_PULSE, needs=("loss", "los"))),
    ("uses a channel that nobody knows", replace(NAN_PULSE, uses=("gradient",))),
    ("needs a fact that it ignores", replace(EPSILON, needs=(*EPSILON.needs, "optimizer"))),
    ("needs a series that it ignores", replace(NAN_PULSE, needs=("loss", "grad_norm"))),
    ("gives no number in its summary", saying(NAN_PULSE, "NaN loss from here to the end.")),
    ("summarises in two sentences", saying(NAN_PULSE, "NaN loss at step 3. It is 7 rows long.")),
    ("does not begin with the word of the field", saying(NAN_PULSE, "The loss is NaN in 7 rows.")),
]
IGNORED = [
    (EPSILON, "family not in DIVIDING or ", ""),
    (EPSILON, 'str(trace.facts["math_dtype"])', '"float16"'),
    (EPSILON, "rounded = round_to(eps, dtype)", "rounded = round_to(1e-8, dtype)"),
    (UNDERFLOW, 'str(trace.facts["state_dtype"])', '"float16"'),
    (UNDERFLOW, "/ 2 / (1 - beta2)", "/ 2 / (1 - 0.999)"),
]
UNDOCUMENTED_LIMIT = '    """Largest share of zeroed entries'


def objections(rule: Rule) -> list[str]:
    """The checks that the rule fails."""
    failed = []
    for check in contract.CHECKS:
        try:
            check(rule)
        except Exception:
            failed.append(check.__name__)
    return failed


@pytest.mark.parametrize("rule", [rule for _, rule in SPOILED], ids=[name for name, _ in SPOILED])
def test_a_spoiled_rule_breaks_the_contract(rule: Rule) -> None:
    assert objections(rule)


def test_a_note_may_wait_only_for_symptoms_that_its_rule_brings_about() -> None:
    waiting = returning(EPSILON, lambda f: replace(f, severity=Severity.NOTE, awaits_symptom=True))
    grave = returning(EPSILON, lambda f: replace(f, awaits_symptom=True))
    raised = returning(EPSILON, lambda f: replace(f, raised_by="loss-spike"))
    contract.check_waits_only_for_symptoms_that_it_brings_about(waiting)
    for spoiled in (replace(waiting, explains=()), grave, raised):
        assert "check_waits_only_for_symptoms_that_it_brings_about" in objections(spoiled)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_loading_a_copy_of_a_rule_alone_is_no_sabotage(rule: Rule, load: Loader) -> None:
    assert objections(load(rule, source_of(rule))) == []
    assert objections(returning(rule, lambda finding: finding)) == []


def exactness(rule: Rule) -> Iterator[tuple[str, str]]:
    """Each comparison with a limit, and the source with `>` for `>=` in it, or the reverse."""
    tree = ast.parse(source_of(rule))
    names = {f"limits.{field.name}" for field in fields(rule.limits)}
    estimates = {inner for node in ast.walk(tree) if _is_of_log(node) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if (
            node in estimates
            or not isinstance(node, ast.Compare)
            or type(node.ops[0]) not in STRICTER
        ):
            continue
        text = ast.unparse(node)
        if any(name in text for name in names):
            ops = node.ops
            node.ops = [STRICTER[type(ops[0])](), *ops[1:]]
            yield text, ast.unparse(tree)
            node.ops = ops


def _is_of_log(node: ast.AST) -> bool:
    """Whether it is a function of how the rule looks at a log: what is compared there is estimated,
    and whether the limit itself passes says nothing; see rules/test_what_a_log_shows.py."""
    return isinstance(node, ast.FunctionDef) and node.name.endswith("_log")


@pytest.mark.timeout(1200)  # a copy of the rule for each of its comparisons
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_no_comparison_with_a_limit_may_become_inexact(rule: Rule, load: Loader) -> None:
    spared = [text for text, source in exactness(rule) if not objections(load(rule, source))]
    assert [text for text in spared if text != NAMES_TENSORS_ONLY] == []


@pytest.mark.parametrize(("old", "new"), [("rounded > 0", "rounded >= 0"), ("0 < eps", "0 <= eps")])
def test_no_comparison_with_zero_may_become_inexact(old: str, new: str, load: Loader) -> None:
    assert old in source_of(EPSILON)
    assert objections(load(EPSILON, source_of(EPSILON).replace(old, new)))


@pytest.mark.parametrize(("rule", "old", "new"), IGNORED, ids=lambda value: str(value)[:30])
def test_a_declared_fact_may_not_be_ignored(rule: Rule, old: str, new: str, load: Loader) -> None:
    assert old in source_of(rule)
    assert "check_every_needed_channel_decides" in objections(
        load(rule, source_of(rule).replace(old, new))
    )


def test_a_limit_without_its_sentence_is_not_accepted(load: Loader) -> None:
    source = source_of(UNDERFLOW)
    assert UNDOCUMENTED_LIMIT in source
    spoiled = load(UNDERFLOW, source.replace(UNDOCUMENTED_LIMIT, '    f"""Largest share of'))
    assert objections(spoiled) == ["check_every_limit_has_a_sentence"]


def test_a_boundary_test_is_owed(monkeypatch: pytest.MonkeyPatch) -> None:
    tests = contract.own_tests(UNDERFLOW)
    monkeypatch.setattr(contract, "own_tests", lambda rule: tests)
    del tests.AT_LIMIT["share"]
    with pytest.raises(AssertionError, match="share"):
        contract.check_limits_hold_exactly(UNDERFLOW)


def test_a_boundary_test_far_from_the_limit_is_not_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tests = contract.own_tests(UNDERFLOW)
    monkeypatch.setattr(contract, "own_tests", lambda rule: tests)
    tests.AT_LIMIT["share"] = (UNDERFLOW.healthy, UNDERFLOW.sick)
    with pytest.raises(AssertionError, match="not at its limit"):
        contract.check_limits_hold_exactly(UNDERFLOW)
