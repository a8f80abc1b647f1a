"""The console of the Hugging Face Trainer: two generations, bars, escapes, torn lines."""

import math
import random
import re
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from optdoctor.readers import huggingface_console, read_source
from optdoctor.reading import uniform_rows
from optdoctor.reading.reader import Source, Unreadable
from optdoctor.trace import Trace

BAR = "  3%|▎         | 3/100 [00:01<00:30,  3.20it/s]"


def read(text: str, reader: str | None = None) -> Trace:
    return read_source(Source(text.encode(), "train.log"), reader)


def losses(trace: Trace) -> list[float]:
    return [float(value) for value in trace.series["loss"].values]


def test_floats_of_the_fourth_generation_are_read() -> None:
    trace = read(
        "{'loss': 3.92, 'grad_norm': 2.5, 'learning_rate': 5e-05, 'epoch': 0.25}\n"
        "{'loss': nan, 'grad_norm': inf, 'learning_rate': 4e-05, 'epoch': 0.5}\n"
    )
    assert trace.reader == "huggingface-console"
    assert losses(trace)[0] == 3.92
    assert math.isnan(losses(trace)[1])
    assert trace.series["grad_norm"].values[1] == math.inf
    assert list(trace.series["lr"].values) == [5e-05, 4e-05]
    assert list(trace.series["epoch"].values) == [0.25, 0.5]


def test_quoted_numbers_of_the_fifth_generation_are_read() -> None:
    trace = read(
        "{'loss': '3.437', 'grad_norm': '1.137', 'learning_rate': '0.01', 'epoch': '0.25'}\n"
        "{'loss': '0', 'grad_norm': 'nan', 'learning_rate': '1e-05', 'epoch': '0.5'}\n"
    )
    assert losses(trace) == [3.437, 0.0]
    assert math.isnan(trace.series["grad_norm"].values[1])
    assert trace.series["lr"].values[1] == 1e-05


def test_rows_are_counted_because_the_console_names_no_step() -> None:
    trace = read("{'loss': 3.5}\n{'loss': 3.25}\n{'loss': 3.0}\n")
    assert list(trace.series["loss"].steps) == [1, 2, 3]
    assert trace.facts["step_source"] == "counted rows"
    assert trace.facts["framework"] == "huggingface"


def test_a_step_in_the_dictionary_is_used() -> None:
    trace = read("{'loss': 3.5, 'step': 10}\n{'loss': 3.25, 'step': 20}\n")
    assert list(trace.series["loss"].steps) == [10, 20]
    assert trace.facts["step_source"] == "logged"


def test_bars_before_and_after_and_carriage_returns_do_not_matter() -> None:
    trace = read(f"{BAR}\r{BAR}{{'loss': 3.5}}{BAR}\r\n{BAR}\n\r{{'loss': 3.25}}   \r{BAR}")
    assert losses(trace) == [3.5, 3.25]
    assert trace.lines_skipped == 0


def test_escapes_for_colour_do_not_matter() -> None:
    trace = read("\x1b[34m{'loss'\x1b[0m: \x1b[1;31m3.5\x1b[0m}\x1b[K\n{'loss': 3.25}\n")
    assert losses(trace) == [3.5, 3.25]


def test_text_behind_a_row_does_not_matter() -> None:
    trace = read("{'loss': 1.14,  'grad_norm':    92.10}    <-- spike (step 1)\n")
    assert trace.series["grad_norm"].values[0] == 92.1


def test_several_dictionaries_on_a_line_are_several_rows() -> None:
    assert losses(read("{'loss': 3.5}{'loss': 3.25} {'loss': 3.0}\n")) == [3.5, 3.25, 3.0]


def test_a_torn_last_line_is_skipped_and_counted() -> None:
    trace = read("{'loss': 3.5, 'epoch': 0.1}\n{'loss': 3.25, 'epoch': 0.2}\n{'loss': 3.1, 'ep")
    assert losses(trace) == [3.5, 3.25]
    assert trace.lines_skipped == 1


