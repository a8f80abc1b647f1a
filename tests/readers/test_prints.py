"""Prints that nobody specified: names are understood by their parts."""

import numpy as np
import pytest

from optdoctor.readers import claiming, read_source
from optdoctor.reading.reader import Head, Source
from optdoctor.trace import Trace


def read(*lines: str) -> Trace:
    trace = read_source(Source("\n".join([*lines, ""]).encode(), "train.log"))
    assert trace.reader == "prints"
    return trace


def losses(trace: Trace, name: str = "loss") -> list[float]:
    return [float(value) for value in trace.series[name].values]


def steps(trace: Trace, name: str = "loss") -> list[int]:
    return [int(step) for step in trace.series[name].steps]


@pytest.mark.parametrize(
    "line",
    [
        "step: {n} loss: {x}",
        "Step {n} -- Train loss: {x}, Train Acc: 0.5 Test Acc: 0.25",
        "[Step {n}] Train Loss = {x}",
        "step={n}, loss={x}",
        "Iteration {n} | loss {x} | lr 0.001",
        "Iter: [{n}/9000]  batch loss is {x}",
        "2026-01-02 03:04:05 INFO trainer: global_step {n} avg_loss={x}",
        "2026-01-02 03:04:05.678 | INFO     | __main__:train:42 - step {n}: loss {x}",
        "INFO:root:{{'step': {n}, 'cost': 3, \"loss\": {x}}}",
        "step {n}: [Loss] {x}",
        "\x1b[32mstep {n}\x1b[0m loss: \x1b[1m{x}\x1b[0m",
        "train_step {n}, loss -> {x}",
        "step {n} loss: tensor({x}, device='cuda:0', grad_fn=<NllLossBackward0>)",
        "iter {n} Total loss : {x}",
    ],
)
def test_steps_and_losses_are_found_in_many_forms(line: str) -> None:
    said = {10: "2.25", 20: "2.125", 30: "nan", 40: "2.0625"}
    trace = read(*(line.format(n=n, x=x) for n, x in said.items()))
    assert steps(trace) == [10, 20, 30, 40]
    assert np.array_equal(losses(trace), [2.25, 2.125, np.nan, 2.0625], equal_nan=True)
    assert trace.facts["step_source"] == "logged"
    assert trace.facts["loss_kind"] == "falling"


@pytest.mark.parametrize(
    "line",
    [
        "epoch: {n} loss: {x}",
        "Epoch={n},Loss:{x},Accuracy:0.5,Valid Loss:2.5",
        "Epoch [{n}/300], Loss: {x}",
        "[Epoch {n}] train_loss {x}",
        "Ep {n} | Train Loss: {x} | Val Loss: 2.5",
        "Epoch {n}/300 finished, loss={x}",
    ],
)
def test_where_every_row_is_an_epoch_its_number_is_the_step(line: str) -> None:
    trace = read(*(line.format(n=n, x=x) for n, x in {3: 2.25, 4: 2.125, 5: 2.0625}.items()))
    assert steps(trace) == [3, 4, 5]
    assert losses(trace) == [2.25, 2.125, 2.0625]
    assert trace.facts["step_source"] == "epochs"


def test_rows_that_share_their_epoch_are_counted() -> None:
    trace = read(*(f"Epoch {n // 4}, Loss: {3 - n / 100}" for n in range(12)))
    assert steps(trace) == list(range(1, 13))
    assert trace.facts["step_source"] == "counted rows"


def test_a_line_that_begins_with_valid_is_of_the_evaluation() -> None:
    trace = read(
        "Train Epoch: 1 Loss: 2.5",
        "Valid Epoch: 1 Loss: 2.75",
        "Train Epoch: 2 Loss: 2.25",
        "Valid Epoch: 2 Loss: nan",
    )
    assert losses(trace) == [2.5, 2.25]
    assert np.array_equal(losses(trace, "eval_loss"), [2.75, np.nan], equal_nan=True)


