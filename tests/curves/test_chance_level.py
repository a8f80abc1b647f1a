"""The loss of a model that knows nothing."""

import math

import numpy as np
import pytest

from optdoctor.curves.chance import USUAL_CLASSES, at_chance, candidates, nearest
from optdoctor.curves.level import Curve, Floats, curve
from optdoctor.synthetic import make_trace

T = np.arange(400) / 400


def line(loss: Floats) -> Curve:
    found = curve(make_trace(loss=loss).series["loss"])
    assert found is not None
    return found


def found_at(loss: Floats, told: object = None, unit: str = "nats") -> str:
    found = at_chance(line(loss), told, unit, 0.005, 0.02)
    return found.name if found else ""


def test_four_classes_are_not_guessed() -> None:
    assert 4 not in USUAL_CLASSES
    assert nearest(math.log(4), None, "nats", 0.01)[0] == 0
    assert nearest(math.log(4), 4, "nats", 0.01)[0] == 4


@pytest.mark.parametrize("told", [True, 1, -3, 2**60, "10", 10.0, None])
def test_what_is_no_number_of_classes_is_not_taken_for_one(told: object) -> None:
    assert not any(known for _, known, _, _ in candidates(told, "nats"))


def test_the_nearest_vocabulary_is_named() -> None:
    assert found_at(np.full(400, math.log(50_257))) == "ln 50257"
    assert found_at(np.full(400, math.log(50_304))) == "ln 50304"
    assert found_at(np.full(400, 15.0), unit="bits") == "log2 32768"


def test_a_slow_fall_to_a_guessed_level_is_none_but_to_a_told_one_is() -> None:
    falling = math.log(3) * (1 + 0.08 * np.maximum(1 - 2 * T, 0))
    assert found_at(falling) == ""
    assert found_at(falling, told=3) == "ln 3"


def test_what_leaves_chance_at_the_end_is_none() -> None:
    learned = np.full(400, math.log(10))
    learned[-24:] *= np.linspace(1, 0.8, 24)
    assert found_at(np.full(400, math.log(10))) == "ln 10"
    assert found_at(learned) == ""


def test_a_far_fall_to_chance_is_none() -> None:
    assert found_at(math.log(10) + 2.5 * np.exp(-60 * T)) == ""


def test_a_net_that_dies_within_its_first_rows_is_told_with_their_number() -> None:
    dead = math.log(10) + 0.01 * np.random.default_rng(0).standard_normal(400)
    for first, told in (([9, 7, 5, 4, 3], None), ([9, 4], None), ([9, 4], 10)):
        loss = dead.copy()
        loss[: len(first)] = first
        found = at_chance(line(loss), told, "nats", 0.005, 0.02)
        assert found is not None
        assert (found.name, found.fell, found.row) == ("ln 10", len(first), len(first))
    near = at_chance(line(dead), None, "nats", 0.005, 0.02)
    assert near is not None
    assert near.fell == 0, "it began there"


def test_a_fall_to_about_chance_or_on_from_there_is_none() -> None:
    dead = math.log(10) + 0.001 * np.random.default_rng(0).standard_normal(400)
    dead[:5] = [9, 7, 5, 4, 3]
    assert found_at(dead) == "ln 10"
    assert found_at(1.003 * dead) == ""
    assert found_at(1.003 * dead, told=10) == "ln 10"
    slower = dead.copy()
    slower[:12] = np.linspace(9, 2.5, 12)
    assert found_at(slower) == ""
    assert found_at(dead * (1 - 0.04 * T)) == ""
    loud = dead * np.exp(0.02 * np.random.default_rng(1).standard_normal(400))
    assert found_at(loud, told=10) == "ln 10"
    assert found_at(loud * (1 + 0.04 * np.maximum(1 - 2 * T, 0)), told=10) == ""
