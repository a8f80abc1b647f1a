"""SGD's momentum sums gradients over more updates than the run has."""

from course import Course
from faulting import Fault, at
from setups import Setup


def _sums_long(run: Course) -> bool:
    """Whether a gradient of 60 updates ago still moves the weights by half of itself."""
    momentum: float = run.optimizers[0].param_groups[0]["momentum"]
    return momentum**60 > 0.5


FAULT = Fault(
    name="momentum-too-long",
    says="SGD's momentum is so high that updates sum hundreds of gradients: the run swings.",
    rules=("momentum-too-long",),
    doses=(0.99, 0.999, 0.9995),
    places=(
        Setup("digits-mlp", "sgd"),
        Setup("char-gpt", "sgd"),
        Setup("autoencoder", "sgd"),
    ),
    alter=lambda setup, momentum: at(setup, momentum=momentum),
    probe=_sums_long,
    static=True,
)