@pytest.mark.parametrize(
    "name", ["Val Loss", "val_loss", "Validation loss", "Val_los", "test loss"]
)
def test_the_loss_of_the_evaluation_has_many_names(name: str) -> None:
    trace = read(*(f"Epoch {n}: loss: 2.5, {name}: 2.{n}" for n in (1, 2, 3)))
    assert losses(trace, "eval_loss") == [2.1, 2.2, 2.3]


def test_an_epoch_that_was_said_before_holds_for_the_lines_after_it() -> None:
    trace = read(
        "Epoch: 7", "Train_loss: 2.5, Val_los: 2.75", "Epoch: 8", "Train_loss: 2.25, Val_los: 3"
    )
    assert steps(trace) == [7, 8]
    assert losses(trace, "eval_loss") == [2.75, 3.0]


def test_the_best_loss_so_far_is_none_of_the_run() -> None:
    trace = read(*(f"Epoch {n} val_loss: 3.{n} best val loss: 3.0 loss: 2.{n}" for n in (1, 2, 3)))
    assert losses(trace, "eval_loss") == [3.1, 3.2, 3.3]


def test_the_loss_that_is_printed_most_often_is_the_training_loss() -> None:
    lines = [f"step {n} loss: {3 - n / 10}" for n in range(1, 9)]
    trace = read(*lines, "epoch 1 average train loss: 2.5", "epoch 1 val loss: 2.75")
    assert len(losses(trace)) == 8
    assert losses(trace, "metric:average train loss") == [2.5]


def test_a_part_of_the_loss_is_a_metric_beside_the_whole() -> None:
    trace = read(*(f"step: {n} total_loss: {n}.5 cls_loss: 1 box_loss: 2" for n in (1, 2, 3)))
    assert losses(trace) == [1.5, 2.5, 3.5]
    assert losses(trace, "metric:cls_loss") == [1.0, 1.0, 1.0]


def test_the_only_loss_is_the_loss_and_falls_where_its_name_is_a_criterion() -> None:
    known = read(*(f"step {n} ce_loss: 2.{n}" for n in (1, 2, 3)))
    unknown = read(*(f"step {n} alignment_loss: 2.{n}" for n in (1, 2, 3)))
    assert losses(known) == losses(unknown) == [2.1, 2.2, 2.3]
    assert (known.facts["loss_kind"], unknown.facts["loss_kind"]) == ("falling", "unknown")


def test_two_players_are_adversaries_and_rewards_are_rewards() -> None:
    players = read(*(f"[{n}/25] Loss_D: 1.5 Loss_G: 2.{n}" for n in (1, 2, 3)))
    rewards = read(*(f"episode {n} reward: {n} loss: 0.5" for n in (1, 2, 3)))
    assert players.facts["loss_kind"] == "adversarial"
    assert rewards.facts["loss_kind"] == "reward"


def test_frames_of_a_bar_at_one_step_are_one_row() -> None:
    bar = "Epoch 1:  10%|#         | {n}/100 [00:0{n}<00:50, 2.00it/s, loss={x}, v_num=3]"
    frames = [bar.format(n=n, x=x) for n, x in ((1, 2.5), (1, 2.4), (2, 2.25), (3, 2.0))]
    trace = read("\r".join(frames))
    assert (steps(trace), losses(trace)) == ([1, 2, 3], [2.4, 2.25, 2.0])
    assert not any("v_num" in name for name in trace.series)


def test_clocks_and_sizes_are_no_metrics() -> None:
    trace = read(*(f"step {n} loss: 2.5 eta: 3 time: 1.5s memory: 900 acc: 0.5" for n in (1, 2, 3)))
    assert set(trace.series) == {"loss", "metric:acc"}


def test_rates_and_gradient_norms_are_known() -> None:
    trace = read(*(f"step {n} loss: 2.5 learning rate: 1e-3 grad norm: 0.{n}" for n in (1, 2, 3)))
    assert losses(trace, "lr") == [1e-3] * 3
    assert losses(trace, "grad_norm") == [0.1, 0.2, 0.3]


def test_an_overflow_between_the_lines_is_a_skipped_update() -> None:
    trace = read(
        "step 1 loss: 2.5",
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0",
        "step 2 loss: 2.5",
    )
    assert losses(trace, "step_skipped") == [1.0]
    assert losses(trace, "loss_scale") == [32768.0]