def test_an_evaluation_stands_at_the_last_loss_row() -> None:
    trace = read(
        "{'loss': 3.5}\n{'loss': 3.25}\n"
        "{'eval_loss': 3.4, 'eval_accuracy': 0.5, 'eval_runtime': 2.0,"
        " 'eval_samples_per_second': 9.0, 'epoch': 1.0}\n"
        "{'loss': 3.0}\n"
    )
    assert list(trace.series["eval_loss"].steps) == [2]
    assert list(trace.series["metric:eval_accuracy"].values) == [0.5]
    assert list(trace.series["loss"].steps) == [1, 2, 3]
    assert not any("runtime" in name or "per_second" in name for name in trace.series)


def test_the_final_summary_is_no_row() -> None:
    trace = read("{'loss': 3.5}\n{'train_runtime': 9.1, 'train_loss': 1.284, 'epoch': 3.0}\n")
    assert losses(trace) == [3.5]
    assert "metric:train_loss" not in trace.series


def test_a_printed_configuration_is_no_row() -> None:
    trace = read("{'eval_steps': 100, 'lr': 0.1}\n{'loss': 'mse', 'size': 3}\n{'loss': 3.5}\n")
    assert set(trace.series) == {"loss"}


def test_loss_zero_beside_a_nan_norm_is_the_mark_of_the_filter() -> None:
    trace = read("{'loss': 1.7, 'grad_norm': nan}\n{'loss': 0.0, 'grad_norm': nan}\n")
    assert trace.facts["nan_filter"] == "seen"


def test_loss_zero_beside_a_finite_norm_is_no_mark() -> None:
    trace = read("{'loss': 0.0, 'grad_norm': 0.3, 'reward': 0.1}\n" * 2)
    assert "nan_filter" not in trace.facts
    assert trace.facts["loss_kind"] == "reward"


def test_the_quantum_is_the_last_decimal_shown() -> None:
    assert read("{'loss': 3.5}\n{'loss': 3.4375}\n").facts["loss_quantum"] == 1e-4
    assert read("{'loss': '0'}\n{'loss': '3.43'}\n").facts["loss_quantum"] == 1e-2
    assert "loss_quantum" not in read("{'loss': 3.437512345}\n").facts


def test_source_code_that_mentions_a_loss_is_not_claimed() -> None:
    with pytest.raises(Unreadable):
        read("logs = {'loss': loss.item(), 'epoch': epoch}\nprint({'loss': total})\n")


def test_of_two_evaluations_between_counted_rows_the_newest_stands() -> None:
    trace = read("{'loss': 2.5}\n{'eval_loss': 3.0}\n{'eval_loss': 2.0}\n{'loss': 2.25}\n")
    assert list(trace.series["eval_loss"].values) == [2.0]


def bar(at: int, of: int = 500) -> str:
    return f"{100 * at // of:3d}%|##        | {at}/{of} [00:{at % 60:02d}<09:00,  1.50s/it]"


def steps(trace: Trace, name: str = "loss") -> list[int]:
    return [int(step) for step in trace.series[name].steps]


def row(loss: float, epoch: float = 0.5) -> str:
    return f"{{'loss': {loss}, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'epoch': {epoch}}}"


def test_a_bar_that_moves_with_the_rows_tells_their_steps() -> None:
    trace = read("".join(f"\r{bar(s)}\n{row(s / 100)}\n\n" for s in (301, 305, 310, 320)))
    assert steps(trace) == [301, 305, 310, 320]
    assert trace.facts["step_source"] == "logged"
    assert trace.facts["total_steps"] == 500


def test_a_bar_drawn_anew_behind_a_row_is_more_exact_than_the_one_before() -> None:
    trace = read("".join(f"\r{bar(s - 7)}\r   \r{row(2.5)}\n\r{bar(s)}" for s in (10, 20, 30)))
    assert steps(trace) == [10, 20, 30]


def test_bars_of_an_evaluation_and_of_a_data_set_tell_no_step() -> None:
    text = ""
    for step in (10, 20, 30):
        text += f"\r{bar(step)}\rMap: {bar(500)}\r {row(2.5)}\n" + "".join(
            f"\r{bar(n, 40)}" for n in (1, 20, 40)
        )
        text += "\x1b[A\n\r  \r\x1b[A{'eval_loss': '2.25', 'eval_runtime': '1', 'epoch': '1'}\n"
        text += f"\r{bar(step)}\r{bar(step + 1)}"
    trace = read(text)
    assert steps(trace) == steps(trace, "eval_loss") == [10, 20, 30]
    assert trace.facts["total_steps"] == 500


