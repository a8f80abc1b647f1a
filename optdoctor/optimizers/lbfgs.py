"""L-BFGS: all tensors together are one vector (Nocedal & Wright 2006, algorithm 7.4).

Its one entry of the state lies with the first parameter: directions and differences of gradients
over all of them, flat, none of which is a moment. One update is up to `max_iter` iterations, each
of which asks for gradients; `n_iter` counts those and not updates.
"""

from typing import Any

from optdoctor.optimizers.probe import Group, Probe, State


def no_count(state: State, group: Group) -> Any:
    """Nobody counts updates."""
    return None


PROBES = (
    Probe(
        family="lbfgs",
        matches=("torch.optim.lbfgs.LBFGS",),
        count=no_count,
        unforetold="an update is many iterations over all tensors at once",
    ),
)
