"""What is called `safe` cannot make a run worse: a look, or a format that holds more numbers."""

from dataclasses import replace

import pytest

from optdoctor.engine import examine
from optdoctor.findings import Treatment
from optdoctor.rule import Rule
from optdoctor.rules import RULES

FORMATS = {"param_dtype", "state_dtype", "math_dtype"}
"""Knobs that safe treatments turn, to more bits."""
LEAVES_THE_RUN = (
    "Go back to a checkpoint from before",
    "If they are frozen on purpose, set requires_grad to False",
    "Keep the checkpoint",
    "Look for",
    "Save the optimizer's state",
)
"""How others begin that are no checks: none changes how sound weights move."""


def is_overpraised(treatment: Treatment) -> bool:
    """Whether it is called safe and changes the training."""
    if treatment.safety != "safe":
        return False
    if treatment.changes:
        return not FORMATS.issuperset(treatment.changes)
    return treatment.when != "check" and not treatment.title.startswith(LEAVES_THE_RUN)


def treatments(rule: Rule) -> list[Treatment]:
    """What the rule proposes in its sick run."""
    return [t for finding in examine(rule, rule.sick()).findings for t in finding.treatments]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_treatment_that_changes_the_training_is_not_called_safe(rule: Rule) -> None:
    proposed = treatments(rule)
    assert proposed
    assert [t.title for t in proposed if is_overpraised(t)] == []


@pytest.mark.parametrize(
    "bad",
    [
        Treatment("Lower the rate", {"lr": (0.5, 0.002)}, safety="safe"),
        Treatment("Lower the rate", safety="safe", when="next"),
        Treatment("Check, and lower the rate", {"lr": (0.5, 0.002)}, when="check", safety="safe"),
    ],
)
def test_praise_that_is_too_high_is_recognised(bad: Treatment) -> None:
    assert is_overpraised(bad)
    assert not is_overpraised(replace(bad, safety="risky"))
