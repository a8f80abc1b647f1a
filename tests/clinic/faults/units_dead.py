"""Biases so far below 0 that units behind a ReLU are silent on every example."""

import torch
from course import Course
from faulting import Fault
from setups import Setup
from torch import Tensor, nn

PASSING = (nn.Dropout,)
"""What may lie between a layer and its activation."""


def _layers(model: nn.Module) -> list[nn.Module]:
    """Those with a bias whose output goes into a ReLU."""
    found: list[nn.Module] = []
    for container in model.modules():
        if not isinstance(container, nn.Sequential):
            continue
        before: nn.Module | None = None
        for module in container:
            if isinstance(module, nn.ReLU) and getattr(before, "bias", None) is not None:
                found.append(before)  # type: ignore[arg-type]
            if not isinstance(module, PASSING):
                before = module
    return found


@torch.no_grad()
def _spread(model: nn.Module, layer: nn.Module, inputs: Tensor) -> float:
    """Standard deviation of what comes out of the layer."""
    found: list[Tensor] = []
    with layer.register_forward_hook(lambda module, given, output: found.append(output)):
        model(inputs)
    return float(found[0].std())


def _sink(run: Course, depth: float) -> None:
    """Biases begin so far below 0, in standard deviations of what comes before the activation."""
    run.notes["silent"] = []

    def look(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        silent = (output <= 0).flatten(2).all(2) if output.dim() > 2 else output <= 0
        run.notes["silent"].append(float(silent.all(0).float().mean()))

    inputs, _ = run.batch(0)
    for layer in _layers(run.model):
        spread = _spread(run.model, layer, inputs)
        nn.init.constant_(layer.bias, -depth * spread)
        layer.register_forward_hook(look)


def _are_silent(run: Course) -> bool:
    """Whether on the last batches the most silent layers had hardly a unit left."""
    silent = sorted(run.notes["silent"][-20:])
    return sum(silent[-5:]) / 5 > 0.8


FAULT = Fault(
    name="units-dead",
    says="Biases far below 0: hidden units are silent on every example and learn nothing.",
    rules=("dead-units",),
    doses=(2.5, 3.5, 6.0),
    places=(
        Setup("digits-mlp", "sgd"),
        Setup("tabular-classification", "sgd"),
        Setup("autoencoder", "sgd"),
    ),
    inject=_sink,
    probe=_are_silent,
)
