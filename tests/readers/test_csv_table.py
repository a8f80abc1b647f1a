"""Tables: Lightning's offset, Keras without steps, free names, torn rows."""

import math

import pytest

from optdoctor.readers import read_source
from optdoctor.reading.reader import Source, Unreadable
from optdoctor.trace import Trace


def read(text: str, reader: str | None = None) -> Trace:
    return read_source(Source(text.encode(), "metrics.csv"), reader)


def steps(trace: Trace, name: str = "loss") -> list[int]:
    return [int(step) for step in trace.series[name].steps]


def values(trace: Trace, name: str = "loss") -> list[float]:
    return [float(value) for value in trace.series[name].values]


def test_lightning_counts_from_zero_and_writes_rows_of_their_own() -> None:
    trace = read(
        "epoch,lr-AdamW,step,train_loss,val_loss\n"
        ",0.001,49,,\n0,,49,2.5,\n,0.0005,99,,\n0,,99,2.25,\n0,,99,,2.4\n1,,149,2.0,\n"
    )
    assert trace.reader == "csv"
    assert steps(trace) == [50, 100, 150]
    assert steps(trace, "eval_loss") == [100]
    assert steps(trace, "lr") == [50, 100]
    assert trace.facts["step_source"] == "logged"


def test_a_single_row_of_lightning_is_shifted_too() -> None:
    assert steps(read("epoch,step,train_loss\n0,510,2.5\n")) == [511]


def test_the_loss_of_a_step_is_preferred_to_the_mean_of_an_epoch() -> None:
    trace = read(
        "epoch,step,train_loss_epoch,train_loss_step\n0,0,,2.5\n0,1,,2.25\n0,1,2.375,\n1,2,,2.0\n"
    )
    assert values(trace) == [2.5, 2.25, 2.0]
    assert values(trace, "metric:train_loss_epoch") == [2.375]
    assert trace.facts["loss_kind"] == "falling"


def test_the_mean_of_an_epoch_is_the_loss_where_it_stands_alone() -> None:
    assert values(read("epoch,step,train_loss_epoch\n0,9,2.5\n1,19,2.25\n")) == [2.5, 2.25]


def test_keras_rows_are_counted_with_and_without_an_epoch() -> None:
    with_epoch = read("epoch,accuracy,loss,val_loss\r\n0,0.1,2.5,2.6\r\n1,0.2,2.25,2.4\r\n")
    without = read("accuracy,loss,val_loss\r\n0.1,2.5,2.6\r\n0.2,2.25,2.4\r\n")
    for trace in (with_epoch, without):
        assert steps(trace) == steps(trace, "eval_loss") == [1, 2]
        assert trace.facts["step_source"] == "counted rows"
        assert values(trace, "metric:accuracy") == [0.1, 0.2]
    assert values(with_epoch, "epoch") == [0.0, 1.0]


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_the_delimiter_is_found(mark: str) -> None:
    text = "step,loss,lr\n1,2.5,0.1\n2,2.25,0.1\n".replace(",", mark)
    assert values(read(text)) == [2.5, 2.25]


def test_decimal_commas_are_read_between_semicolons() -> None:
    assert values(read("step;loss\n1;2,5\n2;2,25\n")) == [2.5, 2.25]


@pytest.mark.parametrize("name", ["step", "global_step", "iteration", "iter", "Steps", "Step"])
def test_a_step_column_from_one_is_kept_and_from_zero_is_shifted(name: str) -> None:
    assert steps(read(f"{name},loss\n1,2.5\n2,2.25\n")) == [1, 2]
    assert steps(read(f"{name},loss\n0,2.5\n1,2.25\n")) == [1, 2]
    assert steps(read(f"{name},loss\n10,2.5\n20,2.25\n")) == [10, 20]


def test_an_evaluation_before_the_first_update_shifts_nothing() -> None:
    trace = read("step,loss,eval_loss\n0,,2.75\n1,2.5,\n2,2.25,\n")
    assert steps(trace) == [1, 2]
    assert steps(trace, "eval_loss") == [0]


def test_nan_and_infinity_are_values_and_an_empty_cell_is_none() -> None:
    trace = read("step,loss,grad_norm\n1,nan,1.5\n2,inf,\n3,-inf,NaN\n4,,0.5\n")
    assert steps(trace) == [1, 2, 3]
    assert math.isnan(values(trace)[0])
    assert values(trace)[1:] == [math.inf, -math.inf]
    assert steps(trace, "grad_norm") == [1, 3, 4]


