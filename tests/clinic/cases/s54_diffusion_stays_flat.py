"""S54: the loss of a diffusion model swings for thousands of steps without falling, as is usual."""

from dataclasses import replace
from pathlib import Path

import torch
from casing import Case
from course import course, train
from setups import Setup

import optdoctor
from optdoctor.findings import Diagnosis

UPDATES, LATE = 1000, 400


def run(folder: Path) -> Diagnosis:
    sound = course(
        Setup("diffusion", "adamw", schedule="constant", rate_factor=0.1, batch_factor=0.125)
    )
    sound.steps = UPDATES
    del sound.facts["loss_kind"]  # a loop of one's own tells nobody
    sound.family = replace(sound.family, steps=UPDATES)
    sound.facts["total_steps"] = UPDATES
    outcome = train(sound, folder)
    late = torch.tensor(outcome.losses[-LATE:])
    assert float(late.max()) > 2 * float(late.min())
    held_out = outcome.eval_losses
    assert outcome.final < 0.97 * held_out[len(held_out) // 2] < 0.6 * held_out[0]
    first, last = late[: LATE // 2].mean(), late[LATE // 2 :].mean()
    assert abs(float(first - last)) < 0.5 * float(late.std())
    return optdoctor.diagnose(optdoctor.read(folder))


CASE = Case(
    number="S54",
    source="ermongroup/ddim#33, huggingface/diffusers#3604, baofff/U-ViT#13",
    says="Times are drawn at random, so the loss swings; samples go on getting better.",
    run=run,
)
