"""Made-up rules and findings, for tests of what is done with them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from optdoctor.findings import Diagnosis, Differential, Evidence, Finding, Severity
from optdoctor.rule import Limits, Rule
from optdoctor.synthetic import make_trace

RUN = make_trace(loss=np.linspace(3, 2, 400))
"""400 finite losses."""


def finding(
    first: int, last: int | None = None, severity: Severity = Severity.WARN, **more: Any
) -> Finding:
    more.setdefault("evidence", (Evidence("loss", "rows", 2.0, 1.0, "rows"),))
    return Finding(severity, "A number, 2.", (first, first if last is None else last), **more)


def rule(
    name: str = "illness", *found: Finding, check: Callable[..., Any] | None = None, **more: Any
) -> Rule:
    """A rule that reads the loss and finds these."""
    more = {"needs": ("loss",), "limits": Limits(rows=1)} | more
    return Rule(
        name=name,
        check=check or (lambda trace, limits: list(found)),
        sick=lambda: RUN,
        healthy=lambda: RUN,
        doc="",
        **more,
    )


def static(name: str, *found: Finding, **more: Any) -> Rule:
    return rule(name, *found, limits=Limits(rows=0), **more)


def causes_of(diagnosis: Diagnosis, name: str) -> Differential:
    return next(f for f in diagnosis.findings if f.rule == name).causes
