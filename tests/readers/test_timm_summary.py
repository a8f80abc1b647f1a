"""summary.csv of timm: a header at each resume, two losses that are no pair."""

from tests.readers.tables import facts, read, steps, values

HEADER = "epoch,train_loss,eval_loss,eval_top1,eval_top5,lr\n"


def test_rows_are_epochs_and_the_two_losses_are_told_to_be_different_functions() -> None:
    trace = read(HEADER + "0,0.02,6.5,1.5,5.25,0.001\n1,0.01,6.25,2.5,7.5,0.002\n")
    assert trace.reader == "timm-summary"
    assert values(trace) == [0.02, 0.01]
    assert values(trace, "eval_loss") == [6.5, 6.25]
    assert values(trace, "lr") == [0.001, 0.002]
    assert facts(trace, "losses_comparable", "loss_kind", "loss_form") == ["no", "falling", "mean"]


def test_a_header_that_comes_back_is_a_resume() -> None:
    before = "".join(f"{epoch},{7 - epoch / 8},6.5,1.5,5.5,0.1\n" for epoch in range(4))
    trace = read(HEADER + before + HEADER + "4,6.5,6.25,2.5,7.5,0.1\n5,6.375,6.125,3,8,0.1\n")
    assert steps(trace) == [1, 2, 3, 4, 5, 6]
    assert [(event.kind, event.step) for event in trace.events] == [("resume", 5)]
    assert trace.lines_skipped == 1


def test_epochs_that_come_again_after_a_resume_replace_those_of_the_branch_that_was_left() -> None:
    before = "".join(f"{epoch},{7 - epoch / 8},6.5,1.5,5.5,0.1\n" for epoch in range(6))
    trace = read(HEADER + before + HEADER + "3,5.5,6.25,2.5,7.5,0.1\n4,5.25,6.125,3,8,0.1\n")
    assert steps(trace) == [1, 2, 3, 4, 5]
    assert values(trace) == [7.0, 6.875, 6.75, 5.5, 5.25]
    assert [(event.kind, event.step) for event in trace.events] == [("resume", 4)]
    assert trace.facts["step_source"] == "counted rows"
