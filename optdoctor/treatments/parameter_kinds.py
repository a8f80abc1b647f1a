"""What a parameter is as far as weight decay is concerned: by its module's class and its shape.

Lists of names miss the norms of many models: `input_layernorm.weight` of a Llama has no
"LayerNorm.weight" in it, `ln_1.weight` of a GPT-2 no "norm".
"""

import re
from typing import Literal

from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

DecayKind = Literal["norm", "bias", "vector", "embedding", "weight"]
UNDECAYED: tuple[DecayKind, ...] = ("norm", "bias", "vector")

NORMS = tuple(kind for name, kind in vars(nn).items() if "Norm" in name and isinstance(kind, type))
"""All of torch.nn, lazy ones too."""
EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_NORM_NAME = re.compile(r"norm|(?<![a-z])(ln|bn|rms)(?![a-z])", re.I)


def kinds_of(model: nn.Module) -> dict[int, DecayKind]:
    """{id of a parameter: its kind}; of a tied one the first of norm, bias, embedding, vector and
    weight that holds of any of its places.

    A norm is of a class of torch.nn with Norm in its name, or of any class whose name, or that of a
    base, says norm and that holds nothing itself but tensors with one long axis: so RMSNorm of any
    library, and a norm over channels of shape [1, C, 1, 1], but no linear layer with normalised
    weights. A bias has the word in the last part of its name, of whatever shape. A vector is what
    else has fewer than 2 dimensions: gates, temperatures, scales of layers.

    Raises:
        ValueError: a parameter has no shape yet.
    """
    found: dict[int, list[DecayKind]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        own = {n: p for n, p in module._parameters.items() if p is not None}
        for name, parameter in own.items():
            if isinstance(parameter, UninitializedParameter):
                raise ValueError(
                    f"{path}.{name} has no shape yet: run the model once on a batch before"
                )
        is_norm = isinstance(module, NORMS) or _says_norm(module, own)
        for name, parameter in own.items():
            found.setdefault(id(parameter), []).append(_kind(module, name, parameter, is_norm))
    order: tuple[DecayKind, ...] = ("norm", "bias", "embedding", "vector", "weight")
    return {key: min(several, key=order.index) for key, several in found.items()}


def _kind(module: nn.Module, name: str, parameter: Tensor, is_norm: bool) -> DecayKind:
    if is_norm:
        return "norm"
    if "bias" in name.split("_"):
        return "bias"
    if isinstance(module, EMBEDDINGS):
        return "embedding"
    return "vector" if len(shape_of(parameter)) < 2 else "weight"


def _says_norm(module: nn.Module, own: dict[str, nn.Parameter]) -> bool:
    named = any(_NORM_NAME.search(base.__name__) for base in type(module).__mro__)
    return named and all(_long_axes(p) < 2 for p in own.values())


def _long_axes(parameter: Tensor) -> int:
    return sum(size != 1 for size in shape_of(parameter))


def shape_of(parameter: Tensor) -> tuple[int, ...]:
    """Of the whole: DeepSpeed's third stage keeps it beside an empty tensor."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def is_flattened(model: nn.Module) -> bool:
    """Whether a module is known to hold flat shards, in the first form of FSDP: of those neither
    names nor dimensions tell anything."""
    return any(
        base.__name__ == "FullyShardedDataParallel"
        for module in model.modules()
        for base in type(module).__mro__
    )
