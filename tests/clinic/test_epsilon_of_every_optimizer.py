"""Small float16 trainings behind `epsilon-below-precision` of optimizers other than Adam.

Bytes of text, 60 updates: with the default epsilon each run of a family that divides by a root plus
epsilon loses its loss to NaN; with 1e-4, or float32 weights, none does.
"""

import math
from dataclasses import replace

import pytest
import torch
from peace import Seen, trained
from recipes import RECIPES, Recipe

from optdoctor.findings import Severity
from optdoctor.rules.epsilon_below_precision import DIVIDING, RULE

BY_NAME = {recipe.name: recipe for recipe in RECIPES if recipe.available}
BREAKING = (
    "torch.optim.Adamax",
    "torch.optim.NAdam",
    "torch.optim.RAdam",
    "torch.optim.RMSprop",
    "torch.optim.Adagrad",
    "pytorch_optimizer.AdaBelief",
    "pytorch_optimizer.Adan",
    "pytorch_optimizer.AdEMAMix",
    "pytorch_optimizer.ScheduleFreeAdamW",
    "pytorch_optimizer.SOAP",
)
IN_FLOAT32 = (
    "bitsandbytes.optim.AdamW",
    "bitsandbytes.optim.AdamW8bit",
    "bitsandbytes.optim.RMSprop",
    "bitsandbytes.optim.Adagrad8bit",
    "bitsandbytes.optim.AdEMAMix",
    "torchao.optim.AdamW8bit",
    "pytorch_optimizer.AdamMini",
    "pytorch_optimizer.StableAdamW",
)
"""They compute in float32 whatever the weights are: epsilon is kept."""


def train(recipe: Recipe, dtype: torch.dtype = torch.float16, steps: int = 60) -> Seen:
    return trained(recipe, dtype, task="text", steps=steps, interval=20)


def named(seen: Seen) -> list[Severity]:
    return [f.severity for f in seen.diagnosis.outcomes[RULE.name].findings]


def available(*names: str) -> list[str]:
    return [name for name in names if name in BY_NAME]


@pytest.mark.parametrize("name", available(*BREAKING))
def test_a_family_that_divides_by_epsilon_breaks_in_float16_and_is_told(name: str) -> None:
    recipe = BY_NAME[name]
    sick = train(recipe)
    first = next(i for i, loss in enumerate(sick.losses, 1) if not math.isfinite(loss))
    emergency = train(replace(recipe, options={**recipe.options, "eps": 1e-4}))
    print(f"\n{name}: NaN at step {first}; with 1e-4 the loss is {emergency.final_loss:.3g}")
    assert first <= 7
    assert named(sick) == [Severity.CRITICAL]
    assert sick.trace.facts["optimizer_family"] in DIVIDING
    assert math.isfinite(emergency.final_loss)
    assert named(emergency) == []
    assert math.isfinite(train(recipe, torch.float32).final_loss)


def test_every_family_that_is_told_of_has_its_run() -> None:
    seen = {train(BY_NAME[name], steps=1).trace.facts["optimizer_family"] for name in BREAKING}
    assert seen == DIVIDING - {"adam"}


@pytest.mark.parametrize("name", available(*IN_FLOAT32))
def test_who_computes_in_float32_keeps_its_epsilon(name: str) -> None:
    seen = train(BY_NAME[name], steps=40)
    assert math.isfinite(seen.final_loss)
    assert named(seen) == []
    assert "second-moment-underflow" not in {f.rule for f in seen.diagnosis.findings}
