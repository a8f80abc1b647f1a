"""Arithmetic of numbers that may be tensors of a device: nothing here waits for one."""

from torch import Tensor

from optdoctor.optimizers.probe import Number


def rms(tensor: Tensor) -> Tensor:
    """Root mean square over all elements."""
    return tensor.square().mean().sqrt()


def smaller(a: Number, b: Number) -> Number:
    """Of two, element by element."""
    if isinstance(a, Tensor):
        return a.clamp(max=b)
    return b.clamp(max=a) if isinstance(b, Tensor) else min(a, b)


def larger(a: Number, b: Number) -> Number:
    """Of two, element by element."""
    return -smaller(-a, -b)
