"""The number of classes is read off the graph of a mean cross-entropy, and off no other loss."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import optdoctor
from optdoctor.live.loss_graph import NEAR, loss_facts

ROWS, CLASSES = 6, 7
Loss = Callable[[Tensor, Tensor], Tensor]

TOLD: dict[str, Loss] = {
    "rows": F.cross_entropy,
    "log-likelihood": lambda out, target: F.nll_loss(out.log_softmax(-1), target),
    "weighted": lambda out, target: F.cross_entropy(out, target, weight=torch.ones(CLASSES)),
    "in float32": lambda out, target: F.cross_entropy(out.bfloat16().float(), target),
    "sequences": lambda out, target: F.cross_entropy(
        out.view(2, 3, CLASSES).transpose(1, 2), target.view(2, 3)
    ),
    "images": lambda out, target: F.cross_entropy(
        out.view(1, 2, 3, CLASSES).permute(0, 3, 1, 2), target.view(1, 2, 3)
    ),
    "volumes": lambda out, target: F.cross_entropy(
        out.view(1, 1, 2, 3, CLASSES).permute(0, 4, 1, 2, 3), target.view(1, 1, 2, 3)
    ),
}
NOT_TOLD: dict[str, Loss] = {
    "sum": lambda out, target: F.cross_entropy(out, target, reduction="sum"),
    "mean of rows": lambda out, target: F.cross_entropy(out, target, reduction="none").mean(),
    "of a part": lambda out, target: F.cross_entropy(out, target) / 4,
    "beside another": lambda out, target: F.cross_entropy(out, target) + out.square().mean(),
    "smoothed": lambda out, target: F.cross_entropy(out, target, label_smoothing=0.1),
    "no softmax": F.nll_loss,
    "shares": lambda out, target: F.cross_entropy(out, F.one_hot(target, CLASSES).float()),
    "squares": lambda out, target: out.square().mean(),
    "detached": lambda out, target: F.cross_entropy(out, target).detach(),
}


def outputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return nn.Linear(5, CLASSES)(torch.randn(ROWS, 5)), torch.arange(ROWS) % CLASSES


@pytest.mark.parametrize("loss", TOLD.values(), ids=TOLD)
@pytest.mark.parametrize("after", [False, True])
def test_a_mean_cross_entropy_tells_its_classes(loss: Loss, after: bool) -> None:
    value = loss(*outputs())
    if after:
        value.backward()
    assert loss_facts(value) == {"num_classes": CLASSES}


@pytest.mark.parametrize("loss", NOT_TOLD.values(), ids=NOT_TOLD)
def test_any_other_loss_tells_nothing(loss: Loss) -> None:
    assert loss_facts(loss(*outputs())) == {}


TWICE: dict[str, Loss] = {
    "softmax": lambda out, target: F.cross_entropy(out.softmax(-1), target),
    "smoothed": lambda out, target: F.cross_entropy(out.softmax(-1), target, label_smoothing=0.1),
    "shares": lambda out, target: F.cross_entropy(
        out.softmax(-1), F.one_hot(target, CLASSES).float()
    ),
    "in another dtype": lambda out, target: F.cross_entropy(
        out.softmax(-1).bfloat16().float(), target
    ),
    "of a part": lambda out, target: F.cross_entropy(out.softmax(-1), target) / 4,
    "beside another": lambda out, target: (
        out.square().mean() + F.cross_entropy(out.softmax(-1), target)
    ),
    "sequences": lambda out, target: F.cross_entropy(
        out.view(2, 3, CLASSES).softmax(-1).transpose(1, 2), target.view(2, 3)
    ),
    "shifted": lambda out, target: F.cross_entropy(
        out.view(2, 3, CLASSES).softmax(-1)[:, :-1].reshape(-1, CLASSES), target[:4]
    ),
    "log-likelihood": lambda out, target: F.nll_loss(out.softmax(-1).log_softmax(-1), target),
}
ONCE: dict[str, Loss] = {
    "logits": F.cross_entropy,
    "probabilities": lambda out, target: F.nll_loss(out.softmax(-1).log(), target),
    "of another axis": lambda out, target: F.cross_entropy(out.softmax(0), target),
    "sharpened": lambda out, target: F.cross_entropy(out.softmax(-1) / 0.1, target),
    "distilled": lambda out, target: F.kl_div(
        out.log_softmax(-1), (2 * out).softmax(-1), reduction="batchmean"
    ),
    "entropy": lambda out, target: -(out.softmax(-1) * out.log_softmax(-1)).sum(),
    "binary": lambda out, target: F.binary_cross_entropy(out.sigmoid(), torch.ones_like(out)),
    "gates": lambda out, target: F.cross_entropy(out * out.sigmoid(), target),
    "of a constant": lambda out, target: F.cross_entropy(out.detach().softmax(-1), target),
}


@pytest.mark.parametrize("loss", TWICE.values(), ids=TWICE)
@pytest.mark.parametrize("after", [False, True])
def test_a_softmax_before_that_of_the_loss_is_told(loss: Loss, after: bool) -> None:
    value = loss(*outputs())
    if after:
        value.backward()
    assert loss_facts(value)["loss_input"] == "softmax"


def test_so_is_a_sigmoid_before_a_loss_of_logits() -> None:
    out, target = outputs()
    for logits in (out.sigmoid(), nn.Sigmoid()(out).float()):
        binary = F.binary_cross_entropy_with_logits(logits, torch.ones_like(out))
        assert loss_facts(binary) == {"loss_input": "sigmoid"}
        assert loss_facts(F.cross_entropy(logits, target))["loss_input"] == "sigmoid"


@pytest.mark.parametrize("loss", ONCE.values(), ids=ONCE)
def test_any_other_use_of_probabilities_is_not(loss: Loss) -> None:
    assert "loss_input" not in loss_facts(loss(*outputs()))


def test_a_long_graph_is_looked_at_near_the_loss_alone() -> None:
    out, target = outputs()
    far = F.cross_entropy(out.softmax(-1), target)
    for _ in range(NEAR):
        far = far * 1.01
    assert loss_facts(far) == {}


@pytest.mark.parametrize(("told", "known"), [({}, CLASSES), ({"num_classes": 3}, 3)])
def test_a_plain_loop_tells_the_number_unless_it_is_told_another(
    told: dict[str, int], known: int
) -> None:
    model = nn.Linear(5, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, target = torch.randn(ROWS, 5), torch.arange(ROWS)
    with optdoctor.watch(model, optimizer, out=None, sinks=(), facts=told) as doctor:
        for _ in range(3):
            loss = F.cross_entropy(model(inputs), target)
            optimizer.zero_grad()
            loss.backward()
            doctor.log(loss=loss)
            optimizer.step()
    assert doctor.runs[0].trace.facts["num_classes"] == known