def test_a_bar_that_is_drawn_behind_rows_only_tells_their_steps() -> None:
    trace = read(f"{bar(0)}\r" + "".join(f"\r{row(2.5)}\n\r{bar(s)}" for s in (10, 20, 30)))
    assert steps(trace) == [10, 20, 30]


def test_an_evaluation_between_two_loss_rows_stands_at_its_bar() -> None:
    evaluation = "{'eval_loss': 2.25, 'eval_runtime': 1.5, 'epoch': 1.0}"
    trace = read(f"{bar(10)}\n{row(2.5)}\n{bar(15)}\n{evaluation}\n{bar(20)}\n{row(2.0)}\n")
    assert steps(trace, "eval_loss") == [15]
    assert steps(trace) == [10, 20]


def test_a_bar_that_stands_still_tells_no_step() -> None:
    trace = read(f"{bar(480)}\n" + f"{row(2.5)}\n{row(2.25)}\n{row(2.0)}\n")
    assert steps(trace) == [1, 2, 3]
    assert trace.facts["step_source"] == "counted rows"


def test_a_row_for_which_the_bar_was_not_drawn_stands_behind_the_one_before() -> None:
    text = "".join(f"{bar(s)}\n{row(2.5)}\n" for s in range(10, 90, 10))
    text += f"{row(2.25)}\n" + f"{bar(100)}\n{row(2.0)}\n"
    assert steps(read(text)) == [*range(10, 90, 10), 81, 100]


def test_a_bar_that_goes_back_is_a_resume() -> None:
    shown = [*range(10, 60, 10), 30, 40, 50]
    trace = read("".join(f"{bar(s)}\n{row(s / 100)}\n" for s in shown))
    assert steps(trace) == [10, 20, 30, 40, 50]
    assert [event.kind for event in trace.events] == ["resume"]


def training(steps: Iterable[int], of: int, per_epoch: int, shown: bool = True) -> str:
    """Rows at these steps, behind a bar where one is shown."""
    return "".join(
        (f"{bar(s, of)}\n" if shown else "") + f"{row(s + 0.5, s / per_epoch)}\n" for s in steps
    )


@pytest.mark.parametrize("evaluated", ["", f"{bar(40, 40)}\n"])
def test_a_second_training_with_another_bar_is_another_run(evaluated: str) -> None:
    first = training(range(10, 510, 10), 500, 100)
    trace = read(first + evaluated + training(range(10, 50, 10), 40, 100))
    assert steps(trace) == [10, 20, 30, 40]
    assert losses(trace) == [10.5, 20.5, 30.5, 40.5]
    assert trace.facts["total_steps"] == 40
    text = "an earlier run in this log was left out: 50 loss rows"
    assert [(e.kind, e.text) for e in trace.events] == [("start", text)]


@pytest.mark.parametrize("evaluated", ["", f"{bar(40, 40)}\n"])
def test_a_second_training_without_a_bar_is_another_run_whose_rows_are_counted(
    evaluated: str,
) -> None:
    first = training(range(10, 510, 10), 500, 100)
    trace = read(first + evaluated + training(range(10, 50, 10), 40, 100, shown=False))
    assert steps(trace) == [1, 2, 3, 4]
    assert trace.facts["step_source"] == "counted rows"
    assert "total_steps" not in trace.facts
    assert [event.kind for event in trace.events] == ["start"]


@pytest.mark.parametrize("evaluated", ["", f"{bar(7, 40)}\n"])
def test_a_second_training_with_the_same_bar_is_another_run_wherever_it_first_logs(
    evaluated: str,
) -> None:
    first = training(range(20, 510, 10), 500, 100) + evaluated
    trace = read(first + f"{bar(0)}\n" + training(range(10, 50, 10), 500, 100))
    assert steps(trace) == [10, 20, 30, 40]
    assert trace.facts["total_steps"] == 500


def test_a_short_first_training_with_another_bar_gives_the_second_no_row() -> None:
    first = training(range(10, 110, 10), 100, 100)
    trace = read(first + training(range(10, 2010, 10), 2000, 100))
    assert steps(trace) == list(range(10, 2010, 10))
    assert [event.kind for event in trace.events] == ["start"]


