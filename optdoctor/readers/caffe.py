"""Caffe: loss and rate of an iteration on lines of their own, the nets' outputs on others.

The loss is the mean over the last `average_loss` iterations. The outputs of the training net repeat
it for one iteration. A loss of 87.3365 is that of a saturated softmax, -ln(1.2e-38).
"""

from optdoctor.reading.text_format import Line, TextFormat

_AT = r"\.cpp:\d+\] Iteration <step>(?: \([^()]*\))?, "

READER = TextFormat(
    name="caffe",
    lines=(
        Line(_AT + r"loss = <loss>", mark="Iteration "),
        Line(_AT + r"lr = <lr>", mark="Iteration "),
        Line(_AT + r"Testing net", mark="Testing net", claims=False),
        Line(
            r"\] Train net output #\d+: ",
            pairs=":",
            names={"loss": ""},
            mark="Train net output",
            claims=False,
        ),
        Line(
            r"\] Test net output #\d+: ",
            pairs=":",
            prefix="test ",
            names={"loss": "eval_loss"},
            mark="Test net output",
            claims=False,
        ),
        Line(r"^ max_iter: <total> $", mark="max_iter:", claims=False),
    ),
    facts={"loss_kind": "falling", "loss_form": "mean"},
    sample="""I0102 03:04:05.678901  4321 solver.cpp:330] Iteration 0, Testing net (#0)
I0102 03:04:06.678901  4321 solver.cpp:397]     Test net output #0: accuracy = 0.125
I0102 03:04:06.678902  4321 solver.cpp:397]     Test net output #1: loss = 2.375 (* 1 = 2.375 loss)
I0102 03:04:07.678901  4321 solver.cpp:218] Iteration 0 (0 iter/s, 0.25s/20 iters), loss = 2.3125
I0102 03:04:07.678902  4321 solver.cpp:237]     Train net output #0: loss = 2.3125 \
(* 1 = 2.3125 loss)
I0102 03:04:07.678903  4321 sgd_solver.cpp:105] Iteration 0, lr = 0.01
I0102 03:04:09.678901  4321 solver.cpp:218] Iteration 20 (10 iter/s, 2s/20 iters), loss = 2.125
I0102 03:04:09.678902  4321 solver.cpp:237]     Train net output #0: loss = 2.0625 \
(* 1 = 2.0625 loss)
I0102 03:04:09.678903  4321 sgd_solver.cpp:105] Iteration 20, lr = 0.01
I0102 03:04:11.678901  4321 solver.cpp:218] Iteration 40 (10 iter/s, 2s/20 iters), loss = nan
""",
).reader
