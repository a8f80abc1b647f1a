"""A loss sounds the alarm when it breaks or leaves its neighbours, and not otherwise."""

import math

import numpy as np
import pytest

from optdoctor.live.alarm import KEPT, LEAST, MADS, WINDOW, KeptAlarm, LossAlarm


def heard(losses: list[float]) -> list[int]:
    """Positions of the losses that sounded it."""
    alarm = LossAlarm()
    return [i for i, loss in enumerate(losses) if alarm(loss)]


def noise(number: int, seed: int = 0) -> list[float]:
    return (2 + 0.1 * np.random.default_rng(seed).standard_normal(number)).tolist()


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_the_first_loss_that_is_not_finite_sounds_it_and_the_next_ones_do_not(
    broken: float,
) -> None:
    assert heard([1.0, broken, broken, broken]) == [1]
    assert LossAlarm()(broken) == "loss not finite"


def test_a_loss_that_breaks_again_sounds_it_again() -> None:
    assert heard([1.0, math.nan, 1.0, math.nan]) == [1, 3]


def test_a_far_loss_sounds_it_and_says_how_many_it_was_compared_with() -> None:
    assert heard([*noise(40), 9.0, *noise(40)]) == [40]
    alarm = LossAlarm()
    said = [alarm(loss) for loss in [*noise(WINDOW + 9), -9.0]]
    assert said[-1] == f"loss -9 is far from its last {WINDOW}"


def test_a_near_loss_does_not() -> None:
    window = [1.0, 2.0, 3.0] * LEAST  # median 2, median deviation 1
    assert heard([*window, 2 + MADS]) == []
    assert heard([*window, 2 + MADS + 0.01]) == [len(window)]


def test_few_losses_are_no_basis() -> None:
    assert heard([*noise(LEAST - 1), 1e6]) == []
    assert heard([*noise(LEAST), 1e6]) == [LEAST]
    assert (LEAST, WINDOW, MADS) == (16, 64, 8)


def test_a_constant_loss_gives_no_measure_of_distance() -> None:
    assert heard([1.0] * 100 + [1.5]) == []


def test_a_new_level_becomes_the_usual_one() -> None:
    moved = [*noise(WINDOW), *(loss + 5 for loss in noise(3 * WINDOW))]
    sounded = heard(moved)
    assert sounded[0] == WINDOW
    assert max(sounded) < 2 * WINDOW


def test_an_ordinary_falling_loss_never_sounds_it() -> None:
    steps = np.arange(1, 2001)
    rng = np.random.default_rng(0)
    losses = 2 + 3 * steps**-0.5 + 0.05 * rng.standard_normal(len(steps))
    assert heard(losses.tolist()) == []


def test_losses_that_are_not_finite_do_not_enter_the_comparison() -> None:
    assert heard([*noise(20), math.nan, 2.0, 9.0]) == [20, 22]


def test_gradients_that_are_kept_over_many_updates_sound_it_once_each_time() -> None:
    alarm = KeptAlarm()
    kept = [1.0] * (KEPT - 1) + [0.0] + [1.0] * (3 * KEPT) + [0.0] + [1.0] * KEPT
    heard = [i for i, value in enumerate(kept) if alarm(value)]
    assert heard == [2 * KEPT - 1, len(kept) - 1]
