"""Spikes begin within warm-up, where the rate passes what the network bears."""

from pathlib import Path

from acting import examined
from casing import Case
from course import course
from setups import Setup

from optdoctor.findings import Diagnosis


def run(folder: Path) -> Diagnosis:
    betas = (("betas", (0.9, 0.95)),)
    setup = Setup(
        "char-gpt", "adamw", rate_factor=10.0, clip=1.0, weight_decay=0.1, optimizer_options=betas
    )
    made = course(setup)
    made.schedule = lambda update, total: min(1.0, (update + 1) / (0.8 * total))
    made.facts["schedule"] = "linear warm-up"
    return examined(made, folder)


CASE = Case(
    number="S23",
    source="openlm-research/open_llama#74",
    says="The loss spikes already in warm-up, from a certain rate on; less than half of it is"
    " smooth.",
    run=run,
    rules=("step-too-large", "learning-rate-absurd"),
)
