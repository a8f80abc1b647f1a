"""Any other optimizer: what it did is measured from the weights; its moments are not read."""

from optdoctor.optimizers.probe import Probe
from optdoctor.optimizers.settings import momentum_facts

PROBES = (
    Probe(
        family="other",
        matches=(),
        facts=momentum_facts,
        unforetold="nobody has told optdoctor its rule",
    ),
)
