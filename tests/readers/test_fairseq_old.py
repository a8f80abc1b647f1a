"""fairseq before 0.10."""

from text_logs import read_lines, rows_of

ROW = (
    "| epoch {epoch:03d}:   {at} / 1500 loss={loss}, nll_loss=9.5, ppl=724.08, wps=9000, ups=4.5, "
    "wpb=2000, bsz=64, num_updates={step}, lr=0.000125, gnorm={gnorm}, clip=0%, oom=0, "
    "loss_scale=0.062, wall=25, train_wall=20"
)


def test_the_loss_is_a_mean_since_the_epoch_began_in_bits() -> None:
    trace = read_lines(
        "fairseq-old",
        ROW.format(epoch=1, at=1000, loss=12.5, step=1001, gnorm=2.5),
        ROW.format(epoch=2, at=1000, loss=11.5, step=2501, gnorm="nan"),
    )
    assert rows_of(trace) == [(1001, 12.5), (2501, 11.5)]
    assert rows_of(trace, "grad_norm") == [(1001, 2.5), (2501, None)]
    assert rows_of(trace, "loss_scale") == [(1001, 0.062), (2501, 0.062)]
    assert rows_of(trace, "epoch") == [(1001, 1.0), (2501, 2.0)]
    assert trace.facts["loss_base"] == "bits"
    assert trace.facts["loss_form"] == "running mean"
    assert "loss_window" not in trace.facts


def test_the_mean_of_an_epoch_is_no_row_and_its_validation_is() -> None:
    trace = read_lines(
        "fairseq-old",
        ROW.format(epoch=1, at=1000, loss=12.5, step=1001, gnorm=2.5),
        "| epoch 001 | loss 12.25 | nll_loss 9.25 | ppl 608.87 | num_updates 1500 | lr 9 | gnorm 2",
        "| epoch 001 | valid on 'valid' subset | valid_loss 10.5 | valid_nll_loss 9.5 | "
        "valid_ppl 724.1 | num_updates 1500",
        ROW.format(epoch=2, at=1000, loss=11.5, step=2501, gnorm=2),
        "| epoch 002 | valid on 'valid' subset | loss 9.5 | nll_loss 8.5 | ppl 362 | num_updates "
        "3000 | best_loss 9.5",
    )
    assert rows_of(trace) == [(1001, 12.5), (2501, 11.5)]
    assert rows_of(trace, "lr") == [(1001, 0.000125), (2501, 0.000125)]
    assert rows_of(trace, "eval_loss") == [(1500, 10.5), (3000, 9.5)]
    assert rows_of(trace, "metric:valid_nll_loss") == [(1500, 9.5), (3000, 8.5)]
    assert rows_of(trace, "metric:nll_loss") == [(1001, 9.5), (2501, 9.5)]
    assert rows_of(trace, "metric:valid_ppl") == [(1500, 724.1), (3000, 362.0)]
    assert "metric:best_loss" not in trace.series
    assert trace.lines_skipped == 0


def test_a_bar_is_read() -> None:
    bar = (
        "| epoch 001:  {n}%|###       | {n}/1500 [00:10<02:20, 10.1it/s, loss={loss}, ppl=900, "
        "num_updates={n}, lr=1.25e-05, gnorm=3.5]"
    )
    trace = read_lines("fairseq-old", bar.format(n=10, loss=12.5), bar.format(n=20, loss=12.25))
    assert rows_of(trace) == [(10, 12.5), (20, 12.25)]


def test_json_lines_have_no_tag() -> None:
    row = (
        '{{"epoch": 1, "update": {update}, "loss": "{loss}", "nll_loss": "9.5", "num_updates": '
        '"{step}", "lr": "0.000125", "gnorm": "2.5", "loss_scale": "128.000"}}'
    )
    trace = read_lines(
        "fairseq-old",
        row.format(update=0.25, loss=12.5, step=100),
        row.format(update=0.5, loss=12.25, step=200),
        '{"epoch": 1, "valid_loss": "10.5", "valid_num_updates": "400", "valid_best_loss": "9"}',
        '{"epoch": 1, "train_loss": "11.5", "train_num_updates": "400", "train_lr": "9"}',
    )
    assert rows_of(trace) == [(100, 12.5), (200, 12.25)]
    assert rows_of(trace, "epoch") == [(100, 0.25), (200, 0.5)]
    assert rows_of(trace, "eval_loss") == [(400, 10.5)]
    assert not {"metric:valid_best_loss", "metric:valid_num_updates"} & trace.series.keys()


def test_an_overflow_is_an_update_that_was_not_made() -> None:
    trace = read_lines(
        "fairseq-old",
        ROW.format(epoch=1, at=1000, loss=12.5, step=1001, gnorm=2.5),
        "| WARNING: overflow detected, setting loss scale to: 64.0",
        ROW.format(epoch=1, at=1100, loss=12.25, step=1101, gnorm=2.5),
    )
    assert rows_of(trace, "step_skipped") == [(1002, 1.0)]
