"""Every spelling of every knob, and every change that a rule proposes, is run for real."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from applied import APPLY, LAYER, apply_torch

from optdoctor.engine import diagnose, examine
from optdoctor.findings import Treatment
from optdoctor.knowledge import knobs
from optdoctor.knowledge.knobs import ANY, PATTERN, frameworks, spell
from optdoctor.rules import RULES

VALUES: dict[str, Any] = {
    "eps": 1e-4,
    "weight_decay": 0.05,
    "beta1": 0.85,
    "beta2": 0.95,
    "momentum": 0.8,
    "lr": 5e-4,
    "peak_lr": 5e-4,
    "tensor_lr:": 5e-4,
    "max_grad_norm": 0.5,
    "total_steps": 4,
    "warmup_steps": 6,
    "accumulation_steps": 3,
    "batch_size": 6,
}
"""A new value of every knob whose code takes any."""


def changes() -> list[Any]:
    """(framework, knob, new value) of every spelling that the data files hold."""
    found = []
    for framework, module in frameworks().items():
        for knob, spelling in module.KNOBS.items():
            values = list(spelling) if isinstance(spelling, dict) else [ANY]
            for value in values:
                new = VALUES[knob] if value == ANY else 0.0 if value == "0" else value
                name = knob + LAYER if knob == PATTERN else knob
                found.append(pytest.param(framework, name, new, id=f"{framework}-{name}-{new}"))
    return found


def code_of(framework: str, knob: str, new: Any) -> str:
    (spelled,) = spell(framework, {knob: (None, new)})
    return spelled[1]


@pytest.mark.parametrize(("framework", "knob", "new"), changes())
def test_the_code_of_every_knob_runs_and_turns_it(
    framework: str, knob: str, new: Any, tmp_path: Path
) -> None:
    APPLY[framework](knob, new, code_of(framework, knob, new), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "knob", "new"), changes())
def test_a_knob_spelled_wrong_is_caught(
    framework: str, knob: str, new: Any, tmp_path: Path
) -> None:
    wrong = misspelled(code_of(framework, knob, new))
    assert wrong
    assert [code for code in wrong if works(framework, knob, new, code, tmp_path)] == []


def works(framework: str, knob: str, new: Any, code: str, folder: Path) -> bool:
    """Whether the code runs and turns the knob; skips where the framework is not installed."""
    try:
        APPLY[framework](knob, new, code, folder)
    except Exception:
        return False
    return True


def misspelled(code: str) -> list[str]:
    """The code with another name for each argument, key or method in it."""
    code, hash_, remark = code.partition("  #")
    keys = r"\b\w+(?==(?![= ]))|(?<=\[\")\w+(?=\"\] =)|(?<=\")\w+(?=\":)|(?<=\.)\w+(?=\()|\w+_$"
    return [
        f"{code[: name.start()]}no_{name[0]}{code[name.end() :]}{hash_}{remark}"
        for name in re.finditer(keys, code)
    ]


def test_every_framework_spells_the_same_knobs() -> None:
    assert APPLY.keys() == frameworks().keys()
    spelled = {name: set(module.KNOBS) for name, module in frameworks().items()}
    assert len({frozenset(names) for names in spelled.values()}) == 1, spelled


def proposed() -> list[Any]:
    """(rule, framework, knob, change, title) of every change that a rule proposes to its own."""
    return [
        pytest.param(framework, knob, change, treatment.title, id=f"{rule.name}-{framework}-{knob}")
        for rule in RULES
        for finding in diagnose(rule.sick(), [rule]).findings
        for treatment in finding.treatments
        for knob, change in treatment.changes.items()
        for framework in frameworks()
    ]


@pytest.mark.parametrize(("framework", "knob", "change", "title"), proposed())
def test_every_change_that_a_rule_proposes_can_be_typed_in(
    framework: str, knob: str, change: tuple[Any, Any], title: str, tmp_path: Path
) -> None:
    spelled = spell(framework, {knob: change})
    if not spelled:
        assert str(change[1]) in title, f"neither code nor title says how {knob} becomes {change}"
        return
    if not knob.startswith(PATTERN):  # the small models have no layer of that name
        APPLY[framework](knob, change[1], spelled[0][1], tmp_path)


@pytest.mark.parametrize(
    ("knob", "status"),
    [("lr", "found"), ("tensor_lr:h.1", "found"), ("eps", "found"), ("eval_loss", "crashed")],
)
def test_a_treatment_turns_rates_and_run_channels_only(knob: str, status: str) -> None:
    rule = RULES[0]
    (finding, *_) = diagnose(rule.sick(), [rule]).findings
    proposing = replace(finding, treatments=(Treatment("Turn it", {knob: (1.0, 0.5)}),))
    outcome = examine(replace(rule, check=lambda trace, limits: [proposing]), rule.sick())
    assert outcome.status == status


@pytest.mark.parametrize(
    ("version", "argument"), [((4, 46), "torch_dtype"), ((4, 56), "dtype"), (None, "dtype")]
)
def test_the_installed_version_decides_the_spelling(
    version: tuple[int, int] | None, argument: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knobs, "installed", lambda package: version)
    ((_, code),) = spell("huggingface", {"state_dtype": ("float16", "float32")})
    assert f"(.., {argument}=torch.float32)" in code


def test_a_version_is_read_from_the_metadata() -> None:
    knobs.installed.cache_clear()
    assert knobs.installed("numpy") == tuple(int(n) for n in np.__version__.split(".")[:2])
    assert knobs.installed("no-such-package-of-anybody") is None


def test_a_group_without_decay_keeps_none() -> None:
    torch = pytest.importorskip("torch")
    code = code_of("torch", "weight_decay", 0.05)
    groups = [
        {"params": [torch.nn.Parameter(torch.ones(2))], "weight_decay": decay}
        for decay in (0.1, 0.0)
    ]
    optimizer = torch.optim.AdamW(groups)
    exec(code, {"optimizer": optimizer})
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.05, 0.0]


def test_a_layer_with_quotes_in_its_name_stays_a_name(tmp_path: Path) -> None:
    hostile = """h.1.' in '') or exit("""
    code = code_of("torch", PATTERN + hostile, 5e-4)
    with pytest.raises(AssertionError):  # runs, and finds no tensor of that name
        apply_torch(PATTERN + hostile, 5e-4, code, tmp_path)
