"""Lookahead: every k updates, weights go back towards where they were k updates ago.

Zhang et al. 2019, algorithm 1: slow <- slow + alpha (fast - slow), and fast <- slow. The pull is
part of the wrapper's step, which is the one to be watched: the update that is told is the fast one,
and in every k-th step both. Moments, rates and effective rates are those of the optimizer inside.

No Lookahead runs the constructor of torch's Optimizer; that of pytorch_optimizer 4.1 sees to its
hooks by itself. Those of timm 1.0 and torch_optimizer 0.3 are never called: the optimizer inside is
watched, and the pull is in no update.
"""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from optdoctor.optimizers.probe import Elements, Group, Probe


def of_both(inside: Probe) -> Probe:
    """The rule of the one inside, and the pull after it."""
    return replace(
        inside,
        foretell=None if inside.foretell is None else pulled(inside.foretell),
        keeps=(*inside.keeps, "slow_params"),
        own=(*inside.own, "defaults"),
        knows=lambda group: _pulls_only_weights(group) and inside.knows(group),
    )


def _pulls_only_weights(group: Group) -> bool:
    """Otherwise the momentum that a step used is gone after it."""
    defaults = group.get("defaults") or {}
    return bool(defaults.get("lookahead_pullback_momentum") == "none")


def pulled(foretell: Callable[[Elements], Tensor]) -> Callable[[Elements], Tensor]:
    """`counter` is 0 after an update that pulled."""

    def change(e: Elements) -> Tensor:
        fast = foretell(e)
        if e.group["counter"] != 0:
            return fast
        alpha: float = e.group["defaults"]["lookahead_alpha"]
        return alpha * fast + (1 - alpha) * (e.before["slow_params"] - e.weight)

    return change


PROBES = (
    Probe(
        family="lookahead",
        matches=("pytorch_optimizer.optimizer.lookahead.Lookahead",),
        inside="optimizer",
        around=of_both,
        unforetold="nothing is known of the optimizer inside",
    ),
    Probe(
        family="lookahead",
        matches=("timm.optim.lookahead.Lookahead",),
        inside="_base_optimizer",
        around=lambda inside: inside,
        unforetold="nothing is known of the optimizer inside",
    ),
)
