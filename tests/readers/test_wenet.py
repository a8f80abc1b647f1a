"""WeNet."""

from text_logs import read_lines, rows_of

ROW = (
    "2026-01-02 03:04:05,678 DEBUG TRAIN {mark}Batch {epoch}/{at} loss {loss} loss_att 10.5 "
    "loss_ctc 16.5 lr 0.00032621 grad_norm 2.5 rank {rank}"
)


def test_batches_of_epochs_are_added_up() -> None:
    trace = read_lines(
        "wenet",
        ROW.format(mark="", epoch=0, at=0, loss=310.25, rank=0),
        ROW.format(mark="", epoch=0, at=100, loss=150.25, rank=0),
        ROW.format(mark="| steps/sec 2.0| ", epoch=1, at=0, loss="nan", rank=0),
        ROW.format(mark="", epoch=1, at=100, loss=90.25, rank=0),
    )
    assert rows_of(trace) == [(1, 310.25), (101, 150.25), (102, None), (202, 90.25)]
    assert rows_of(trace, "grad_norm")[0] == (1, 2.5)
    assert rows_of(trace, "lr")[0] == (1, 0.00032621)
    assert trace.facts["loss_window"] == 1
    assert "metric:rank" not in trace.series


def test_the_ranks_of_one_batch_are_one_row() -> None:
    rows = [ROW.format(mark="", epoch=0, at=0, loss=10 + rank, rank=rank) for rank in range(4)]
    assert rows_of(read_lines("wenet", *rows)) == [(1, 13.0)]


def test_of_an_evaluation_its_mean_counts_and_no_batch() -> None:
    trace = read_lines(
        "wenet",
        ROW.format(mark="", epoch=0, at=0, loss=310.25, rank=0),
        "DEBUG CV Batch 0/0 loss 28.5 loss_att 24.5 loss_ctc 38.5 history loss 27.5 rank 2",
        "INFO Epoch 0 CV info cv_loss 99.5",
        ROW.format(mark="", epoch=0, at=1000, loss=310.25, rank=0),
        "INFO Epoch 0 Step 1000 CV info lr 0.001 cv_loss 89.5 rank 0 acc 0.75",
    )
    assert rows_of(trace, "eval_loss") == [(1, 99.5), (1001, 89.5)]
    assert len(rows_of(trace)) == 2
    assert trace.lines_skipped == 0
