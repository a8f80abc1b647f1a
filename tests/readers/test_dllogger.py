"""NVIDIA's DLLogger, as text and as JSON lines."""

import json

from optdoctor.trace import Trace
from tests.text_logs import read_lines, rows_of

CLOCK = "2026-01-02 03:04:05.678901"


def read(*lines: str) -> Trace:
    return read_lines("dllogger", *lines)


def record(step: object, kind: str = "LOG", **data: object) -> str:
    return "DLLL " + json.dumps({"timestamp": "1.5", "type": kind, "step": step, "data": data})


def test_the_mean_since_the_last_line_goes_before_the_loss_of_a_batch() -> None:
    line = (
        "DLL {} - Training Epoch: 0 Training Iteration: {}  average_loss : {}  step_loss : 9.5  "
        "learning_rate : 0.00025 "
    )
    trace = read(
        line.format(CLOCK, 1787, 2.25),
        f"DLL {CLOCK} - PARAMETER checkpoint_step : 1787 ",
        line.format(CLOCK, 1887, "nan"),
    )
    assert rows_of(trace) == [(1787, 2.25), (1887, None)]
    assert rows_of(trace, "metric:step_loss") == [(1787, 9.5), (1887, 9.5)]
    assert rows_of(trace, "lr") == [(1787, 0.00025), (1887, 0.00025)]
    assert set(trace.series) == {"loss", "lr", "epoch", "metric:step_loss"}
    assert trace.facts["loss_form"] == "mean"


def test_json_lines_say_the_same() -> None:
    trace = read(
        record("PARAMETER", train_batch_size=4096),
        record([0, 1787], average_loss=2.25, step_loss=9.5, learning_rate=0.00025),
        record([0, 1887], average_loss=float("nan"), step_loss=9.5),
        'DLLL {"timestamp": "1.5", "type": "LO',
    )
    assert rows_of(trace) == [(1787, 2.25), (1887, None)]
    assert set(trace.series) == {"loss", "lr", "epoch", "metric:step_loss"}


def test_a_line_an_epoch_sums_up_and_replaces_no_row() -> None:
    trace = read(
        f"DLL {CLOCK} - Epoch: 0 Iteration: 20  train.loss : 6.5 train.total_ips : 2500.0 img/s",
        f"DLL {CLOCK} - Epoch: 0 Iteration: 40  train.loss : 5.5 train.total_ips : 2500.0 img/s",
        f"DLL {CLOCK} - Epoch: 0 Validation Iteration: 10  val.loss : 5.75",
        f"DLL {CLOCK} - Epoch: 0  train.loss : 9.25 val.loss : 5.25 val.top1 : 12.5 %",
        f"DLL {CLOCK} - Epoch: 1 Iteration: 20  train.loss : 4.5 train.total_ips : 2500.0 img/s",
    )
    assert [value for _, value in rows_of(trace)] == [6.5, 5.5, 4.5]
    assert [step for step, _ in rows_of(trace)] == [20, 40, 60]
    assert rows_of(trace, "eval_loss") == [(40, 5.25)]
    assert rows_of(trace, "metric:val.top1") == [(40, 12.5)]


def test_a_log_of_epochs_alone_has_a_row_an_epoch() -> None:
    lines = [f"DLL {CLOCK} - Epoch: {n}  train_loss : {2.5 - n}  val_loss : 2.25" for n in range(3)]
    trace = read(*lines, f"DLL {CLOCK} - ()  final_loss : 0.5")
    assert [value for _, value in rows_of(trace)] == [2.5, 1.5, 0.5]
    assert [step for step, _ in rows_of(trace)] == [1, 2, 3]
