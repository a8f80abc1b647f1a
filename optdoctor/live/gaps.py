"""What of a sample cannot be read because an optimizer is odd: left out, counted and told once."""

from collections import Counter
from types import TracebackType

import torch


class Gaps:
    """A context manager to enter again and again: what fails inside is left out of the sample.

    Not what tells that memory ran out: that is no fault of what is read.
    """

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()
        """{error in a few words: how often}"""
        self._told: set[str] = set()

    def news(self) -> tuple[str, ...]:
        """Errors that nobody has been told of yet."""
        found = tuple(text for text in self.counted if text not in self._told)
        self._told.update(found)
        return found

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> bool:
        spent = isinstance(error, MemoryError | torch.cuda.OutOfMemoryError)
        if spent or not isinstance(error, Exception):
            return False
        self.counted[f"{type(error).__name__}: {error}"] += 1
        return True
