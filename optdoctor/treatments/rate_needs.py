"""What treatments of learning rates refuse, and how long a warm-up is where nobody says."""

from collections.abc import Mapping
from typing import Any

from optdoctor.optimizers import number_of, probe_of, settings_of
from optdoctor.trace import Fact
from optdoctor.treatments.intervention import Refused

LEAST_STEPS, MOST_STEPS = 10, 2000
"""Bounds of a warm-up that follows from beta2: what 0.8 and 0.999 ask for."""
PLAIN_STEPS = 100
"""Of one without a beta2, from which nothing follows: heuristic."""
GLOBAL_KEYS = ("d0", "d_coef", "growth_rate")
"""Settings by which optimizers are known that estimate one distance for all tensors."""


def obeyed_rates(name: str, optimizer: Any) -> None:
    """The rate in the groups is the one by which the next step moves the weights.

    Raises:
        Refused: it has another, or none.
    """
    kind, groups = type(optimizer).__name__, optimizer.param_groups
    if any(group.get("relative_step") for group in groups):
        raise Refused(
            f"{name} multiplies learning rates, and {kind} makes its own with relative_step",
            "set relative_step to False and give it a rate",
        )
    if not any(group.get("lr") is not None for group in groups):
        raise Refused(
            f"{name} multiplies learning rates, and the groups of {kind} have none",
            "give the optimizer a rate",
        )
    family = probe_of(optimizer).family
    if family == "rprop":
        raise Refused(
            f"{name} multiplies learning rates, and {kind} reads its own only at the first step",
            "bound its step sizes instead",
        )
    if family == "asgd":
        raise Refused(
            f"{name} multiplies rates for one step, and {kind} keeps the one of the next in its"
            " state",
            "use SGD, and average the weights apart from it",
        )
    if family == "lbfgs" and any(group.get("line_search_fn") for group in groups):
        raise Refused(
            f"{name} multiplies learning rates, and the line search of {kind} finds its own",
            "nothing: a line search needs no rate",
        )


def separate_rates(name: str, optimizer: Any) -> None:
    """Each tensor may have a rate of its own without any part of the state being of all.

    Raises:
        Refused: something is of all tensors, or of a group.
    """
    kind, groups = type(optimizer).__name__, optimizer.param_groups
    family = probe_of(optimizer).family
    if family == "lbfgs":
        raise Refused(
            f"{name} gives layers rates of their own, and {kind} moves all along one direction",
            "use an optimizer that moves each tensor by itself",
        )
    estimates = any(key in group for group in groups for key in GLOBAL_KEYS)
    if family == "prodigy" or estimates:
        raise Refused(
            f"{name} gives layers rates of their own, and {kind} estimates one for all from all",
            "use AdamW with the rate that it has found",
        )
    if family == "schedule_free":
        raise Refused(
            f"{name} gives layers rates of their own, and {kind} averages the weights of a group by"
            " the rate of all of it",
            "use the optimizer that is not schedule-free",
        )
    if any(group.get("lr") is None for group in groups):
        raise Refused(f"{name} needs the rate of each group", "give each group a rate")


def warmup_steps(optimizer: Any) -> int:
    """2 / (1 - beta2) of the slowest group, within bounds (Ma & Yarats, arXiv 1910.04209: linear
    warm-up over so many steps does for Adam what they measured); 100 where there is no beta2."""
    facts = probe_of(optimizer).facts
    found = [facts(settings_of(optimizer, group)) for group in optimizer.param_groups]
    betas = [one["beta2"] for one in found if one.get("beta2", -1.0) >= 0]
    if not betas:
        return PLAIN_STEPS
    beta = max(betas)
    wanted = MOST_STEPS if beta >= 1 else round(2 / (1 - beta))
    return min(max(wanted, LEAST_STEPS), MOST_STEPS)


def tenth_of_run(facts: Mapping[str, Fact]) -> int | None:
    """A tenth of the steps that are planned; None where nobody told."""
    total = number_of(facts.get("total_steps"))
    return max(round(total / 10), 1) if total > 0 else None
