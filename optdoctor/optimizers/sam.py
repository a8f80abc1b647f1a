"""Sharpness-aware minimization: the gradient is taken uphill of the weights (Foret et al. 2021).

A step climbs from w to w + e, takes the gradient there, puts w back and lets the optimizer inside
move w by that gradient. The step inside is the one to be watched: it holds the whole update and the
gradient that it consumed (before the outer step there are those of the climb), also where users
call `first_step` and `second_step` themselves and never `step`.

GSAM and WSAM get w back by subtraction, which rounds, and WSAM moves weights once more after the
step inside: there the outer step is watched, and gradients read before it are of an earlier pass.
Copies of SAM in other projects are known by their two passes (see `innermost`).
"""

from dataclasses import replace

from optdoctor.optimizers.probe import Probe


def as_inside(inside: Probe) -> Probe:
    """Its rule is the rule."""
    return inside


def and_sharpness(inside: Probe) -> Probe:
    """Its rule is not all."""
    return replace(inside, foretell=None, unforetold="the sharpness is subtracted besides")


PROBES = (
    Probe(
        family="sam",
        matches=(
            "pytorch_optimizer.optimizer.sam.SAM",
            "pytorch_optimizer.optimizer.sam.LookSAM",
            "pytorch_optimizer.optimizer.sam.FriendlySAM",
        ),
        inside="base_optimizer",
        moves_inside=True,
        around=as_inside,
        unforetold="nothing is known of the optimizer inside",
    ),
    Probe(
        family="sam",
        matches=("pytorch_optimizer.optimizer.sam.GSAM",),
        inside="base_optimizer",
        around=as_inside,
        unforetold="nothing is known of the optimizer inside",
    ),
    Probe(
        family="sam",
        matches=("pytorch_optimizer.optimizer.sam.WSAM",),
        inside="base_optimizer",
        around=and_sharpness,
        unforetold="the sharpness is subtracted besides",
    ),
)
