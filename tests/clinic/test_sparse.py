"""The sparse view of a record: the samples of an unhurried doctor, and every row of the rest."""

import numpy as np
from sparse import as_if_sparse

from optdoctor.engine import diagnose
from optdoctor.live.schedule import Schedule
from optdoctor.synthetic import make_trace
from optdoctor.trace import TensorInfo


def test_it_keeps_the_samples_that_a_run_gets_in_any_case() -> None:
    steps = np.arange(1, 401)
    trace = make_trace(
        {"param_rms": np.ones((400, 1)), "attention_entropy": np.ones(400)},
        steps={"param_rms": steps, "attention_entropy": steps},
        loss=np.linspace(2, 1, 400),
        tensors=(TensorInfo("w", (3,)),),
    )
    schedule = Schedule(1e-9)
    wanted = []
    for step in steps:
        schedule.add(1.0, idle=False)
        wanted += [step] if schedule.due(float(step)) else []
    sparse = as_if_sparse(trace)
    for name in ("param_rms", "attention_entropy"):
        assert sparse.series[name].steps.tolist() == wanted
    assert sparse.series["loss"].rows == 400


def test_of_a_record_it_keeps_the_first_sample_after_each() -> None:
    every_fifth = np.arange(1001, 1401, 5)
    trace = make_trace(
        {"param_rms": np.ones((80, 1))},
        steps={"param_rms": every_fifth, "loss": np.arange(1001, 1401)},
        loss=np.linspace(2, 1, 400),
        tensors=(TensorInfo("w", (3,)),),
    )
    sparse = as_if_sparse(trace)
    ages = sparse.series["param_rms"].steps - 1000
    assert ages.tolist() == [1, 6, 11, 21, 36, 56, 86, 131, 201, 306]
    assert sparse.last_sample == 1306
    assert not diagnose(sparse).with_status("crashed")
