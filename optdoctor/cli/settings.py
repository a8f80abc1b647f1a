"""What the options and the user's settings say of rules and of severities."""

import os

from optdoctor.cli.output import UNREADABLE, Failure
from optdoctor.findings import SEVERITIES, Diagnosis
from optdoctor.settings import Settings, SettingsError


def settings_of(select: tuple[str, ...], ignore: tuple[str, ...]) -> tuple[Settings, list[Failure]]:
    """The settings; where they are wrong, the defaults and what is wrong."""
    from dataclasses import replace

    from optdoctor import settings
    from optdoctor.rules import RULES

    where = "pyproject.toml"
    try:
        if path := settings.nearest():
            where = os.path.relpath(path)
        loaded = settings.load()
        loaded.chosen(RULES)
        if chosen := _names(select):
            where = "--select"
            loaded = replace(loaded, select=chosen)
            loaded.chosen(RULES)
        where = "--ignore"
        loaded = replace(loaded, ignore=(*loaded.ignore, *_names(ignore)))
        loaded.chosen(RULES)
    except SettingsError as error:
        return Settings(), [Failure(where, error.reason, error.remedy, UNREADABLE)]
    return loaded, []


def _names(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.strip() for value in values for name in value.split(",") if name.strip())


def reaches(diagnosis: Diagnosis, limit: str) -> bool:
    """Whether some finding is at or above this severity."""
    worst = diagnosis.worst
    if worst is None or limit == "never":
        return False
    names = [str(severity) for severity in SEVERITIES]
    return names.index(worst) >= names.index(limit)
