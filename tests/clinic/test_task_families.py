"""The task families: what each promises, and the healthy configurations drawn from them."""

import math
from collections import Counter
from dataclasses import replace

import makers
import pytest
import torch
from course import course, gradients
from healthy_draws import draw
from records import LACKING
from setups import PRECISIONS, Setup, families, families_apart
from tasks import held_out_loss

SIZES = ("small", "large")
DRAWN = 300
ALL = {**families(), **families_apart()}
by_family = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "lora")) for n in ALL]
)


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def built(name, seed=0, size="small"):
    family = ALL[name]
    return family.build(seed, size, family.batch)


def weights(task):
    return torch.cat([p.detach().flatten() for p in task.model.parameters()])


def test_there_are_families_of_every_kind_and_sixty_pairs() -> None:
    assert len(families()) >= 17
    assert {family.loss_kind for family in families().values()} == {
        "falling",
        "adversarial",
        "reward",
        "diffusion",
    }
    assert sum(len(family.rates) for family in families().values()) >= 60


@by_family
def test_every_rate_is_of_a_known_optimizer(name):
    family = ALL[name]
    known = {*makers.MAKERS, "muon"}
    assert {"adamw", "lion"} <= family.rates.keys() <= known
    assert all(0 < rate < math.inf for rate in family.rates.values())
    assert "float32" in family.precisions
    assert set(family.precisions) <= set(PRECISIONS)


@by_family
@pytest.mark.parametrize("size", SIZES)
def test_a_task_follows_from_its_seed(name, size):
    torch.manual_seed(5)
    one = built(name, 1, size)
    torch.manual_seed(6)
    same, other = built(name, 1, size), built(name, 2, size)
    assert torch.equal(weights(one), weights(same))
    assert not torch.equal(weights(one), weights(other))
    for i in (0, 3):
        assert torch.equal(one.batch(i)[0], same.batch(i)[0])
        assert torch.equal(one.batch(i)[1], same.batch(i)[1])
        assert not torch.equal(one.batch(i)[0], other.batch(i)[0])
    assert not torch.equal(one.batch(0)[0], one.batch(1)[0])
    assert held_out_loss(one) == held_out_loss(same)


@by_family
def test_a_large_model_is_larger(name):
    assert weights(built(name, 0, "large")).numel() > 1.3 * weights(built(name)).numel()


@by_family
def test_the_measure_is_the_same_when_asked_again_and_falls_as_it_learns(name):
    family, task = ALL[name], built(name)
    first = held_out_loss(task)
    assert held_out_loss(task) == first
    assert task.model.training
    run = course(Setup(name, "adamw"))
    assert held_out_loss(run.task) == pytest.approx(first), "the course asks for the same task"
    for step in range(family.steps // 4):
        run.zero(run)
        gradients(run, step)
        for optimizer in run.optimizers:
            optimizer.step()
    assert held_out_loss(run.task) < first


@by_family
def test_a_gradient_reaches_every_trained_weight(name):
    run = course(Setup(name, "adamw"))
    for step in range(8):  # LoRA begins with zeros, an expert may have no byte at first
        gradients(run, step)
        for optimizer in run.optimizers:
            optimizer.step()
    trained = {n: p for n, p in run.model.named_parameters() if p.requires_grad}
    assert [n for n, p in trained.items() if p.grad is None or not p.grad.any()] == []
    held = {id(p) for o in run.optimizers for g in o.param_groups for p in g["params"]}
    assert held == {id(p) for p in trained.values()}


@by_family
def test_half_precision_gives_a_finite_loss_with_gradients(name):
    for precision in ALL[name].precisions:
        run = course(Setup(name, "adamw", precision=precision))
        try:
            loss = gradients(run, 0)
        except RuntimeError as error:
            if LACKING not in str(error):
                raise
            continue
        assert loss.isfinite(), precision
        assert any(p.grad is not None and p.grad.any() for p in run.model.parameters())


def test_no_two_configurations_that_are_drawn_are_equal() -> None:
    drawn = draw(DRAWN)
    assert len({setup.configuration for setup in drawn}) == len(drawn) == DRAWN
    assert min(Counter(setup.family for setup in drawn).values()) >= 10
    assert drawn[:30] == draw(30)


def test_another_base_is_the_same_configurations_with_other_seeds() -> None:
    ours, other = draw(DRAWN), draw(DRAWN, 1)
    assert [s.configuration for s in ours] == [s.configuration for s in other]
    assert {s.seed for s in ours}.isdisjoint(s.seed for s in other)


def test_what_is_drawn_covers_every_setting() -> None:
    drawn = draw(DRAWN)

    def told(name):
        return {getattr(setup, name) for setup in drawn}

    assert told("schedule") == set(makers.SCHEDULES)
    assert told("precision") == set(PRECISIONS)
    assert told("size") == set(SIZES)
    assert told("batch_factor") == {0.5, 1.0, 2.0}
    assert told("optimizer") == {*makers.MAKERS, "muon"}
    assert told("rate_factor") == {0.5, 1.0}
    assert len(told("accumulate")) == 3


@pytest.mark.slow
def test_every_drawn_run_can_be_set_up() -> None:
    for setup in {(s.family, s.optimizer): s for s in draw(DRAWN)}.values():
        run = course(replace(setup, precision="float32"))
        assert run.optimizers, setup
