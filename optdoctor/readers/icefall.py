"""icefall (k2): the loss of one batch and, as `tot_loss`, a decaying mean; batches from 0."""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="icefall",
    lines=(
        Line(
            r"\bEpoch <epoch>, batch <iter>,.{0,200}?(?<!_)loss\[ loss=<loss>,"
            r"(?:.{0,1000}\blr: <lr>)?(?:.{0,100}\bgrad_scale: <loss_scale>)?",
            mark="loss[",
        ),
        Line(
            r"\bEpoch \d+, validation(?: on \w+)?: loss=<eval_loss>",
            mark="validation",
            claims=False,
        ),
    ),
    facts={"loss_kind": "falling", "loss_form": "mean", "loss_window": 1},
    from_zero=True,
    sample="""2026-01-02 03:04:05,678 INFO [train.py:756] Epoch 1, batch 0, loss[loss=7.75, \
simple_loss=7.25, pruned_loss=8.75, over 2400.00 frames.], tot_loss[loss=7.75, simple_loss=7.25, \
over 2400.00 frames.], batch size: 36, lr: 3.00e-03, grad_scale: 2.0
2026-01-02 03:04:25,678 INFO [train.py:756] Epoch 1, batch 50, loss[loss=1.25, \
simple_loss=1.125, pruned_loss=1.75, over 2500.00 frames.], tot_loss[loss=2.25, simple_loss=2.125, \
over 9000.00 frames.], batch size: 38, lr: 3.00e-03, grad_scale: 1.0
2026-01-02 03:04:35,678 INFO [train.py:790] Epoch 1, validation: loss=1.125, over 9000.00 frames.
""",
).reader
