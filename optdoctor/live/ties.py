"""Weights that a model's configuration calls one and that are two.

Read from transformers' models by what they hold, so that the library is not imported: release 5
keeps {target: source} in `all_tied_weights_keys`, without pairs that a checkpoint holds apart (seen
in 5.24); release 4 says `config.tie_word_embeddings` and names two embeddings.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from optdoctor.trace import Fact

ROWS = 8
"""First rows by which two frozen tensors are compared."""


def tie_facts(model: nn.Module) -> dict[str, Fact]:
    """{"ties_broken": count}; nothing where the model calls no weights tied."""
    pairs: dict[frozenset[int], bool] = {}
    for module in model.modules():
        with suppress(Exception):  # a model may answer anything: then it does not say
            for one, other in _pairs(module):
                pairs[frozenset((id(one), id(other)))] = _is_broken(one, other)
    return {"ties_broken": sum(pairs.values())} if pairs else {}


def _pairs(module: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """The two tensors of each tie that the module itself declares and whose both ends are found.

    An end that a wrapper trains as a copy of its own, as `modules_to_save` of peft, was untied on
    purpose.
    """
    told = vars(module).get("all_tied_weights_keys")
    if getattr(vars(module).get("config"), "tie_word_embeddings", None) is False:
        return  # release 5 keeps the names that it had when the model was made
    if isinstance(told, dict):
        ends = [
            (_parameter(module, target), _parameter(module, source))
            for target, source in told.items()
        ]
    else:
        ends = [_embeddings(module)]
    for one, other in ends:
        if one is not None and other is not None:
            yield one, other


def _parameter(module: nn.Module, name: str) -> Tensor | None:
    path, _, short = name.rpartition(".")
    with suppress(AttributeError):
        return _weight(module.get_submodule(path), short)
    return None


def _embeddings(module: nn.Module) -> tuple[Tensor | None, Tensor | None]:
    """Weights of the input and the output embedding of a model of release 4 that ties them."""
    model: Any = module
    if getattr(vars(module).get("config"), "tie_word_embeddings", None) is not True:
        return None, None
    if not hasattr(type(module), "get_output_embeddings"):
        return None, None
    one, other = model.get_input_embeddings(), model.get_output_embeddings()
    return _weight(one, "weight"), _weight(other, "weight")


def _weight(owner: Any, name: str) -> Tensor | None:
    found = getattr(owner, name, None)
    wrapped = hasattr(owner, "modules_to_save")
    return found if isinstance(found, nn.Parameter) and not wrapped else None


@torch.no_grad()
def _is_broken(one: Tensor, other: Tensor) -> bool:
    """Whether they are two: neither the same tensor nor of one storage.

    Two frozen ones of equal values stay equal, which is a tie for all that training can see.
    """
    if one is other or one.is_meta or other.is_meta:
        return False
    if one.shape != other.shape:
        return True
    if hasattr(one, "to_local") or hasattr(other, "to_local"):
        return True
    if one.data_ptr() == other.data_ptr():
        return False
    if one.requires_grad or other.requires_grad:
        return True
    return not torch.equal(one[:ROWS].cpu(), other[:ROWS].cpu())
