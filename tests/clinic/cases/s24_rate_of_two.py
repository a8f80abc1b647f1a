"""Adam with a rate of 2: a slip of the pen in a configuration file."""

from pathlib import Path

from acting import examined
from casing import Case
from course import course
from setups import Setup

from optdoctor.findings import Diagnosis


def run(folder: Path) -> Diagnosis:
    made = course(Setup("char-gpt", "adam"))
    for group in made.optimizers[0].param_groups:
        group["lr"] = 2.0
    made.steps = 120
    return examined(made, folder)


CASE = Case(
    number="S24",
    source="OpenNMT/OpenNMT-tf#744",
    says="Training is lost at once: the learning rate of Adam is 2.",
    run=run,
    rules=("learning-rate-absurd",),
)
