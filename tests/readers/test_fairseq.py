"""fairseq since 0.10."""

from text_logs import read_lines, rows_of

HYDRA = (
    '[2026-01-02 03:04:05,678][train_inner][INFO] - {{"epoch": 2, "update": {update}, '
    '"loss": "{loss}", "ppl": "4", "wps": "9000", "num_updates": "{step}", "lr": "0.0005", '
    '"gnorm": "0.75", "clip": "0", "loss_scale": "2", "train_wall": "66", "wall": "0"}}'
)
WORDS = (
    "2026-01-02 03:04:05 | INFO | train_inner | epoch 001:   {step} / 1500 loss={loss}, ppl=900, "
    "wps=9000, ups=1.5, wpb=6000, bsz=64, num_updates={step}, lr=1.25e-05, gnorm=3.5, clip=0, "
    "loss_scale=64, train_wall=20, wall=25"
)


def test_numbers_in_quotes_are_numbers_and_the_loss_is_in_bits() -> None:
    trace = read_lines(
        "fairseq",
        HYDRA.format(update=1.25, loss="2.5", step=200),
        HYDRA.format(update=1.5, loss="nan", step=400),
        HYDRA.format(update=1.75, loss="2.25", step=600),
    )
    assert rows_of(trace) == [(200, 2.5), (400, None), (600, 2.25)]
    assert rows_of(trace, "epoch") == [(200, 1.25), (400, 1.5), (600, 1.75)]
    assert rows_of(trace, "grad_norm")[0] == (200, 0.75)
    assert rows_of(trace, "loss_scale")[0] == (200, 2.0)
    assert rows_of(trace, "lr")[0] == (200, 0.0005)
    assert trace.facts["loss_base"] == "bits"
    assert trace.facts["loss_form"] == "mean"
    assert trace.facts["loss_window"] == 200
    assert "metric:wps" not in trace.series


def test_words_are_read_as_the_json_is() -> None:
    trace = read_lines(
        "fairseq",
        WORDS.format(step=100, loss=12.5),
        WORDS.format(step=200, loss=11.25),
        "2026-01-02 03:04:05 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 10.5 | "
        "nll_loss 9.5 | ppl 724.1 | wps 9000 | bsz 64 | num_updates 250 | best_loss 10.25",
        "2026-01-02 03:04:05 | INFO | train | epoch 001 | loss 11.75 | ppl 3444 | num_updates 250 "
        "| lr 2.5e-05 | gnorm 3",
    )
    assert rows_of(trace) == [(100, 12.5), (200, 11.25)]
    assert rows_of(trace, "eval_loss") == [(250, 10.5)]
    assert rows_of(trace, "metric:ppl") == [(100, 900.0), (200, 900.0)]
    assert rows_of(trace, "metric:valid_ppl") == [(250, 724.1)]
    assert rows_of(trace, "metric:valid_nll_loss") == [(250, 9.5)]
    assert "metric:best_loss" not in trace.series
    assert trace.lines_skipped == 0


def test_a_bar_is_read_without_a_tag() -> None:
    bar = (
        "epoch 001:  {n}%|###       | {n}/1500 [00:10<02:20, 10.1it/s, loss={loss}, ppl=900, "
        "num_updates={n}, lr=1.25e-05, gnorm=3.5]"
    )
    trace = read_lines("fairseq", bar.format(n=10, loss=12.5), bar.format(n=20, loss=12.25))
    assert rows_of(trace) == [(10, 12.5), (20, 12.25)]


def test_the_mean_of_an_epoch_is_no_row_and_its_validation_is() -> None:
    trace = read_lines(
        "fairseq",
        HYDRA.format(update=1.25, loss="2.5", step=200),
        '[2026-01-02 03:04:06,678][valid][INFO] - {"epoch": 2, "valid_loss": "1.875", "valid_ppl": '
        '"3.66", "valid_wps": "1.5e+06", "valid_num_updates": "300", "valid_best_loss": "1.75"}',
        '[2026-01-02 03:04:07,678][train][INFO] - {"epoch": 2, "train_loss": "2.4", '
        '"train_num_updates": "300", "train_lr": "0.1", "train_gnorm": "9"}',
    )
    assert rows_of(trace) == [(200, 2.5)]
    assert rows_of(trace, "lr") == [(200, 0.0005)]
    assert rows_of(trace, "eval_loss") == [(300, 1.875)]
    assert trace.lines_skipped == 0


def test_a_million_updates_are_written_short() -> None:
    trace = read_lines(
        "fairseq",
        HYDRA.format(update=1.25, loss="2.5", step="999800"),
        HYDRA.format(update=1.5, loss="2.25", step="1e+06"),
        HYDRA.format(update=1.75, loss="2.125", step="1.0002e+06"),
    )
    assert [step for step, _ in rows_of(trace)] == [999_800, 1_000_000, 1_000_200]


def test_an_overflow_is_an_update_that_was_not_made() -> None:
    trace = read_lines(
        "fairseq",
        HYDRA.format(update=1.25, loss="2.5", step=200),
        "[2026-01-02 03:04:06,678][fairseq.trainer][INFO] - NOTE: gradient overflow detected, "
        "ignoring gradient, setting loss scale to: 8.0",
        HYDRA.format(update=1.5, loss="2.25", step=400),
    )
    assert rows_of(trace, "step_skipped") == [(201, 1.0)]
    assert trace.lines_skipped == 0


def test_a_step_that_is_cut_off_moves_no_row() -> None:
    whole = WORDS.format(step=200, loss=11.25)
    behind = whole.index("num_updates=") + len("num_updates=") + 1
    trace = read_lines(
        "fairseq",
        WORDS.format(step=100, loss=12.5),
        whole,
        WORDS.format(step=300, loss=10.25)[:behind],
    )
    assert rows_of(trace) == [(100, 12.5), (200, 11.25)]
    assert trace.lines_skipped == 1
