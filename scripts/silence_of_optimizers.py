"""Healthy trainings with every optimizer on several tasks and seeds: who is spoken of, and why.

    python scripts/silence_of_optimizers.py [--tasks digits,cnn,text,gpt] [--seeds 2] [--only Lion]
        [--dtype bfloat16] [--steps 150] [--interval 6] [--rates]

Prints a line a run: losses, findings, and beside bfloat16 weights the fall of the float32 twin.
`--rates` trains unwatched at rates around that of each recipe instead: where the rates come from.
"""

import argparse
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import torch

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS / "clinic"), str(TESTS)]

from peace import Seen, trained  # noqa: E402
from recipes import RECIPES, Recipe  # noqa: E402

FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)


def line(recipe: Recipe, task: str, seed: int, seen: Seen, twin: Seen | None) -> str:
    found = [f"{f.severity.name.lower()} {f.rule}" for f in seen.diagnosis.findings]
    beside = "" if twin is None else f" fall {seen.fall / twin.fall:.3f} of the float32 twin's"
    losses = f"{seen.losses[0]:.3g} -> {seen.final_loss:.3g}"
    text = f"{recipe.name:42} {task:7} {seed} {losses:18}{beside} {', '.join(found) or '-'}"
    return "\n".join([text, *(f"    {f.summary}" for f in seen.diagnosis.findings), *seen.failures])


def at_rates(recipe: Recipe) -> str:
    """The final loss at each rate."""
    tried = []
    for factor in FACTORS:
        other = replace(recipe, rate=recipe.rate * factor)
        tried.append(f"{other.rate:.0e}: {trained(other, interval=1_000).final_loss:.3g}")
    return f"{recipe.name:42} {'  '.join(tried)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", default="digits,cnn,text,gpt")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--interval", type=int, default=6)
    parser.add_argument("--rates", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    dtype = getattr(torch, given.dtype)
    for recipe in RECIPES:
        if given.only not in recipe.name or not recipe.available:
            continue
        if given.rates:
            print(at_rates(recipe), flush=True)
            continue
        tasks = given.tasks.split(",") if recipe.task == "digits" else [recipe.task]
        for task in tasks:
            for seed in range(given.seeds):
                how = {"task": task, "seed": seed, "steps": given.steps, "interval": given.interval}
                try:
                    seen = trained(recipe, dtype, **how)
                    twin = None if dtype == torch.float32 else trained(recipe, **how)
                except RuntimeError as error:  # SophiaH through attention: no second derivative
                    print(f"{recipe.name:42} {task:7} {seed} cannot train it: {error}", flush=True)
                    continue
                print(line(recipe, task, seed, seen, twin), flush=True)


if __name__ == "__main__":
    main()
