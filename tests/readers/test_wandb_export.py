"""The CSV of a wandb chart: the run's name before each name, two edges beside each series."""

import math

import pytest

from optdoctor.reading.reader import Unreadable
from tests.readers.tables import read, steps, values


def header(*names: str) -> str:
    return '"Step",' + ",".join(f'"{n}","{n}__MIN","{n}__MAX"' for n in names) + "\n"


def test_names_lose_the_run_and_the_edges_are_dropped() -> None:
    trace = read(
        header("sea-1 - train/loss", "sea-1 - val - acc", "sea-1 - _step")
        + '"10","2.5","2","3","0.5","0.5","0.5","1","1","1"\n'
        + '"20","NaN","","","","","","2","2","2"\n'
    )
    assert trace.reader == "wandb-export"
    assert steps(trace) == [10, 20]
    assert values(trace)[0] == 2.5
    assert math.isnan(values(trace)[1])
    assert sorted(trace.series) == ["loss", "metric:val - acc"]


@pytest.mark.parametrize("runs", [("a", "b"), ("exp - 1", "exp - 2"), ("exp-1", "exp-10")])
def test_several_runs_in_one_table_are_refused_with_a_remedy(runs: tuple[str, str]) -> None:
    with pytest.raises(Unreadable, match="several runs") as raised:
        read(header(*(f"{run} - loss" for run in runs)) + '"1","2","2","2","3","3","3"\n')
    assert "one run" in raised.value.remedy
