"""Healthy trainings with every optimizer that optdoctor reads, and silence about each.

A digits network of 9,000 weights, 150 updates, every tenth of them sampled; with bfloat16 weights
every second, because optimizers that warm up by themselves lose their first updates. What is
healthy is read off the loss alone, with bfloat16 weights beside that of the float32 twin.
`pytest -s` prints each run with its notes; scripts/silence_of_optimizers.py tries more.
"""

from functools import cache

import pytest
import torch
from optimizers.built import every
from peace import Seen, trained
from recipes import RECIPES, Recipe

from optdoctor.findings import Severity

TWIN = 0.97
"""Least fall of the loss of a healthy run with bfloat16 weights, over that of its float32 twin."""
UNTRIED = {
    "deepspeed.ops.lion.DeepSpeedCPULion": "compiles for minutes",
    "galore_torch.GaLoreAdamW": "not installed where this was written",
}
COARSE = (
    "torch.optim.Adadelta",
    "torch.optim.Adagrad",
    "torch.optim.AdamW",
    "torch.optim.AdamW, fused",
    "torch.optim.Adamax",
    "torch.optim.Muon",
    "torch.optim.NAdam",
    "torch.optim.RAdam",
    "torch.optim.RMSprop",
    "torch.optim.SGD, momentum",
    "transformers.Adafactor",
    "lion_pytorch.Lion",
    "bitsandbytes.optim.AdamW8bit",
    "bitsandbytes.optim.SGD8bit",
    "torchao.optim.AdamW8bit",
    "pytorch_optimizer.AdaBelief, rectify",
    "pytorch_optimizer.AdaFactor",
    "pytorch_optimizer.CAME",
    "pytorch_optimizer.GaLore",
    "pytorch_optimizer.Lamb",
    "pytorch_optimizer.LARS",
    "pytorch_optimizer.ScheduleFreeAdamW",
    "pytorch_optimizer.ScheduleFreeRAdam",
    "pytorch_optimizer.SOAP",
    "pytorch_optimizer.StableAdamW",
)
"""One of each kind, healthy with bfloat16 weights; the script knows which are not."""
ALL = [recipe for recipe in RECIPES if recipe.available]
pytestmark = pytest.mark.filterwarnings("ignore:Paged optimizers:UserWarning")


@cache
def run(recipe: Recipe, dtype: torch.dtype) -> Seen:
    return trained(recipe, dtype, interval=10 if dtype == torch.float32 else 2)


def loud(seen: Seen) -> list[str]:
    """Findings that are more than a note, at the end or while it trained."""
    several = (*seen.announced, *seen.diagnosis.findings)
    return [f.summary for f in several if f.severity is not Severity.NOTE]


def told(recipe: Recipe, seen: Seen) -> str:
    notes = ", ".join(f.rule for f in seen.diagnosis.findings)
    return f"\n{recipe.name}: loss {seen.losses[0]:.3g} -> {seen.final_loss:.3g}; {notes or '-'}"


def test_there_is_a_recipe_for_every_optimizer_that_is_read() -> None:
    kinds = {built.name.partition(",")[0] for built in every() if built.available}
    kinds = {kind.removesuffix(" of a convolution") for kind in kinds}
    assert kinds - UNTRIED.keys() <= {recipe.kind for recipe in RECIPES}
    assert {recipe.name for recipe in RECIPES} >= set(COARSE)


@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.name)
def test_a_healthy_run_is_left_in_peace(recipe: Recipe) -> None:
    seen = run(recipe, torch.float32)
    print(told(recipe, seen))
    assert seen.final_loss < recipe.fallen * seen.losses[0], "the recipe is at fault"
    assert seen.failures == []
    assert loud(seen) == []


@pytest.mark.parametrize(
    "recipe", [recipe for recipe in ALL if recipe.name in COARSE], ids=lambda recipe: recipe.name
)
def test_a_healthy_run_with_bfloat16_weights_is_left_in_peace(recipe: Recipe) -> None:
    seen, twin = run(recipe, torch.bfloat16), run(recipe, torch.float32)
    print(told(recipe, seen))
    assert seen.fall > TWIN * twin.fall, "the recipe is at fault"
    assert seen.failures == []
    assert loud(seen) == []