def test_an_epoch_that_is_back_while_the_bar_goes_on_begins_no_training() -> None:
    text = training(range(10, 60, 10), 500, 100) + f"{bar(60)}\n{row(9.5, 0.1)}\n"
    trace = read(text + training(range(70, 260, 10), 500, 100))
    assert steps(trace) == list(range(10, 260, 10))
    assert not trace.events


def test_a_bar_from_before_the_newest_row_is_not_that_of_a_second_training() -> None:
    text = training(range(10, 500, 10), 500, 100) + f"{bar(7, 40)}\n{row(1.5, 5)}\n"
    trace = read(text + training(range(10, 50, 10), 40, 100, shown=False))
    assert steps(trace) == [1, 2, 3, 4]


def test_a_second_training_without_bars_is_another_run() -> None:
    first = training(range(10, 510, 10), 500, 100, shown=False)
    trace = read(first + training(range(10, 510, 10), 500, 100, shown=False))
    assert steps(trace) == list(range(1, 51))
    assert [event.kind for event in trace.events] == ["start"]


def test_the_bar_of_an_evaluation_begins_no_training() -> None:
    text = training(range(10, 260, 10), 500, 100) + f"{bar(7, 40)}\n"
    trace = read(text + training(range(260, 510, 10), 500, 100))
    assert steps(trace) == list(range(10, 510, 10))
    assert not trace.events


def test_what_the_trainer_announces_is_known() -> None:
    facts = read(
        "***** Running training *****\n  Instantaneous batch size per device = 4\n"
        "  Gradient Accumulation steps = 8\n  Total optimization steps = 1,200\n" + row(2.5) + "\n"
    ).facts
    assert facts["total_steps"] == 1200
    assert facts["accumulation_steps"] == 8
    assert facts["batch_size"] == 4


def test_an_overflow_stands_at_the_step_behind_its_bar() -> None:
    said = "[loss_scaler.py:1:update] [deepspeed] OVERFLOW! Rank 0 Skipping step. "
    text = (
        f"{bar(10)}\n{row(2.5)}\n{bar(11)}[2024] {said}Attempted loss scale: 64, reducing to 32\n"
    )
    text += f"\r{bar(12)}[2024] {said}Attempted loss scale: 32, reducing to 16\n"
    trace = read(text + f"{bar(20)}\n{row(2.25)}\n")
    assert steps(trace) == [10, 20]
    assert steps(trace, "step_skipped") == [12, 13]
    assert list(trace.series["loss_scale"].values) == [64, 32]


def test_prefixes_of_loggers_do_not_matter() -> None:
    trace = read(
        f"2024-05-01 10:00:00,123 - INFO - {row(2.5)}\n[INFO|trainer.py:88] >> {row(2.25)}\n"
        f"(Worker pid=7) {row(2.0)}\n"
    )
    assert losses(trace) == [2.5, 2.25, 2.0]
    assert trace.lines_skipped == 0


def test_double_quotes_behind_a_prefix_are_read() -> None:
    text = 'INFO: {"loss": 2.5, "learning_rate": 1e-05, "epoch": 0.5}\n'
    assert losses(read(text + text.replace("2.5", "NaN")))[0] == 2.5


def test_set_quotes_are_quotes() -> None:
    text = "{'loss': 2.5, 'epoch': 0.1}\n{'loss': 2.25, 'epoch': 0.2}\n"
    assert losses(read(re.sub("'(.*?)'", "\u2018\\1\u2019", text))) == [2.5, 2.25]


def test_numbers_wrapped_in_their_type_are_read() -> None:
    trace = read(
        "{'loss': np.float64(2.5), 'grad_norm': tensor(1.5, device='cuda:0'), 'epoch': 0.1}\n"
        "{'loss': np.float64(nan), 'grad_norm': tensor(0.5, device='cuda:0'), 'epoch': 0.2}\n"
    )
    assert losses(trace)[0] == 2.5
    assert math.isnan(losses(trace)[1])
    assert list(trace.series["grad_norm"].values) == [1.5, 0.5]
    assert list(trace.series["epoch"].values) == [0.1, 0.2]


