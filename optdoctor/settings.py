"""What the user set under `[tool.optdoctor]`. An unknown key is an error, never ignored."""

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from pathlib import Path
from typing import Any

from optdoctor.rule import Limits, Rule


class SettingsError(ValueError):
    """One sentence: the key, what is wrong, what is allowed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to examine a run."""

    select: tuple[str, ...] = ()
    """Rules to run; empty means all."""
    ignore: tuple[str, ...] = ()
    """Rules to leave out."""
    limits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """{rule: {limit: value}}."""
    fail_on: str = "critical"
    """Least severity of a finding for which `analyze` exits with 1: note, warn, critical, never."""

    def chosen(self, rules: Collection[Rule]) -> tuple[Rule, ...]:
        """The selected rules with the user's limits.

        Raises:
            SettingsError: a rule or a limit that does not exist.
        """
        by_name = {rule.name: rule for rule in rules}
        for name in (*self.select, *self.ignore, *self.limits):
            if name not in by_name:
                raise SettingsError(f"no rule is named {name!r}; known: {', '.join(by_name)}")
        kept = [
            rule
            for name, rule in by_name.items()
            if (not self.select or name in self.select) and name not in self.ignore
        ]
        return tuple(
            replace(rule, limits=_with(rule, self.limits[rule.name]))
            if rule.name in self.limits
            else rule
            for rule in kept
        )


FAIL_ON = ("note", "warn", "critical", "never")


def _with(rule: Rule, changes: Mapping[str, float]) -> Limits:
    known = {f.name for f in fields(rule.limits)}
    for name, value in changes.items():
        if name not in known:
            raise SettingsError(
                f"{rule.name} has no limit {name!r}; known: {', '.join(sorted(known))}"
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SettingsError(f"limit {rule.name}.{name} must be a number, not {value!r}")
        if not isfinite(value):
            raise SettingsError(f"limit {rule.name}.{name} must be finite, not {value!r}")
    return replace(rule.limits, **dict[str, Any](changes))


def from_table(table: Mapping[str, Any]) -> Settings:
    """Settings from the table `[tool.optdoctor]`.

    Raises:
        SettingsError: an unknown key or a value of the wrong kind.
    """
    known = {f.name for f in fields(Settings)}
    given = {key.replace("-", "_"): value for key, value in table.items()}
    for key, value in given.items():
        if key not in known:
            raise SettingsError(f"unknown key {key!r}; known: {', '.join(sorted(known))}")
        if key in ("select", "ignore"):
            if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
                raise SettingsError(f"{key} must be a list of rule names, not {value!r}")
            given[key] = tuple(value)
        if key == "fail_on" and value not in FAIL_ON:
            raise SettingsError(f"fail_on must be one of {', '.join(FAIL_ON)}, not {value!r}")
        if key == "limits" and not (
            isinstance(value, dict) and all(isinstance(v, dict) for v in value.values())
        ):
            raise SettingsError("limits must be tables, [tool.optdoctor.limits.<rule>]")
    return Settings(**given)


def load(start: Path | None = None) -> Settings:
    """Settings from the nearest pyproject.toml at or above `start`, defaults if it has none.

    Raises:
        SettingsError: the file is no TOML, or holds an unknown key.
    """
    folder = (start or Path.cwd()).resolve()
    for path in (parent / "pyproject.toml" for parent in (folder, *folder.parents)):
        if path.is_file():
            try:
                document = tomllib.loads(path.read_text("utf-8"))
                table = document.get("tool", {}).get("optdoctor", {})
                if not isinstance(table, dict):
                    raise SettingsError(f"tool.optdoctor must be a table, not {table!r}")
                return from_table(table)
            except (OSError, ValueError) as error:
                raise SettingsError(f"{path}: {error}") from error
    return Settings()
