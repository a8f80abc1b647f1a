"""What the names of curves mean where everybody chooses them."""

import pytest

from optdoctor.reading.curve_names import meaning_of


@pytest.mark.parametrize(
    ("names", "loss"),
    [
        (("train/actor_loss", "train/critic_loss", "train/ent_coef_loss"), "train/critic_loss"),
        (("learner/policy_loss", "learner/vf_loss"), "learner/vf_loss"),
        (("train/policy_loss",), "train/policy_loss"),
        (("train/loss", "train/critic_loss"), "train/loss"),
    ],
)
def test_of_several_parts_one_that_falls_goes_before_one_without_direction(
    names: tuple[str, ...], loss: str
) -> None:
    assert meaning_of(dict.fromkeys(names, 9)).loss == loss
    assert meaning_of(dict.fromkeys(reversed(names), 9)).loss == loss
