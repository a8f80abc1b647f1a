"""LitGPT: two clocks, and which micro-batches make an update."""

from tests.readers.language_model_logs import read, rows


def test_an_update_is_the_mean_of_its_micro_batches() -> None:
    trace = read(
        "litgpt",
        "iter 1 step 0: loss 4.0, iter time: 212.50ms",
        "iter 2 step 1: loss 3.0, iter time: 230.25ms (optimizer.step)",
        "iter 3 step 1: loss 2.5, iter time: 212.50ms",
        "iter 4 step 2: loss 1.5, iter time: 230.25ms (optimizer.step)",
    )
    assert rows(trace) == {1: 3.5, 2: 2.0}


def test_a_nan_micro_batch_makes_its_update_nan() -> None:
    trace = read(
        "litgpt",
        "iter 1 step 0: loss nan, iter time: 212.50ms",
        "iter 2 step 1: loss 3.0, iter time: 230.25ms (optimizer.step)",
        "iter 3 step 1: loss 2.5, iter time: 212.50ms",
    )
    assert rows(trace) == {1: "nan", 2: 2.5}


def test_the_new_line_already_holds_the_mean_when_the_update_is_made() -> None:
    trace = read(
        "litgpt",
        "Epoch 1 | iter 1 step 0 | loss train: 4.000, val: n/a | iter time: 212.50 ms",
        "Epoch 1 | iter 2 step 1 | loss train: 3.500, val: n/a | iter time: 230.25 ms (step)",
        "iter 2: val loss 3.2500, val time: 2500.00 ms",
        "Epoch 1 | iter 3 step 1 | loss train: 3.000, val: 3.250 | iter time: 212.50 ms",
        "Epoch 1 | iter 4 step 2 | loss train: 2.500, val: 3.250 | iter time: 230.25 ms (step)"
        " remaining time: 1 day, 0:10:00",
        "Final evaluation | val loss: 2.250 | val ppl: 9.488",
    )
    assert rows(trace) == {1: 3.5, 2: 2.5}
    assert rows(trace, "eval_loss") == {1: 3.25, 2: 2.25}


def test_an_evaluation_stands_at_the_update_and_not_at_the_micro_batch() -> None:
    trace = read(
        "litgpt",
        "iter 79 step 40: loss 4.0, iter time: 230.25ms (optimizer.step)",
        "step 79: val loss 4.25, val time: 2500.00ms",
    )
    assert rows(trace, "eval_loss") == {40: 4.25}


def test_a_micro_batch_alone_stands_for_its_update() -> None:
    trace = read(
        "litgpt",
        "Epoch 1 | iter 1 step 0 | loss train: 4.000, val: n/a | iter time: 212.50 ms",
        "Epoch 1 | iter 9 step 2 | loss train: 3.000, val: 3.250 | iter time: 212.50 ms",
        "Epoch 1 | iter 17 step 4 | loss train: 2.000, val: 3.250 | iter time: 212.50 ms",
    )
    assert rows(trace) == {1: 4.0, 3: 3.0, 5: 2.0}
    assert rows(trace, "eval_loss") == {3: 3.25}
    assert trace.series.keys() == {"loss", "eval_loss"}
