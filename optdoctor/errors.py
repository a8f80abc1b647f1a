"""What went wrong outside optdoctor, as one sentence: where, why, what to do."""


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
