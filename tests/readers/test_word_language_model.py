"""PyTorch's word_language_model and its kin."""

from optdoctor.trace import Trace
from tests.text_logs import read_lines, rows_of

RULE = "-" * 89


def read(*lines: str) -> Trace:
    return read_lines("word-language-model", *lines)


def line(epoch: int, batch: int, loss: str, lr: str = "20.0000") -> str:
    return (
        f"| epoch {epoch:3d} | {batch:5d}/  250 batches | lr {lr} | ms/batch 11.61 | "
        f"loss {loss:>5s} | ppl  9999.99"
    )


def test_batches_are_counted_within_epochs() -> None:
    trace = read(line(1, 100, "9.25"), line(1, 200, "7.5"), line(2, 100, "6.5", "5.00"))
    assert rows_of(trace) == [(100, 9.25), (200, 7.5), (350, 6.5)]
    assert rows_of(trace, "lr") == [(100, 20.0), (200, 20.0), (350, 5.0)]
    assert set(trace.series) == {"loss", "lr", "epoch"}
    assert trace.facts["loss_base"] == "nats"
    assert trace.facts["loss_window"] == 100


def test_the_end_of_an_epoch_holds_the_validation() -> None:
    trace = read(
        *(line(1, 100, "9.25"), line(1, 200, "  nan"), RULE),
        "| end of epoch   1 | time: 35.58s | valid loss  5.12 | valid ppl   167.34",
        *(RULE, line(2, 100, "6.5"), "=" * 89),
        "| End of training | test loss  4.74 | test ppl   114.95",
    )
    assert rows_of(trace) == [(100, 9.25), (200, None), (350, 6.5)]
    assert rows_of(trace, "eval_loss") == [(200, 5.12)]
