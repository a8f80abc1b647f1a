"""BigDL on Spark: a line an update, and one a validation metric with its sum and its mean."""

from optdoctor.reading.text_format import Line, TextFormat

_AT = r"\[Epoch <epoch> \d+/\d+\]\[Iteration <step>\].{0,200}?"

READER = TextFormat(
    name="bigdl",
    lines=(
        Line(_AT + r"\bLoss is <loss>", pairs="is", mark="Loss is"),
        Line(
            _AT + r" is \(Loss: [^,()]*, count: \d+, Average Loss: <eval_loss>\)",
            mark="Average Loss:",
        ),
        Line(
            _AT + r"Top1Accuracy is Accuracy\([^()]*accuracy: <top1_accuracy>\)",
            mark="Top1Accuracy",
        ),
        Line(
            _AT + r"Top5Accuracy is Accuracy\([^()]*accuracy: <top5_accuracy>\)",
            mark="Top5Accuracy",
        ),
    ),
    aliases={"Current learning rate": "lr"}
    | dict.fromkeys(("Current weight decay", "Current momentum", "Current dampening"), ""),
    facts={"loss_kind": "falling", "loss_form": "mean", "loss_window": 1},
    sample="""2026-01-02 03:04:05 INFO  DistriOptimizer$:395 - [Epoch 1 0/6000][Iteration 1]\
[Wall Clock 0.0s] Trained 32 records in 0.5 seconds. Throughput is 64.0 records/second. \
Loss is 2.3125. Sequential1a2b's hyper parameters: Current learning rate is 0.05. \
Current dampening is 1.7976931348623157E308.
2026-01-02 03:04:06 INFO  DistriOptimizer$:395 - [Epoch 1 32/6000][Iteration 2]\
[Wall Clock 0.5s] Trained 32 records in 0.5 seconds. Throughput is 64.0 records/second. \
Loss is Infinity. Sequential1a2b's hyper parameters: Current learning rate is 0.05. \
Current dampening is 1.7976931348623157E308.
2026-01-02 03:04:06 INFO  DistriOptimizer$:180 - [Epoch 1 64/6000][Iteration 2]\
[Wall Clock 1.0s] Loss is (Loss: 85.0, count: 40, Average Loss: 2.125)
""",
).reader
