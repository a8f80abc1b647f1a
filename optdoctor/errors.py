"""What went wrong outside optdoctor, as one sentence: where, why, what to do."""

from collections.abc import Iterable


class Told(Exception):
    """Carries the reason, the remedy and, where it is known, the path."""

    def __init__(self, reason: str, remedy: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason, self.remedy, self.path = reason, remedy, path

    def __str__(self) -> str:
        said = f"{self.reason}; {self.remedy}"
        return f"{self.path}: {said}" if self.path else said


class Unreadable(Told):
    """A path that holds no run."""


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """What to do about a name that is not known: the nearest ones, `otherwise` if none is near."""
    from difflib import get_close_matches  # not wanted where nothing is misspelt

    near = get_close_matches(name, list(known), n=3, cutoff=0.7)
    return f"did you mean {' or '.join(near)}?" if near else otherwise