@pytest.mark.parametrize("nan", ["-nan(ind)", "nan(ind)", "1.#QNAN", "-1.#IND", "-1.#IND00"])
def test_nan_as_c_spells_it_on_windows_is_nan(nan: str) -> None:
    trace = read(f"step,loss\n1,2.5\n2,{nan}\n3,1.#INF\n4,-1.#INF00\n5,2.25\n")
    assert steps(trace) == [1, 2, 3, 4, 5]
    assert math.isnan(values(trace)[1])
    assert values(trace)[2:4] == [math.inf, -math.inf]


@pytest.mark.parametrize("none", ["NA", "N/A", "", "null", "None", "ind", "1.#", "(nan)"])
def test_what_names_no_number_is_none(none: str) -> None:
    assert steps(read(f"step,loss\n1,2.5\n2,{none}\n3,2.25\n")) == [1, 3]


def test_of_rows_of_one_step_the_last_counts() -> None:
    trace = read("step,loss,lr\n1,2.0,0.1\n1,4.0,0.1\n1,6.0,0.1\n2,1.0,0.3\n3,2,0.1\n3,3,0.1\n")
    assert steps(trace) == steps(trace, "lr") == [1, 2, 3]
    assert values(trace) == [6.0, 1.0, 3.0]
    assert values(trace, "lr") == [0.1, 0.3, 0.1]
    assert not trace.events


@pytest.mark.parametrize("order", [("nan", "2.5", "2.5"), ("2.5", "nan", "2.5")])
def test_the_nan_of_one_rank_is_not_hidden_by_another(order: tuple[str, ...]) -> None:
    trace = read("step,loss\n1,2.5\n" + "".join(f"2,{loss}\n" for loss in order) + "3,2.25\n")
    assert steps(trace) == [1, 2, 3]
    assert math.isnan(values(trace)[1])


def test_an_infinite_loss_is_not_hidden_by_one_of_the_same_step() -> None:
    trace = read("step,loss\n1,1.5e308\n1,1.5e308\n2,inf\n2,2.5\n3,2.25\n3,inf\n3,2.25\n")
    assert values(trace) == [1.5e308, math.inf, math.inf]


def test_a_row_merges_with_none_of_a_branch_that_was_left() -> None:
    trace = read(
        "step,loss,eval_loss\n1,2.5,\n2,2.25,\n2,,9.0\n3,2.0,\n"
        "2,1.5,\n2,2.5,\n2,,3.0\n2,,4.0\n3,1.0,\n"
    )
    assert values(trace) == [2.5, 2.5, 1.0]
    assert values(trace, "eval_loss") == [4.0]
    assert [(event.kind, event.step) for event in trace.events] == [("resume", 2)]


def test_quoted_cells_may_hold_the_delimiter() -> None:
    trace = read('"step","note","loss"\n1,"a, b",2.5\n2,"{\'x\': 1, \'y\': 2}",2.25\n')
    assert values(trace) == [2.5, 2.25]


def test_a_row_with_too_few_or_too_many_cells_is_skipped_and_counted() -> None:
    trace = read("step,loss,lr\n1,2.5,0.1\n2,2.25,0.1,9\n3,2.0,0.1\n4,1.")
    assert steps(trace) == [1, 3]
    assert trace.lines_skipped == 2


@pytest.mark.parametrize("torn", ["1.2", "1.2345678e", "1.2345678e-", "1.2345678e-0", "-"])
def test_a_number_that_lost_its_exponent_is_not_read_as_a_spike(torn: str) -> None:
    trace = read(f"step,loss\n1,1.2345678e-05\n2,1.3456789e-05\n3,{torn}")
    assert steps(trace) == [1, 2]
    assert trace.lines_skipped == 1


def test_a_last_row_without_a_line_end_is_read() -> None:
    assert values(read("step,loss\n1,2.25\n2,2.125\n3,2.0")) == [2.25, 2.125, 2.0]


def test_a_header_that_comes_back_is_no_row() -> None:
    trace = read("epoch,train_loss\n0,2.5\n1,2.25\nepoch,train_loss\n2,2.0\n")
    assert steps(trace) == [1, 2, 3]
    assert trace.lines_skipped == 1


