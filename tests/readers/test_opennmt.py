"""OpenNMT-py and OpenNMT of Lua."""

import math

from text_logs import read_lines, rows_of


def test_steps_are_read_with_the_plan() -> None:
    row = (
        "[2026-01-02 03:04:05,678 INFO] Step {step}/50000; acc:  {acc}; ppl: {ppl}; xent: {xent}; "
        "lr: 0.00066; sents:    1000; bsz: 4000/3500/20; 3438/3517 tok/s;  19995 sec;"
    )
    trace = read_lines(
        "opennmt",
        row.format(step=50, acc=" 51.25", ppl="  8.43", xent="2.13"),
        row.format(step=100, acc="  0.19", ppl="   nan", xent=" nan"),
        "[2026-01-02 03:04:06,678 INFO] Validation perplexity: 56.5",
        "[2026-01-02 03:04:06,678 INFO] Validation accuracy: 35.25",
        row.format(step=150, acc="  0.19", ppl="   nan", xent=" nan"),
    )
    assert rows_of(trace) == [(50, 2.13), (100, None), (150, None)]
    assert rows_of(trace, "lr")[0] == (50, 0.00066)
    assert rows_of(trace, "eval_loss") == [(100, math.log(56.5))]
    assert rows_of(trace, "metric:valid_acc") == [(100, 35.25)]
    assert trace.facts["total_steps"] == 50_000
    assert trace.facts["loss_window"] == 50
    assert trace.facts["loss_base"] == "nats"
    assert not {"metric:sents", "metric:bsz"} & trace.series.keys()


def test_batches_of_epochs_are_steps_of_the_run() -> None:
    row = (
        "Epoch {epoch:2d}, {at:5d}/  900; acc:   3.99; ppl: 12792.57; xent:   {xent}; "
        "3438 src tok/s; 3517 tgt tok/s;   9823 s elapsed"
    )
    trace = read_lines(
        "opennmt",
        row.format(epoch=1, at=850, xent=9.46),
        row.format(epoch=1, at=900, xent=9.25),
        row.format(epoch=2, at=50, xent=8.75),
        "Epoch  2,",
    )
    assert rows_of(trace) == [(850, 9.46), (900, 9.25), (950, 8.75)]


def test_a_version_without_entropy_gives_it_by_the_perplexity() -> None:
    trace = read_lines(
        "opennmt",
        "Epoch  2,   550/  725; acc:   0.00; ppl:  11.85; 5187 src tok/s; 5634 tgt tok/s;",
        "Epoch  2,   600/  725; acc:   0.00; ppl:    nan; 5187 src tok/s; 5634 tgt tok/s;",
        "Train perplexity: 14.9386",
        "Epoch  2,   650/  725; acc:   0.00; ppl:    0.0; 5187 src tok/s; 5634 tgt tok/s;",
    )
    assert rows_of(trace) == [(1275, math.log(11.85)), (1325, None), (1375, None)]


def test_the_lines_of_lua_are_read() -> None:
    trace = read_lines(
        "opennmt",
        "Epoch 1 ; Iteration 10/183 ; Learning rate 1.0000 ; Source tokens/s 19 ; Perplexity 900.5",
        "Epoch 2 ; Iter 20/183 ; LR 0.5000 ; Target tokens/s 1265 ; PPL 450.25 ;",
    )
    assert rows_of(trace) == [(10, math.log(900.5)), (203, math.log(450.25))]
    assert rows_of(trace, "lr") == [(10, 1.0), (203, 0.5)]
