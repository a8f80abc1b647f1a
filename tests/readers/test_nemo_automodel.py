"""NeMo Automodel: a blank between key and value."""

from tests.readers.language_model_logs import read, rows

START = "2026-01-02 03:04:05 | INFO | root | "
REST = "| lr 1.00e-05 | mem 24.06 GiB | tps 31346.32(3918.29/gpu) | num_label_tokens 45579"


def test_key_and_value_are_parted_by_a_blank() -> None:
    trace = read(
        "nemo-automodel",
        f"{START}step 8 | epoch 0 | loss 2.5 | grad_norm 1.75 {REST}",
        f"{START}step 9 | epoch 0 | loss nan | grad_norm nan {REST}",
    )
    assert rows(trace) == {8: 2.5, 9: "nan"}
    assert rows(trace, "grad_norm") == {8: 1.75, 9: "nan"}
    assert rows(trace, "lr") == {8: 1e-05, 9: 1e-05}
    assert trace.series.keys() == {"loss", "grad_norm", "lr", "epoch"}


def test_a_validation_is_no_training_with_a_name_or_without() -> None:
    trace = read(
        "nemo-automodel",
        f"{START}step 8 | epoch 0 | loss 2.5 | grad_norm 1.75 {REST}",
        f"{START}[val] step 8 | epoch 0 | loss 2.75 | lr 1.00e-05 | num_label_tokens 900",
        f"{START}step 9 | epoch 0 | loss 2.25 | grad_norm 1.75 {REST}",
        f'{START}[val] name "a b" | step 9 | epoch 0 | loss 2.375 | lr 1.00e-05',
    )
    assert rows(trace) == {8: 2.5, 9: 2.25}
    assert rows(trace, "eval_loss") == {8: 2.75, 9: 2.375}
