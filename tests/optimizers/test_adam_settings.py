"""What decides the rule of an Adam beside its class: marks, modes, overrides, kinds of numbers."""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from optdoctor.optimizers import probe_of, probes, settings_of
from optdoctor.optimizers.elements import elements
from optdoctor.optimizers.probe import Elements, Probe

SETTINGS = {
    "lr": 0.5,
    "betas": (0.9, 0.99),
    "eps": 1e-3,
    "weight_decay": 0.25,
    "momentum_decay": 0.1,
    "maximize": False,
}
GRADIENT, WEIGHT = torch.tensor([[0.5, -2.0]]), torch.tensor([[4.0, 1.0]])


def named(name: str) -> Probe:
    """The probe of a class that need not be installed."""
    (probe,) = [probe for probe in probes() if name in probe.matches]
    return probe


def first_update(probe: Probe, count: Any, group: Mapping[str, Any]) -> Elements:
    """Around an update whose moments are those of the first."""
    state = {
        "step": count,
        "exp_avg": 0.1 * GRADIENT,
        "exp_avg_sq": 0.01 * GRADIENT**2,
        "exp_inf": GRADIENT.abs() + 1e-3,
        "mu_product": torch.tensor(0.5),
    }
    return elements(
        probe,
        state,
        group,
        weight=WEIGHT,
        gradient=GRADIENT,
        before={},
        take=lambda t: t,
        num_elements=2,
    )


def change(name: str, **group: Any) -> Tensor:
    """Of the first update."""
    probe = named(name)
    assert probe.foretell is not None
    return probe.foretell(first_update(probe, 1, {**SETTINGS, **group}))


STEP = -0.5 * GRADIENT / (GRADIENT.abs() + 1e-3)
DECAY = -0.5 * 0.25 * WEIGHT


def test_adamw_of_old_torch_decays_without_a_mark_in_its_group() -> None:
    torch.testing.assert_close(change("torch.optim.adamw.AdamW"), STEP + DECAY)
    assert named("torch.optim.adamw.AdamW").decay_apart(SETTINGS) == -0.125


def test_adam_without_a_mark_has_its_decay_in_the_gradient() -> None:
    torch.testing.assert_close(change("torch.optim.adam.Adam"), STEP)
    assert named("torch.optim.adam.Adam").decay_apart(SETTINGS) == 0


def test_adam_with_the_mark_decays_apart() -> None:
    marked = change("torch.optim.adam.Adam", decoupled_weight_decay=True)
    torch.testing.assert_close(marked, STEP + DECAY)


@pytest.mark.parametrize(("mode", "decay"), [(True, DECAY), (False, torch.zeros(1, 2))])
def test_deepspeed_says_on_the_optimizer_whether_decay_is_apart(mode: bool, decay: Tensor) -> None:
    name = "deepspeed.ops.adam.cpu_adam.DeepSpeedCPUAdam"
    assert named(name).own == ("adam_w_mode",)
    torch.testing.assert_close(change(name, adam_w_mode=mode), STEP + decay)


def test_deepspeed_may_leave_the_moments_uncorrected() -> None:
    plain = change("deepspeed.ops.adam.cpu_adam.DeepSpeedCPUAdam", bias_correction=False)
    torch.testing.assert_close(plain, -0.5 * 0.1 * GRADIENT / (0.1 * GRADIENT.abs() + 1e-3) + DECAY)


@pytest.mark.parametrize(
    ("config", "known"),
    [({"optim_bits": 32}, True), ({"lr": 0.1}, False), ({"optim_bits": 8, "betas": ()}, False)],
)
def test_a_tensor_with_settings_of_its_own_is_not_foretold(config: dict, known: bool) -> None:
    probe = named("bitsandbytes.optim.adamw.AdamW8bit")
    manager = SimpleNamespace(pid2config={7: config})
    assert probe.knows({"mng": manager, "args": SimpleNamespace(max_unorm=0.0)}) is known


def test_updates_that_bitsandbytes_clips_are_not_foretold() -> None:
    probe = named("bitsandbytes.optim.adam.Adam")
    assert not probe.knows({"args": SimpleNamespace(max_unorm=1.0, skip_zeros=False)})
    assert not probe.knows({"args": SimpleNamespace(max_unorm=0.0, skip_zeros=True)})


@pytest.mark.parametrize("count", [1, 5, 6, 300])
@pytest.mark.parametrize(
    "name",
    [
        "torch.optim.adamw.AdamW",
        "torch.optim.nadam.NAdam",
        "torch.optim.radam.RAdam",
        "torch.optim.adamax.Adamax",
        "torch.optim.sparse_adam.SparseAdam",
        "torchao.optim.adam.AdamW4bit",
    ],
)
def test_counts_may_be_numbers_or_tensors_or_a_column_of_tensors(name: str, count: int) -> None:
    probe = named(name)
    group = {**SETTINGS, "betas": (0.9, 0.999), "decoupled_weight_decay": True}
    assert probe.foretell is not None
    number = first_update(probe, count, group)
    tensor = first_update(probe, torch.tensor(float(count)), group)
    column = first_update(probe, torch.full((1, 1), float(count)), group)
    expected = probe.foretell(number)
    torch.testing.assert_close(probe.foretell(tensor), expected)
    torch.testing.assert_close(probe.foretell(column), expected)
    lr = torch.tensor([0.5], dtype=torch.float64)
    rates = replace(tensor, rate=tensor.fit(lr), group={**group, "lr": lr})
    torch.testing.assert_close(probe.foretell(rates), expected)


def test_a_sparse_update_rests_where_neither_gradient_nor_mean_moved() -> None:
    probe = named("torch.optim.sparse_adam.SparseAdam")
    assert probe.foretell is not None
    around = first_update(probe, 100, SETTINGS)
    assert around.first is not None
    settled = replace(around, before={"first": around.first})
    assert (probe.foretell(settled) != 0).all(), "a mean that has settled still moves the weights"
    absent = replace(settled, gradient=torch.zeros(1, 2))
    assert (probe.foretell(absent) == 0).all()


def test_radam_divides_from_the_sixth_update_on() -> None:
    probe, group = named("torch.optim.radam.RAdam"), {**SETTINGS, "betas": (0.9, 0.999)}
    assert probe.foretell is not None
    plain = [-0.5 * 0.1 * GRADIENT / (1 - 0.9**t) for t in (5, 6)]
    torch.testing.assert_close(probe.foretell(first_update(probe, 5, group)), plain[0])
    assert not torch.allclose(probe.foretell(first_update(probe, 6, group)), plain[1], rtol=0.1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(), (1,), (3, 2)])
def test_half_precision_and_lone_elements_are_foretold_in_float32(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    for make in (torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax):
        weight = nn.Parameter(torch.ones(shape, dtype=dtype))
        optimizer = make([weight, nn.Parameter(torch.ones(2))], lr=0.1, eps=1e-3)
        before = weight.detach().reshape(1, -1).clone()
        weight.grad = torch.full(shape, 0.5, dtype=dtype)
        optimizer.step()
        probe = probe_of(optimizer)
        around = elements(
            probe,
            optimizer.state[weight],
            settings_of(optimizer, optimizer.param_groups[0]),
            weight=before,
            gradient=weight.grad.reshape(1, -1),
            before={},
            take=lambda t: t.reshape(1, -1),
            num_elements=weight.numel(),
        )
        assert probe.foretell is not None
        foretold = probe.foretell(around)
        assert foretold.dtype == torch.float32
        moved = weight.detach().reshape(1, -1).float() - before.float()
        torch.testing.assert_close(foretold, moved, rtol=0.05, atol=0)
