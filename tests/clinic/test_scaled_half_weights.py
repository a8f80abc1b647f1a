"""What torch's GradScaler does with weights that are float16 themselves: the sentences of
`loss-scaling-of-half-parameters`, run."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim import SGD, Adafactor, Adagrad, Adam, AdamW, NAdam

import optdoctor
from optdoctor.findings import Severity

RULE = "loss-scaling-of-half-parameters"
REFUSED = "Attempting to unscale FP16 gradients"
FUSED = [Adam, AdamW, SGD, Adagrad]
Maker = Callable[..., Any]


def update(make: Maker, *, unscale: bool = False, dtype: torch.dtype = torch.float16) -> float:
    """Makes one scaled update; the norm of the gradient that a clip would see."""
    torch.manual_seed(0)
    model = nn.Linear(16, 16).to(dtype)
    optimizer, scaler = make(model.parameters()), GradScaler("cpu", init_scale=1024.0)
    loss = model(torch.randn(8, 16, dtype=dtype)).float().square().mean()
    scaler.scale(loss).backward()
    if unscale:
        scaler.unscale_(optimizer)
    norm = float(nn.utils.get_total_norm([p.grad for p in model.parameters()]))
    scaler.step(optimizer)
    return norm


@pytest.mark.parametrize("make", [*FUSED, NAdam, Adafactor], ids=lambda make: make.__name__)
@pytest.mark.parametrize("unscale", [False, True])
def test_an_unfused_optimizer_is_refused_on_every_path(make: Maker, unscale: bool) -> None:
    with pytest.raises(ValueError, match=REFUSED):
        update(lambda p: make(p, lr=1e-3), unscale=unscale)


@pytest.mark.parametrize("make", FUSED, ids=lambda make: make.__name__)
def test_a_fused_one_is_refused_only_where_a_clip_would_be_right(make: Maker) -> None:
    scaled = update(lambda p: make(p, lr=1e-3, fused=True))
    with pytest.raises(ValueError, match=REFUSED):
        update(lambda p: make(p, lr=1e-3, fused=True), unscale=True)
    true = update(lambda p: make(p, lr=1e-3), unscale=True, dtype=torch.float32)
    assert scaled / true == pytest.approx(1024, rel=0.01)


def test_the_first_examination_tells_which_of_the_two_it_will_be() -> None:
    def found(make: Maker, dtype: torch.dtype = torch.float16) -> list[Severity]:
        torch.manual_seed(0)
        model = nn.Linear(16, 16).to(dtype)
        scaler = GradScaler("cpu")
        options = {"out": None, "sinks": (), "scaler": scaler}
        with optdoctor.watch(model, make(model.parameters()), **options) as doctor:
            return [f.severity for f in doctor.diagnosis.findings if f.rule == RULE]

    assert found(lambda p: AdamW(p)) == [Severity.CRITICAL]
    assert found(lambda p: Adafactor(p)) == [Severity.CRITICAL]
    assert found(lambda p: AdamW(p, fused=True)) == [Severity.NOTE]
    assert found(lambda p: SGD(p, lr=0.1, fused=True)) == [Severity.NOTE]
    assert found(lambda p: SGD(p, lr=0.1)) == [Severity.CRITICAL]
    assert found(lambda p: AdamW(p), torch.float32) == []
    assert found(lambda p: AdamW(p), torch.bfloat16) == []
