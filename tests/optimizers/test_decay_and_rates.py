"""What optimizers other than Adam say of decay, rate and facts, against what they do."""

import pytest
import torch
from small_training import batches, loss_of
from torch import nn
from torch.optim import Optimizer

from optdoctor.optimizers import innermost, probe_of, probes, settings_of, state_of
from optdoctor.optimizers.lion import sign_of_branch, sign_of_copy
from optdoctor.optimizers.probe import Probe
from optimizers.built import Built, every

APART = (
    "torch.optim.ASGD, maximize",
    "torch.optim.Adafactor",
    "torch.optim.Muon",
    "transformers.Adafactor, lr",
    "pytorch_optimizer.AdaFactor, fixed decay, warmup",
    "pytorch_optimizer.Muon",
    "lion_pytorch.Lion",
    "lion_pytorch.Lion, decoupled_weight_decay",
    "lion_pytorch.cautious_lion.Lion",
    "bitsandbytes.optim.Lion",
    "pytorch_optimizer.Lion",
    "pytorch_optimizer.Lion, fixed decay",
    "pytorch_optimizer.Tiger",
)
"""Decay in an operation of its own."""
TOGETHER = (
    "torch.optim.SGD, nesterov",
    "torch.optim.Adagrad",
    "torch.optim.RMSprop",
    "transformers.Adafactor",
    "pytorch_optimizer.AdaFactor",
    "pytorch_optimizer.AdaFactor, coupled decay, no momentum, maximize",
    "pytorch_optimizer.Lion, coupled decay, centralized, adanorm, maximize",
    "pytorch_optimizer.Muon, coupled decay, maximize",
    "lion_pytorch.cautious_lion.Lion, cautious decay",
    "bitsandbytes.optim.SGD",
)
"""Decay in the gradient, or with a factor that no group tells."""


def made(name: str) -> tuple[nn.Module, Optimizer, Probe]:
    (built,) = [built for built in every() if built.name == name]
    return made_of(built)


def made_of(built: Built) -> tuple[nn.Module, Optimizer, Probe]:
    if not built.available:
        pytest.skip(f"{built.package} is not installed")
    torch.manual_seed(0)
    network = built.model() if built.model else nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))
    model = network.to(built.dtype)
    optimizer = innermost(built.make(model))
    return model, optimizer, probe_of(optimizer)


@pytest.mark.parametrize("name", APART)
def test_without_a_gradient_decay_apart_is_all_that_moves(name: str) -> None:
    _, optimizer, probe = made(name)
    held = [p for group in optimizer.param_groups for p in group["params"]]
    before = {p: p.detach().clone() for p in held}
    for p in held:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for group in optimizer.param_groups:
        decay = probe.decay_apart(settings_of(optimizer, group))
        assert decay < 0
        for p in group["params"]:
            torch.testing.assert_close(p.detach(), before[p] * (1 + decay))


@pytest.mark.parametrize("name", TOGETHER)
def test_decay_that_travels_with_the_rest_is_not_apart(name: str) -> None:
    _, optimizer, probe = made(name)
    for group in optimizer.param_groups:
        assert group["weight_decay"] > 0
        assert probe.decay_apart(settings_of(optimizer, group)) == 0


def test_the_rate_of_asgd_is_the_eta_that_the_update_used() -> None:
    model, optimizer, probe = made("torch.optim.ASGD")
    for batch in batches(4):
        etas = {p: s["eta"].clone() for p, s in optimizer.state.items()}
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        for group in optimizer.param_groups:
            for p in group["params"]:
                rate = probe.rate(group, probe.count(state_of(optimizer, p), group))
                assert float(rate) == pytest.approx(float(etas.get(p, group["lr"])))


def test_a_schedule_of_rprop_is_no_rate() -> None:
    _, optimizer, probe = made("torch.optim.Rprop")
    assert probe.rate(optimizer.param_groups[0], 1) is None


def test_the_first_rate_of_pytorch_optimizers_adafactor_ignores_lr() -> None:
    _, optimizer, probe = made("pytorch_optimizer.AdaFactor")
    assert [probe.rate(group, 1) for group in optimizer.param_groups] == [1e-2, 1e-2]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_gradient_that_stays_moves_rmsprop_by_its_effective_rate(momentum: float) -> None:
    weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = torch.optim.RMSprop([weight], lr=0.1, alpha=0.0, eps=0.5, momentum=momentum)
    probe, group = probe_of(optimizer), optimizer.param_groups[0]
    for _ in range(5):
        before = weight.detach().clone()
        weight.grad = torch.full_like(weight, -2.0)
        optimizer.step()
        state = state_of(optimizer, weight)
        c1, _ = probe.corrections(group, probe.count(state, group))
        effective = group["lr"] / (c1 * (state["square_avg"].sqrt() + group["eps"]))
        torch.testing.assert_close(weight.detach() - before, 2.0 * effective)


def test_rmsprop_keeps_its_momentum_from_those_who_want_a_mean_of_gradients() -> None:
    model, optimizer, probe = made("torch.optim.RMSprop, centered, momentum")
    loss_of(model, next(batches(1))).backward()
    optimizer.step()
    state = optimizer.state[next(model.parameters())]
    assert "momentum_buffer" in state
    assert probe.layout(state, optimizer.param_groups[0]).first is None


def test_deepspeed_moves_what_has_no_gradient() -> None:
    blend = torch.tensor([0.0, -0.0, 2.0, -2.0])
    assert sign_of_copy(blend).tolist() == [1, -1, 1, -1]
    assert sign_of_branch(blend).tolist() == [-1, -1, 1, -1]


def test_deepspeeds_empty_second_moment_is_none() -> None:
    probe = known("deepspeed.ops.lion.cpu_lion.DeepSpeedCPULion")
    state = {"step": 1, "exp_avg": torch.ones(2), "exp_avg_sq": torch.zeros(2)}
    assert probe.layout(state, {}).second is None


def test_the_counts_of_deepspeeds_fused_lion_are_not_believed() -> None:
    assert known("deepspeed.ops.lion.fused_lion.FusedLion").count({"step": 0}, {}) is None


def test_bitsandbytes_betas_are_named_for_what_they_are() -> None:
    group = {"betas": (0.9, 0.5), "eps": 1e-3, "weight_decay": 0.1}
    decay = {"weight_decay": 0.1}
    assert known("bitsandbytes.optim.sgd.SGD8bit").facts(group) == {"momentum": 0.9, **decay}
    assert known("bitsandbytes.optim.adagrad.Adagrad").facts(group) == {"eps": 1e-3, **decay}
    assert known("bitsandbytes.optim.rmsprop.RMSprop").facts(group) == {
        "beta2": 0.9,
        "eps": 1e-3,
        **decay,
    }


def known(name: str) -> Probe:
    """The probe of a class that need not be installed."""
    (probe,) = [probe for probe in probes() if name in probe.matches]
    return probe
