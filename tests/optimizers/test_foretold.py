"""The rule that optdoctor knows of an optimizer against what the optimizer did, in float64."""

import math

import pytest
import torch
from small_training import batches, loss_of, net
from torch import Tensor, nn

from optdoctor.optimizers import innermost, keeps_rule, probe_of, settings_of, state_of
from optdoctor.optimizers.elements import elements, kept
from optdoctor.optimizers.probe import Probe
from optimizers.built import STEPS, Built, every

each_built = pytest.mark.parametrize("built", every(), ids=lambda built: built.name)


def parts(built: Built) -> tuple[nn.Module, torch.optim.Optimizer, torch.optim.Optimizer]:
    """(network, the optimizer that is stepped, the innermost one)."""
    if not built.available:
        pytest.skip(f"{built.package} is not installed")
    torch.manual_seed(0)
    model = (built.model() if built.model else net()).to(built.dtype)
    outer = built.make(model)
    return model, outer, innermost(outer)


def taken(probe: Probe, tensor: Tensor) -> Tensor:
    """The tensor as the rule wants it: a stack of one, or in its own shape."""
    return tensor.reshape(1, -1) if probe.scope == "element" else tensor


def dense(gradient: Tensor) -> Tensor:
    """A sparse gradient with its zeros."""
    return gradient.to_dense() if gradient.is_sparse else gradient


class Watcher:
    """Compares, in the hooks of one optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.probe = probe_of(optimizer)
        self.errors: list[float] = []
        self.moved = 0
        self._before: dict[int, tuple[Tensor, dict[str, Tensor]]] = {}
        self._gradients: dict[int, Tensor] = {}
        self._rates: dict[int, object] = {}
        optimizer.register_step_pre_hook(self._keep)
        optimizer.register_step_post_hook(self._compare)

    def _keep(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        with torch.no_grad():
            for group in optimizer.param_groups:
                for p in group["params"]:
                    state = state_of(optimizer, p)
                    entries = kept(
                        self.probe,
                        state,
                        settings_of(optimizer, group),
                        lambda t: taken(self.probe, t),
                        p.numel(),
                    )
                    self._before[id(p)] = (p.detach().clone(), entries)
                    if self.probe.overwrites_gradient and p.grad is not None:
                        self._gradients[id(p)] = p.grad.detach().clone()
                    if self.probe.rate_before:
                        own = settings_of(optimizer, group)
                        self._rates[id(p)] = self.probe.rate(own, self.probe.count(state, own))

    def _known(self, optimizer: torch.optim.Optimizer, group: dict[str, object], p: Tensor) -> bool:
        own = settings_of(optimizer, group)
        return self.probe.knows(own) and self.probe.layout(state_of(optimizer, p), own).aligned

    def _compare(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        with torch.no_grad():
            for group in optimizer.param_groups:
                for p in group["params"]:
                    if p.grad is None or not self._known(optimizer, group, p):
                        continue
                    weight, before = self._before[id(p)]
                    around = elements(
                        self.probe,
                        state_of(optimizer, p),
                        settings_of(optimizer, group),
                        weight=taken(self.probe, weight),
                        gradient=taken(
                            self.probe, self._gradients.get(id(p), dense(p.grad.detach()))
                        ),
                        rate=self._rates.get(id(p)),
                        before=before,
                        take=lambda t: taken(self.probe, t),
                        num_elements=p.numel(),
                    )
                    assert self.probe.foretell is not None
                    foretold = self.probe.foretell(around).reshape(p.shape)
                    measured = p.detach() - weight
                    assert foretold.dtype == p.dtype, "in the precision of the weights"
                    largest = measured.abs().max().item()
                    self.moved += largest > 0
                    error = (foretold - measured).abs().max().item()
                    self.errors.append(error / largest if largest else error)


@each_built
def test_the_change_foretold_is_the_change_measured(built: Built) -> None:
    model, outer, inner = parts(built)
    probe = probe_of(inner)
    assert probe.matches, "nobody knows it"
    if probe.foretell is None:
        assert probe.unforetold, "a rule that is not known needs a reason"
        pytest.skip(f"not foretold: {probe.unforetold}")
    if not any(probe.knows(settings_of(inner, group)) for group in inner.param_groups):
        pytest.skip("not foretold under these settings")
    assert keeps_rule(inner)
    assert built.bound <= 1e-5 or built.because, "a looser bound needs a reason"
    watcher = Watcher(inner)
    for batch in batches(STEPS):
        built.step(outer, lambda batch=batch: loss_of(model, batch))
        for group in inner.param_groups:
            if isinstance(group.get("lr"), float):
                group["lr"] *= 0.9
    assert len(watcher.errors) >= STEPS
    assert watcher.moved >= len(watcher.errors) / 2, "weights that rest prove nothing"
    worst = max(watcher.errors)
    assert math.isfinite(worst)
    assert worst <= built.bound


@each_built
def test_asking_for_moments_leaves_the_state_as_it_is(built: Built) -> None:
    model, outer, inner = parts(built)
    probe = probe_of(inner)
    for batch in batches(2):
        built.step(outer, lambda batch=batch: loss_of(model, batch))
    num_entries = len(inner.state)
    for group in (settings_of(inner, group) for group in inner.param_groups):
        for p in group["params"]:
            state = state_of(inner, p)
            keys = set(state)
            layout = probe.layout(state, group)
            for moment in (layout.first, layout.second, layout.divisor):
                if moment is None or moment.key not in state:
                    continue
                mean = moment.read(state, group)
                assert mean.is_floating_point()
                if moment.aligned:
                    assert mean.shape == p.shape
            assert set(state) == keys
    assert len(inner.state) == num_entries