def test_a_dictionary_that_a_terminal_broke_is_one() -> None:
    broken = "{'loss': 2.5, 'grad_norm': 1.2\n5, 'learning_rate': 1e-05, 'ep\noch': 0.1}\n"
    trace = read(broken + "{'loss': 2.0}\n")
    assert losses(trace) == [2.5, 2.0]
    assert trace.series["grad_norm"].values[0] == 1.25


def test_a_torn_dictionary_takes_nothing_from_the_lines_behind_it() -> None:
    trace = read("{'loss': 2.5}\n{'loss': 1, 'epoch': 2\nsome words, a brace}\n{'loss': 2.25}\n")
    assert losses(trace) == [2.5, 2.25]
    assert trace.lines_skipped == 1


def test_a_row_without_its_braces_is_one() -> None:
    assert losses(read("{'loss': 2.5}\n'loss': 2.25, 'grad_norm': 1.5\n{'loss': 2.0}\n")) == [
        2.5,
        2.25,
        2.0,
    ]


def test_rows_that_every_process_prints_are_one_each() -> None:
    text = "".join(f"{row(v / 8)}\n" * 4 for v in range(20, 10, -1))
    assert losses(read(text)) == [v / 8 for v in range(20, 10, -1)]


def test_rows_that_are_the_same_for_once_are_all_rows() -> None:
    text = "".join(f"{row(v)}\n" for v in (3, 2, 2, 2, 1, 0, 0))
    assert losses(read(text)) == [3, 2, 2, 2, 1, 0, 0]


def test_a_row_that_two_callbacks_log_is_one() -> None:
    text = "".join(
        f"{{'loss': {2 + i / 8:.4f}, 'learning_rate': {i / 7:.4e}, 'epoch': {i / 9:.2f}}}\n"
        f"{{'loss': '{2 + i / 8:.4g}', 'grad_norm': '1.5', 'learning_rate': '{i / 7:.4g}',"
        f" 'epoch': '{i / 9:.4g}'}}\n"
        for i in range(1, 9)
    )
    trace = read(text)
    assert steps(trace) == list(range(1, 9))


def test_a_row_logged_twice_in_front_of_a_stretch_is_one() -> None:
    again = "{'loss': 2.5, 'learning_rate': 1e-05, 'epoch': 0.5}\n"
    text = again + "".join(f"{row(2.5 - i)}\n" for i in range(20))
    assert losses(read(text)) == [2.5 - i for i in range(20)]


def test_the_step_of_ms_swift_is_used() -> None:
    trace = read(
        "".join(
            f"{{'loss': 2.5, 'learning_rate': 1e-05, 'memory(GiB)': 20.1, 'epoch': 0.1,"
            f" 'train_speed(iter/s)': 0.5, 'global_step/max_steps': '{step}/500',"
            f" 'percentage': '1.00%', 'elapsed_time': '1m 2s', 'remaining_time': '1h 3m'}}\n"
            for step in (5, 10, 15)
        )
    )
    assert steps(trace) == [5, 10, 15]
    assert trace.facts["total_steps"] == 500
    assert set(trace.series) == {"loss", "lr", "epoch"}


def test_clocks_speeds_memory_and_counters_are_no_metrics() -> None:
    trace = read(
        "{'loss': 2.5, 'num_tokens': 99, 'step_time': 3, 'memory/max_active (GiB)': 4, 'epoch': 1,"
        " 'train_mem_gpu_peaked_delta': 5, 'tokens_per_second_per_gpu': 6, 'entropy': 0.5}\n" * 2
    )
    assert set(trace.series) == {"loss", "epoch", "metric:entropy"}


def test_of_several_data_sets_the_first_gives_the_evaluation_loss() -> None:
    text = row(2.5) + "\n"
    for name, loss in (("wiki", 2.25), ("code", 1.5)):
        text += f"{{'eval_{name}_loss': {loss}, 'eval_{name}_runtime': 3.0, 'epoch': 1.0}}\n"
    trace = read(text * 2)
    assert list(trace.series["eval_loss"].values) == [2.25] * 2
    assert list(trace.series["metric:eval_code_loss"].values) == [1.5] * 2


