"""Advice known to be wrong is never proposed, whatever the run; prose may only refuse it."""

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from tampered import DTYPES, with_facts

import optdoctor
from optdoctor.engine import examine
from optdoctor.findings import Abstain, Treatment
from optdoctor.rule import Rule
from optdoctor.rules import RULES
from optdoctor.trace import Trace

PACKAGE = Path(optdoctor.__file__).parent
LEAST_EPS = 1e-5
FORBIDDEN = {
    "clamp the second moment": r"clamp\w*",
    "epsilon 1e-6": r"\b1e-0?6\b",
    "GradScaler(min_scale=...)": r"min_scale",
    "write decayed weights back to half": r"\bwrit\w+ back to (half|float16|fp16)|half write-?back",
    "divide decay, rate or beta by the number of GPUs": (
        r"(divid|multipl|scal)\w*[^.]*\b(GPUs|number of (devices|processes)|world_size)\b"
    ),
    "broadcast optimizer state": r"broadcast\w*",
    "train mode or shuffling in validation": r"model\.train\(\)|shuffl\w+[^.]*\bvalidation\b",
    "remove the reward gradient": r"(remov|project)\w*[^.]*\breward\b",
    "a larger rate for Lion": r"\b(larg|high|rais)\w*[^.]*\bLion\b|\bLion\b[^.]*\b(larg|high)",
    "beta2 0.9999": r"\b0?\.9999\b",
    "names that do not exist": (
        r"transformers\.Lion|reset_adam_on_data_shift|lamb_layer_masking|enable_curvature"
        r"|muon_scheduler|param_norm|min_dim_size|memory_efficient|no_weight_decay"
    ),
}
SAYS_NO = re.compile(
    r"\b(is|are) not proposed\b|\bnot enough\b|\bNeither is\b|\brecovered 0 of\b"
    r"|\b(is|are) never proposed\b"
)
PATHS = re.compile(r"(?<![\w.])/(home|root|tmp|usr)\b|\.\./|\b\w+\.md\b")


def variants(rule: Rule) -> Iterator[Trace]:
    """The rule's sick run in other dtypes, fused or not, and with other epsilons and betas."""
    sick = rule.sick()
    yield sick
    for dtype, math_dtype, eps, beta2 in product(
        DTYPES, DTYPES, (0.0, 1e-12, 1e-8, 1e-6, 1e-4), (0.5, 0.95, 0.999, 0.9999)
    ):
        facts = {"param_dtype": dtype, "state_dtype": dtype, "math_dtype": math_dtype}
        yield with_facts(sick, **facts, eps=eps, beta2=beta2)


def treatments(rule: Rule) -> set[tuple[str, str, tuple[tuple[str, object], ...]]]:
    """(title, source, new values) of everything that the rule proposes in any variant."""
    proposed = set()
    for trace in variants(rule):
        outcome = examine(rule, trace)
        assert outcome.status != "crashed", outcome.reason
        for treatment in (t for f in outcome.findings for t in f.treatments):
            new = tuple((knob, after) for knob, (_, after) in treatment.changes.items())
            proposed.add((treatment.title, treatment.source, new))
    return proposed


def faults(title: str, source: str, new: tuple[tuple[str, object], ...]) -> list[str]:
    """What is wrong with a treatment."""
    said = " ".join([title, source, *(f"{knob}={value}" for knob, value in new)])
    wrong = [what for what, pattern in FORBIDDEN.items() if re.search(pattern, said, re.I)]
    for knob, value in new:
        if knob == "eps" and not (float(str(value)) >= LEAST_EPS and np.float16(value) > 0):
            wrong.append(f"eps = {value}")
    return wrong


def unguarded(text: str) -> list[str]:
    """Sentences that speak of forbidden advice without saying that it is not proposed."""
    sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z`])|\n\n|\n(?=#)", text)
    return [
        sentence
        for sentence in sentences
        if any(re.search(pattern, sentence, re.I) for pattern in FORBIDDEN.values())
        and not SAYS_NO.search(sentence)
    ]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_no_treatment_of_any_variant_is_forbidden(rule: Rule) -> None:
    proposed = treatments(rule)
    assert proposed
    assert [(what, faults(*what)) for what in sorted(proposed, key=str) if faults(*what)] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_documentation_names_forbidden_advice_only_to_refuse_it(rule: Rule) -> None:
    assert unguarded(rule.doc) == []


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.name))
def test_no_text_of_the_package_names_a_path_or_a_note_of_ours(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    strings = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)]
    assert [s for s in strings if isinstance(s, str) and PATHS.search(s)] == []


BAD = [
    Treatment("Clamp the second moment at 1e-8"),
    Treatment("Set eps", {"eps": (1e-8, 1e-6)}),
    Treatment("Set eps", {"eps": (1e-8, 9e-6)}),
    Treatment("Use eps = 1e-6"),
    Treatment("Keep the scale", source="GradScaler(min_scale=128)"),
    Treatment("Decay in float32 and write back to half"),
    Treatment("Divide weight decay by the number of GPUs"),
    Treatment("Divide weight decay by GPUs", {"weight_decay": (0.1, 0.0125)}),
    Treatment("Scale lr by world_size"),
    Treatment("Broadcast the optimizer state"),
    Treatment("Call model.train() while validating"),
    Treatment("Shuffle the validation data"),
    Treatment("Remove the gradient of the reward"),
    Treatment("Raise lr 10 times for Lion"),
    Treatment("Lion: a larger rate than AdamW's"),
    Treatment("Slow the average", {"beta2": (0.999, 0.9999)}),
    Treatment("Use transformers.Lion"),
    Treatment("Set reset_adam_on_data_shift=True"),
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.title)
def test_forbidden_advice_is_recognised(bad: Treatment) -> None:
    new = tuple((knob, after) for knob, (_, after) in bad.changes.items())
    assert faults(bad.title, bad.source, new)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.title)
def test_a_rule_that_proposes_it_in_one_variant_only_is_caught(bad: Treatment) -> None:
    rule = next(rule for rule in RULES if rule.name == "second-moment-underflow")

    def check(trace: Trace, limits: object) -> object:
        found = rule.check(trace, limits)
        if trace.facts["eps"] != 1e-12 or isinstance(found, Abstain):
            return found
        return [replace(finding, treatments=(bad,)) for finding in found]

    assert [what for what in treatments(replace(rule, check=check)) if faults(*what)]


@pytest.mark.parametrize(
    "text",
    [
        "Clamp the second moment at 1e-8.",
        "Set epsilon to 1e-6. It is not proposed to wait.",
        "A clamp is not proposed. In float32, clamp at 1e-12.",
        "GradScaler(min_scale=128) helps.",
    ],
)
def test_prose_that_proposes_forbidden_advice_is_recognised(text: str) -> None:
    assert unguarded(text)


def test_prose_that_refuses_forbidden_advice_is_allowed() -> None:
    assert unguarded("An epsilon of 1e-6 is not proposed: it recovered 0 of 6 runs.") == []


@pytest.mark.parametrize("text", ["see /home/notes", "(notes.md, part G)", "../logs"])
def test_paths_are_recognised(text: str) -> None:
    assert PATHS.search(text)