@pytest.mark.parametrize(
    "text",
    [
        "loss: 0.5\n",
        "The loss of the company was 3 million.\nIn 2025 its loss was higher.\n",
        "loss_fn = CrossEntropyLoss()\nloss = loss_fn(output, target)\nloss.backward()\n",
        "nan nan nan\nlr: 0.1\nlr: 0.2\n",
    ],
)
def test_what_is_no_log_is_not_claimed(text: str) -> None:
    found = claiming(Head(text.encode()))
    assert found is None or found.name != "prints"


def test_false_friends_of_nan_are_no_numbers() -> None:
    trace = read(*(f"step {n} loss: 2.5 step_avg:nanms run: nanogpt" for n in (1, 2, 3)))
    assert losses(trace) == [2.5] * 3
    assert not any("avg" in name or "run" in name for name in trace.series)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("step 1,000", 1000),
        ("step: 12,345,678", 12_345_678),
        ("[Step 12k]", 12_000),
        ("step=1.5k,", 1500),
        ("2.5k steps |", 2500),
    ],
)
def test_steps_in_thousands_are_what_they_say(said: str, meant: int) -> None:
    trace = read("step 500 loss: 2.5", f"{said} loss: 2.25")
    assert (steps(trace), losses(trace)) == ([500, meant], [2.5, 2.25])


def test_a_step_before_a_comma_is_no_thousand() -> None:
    assert steps(read("step 1,loss 2.5", "step 2,loss 2.25")) == [1, 2]


def test_a_pair_in_brackets_before_a_bar_is_read_and_names_nothing_else() -> None:
    bar = "Training Epoch: {e}/2, step {n}/3 completed (loss: {x}):  50%|## | {n}/3 [00:01<00:01]"
    said = [(1, 0, 2.5), (1, 1, 2.25), (1, 2, 2.0), (2, 0, 1.75), (2, 1, 1.5)]
    trace = read(*(bar.format(e=e, n=n, x=x) for e, n, x in said))
    assert losses(trace) == [2.5, 2.25, 2.0, 1.75, 1.5]
    assert set(trace.series) == {"loss", "epoch"}


def test_names_that_change_from_row_to_row_are_dropped() -> None:
    trace = read(*(f"step {n} loss: 2.5 sample{n * 7}: 0.5 head{n % 2}: 0.25" for n in range(1, 9)))
    assert set(trace.series) == {"loss", "metric:head0", "metric:head1"}
    assert trace.reading is not None
    assert trace.reading.names["sample7"] == ""


@pytest.mark.parametrize(
    "heading", ["Test Error: ", "Validation:", "2026-01-02 INFO Eval results:"]
)
def test_a_heading_says_of_what_the_next_line_is(heading: str) -> None:
    trace = read(
        "loss: 2.5  [   64/60000]",
        "loss: 2.25  [ 6464/60000]",
        heading,
        " Accuracy: 71.0%, Avg loss: 2.75 ",
        "",
        "loss: 2.0  [   64/60000]",
    )
    assert losses(trace) == [2.5, 2.25, 2.0]
    assert losses(trace, "eval_loss") == [2.75]


def test_a_heading_holds_for_what_stands_further_in() -> None:
    block = ("Train:", "  loss: 2.{n}", "  acc: 0.5", "Validation:", "  acc: 0.25", "  loss: 3.{n}")
    trace = read(*(line.format(n=n) for n in (1, 2, 3) for line in block), "loss: 2.0")
    assert losses(trace) == [2.1, 2.2, 2.3, 2.0]
    assert losses(trace, "eval_loss") == [3.1, 3.2, 3.3]


def test_lines_of_a_json_document_are_no_prints() -> None:
    rows = '{\n "a": {\n  "loss": 2.5\n },\n "b": {\n  "loss": 2.25\n }\n}\n'
    assert claiming(Head(rows.encode())) is None


