"""Something puts part of the weights back after each step, though they have gradients."""

from course import Course
from faulting import Fault
from setups import Setup
from torch import Tensor, nn


def _put_back(run: Course, share: float) -> None:
    """A hook of the optimizer restores the first tensors, up to this share of all weights."""
    (optimizer,) = run.optimizers
    several = list(run.model.parameters())
    total = sum(p.numel() for p in several)
    held: list[nn.Parameter] = []
    for parameter in several:
        if sum(p.numel() for p in held) + parameter.numel() <= share * total:
            held.append(parameter)
    kept: list[Tensor] = []
    run.notes["share"] = sum(p.numel() for p in held) / total
    run.notes["first"] = [(p, p.detach().clone()) for p in held]

    def before(*_: object) -> None:
        kept[:] = [p.detach().clone() for p in held]

    def after(*_: object) -> None:
        for parameter, old in zip(held, kept, strict=True):
            parameter.data.copy_(old)

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


def _stood_still(run: Course) -> bool:
    """Whether these weights are what they were, and have gradients."""
    first = run.notes["first"]
    alive = any(p.grad is not None and bool(p.grad.any()) for p, _ in first)
    return alive and all(bool((p == old).all()) for p, old in first) and run.notes["share"] > 0.2


FAULT = Fault(
    name="weights-put-back",
    says="Part of the weights is put back after each step, and learns nothing.",
    rules=("frozen-weights",),
    doses=(0.5, 0.8, 0.95),
    places=(
        Setup("char-gpt", "adamw"),
        Setup("digits-cnn", "adamw"),
        Setup("autoencoder", "adamw"),
    ),
    inject=_put_back,
    probe=_stood_still,
)
