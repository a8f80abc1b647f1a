"""A deep stack without residual connections whose layers shrink what passes through."""

from dataclasses import replace

import makers
import torch
from course import Course
from faulting import Fault
from setups import Setup
from torch import Tensor, nn

DEPTH, WIDTH = 16, 64


class Plain(nn.Module):
    """Layers of one width, one after another."""

    def __init__(self, inputs: int, outputs: int, gain: float, act: type[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for size in [inputs] + [WIDTH] * (DEPTH - 1):
            layer = nn.Linear(size, WIDTH)
            nn.init.xavier_normal_(layer.weight, gain=gain)
            nn.init.zeros_(layer.bias)
            self.layers.append(nn.Sequential(layer, act()))
        self.head = nn.Linear(WIDTH, outputs)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def deepen(run: Course, gain: float, act: type[nn.Module]) -> None:
    """Puts such a stack in the place of the model, with an optimizer of the same settings."""
    inputs, _ = run.batch(0)
    outputs = run.model(inputs).shape[-1]
    torch.manual_seed(run.setup.seed)
    run.task = replace(run.task, model=Plain(inputs.shape[-1], outputs, gain, act))
    rate = run.family.rates[run.setup.optimizer] * run.setup.rate_factor
    run.optimizers = makers.make(run.setup.optimizer, run.model, rate, run.setup.weight_decay)
    run.notes["ratio"] = faded(run)


def faded(run: Course) -> float:
    """The gradient of the last layer's output over that of the first, in one batch."""
    inputs, target = run.batch(0)
    run.loss(run.model(inputs), target).backward()
    ends = [run.model.layers[i][0].bias.grad.norm() for i in (-1, 0)]
    run.model.zero_grad()
    return float(ends[0] / ends[1])


FAULT = Fault(
    name="gradient-fades",
    says="Sixteen plain layers whose start shrinks the gradient by a factor each: slow learning.",
    rules=("gradient-abnormal-at-start",),
    doses=(0.5, 0.4, 0.3),
    places=(
        Setup("digits-mlp", "adamw"),
        Setup("autoencoder", "adamw"),
        Setup("tabular-classification", "adamw"),
    ),
    inject=lambda run, gain: deepen(run, gain, nn.Tanh),
    probe=lambda run: run.notes["ratio"] > 3_000,
    static=False,
    of_its_task=True,
)