def test_the_one_rate_and_gradient_norm_of_something_are_those_of_the_run() -> None:
    trace = read(*(f"step:{n} - loss:2.5 - actor/lr:1e-06 - optim.grad_norm:0.5" for n in (1, 2)))
    assert losses(trace, "lr") == [1e-6] * 2
    assert losses(trace, "grad_norm") == [0.5] * 2


@pytest.mark.parametrize("other", ["critic/lr", "lr"])
def test_of_several_rates_none_with_a_prefix_is_that_of_the_run(other: str) -> None:
    trace = read(*(f"step:{n} - loss:2.5 - actor/lr:1e-06 - {other}:0.5" for n in (1, 2)))
    assert losses(trace, "metric:actor/lr") == [1e-6] * 2


def test_a_part_that_stands_for_the_loss_is_a_guess_and_no_penalty() -> None:
    row = "step:{n} - actor/entropy_loss:0.5 - actor/pg_loss:0.2{n} - critic/rewards/mean:0.5"
    trace = read(*(row.format(n=n) for n in (1, 2, 3)))
    assert losses(trace) == [0.21, 0.22, 0.23]
    assert trace.facts["loss_kind"] == "unknown"
    assert trace.reading is not None
    assert trace.reading.guessed


@pytest.mark.parametrize(
    "text",
    [
        "Dear diary,\nToday I trained it. The loss was 0.3 in the end.\nIt was nice.\n" * 5,
        "At first the loss was 0.5 or so.\nNow it is better, a loss of 0.25 at last.\n",
    ],
)
def test_prose_is_no_log(text: str) -> None:
    assert claiming(Head(text.encode())) is None


def test_neither_of_two_players_has_the_loss() -> None:
    epochs = [f"[{e}/2][{n}/3] Loss_D: 1.{n} Loss_G: 2.{n}" for e in (0, 1) for n in (0, 1, 2)]
    trace = read(*epochs)
    assert set(trace.series) == {"metric:Loss_D", "metric:Loss_G"}
    assert steps(trace, "metric:Loss_D") == [1, 2, 3, 4, 5, 6]
    assert losses(trace, "metric:Loss_G") == [2.0, 2.1, 2.2] * 2


def test_steps_of_two_players_add_up_over_epochs() -> None:
    row = "Epoch [{e}/2], Step [{n}/200], d_loss: 1.5, g_loss: 2.5"
    trace = read(*(row.format(e=e, n=n) for e in (1, 2) for n in (100, 200)))
    assert steps(trace, "metric:d_loss") == [100, 200, 300, 400]


def test_a_number_beside_a_loss_is_a_metric_or_is_said_to_be_dropped() -> None:
    row = "epoch {n} | loss 19.{n} recon 18.{n} kl 1.0 took 3.5s of 9 seed 7 | val_loss 20.{n}"
    trace = read(*(row.format(n=n) for n in (1, 2, 3)))
    assert set(trace.series) == {"epoch", "loss", "eval_loss", "metric:recon", "metric:kl"}
    assert losses(trace, "metric:recon") == [18.1, 18.2, 18.3]
    assert trace.reading is not None
    assert trace.reading.names["seed"] == ""


def test_the_step_of_a_bar_is_that_of_its_row() -> None:
    bar = " 0%|# | {n}/600 [00:10<00:10, 19.5it/s, train/loss={x}, grad=1.5]"
    trace = read("\r".join(bar.format(n=n, x=x) for n, x in ((10, 2.5), (20, 2.25))))
    assert (steps(trace), losses(trace)) == ([10, 20], [2.5, 2.25])


def test_every_name_of_a_line_is_told_as_it_stands_there() -> None:
    text = "".join(f"[ep 0] iter {n} | Loss = {3 - n / 50} acc 0.5\n" for n in range(40))
    assert read(text).reading.names == {"epoch": "epoch", "iter": "step", "acc": "", "Loss": "loss"}
    text = "".join(f"Epoch {n} train loss: {3 - n / 50} speed 0.5\n" for n in range(40))
    names = read(text).reading.names
    assert names == {"Epoch": "epoch", "speed": "", "train loss": "loss"}
