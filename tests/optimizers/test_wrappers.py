"""Optimizers around optimizers: which is watched, and that no update is missed or told twice."""

from collections import OrderedDict, defaultdict
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from small_training import batches, loss_of, net
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from optdoctor.optimizers import innermost, layers, probe_of, settings_of, state_of
from optimizers import lookahead_built, sam_built, schedule_free_built
from optimizers.built import Built

AROUND = tuple(
    built
    for module in (lookahead_built, sam_built, schedule_free_built)
    for built in module.BUILT
    if any(word in built.name for word in ("Lookahead", "SAM", "Wrapper"))
)


class CopiedSam(Optimizer):
    """In the form in which projects copy it from github.com/davda54/sam."""

    def __init__(self, params: Any, base_optimizer: Any, **settings: Any) -> None:
        super().__init__(params, {"rho": 0.5, **settings})
        self.base_optimizer = base_optimizer(self.param_groups, **settings)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self, zero_grad: bool = False) -> None:
        for p in self.param_groups[0]["params"]:
            self.state[p]["old_p"] = p.data.clone()
            p.add_(p.grad, alpha=0.5)
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for p in self.param_groups[0]["params"]:
            p.data = self.state[p]["old_p"]
        self.base_optimizer.step()


class Unheard(Optimizer):
    """A Lookahead in the form of timm's: hooks can be registered, and nobody calls them."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups
        self.state = defaultdict(dict)
        self._optimizer_step_pre_hooks = OrderedDict()
        self._optimizer_step_post_hooks = OrderedDict()

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)


def copied_sam(model: nn.Module) -> Optimizer:
    return CopiedSam(model.parameters(), AdamW, lr=1e-2)


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize(
    "built",
    [*AROUND, Built("a copied SAM", copied_sam, step=sam_built.two_halves)],
    ids=lambda built: built.name,
)
def test_the_hooks_see_each_update_once_and_whole(built: Built) -> None:
    if not built.available:
        pytest.skip(f"{built.package} is not installed")
    model = net()
    outer = built.make(model)
    inner = innermost(outer)
    before: list[dict[str, torch.Tensor]] = []
    after: list[dict[str, torch.Tensor]] = []
    inner.register_step_pre_hook(lambda *_: before.append(weights(model)))
    inner.register_step_post_hook(lambda *_: after.append(weights(model)))
    for i, batch in enumerate(batches(6)):
        begun = weights(model)
        built.step(outer, lambda batch=batch: loss_of(model, batch))
        assert len(before) == len(after) == i + 1
        assert same(before[i], begun)
        assert same(after[i], weights(model))
        assert i == 0 or not same(before[i], after[i])


@pytest.mark.parametrize("built", AROUND, ids=lambda built: built.name)
def test_moments_of_the_optimizer_inside_are_found(built: Built) -> None:
    if not built.available:
        pytest.skip(f"{built.package} is not installed")
    model = net()
    outer = built.make(model)
    for batch in batches(2):
        built.step(outer, lambda batch=batch: loss_of(model, batch))
    inner = innermost(outer)
    probe = probe_of(inner)
    holder = layers(inner)[-1]
    assert probe.family == probe_of(holder).family != "other"
    for group in inner.param_groups:
        for p in group["params"]:
            state = state_of(inner, p)
            layout = probe.layout(state, settings_of(inner, group))
            found = [moment for moment in (layout.first, layout.second) if moment is not None]
            assert found
            assert all(moment.read(state, group) is holder.state[p][moment.key] for moment in found)


def test_a_lookahead_around_something_unknown_is_measured_from_outside() -> None:
    pytest.importorskip("pytorch_optimizer")
    from pytorch_optimizer import Lookahead

    class Unknown(SGD):
        pass

    class Stranger(Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {"lr": 0.1})

    model = net()
    assert probe_of(Lookahead(Unknown(model.parameters()))).family == "sgd"
    probe = probe_of(Lookahead(Stranger(model.parameters())))
    assert probe.family == "other"
    assert probe.foretell is None
    assert probe.unforetold


def test_a_lookahead_inside_accelerates_wrapper_is_the_one_watched() -> None:
    pytest.importorskip("pytorch_optimizer")
    from pytorch_optimizer import Lookahead

    lookahead = Lookahead(AdamW(net().parameters()))
    assert innermost(Accelerator(cpu=True).prepare(lookahead)) is lookahead


def test_a_wrapper_whose_hooks_nobody_calls_is_not_the_one_watched() -> None:
    inner = SGD(net().parameters(), lr=0.1)
    assert innermost(Unheard(inner)) is inner


def test_a_sam_that_was_copied_is_known_by_its_two_passes() -> None:
    model = net()
    outer: Any = copied_sam(model)
    assert innermost(outer) is outer.base_optimizer
    assert probe_of(innermost(outer)).family == "adam"


def test_settings_of_a_wrapper_do_not_hide_those_of_the_groups_inside() -> None:
    pytest.importorskip("pytorch_optimizer")
    from pytorch_optimizer import Lookahead

    inner = torch.optim.RMSprop(net().parameters(), alpha=0.7)
    lookahead = Lookahead(inner, alpha=0.3)
    assert settings_of(lookahead, inner.param_groups[0])["alpha"] == 0.7
    parameter = inner.param_groups[0]["params"][0]
    assert set(state_of(lookahead, parameter)) == {"slow_params"}
    assert len(inner.state) == 0


def test_what_the_optimizer_inside_keeps_on_itself_is_a_setting_of_both() -> None:
    pytest.importorskip("pytorch_optimizer")
    from pytorch_optimizer import Lookahead, ScheduleFreeSGD

    inner = ScheduleFreeSGD(net().parameters(), maximize=True)
    own = settings_of(Lookahead(inner, alpha=0.3), inner.param_groups[0])
    assert own["maximize"] is True
    assert own["defaults"]["lookahead_alpha"] == 0.3


def test_layers_lead_from_what_is_given_to_what_holds_the_moments() -> None:
    pytest.importorskip("pytorch_optimizer")
    from pytorch_optimizer import Lookahead

    inner = AdamW(net().parameters())
    lookahead = Lookahead(inner)
    prepared = Accelerator(cpu=True).prepare(lookahead)
    assert layers(prepared) == [prepared, lookahead, inner]
    assert layers(inner) == [inner]
    sam: Any = copied_sam(net())
    assert layers(sam) == [sam, sam.base_optimizer]
