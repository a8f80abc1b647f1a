"""progress.csv of guided-diffusion: quarters, late columns, a loss that need not fall."""

import pytest

from tests.readers.tables import facts, read, steps, values


@pytest.mark.parametrize("loss", ["loss", "mse_loss_mean", "mse"])
def test_the_whole_loss_is_the_loss_and_its_quarters_are_metrics(loss: str) -> None:
    quarter = "mse_loss_q{}_mean" if loss.endswith("mean") else loss + "_q{}"
    names = f"{loss},{quarter.format(1)},samples,step,{quarter.format(0)}"
    trace = read(f"{names}\n0.5,0.25,16,0,\n0.25,,176,10,0.75\n0.125,0.5,336,20,0.5\n")
    assert trace.reader == "guided-diffusion"
    assert steps(trace) == [1, 11, 21]
    assert values(trace) == [0.5, 0.25, 0.125]
    assert steps(trace, f"metric:{quarter.format(0)}") == [11, 21]
    assert "metric:samples" not in trace.series
    assert facts(trace, "loss_kind", "loss_form") == ["diffusion", "mean"]
