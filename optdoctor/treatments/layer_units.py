"""Layers of a network as far as their rates are concerned, and how fast each of them moves."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from optdoctor.knowledge.layers import clean, kind_of, layer_of

UNJUDGED = frozenset({"norm", "bias", "embedding", "head", "adapter"})
"""Kinds that healthy recipes give another rate, that begin at zero, or of which few rows move."""
SMALL = 64
"""Elements below which the size of a tensor is no statistic."""
SAMPLED = 4096
"""Elements of a tensor that are looked at, evenly spread: what a look keeps is bounded by it."""


def units_of(model: nn.Module, parameters: Sequence[Tensor]) -> dict[int, str]:
    """{id of a parameter: its layer}, of those that have one.

    A layer is what a numbered block has of one kind, "h.3 attention", and outside of blocks a
    module, "fc1". Its weights are matrices of at least 64 elements; biases go with the weights of
    their module. Norms, embeddings, heads and adapters belong to none.
    """
    ids = {id(p) for p in parameters}
    modules = dict(model.named_modules())
    by_module: dict[str, str] = {}
    named = [(n, p) for n, p in model.named_parameters() if id(p) in ids]
    for name, parameter in named:
        module = name.rpartition(".")[0]
        plain = clean(name)
        kind = kind_of(plain, type(modules[module]).__name__)
        if is_judged(parameter) and kind not in UNJUDGED:
            block = layer_of(plain)
            by_module[module] = f"{block} {kind}" if block else plain.rpartition(".")[0] or plain
    owners = ((id(p), name.rpartition(".")[0]) for name, p in named)
    return {one: by_module[module] for one, module in owners if module in by_module}


def is_judged(parameter: Tensor) -> bool:
    """Whether its movement over its size says something."""
    return parameter.requires_grad and parameter.dim() > 1 and parameter.numel() >= SMALL


class Movement:
    """How far the weights of each layer move in one step, over their size, from samples of them."""

    def __init__(self, units: dict[int, str], parameters: Sequence[Tensor]) -> None:
        self._weights = [p for p in parameters if id(p) in units and is_judged(p)]
        self.layers = list(dict.fromkeys(units[id(p)] for p in self._weights))
        self._layer = [self.layers.index(units[id(p)]) for p in self._weights]
        self._before: list[Tensor] = []

    def keep(self) -> None:
        """The weights of before a step."""
        self._before = [sample(p) for p in self._weights]

    def ratios(self) -> list[tuple[float, float]]:
        """(movement over size, size) of each layer since `keep`; waits for the device, once."""
        now = [sample(p) for p in self._weights]
        moved = [mean_square(a - b) for a, b in zip(now, self._before, strict=True)]
        size = self._by_layer([mean_square(b) for b in self._before]).sqrt()
        ratio = self._by_layer(moved).sqrt() / size
        self._before = []
        return [(a, b) for a, b in torch.stack([ratio, size], 1).tolist()]

    def _by_layer(self, squares: Sequence[Tensor]) -> Tensor:
        """[L] means over the elements of each layer."""
        device = squares[0].device
        elements = torch.tensor([float(p.numel()) for p in self._weights], device=device)
        layer = torch.tensor(self._layer, device=device)
        values = torch.stack([one.to(device) for one in squares])
        zeros = torch.zeros(len(self.layers), device=device)
        return zeros.index_add(0, layer, values * elements) / zeros.index_add(0, layer, elements)


def sample(parameter: Tensor) -> Tensor:
    """[K] of its elements in float32, ever the same."""
    flat = parameter.detach()
    flat = (torch.view_as_real(flat) if flat.is_complex() else flat).reshape(-1)
    return flat[:: max(1, -(-flat.numel() // SAMPLED))].to(torch.float32, copy=True)


def mean_square(values: Tensor) -> Tensor:
    """Of all."""
    return values.square().mean()
