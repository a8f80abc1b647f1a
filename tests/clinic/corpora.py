"""Texts as words, and code as bytes, for the tasks that read them."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from inspect import getsource
from pydoc_data.topics import topics

import torch
from tasks import Batch, Task
from torch import Tensor

HELD_OUT = 64
"""Rows of each evaluation: of many tokens each."""
UNKNOWN = 0
"""Number of every word that is too rare to have one."""
MASK = 1


def generated(seed: int, i: int) -> torch.Generator:
    """The generator of batch `i`."""
    return torch.Generator().manual_seed(seed * 100_003 + i)


def windows(source: Tensor, generator: torch.Generator, number: int, length: int) -> Tensor:
    """`number` rows of `length` neighbours, from places that are drawn."""
    at = torch.randint(len(source) - length + 1, (number, 1), generator=generator)
    return source[at + torch.arange(length)]


def draws(
    made: Callable[[Tensor, torch.Generator, int], Batch], source: Tensor, seed: int, batch: int
) -> tuple[Callable[[int], Batch], Batch]:
    """Batches by number from the first 3/4 of a text, and what is held out from the rest."""
    end = len(source) * 3 // 4
    held_out = made(source[end:], torch.Generator().manual_seed(7), HELD_OUT)
    return lambda i: made(source[:end], generated(seed, i), batch), held_out


def shorter(task: Task) -> Task:
    """With fewer rows held out."""
    inputs, target = task.held_out
    return replace(task, held_out=(inputs[:HELD_OUT], target[:HELD_OUT]))


@cache
def words(vocabulary: int) -> Tensor:
    """Python's documentation as numbers of words; those that are rare are UNKNOWN."""
    found = re.findall(r"\w+|[^\w\s]", "".join(topics.values()))
    frequent = [word for word, _ in Counter(found).most_common(vocabulary - 2)]
    number = {word: i for i, word in enumerate(frequent, 2)}
    return torch.tensor([number.get(word, UNKNOWN) for word in found])


@cache
def code() -> Tensor:
    """Sources of the standard library, as bytes."""
    import argparse
    import difflib
    import tarfile

    source = "".join(getsource(module) for module in (argparse, difflib, tarfile))
    return torch.tensor(list(source.encode("ascii", "replace")))
