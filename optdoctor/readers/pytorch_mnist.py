"""PyTorch's MNIST example and its kin: `Train Epoch: 1 [640/60000 (1%)]` counts examples.

How many make an update is not said, so that rows are counted.
"""

from optdoctor.reading.text_format import Line, TextFormat

READER = TextFormat(
    name="pytorch-mnist",
    lines=(
        Line(
            r"\bTrain Epoch: <epoch> \[ \d+/\d+ \(\d+(?:\.\d+)?%\)\]\s+Loss: <loss>"
            r"(?!\d| \(|.{0,400}\bLR:)",
            mark="Train Epoch:",
        ),
        Line(
            r"\bTest(?: set)?: Average loss: <eval_loss>, Accuracy: \d+/\d+ \( <accuracy> ?%\)",
            mark="Average loss:",
            claims=False,
        ),
    ),
    facts={"loss_kind": "falling", "loss_form": "mean", "loss_window": 1},
    sample="""Train Epoch: 1 [0/60000 (0%)]	Loss: 2.312500
Train Epoch: 1 [640/60000 (1%)]	Loss: 1.750000
Train Epoch: 1 [1280/60000 (2%)]	Loss: nan

Test set: Average loss: 0.0625, Accuracy: 9750/10000 (98%)

""",
).reader
