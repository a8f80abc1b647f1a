"""A doctor for neural-network training: what is wrong, where, since when, and what to change."""

from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "analyze_many": "optdoctor.analysis",
    "diagnose": "optdoctor.engine",
    "read": "optdoctor.readers",
    "watch": "optdoctor.live.doctor",
    "Diagnosis": "optdoctor.findings",
    "Finding": "optdoctor.findings",
    "Treatment": "optdoctor.findings",
    "Trace": "optdoctor.trace",
    "Unreadable": "optdoctor.reading.reader",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    # Names only: reading a log must not load torch, and watching a run must not load readers.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        hint = f"optdoctor.{name} needs torch: pip install 'optdoctor[torch]'"
        raise ModuleNotFoundError(hint, name="torch") from error


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
