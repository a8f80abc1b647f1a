"""SGD of torch: at most a momentum, no second moment and no epsilon."""

import torch

from optdoctor.optimizers import Probe
from optdoctor.optimizers.other import facts, moments

PROBE = Probe(
    family="sgd",
    matches=("torch.optim.sgd.SGD",),
    moments=moments,
    facts=facts,
    adaptive=False,
    make=lambda params: torch.optim.SGD(params, lr=1e-2, momentum=0.9),
)