@pytest.mark.parametrize(
    ("further", "kind"),
    [
        ("'reward': 0.5, 'reward_std': 0.25, 'kl': 0.01", "reward"),  # GRPO, RLOO
        ("'objective/kl': 3.5, 'objective/scores': 0.5", "reward"),  # PPO, online DPO
        ("'rewards/chosen': 0.5, 'rewards/accuracies': 0.75, 'logps/chosen': -9", "falling"),  # DPO
        ("'rewards/chosen': 0.5, 'rewards/margins': 0.25, 'kl': 0.5", "falling"),  # KTO
        ("'rewards/chosen': 0.5, 'log_odds_ratio': -0.5, 'nll_loss': 1.5", "falling"),  # ORPO
        ("'mean_reward': 0.5, 'margin': 0.25, 'accuracy': 0.75", "falling"),  # RewardTrainer
        ("'mean_token_accuracy': 0.5, 'entropy': 1.5", "falling"),  # SFT
    ],
)
def test_only_where_a_reward_is_raised_the_loss_need_not_fall(further: str, kind: str) -> None:
    trace = read(f"{{'loss': 0.5, 'grad_norm': 1.5, {further}, 'epoch': 0.5}}\n" * 12)
    assert trace.facts["loss_kind"] == kind


def test_rows_of_the_first_ppo_trainer_have_a_policy_loss() -> None:
    trace = read("{'eps': 9, 'objective/kl': 3.5, 'loss/policy_avg': -0.25, 'lr': 1e-06}\n" * 2)
    assert losses(trace) == [-0.25] * 2
    assert trace.facts["loss_kind"] == "reward"


def irregular(seed: int) -> str:
    """A long log in which something is odd now and then."""
    draw = random.Random(seed)
    lines = []
    for i in range(3000):
        loss = "nan" if draw.random() < 0.01 else f"{draw.random():.4f}"
        norm = draw.choice([f"{draw.random() * 5!r}", "inf"] if i % 50 == 0 else ["1e-05", "2.5"])
        lines.append(row(0, i / 100).replace("0,", f"{loss},", 1).replace("1.5", norm))
        if draw.random() < 0.01:
            lines.append(
                draw.choice(
                    (
                        "{'eval_loss': 2.5, 'eval_runtime': 3.0, 'epoch': 1.0}",
                        "{'loss': 2.5, 'gra",
                        "{'loss': 1.5, 'grad_norm': 1e5e, 'learning_rate': 1e-05, 'epoch': 0.5}",
                        "{'loss': 0.0, 'grad_norm': nan, 'epoch': 0.5}",
                        "INFO - " + row(1.75),
                        row(1.25) + row(1.5) + "   ",
                        "{'loss': 1.25, 'epo\nch': 7}",
                        "OVERFLOW! Skipping step. Attempted loss scale: 64, reducing to 32",
                        "a warning",
                        "",
                        lines[-1],
                        lines[-1].replace("'grad_norm': 2.5, ", ""),
                    )
                )
            )
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("small", [0, 1 << 30])
def test_whole_stretches_are_read_as_line_by_line(
    seed: int, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uniform_rows, "_SMALL", small)
    text = irregular(seed)
    fast = read(text, "huggingface-console")
    added: list[int] = []
    monkeypatch.setattr(huggingface_console, "_shape", lambda text, before: added.append(1))
    slow = read(text, "huggingface-console")
    assert added
    assert_same(fast, slow)
    assert fast.series["loss"].rows > 2900


def assert_same(one: Trace, other: Trace) -> None:
    assert one.series.keys() == other.series.keys()
    for name, series in one.series.items():
        assert np.array_equal(series.steps, other.series[name].steps), name
        assert np.array_equal(series.values, other.series[name].values, equal_nan=True), name
    assert one.facts == other.facts
    assert one.events == other.events
    assert one.lines_skipped == other.lines_skipped


def test_a_long_log_is_read_in_whole_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(row(i / 8) + "\n" for i in range(1000))
    monkeypatch.setattr(huggingface_console, "_values", Counted(huggingface_console._values))
    read(text, "huggingface-console")
    assert huggingface_console._values.calls < 500  # those by which it is told what gives the steps


class Counted:
    """A function that counts its calls."""

    def __init__(self, function: Callable[[str], dict[str, str]]) -> None:
        self.function, self.calls = function, 0

    def __call__(self, text: str) -> dict[str, str]:
        self.calls += 1
        return self.function(text)
