"""The CSV of a wandb chart: `"Step","run - loss","run - loss__MIN","run - loss__MAX"`."""

from itertools import takewhile

from optdoctor.knowledge.log_names import FREE_NAMES, STEP_NAMES
from optdoctor.reading.table_format import Meaning, table_reader

_EDGES = ("__MIN", "__MAX")


def _claim(names: tuple[str, ...], _: str) -> Meaning | None:
    series = [name for name in names[1:] if not name.endswith(_EDGES)]
    if not series or not all(name + edge in names for name in series for edge in _EDGES):
        return None
    step = names[0] if names[0].rpartition("/")[2] in STEP_NAMES else None
    own = {name: _without_run(name, series) for name in series}
    dropped = [name + edge for name in series for edge in _EDGES]
    is_several = len({name.rpartition(" - ")[2] for name in series}) < len(series)
    return Meaning(
        aliases={**FREE_NAMES, **dict.fromkeys((*dropped, "_step", "_runtime", "_timestamp"), "")},
        step=step,
        names=own,
        refusal=("several runs in this table", "export the chart of one run")
        if is_several or len(set(own.values())) < len(own)
        else None,
    )


def _without_run(name: str, series: list[str]) -> str:
    """The name of a series without that of its run, which all of them begin with."""
    if len(series) == 1:
        return name.rpartition(" - ")[2]
    parts = zip(*(other.split(" - ")[:-1] for other in series), strict=False)
    shared = sum(1 for _ in takewhile(lambda part: len(set(part)) == 1, parts))
    return " - ".join(name.split(" - ")[shared:])


READER = table_reader(
    "wandb-export",
    _claim,
    marks=_EDGES[:1],
    sample=""""Step","sea-1 - train/loss","sea-1 - train/loss__MIN","sea-1 - train/loss__MAX"
"10","2.25","2.25","2.25"
"20","2.125","2.125","2.125"
"30","NaN","NaN","NaN"
""",
)
