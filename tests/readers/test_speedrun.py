"""modded-nanogpt: its own text first, nan in a clock, several seeds."""

from tests.readers.language_model_logs import read, rows

PROGRAM = (
    "import torch",
    'print(f"step:{step}/{num_steps} train_loss:{loss:.4f} train_time:{ms:.0f}ms")',
    "step:0/900 val_loss:10.75 train_time:250ms step_avg:nanms",
    "step:1/900 train_loss:10.5 train_time:4100ms step_avg:nanms",
    "step:2/900 train_loss:9.5 train_time:4250ms step_avg:nanms",
    "step:2/900 val_loss:9.25 train_time:4350ms step_avg:176.25ms",
)


def test_steps_count_the_updates_that_are_made() -> None:
    trace = read("modded-nanogpt", *PROGRAM)
    assert rows(trace) == {1: 10.5, 2: 9.5}
    assert rows(trace, "eval_loss") == {0: 10.75, 2: 9.25}
    assert trace.facts["total_steps"] == 900


def test_lines_without_a_loss_are_passed_over() -> None:
    trace = read(
        "modded-nanogpt",
        "step:0/900 val_loss:10.75 train_time:0.000s step_avg:nanms",
        "step:1/900 train_time:115ms step_avg:115.25ms",
        "step:125/900 val_loss:5.5 train_time:53.450s step_avg:427.60ms",
    )
    assert rows(trace, "eval_loss") == {0: 10.75, 125: 5.5}
    assert trace.lines_skipped == 0


def test_of_several_seeds_the_last_is_read() -> None:
    trace = read(
        "modded-nanogpt", *PROGRAM, "step:0/900 val_loss:11.5 train_time:0ms step_avg:nanms"
    )
    assert "loss" not in trace.series
    assert rows(trace, "eval_loss") == {0: 11.5}
    assert [event.kind for event in trace.events] == ["start"]
