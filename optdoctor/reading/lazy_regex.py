"""Regular expressions that are compiled when they are first used.

Compiling takes up to 2 ms each, and a start of the program needs few of them.
"""

import re
from typing import Any, cast


def lazy(pattern: str) -> re.Pattern[str]:
    """As `re.compile(pattern)`, which happens once one of its methods is asked for."""
    return cast("re.Pattern[str]", _Lazy(pattern))


class _Lazy:
    def __init__(self, pattern: str) -> None:
        self._source = pattern

    def __getattr__(self, name: str) -> Any:
        """What the compiled expression has under this name, kept for the next time."""
        found = getattr(re.compile(self._source), name)
        setattr(self, name, found)
        return found
