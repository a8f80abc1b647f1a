"""What the user set under `[tool.optdoctor]`. An unknown key is an error, never ignored."""

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from pathlib import Path
from typing import Any

from optdoctor.errors import Told, did_you_mean
from optdoctor.rule import Limits, Rule


class SettingsError(Told, ValueError):
    """The key and what is wrong with it, what is allowed, and the file if it was set in one."""


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
                remedy = did_you_mean(name, by_name, "`optdoctor rules` lists them")
                raise SettingsError(f"no rule is named {name!r}", remedy)
        # Also those of rules left out: a wrong limit is never passed over.
        for name, changes in self.limits.items():
            by_name[name] = replace(by_name[name], limits=_with(by_name[name], changes))
        return tuple(
            rule
            for name, rule in by_name.items()
            if (not self.select or name in self.select) and name not in self.ignore
        )


FAIL_ON = ("note", "warn", "critical", "never")


def _with(rule: Rule, changes: Mapping[str, float]) -> Limits:
    known = {f.name for f in fields(rule.limits)}
    for name, value in changes.items():
        if name not in known:
            raise SettingsError(
                f"{rule.name} has no limit {name!r}", f"known: {', '.join(sorted(known))}"
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SettingsError(f"limit {rule.name}.{name} is {value!r}", "make it a number")
        if not isfinite(value):
            raise SettingsError(f"limit {rule.name}.{name} is {value!r}", "make it finite")
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
            raise SettingsError(f"unknown key {key!r}", f"known: {', '.join(sorted(known))}")
        if key in ("select", "ignore"):
            if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
                raise SettingsError(f"{key} is {value!r}", "make it a list of rule names")
            given[key] = tuple(value)
        if key == "fail_on" and value not in FAIL_ON:
            raise SettingsError(f"fail_on is {value!r}", f"known: {', '.join(FAIL_ON)}")
        if key == "limits" and not (
            isinstance(value, dict) and all(isinstance(v, dict) for v in value.values())
        ):
            raise SettingsError(
                f"limits is {value!r}", "make them tables, [tool.optdoctor.limits.<rule>]"
            )
    return Settings(**given)


def load(start: Path | None = None) -> Settings:
    """Settings from the nearest pyproject.toml at or above `start`, defaults if it has none.

    Raises:
        SettingsError: the file is no TOML, or holds an unknown key.
    """
    path = nearest(start)
    if path is None:
        return Settings()
    try:
        table: Any = tomllib.loads(path.read_text("utf-8"))
        for name in ("tool", "tool.optdoctor"):
            table = table.get(name.rpartition(".")[2], {})
            if not isinstance(table, dict):
                raise SettingsError(f"{name} is {table!r}", "make it a table")
        return from_table(table)
    except SettingsError as error:
        raise SettingsError(error.reason, error.remedy, str(path)) from error
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(
            str(error), "make it a TOML file that can be read", str(path)
        ) from error


def nearest(start: Path | None = None) -> Path | None:
    """The pyproject.toml at or above `start`, by default the working folder; None without one.

    Raises:
        SettingsError: the folder is gone or may not be read.
    """
    try:
        folder = (start or Path.cwd()).resolve()
        candidates = (parent / "pyproject.toml" for parent in (folder, *folder.parents))
        return next((path for path in candidates if path.is_file()), None)
    except OSError as error:
        reason = f"the working folder cannot be read: {error.strerror or error}"
        raise SettingsError(reason, "change to another") from error
