"""The registry: every module here that defines `RULE`. Adding a rule is adding a file."""

import importlib
import pkgutil

from optdoctor.rule import Rule


def load() -> tuple[Rule, ...]:
    """All rules of this folder, by name."""
    modules = (
        importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)
    )
    return tuple(
        sorted((m.RULE for m in modules if hasattr(m, "RULE")), key=lambda rule: rule.name)
    )


RULES = load()
