"""What a case is: a trouble that practitioners told of in public, acted out small."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from setups import HERE, load

from optdoctor.findings import Diagnosis


@dataclass(frozen=True)
class Case:
    """One public case: the file `cases/<number>_<words>.py`."""

    number: str
    """As S01."""
    source: str
    """Where it was told."""
    says: str
    """One sentence: what the user saw, and what it was."""
    run: Callable[[Path], Diagnosis]
    """Acts it out, with a folder to write into."""
    rules: tuple[str, ...] = ()
    """The right answers; empty where it is no fault and the doctor has to be silent."""
    first: bool = True
    """Whether a right answer has to stand first, not only among the first three."""
    missed: str = ""
    """What is not answered yet, and why; a test that then passes says so."""


@cache
def cases() -> Mapping[str, Case]:
    """{number: case}: the files of `cases`."""
    found = [load(path).CASE for path in sorted((HERE / "cases").glob("*.py"))]
    return {case.number: case for case in found}