def test_lines_before_the_header_are_passed_over() -> None:
    assert values(read("starting the run\nuser: me\n\nstep,loss\n1,2.5\n2,2.25\n")) == [2.5, 2.25]


def test_steps_that_fall_while_the_epoch_rises_are_added_up() -> None:
    trace = read("epoch,iter,loss\n1,10,2.5\n1,20,2.25\n2,10,2.0\n2,20,1.75\n3,10,1.5\n")
    assert steps(trace) == [10, 20, 30, 40, 50]
    assert not trace.events


def test_steps_that_fall_are_a_resume() -> None:
    trace = read("step,loss\n0,2.5\n1,2.25\n2,9.0\n1,2.0\n2,1.75\n")
    assert values(trace) == [2.5, 2.0, 1.75]
    assert [(event.kind, event.step) for event in trace.events] == [("gap", 1), ("resume", 2)]
    assert "its step N stands here as N + 1" in trace.events[0].text


def test_a_guessed_loss_proves_nothing() -> None:
    trace = read("epoch,train/box_loss,val/box_loss\n1,2.5,2.6\n2,2.25,2.4\n")
    assert values(trace) == [2.5, 2.25]
    assert trace.facts["loss_kind"] == "unknown"
    assert read("trl,step\n2.5,1\n2.25,2\n").facts["loss_kind"] == "unknown"


def test_a_loss_beside_a_reward_has_no_good_direction() -> None:
    trace = read("rollout/ep_rew_mean,train/loss\n-100,0.1\n-90,0.2\n")
    assert trace.facts["loss_kind"] == "reward"


def test_a_table_without_a_loss_counts_its_rows() -> None:
    trace = read("epoch,val_loss,val_accuracy\n0,2.5,0.1\n1,2.25,0.2\n")
    assert steps(trace, "eval_loss") == [1, 2]
    assert trace.facts["step_source"] == "counted rows"


def test_the_quantum_is_known_only_where_losses_are_rounded() -> None:
    assert read("step,loss\n1,2.5\n2,2.125\n").facts["loss_quantum"] == 1e-3
    assert "loss_quantum" not in read("step,loss\n1,2.5\n2,2.1250000953674316\n").facts


def test_a_single_column_of_losses_is_a_table() -> None:
    assert values(read("loss\n2.5\n2.25\n")) == [2.5, 2.25]


@pytest.mark.parametrize(
    "text",
    [
        "Epoch 1, loss 2.5, lr 0.1\nEpoch 2, loss 2.25, lr 0.1\n",
        "epoch=1,loss:2.5\nepoch=2,loss:2.25\n",
        "name,age\nann,3\nbob,4\n",
        "loss\nis a word\nof a text\n",
        "the loss, they said, was great\nand so, it seems, it was\n",
        "1,2.5\n2,2.25\n",
    ],
)
def test_text_and_other_tables_are_not_claimed(text: str) -> None:
    with pytest.raises(Unreadable):
        read(text, reader="csv")


def test_a_file_without_a_header_says_what_to_do() -> None:
    with pytest.raises(Unreadable, match="header") as raised:
        read("1,2.5\n2,2.25\n", reader="csv")
    assert raised.value.remedy


@pytest.mark.parametrize("name", ["a:b", "metric:acc", "metric:loss", "loss:0", ":", "Time: s"])
def test_a_colon_in_a_name_is_a_letter_like_others(name: str) -> None:
    assert values(read(f"step,loss,{name}\n1,2.5,1\n2,2.25,2\n")) == [2.5, 2.25]


@pytest.mark.parametrize(
    "text",
    [
        '"Step","Train Loss"\n"500","2.5"\n"1,000","1,234.5"\n',
        "step\ttrain_loss\n500\t2.5\n1,000\t1,234.5\n",
    ],
)
def test_commas_that_part_thousands_are_no_ends_of_numbers(text: str) -> None:
    trace = read(text)
    assert trace.series["loss"].steps.tolist() == [500, 1000]
    assert values(trace) == [2.5, 1234.5]


def test_commas_between_semicolons_are_decimal_points() -> None:
    assert values(read("step;loss\n1;1,250\n2;1,125\n")) == [1.25, 1.125]
