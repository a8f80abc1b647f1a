"""The layers of a network in the order of its forward pass, with their trained tensors."""

from optdoctor.trace import Trace


def layers_in_order(trace: Trace) -> dict[str, list[int]]:
    """{layer: indices of its trained tensors}: numbered blocks, and modules that are in none."""
    found: dict[str, list[int]] = {}
    for i in sorted(range(len(trace.tensors)), key=lambda i: trace.tensors[i].order):
        tensor = trace.tensors[i]
        if tensor.in_optimizer and tensor.trainable:
            name = tensor.layer or tensor.name.rpartition(".")[0] or tensor.name
            found.setdefault(name, []).append(i)
    return found
