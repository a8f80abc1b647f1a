"""Swin Transformer's main.py."""

from text_logs import read_lines, rows_of

ROW = (
    "[2026-01-02 03:04:05 swin_tiny] (main.py 220): INFO Train: [{epoch}/300][{at}/100]\teta "
    "20:30:15 lr 0.000125\t wd 0.0500\ttime 5.2500 (5.2500)\tloss {loss} (6.9375)\t"
    "grad_norm {norm} (inf)\tloss_scale 65536.0000 (65536.0000)\tmem 5000MB"
)


def test_the_update_counts_and_the_mean_in_brackets_does_not() -> None:
    trace = read_lines(
        "swin",
        ROW.format(epoch=0, at=0, loss=6.9375, norm=2.5),
        ROW.format(epoch=0, at=10, loss=6.875, norm="inf"),
        ROW.format(epoch=1, at=0, loss="nan", norm="nan"),
    )
    assert rows_of(trace) == [(1, 6.9375), (11, 6.875), (101, None)]
    assert rows_of(trace, "grad_norm") == [(1, 2.5), (11, float("inf")), (101, None)]
    assert rows_of(trace, "loss_scale")[0] == (1, 65536.0)
    assert rows_of(trace, "lr")[0] == (1, 0.000125)
    assert trace.facts["loss_window"] == 1
    assert set(trace.series) == {"epoch", "grad_norm", "loss", "loss_scale", "lr"}


def test_the_last_mean_of_an_evaluation_is_that_of_all_its_data() -> None:
    trace = read_lines(
        "swin",
        ROW.format(epoch=0, at=0, loss=6.9375, norm=2.5),
        "INFO Test: [0/98]\tTime 1.250 (1.250)\tLoss 9.7500 (9.7500)\tAcc@1 0.5 (0.5)\tMem 50MB",
        "INFO Test: [90/98]\tTime 1.250 (1.250)\tLoss 9.7500 (6.25)\tAcc@1 0.5 (0.5)\tMem 50MB",
    )
    assert rows_of(trace, "eval_loss") == [(1, 6.25)]
