"""Embedding gradient shrink: which gradients, and what optimizers make of it."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from treated import MAKERS, Make, same

from optdoctor.treatments import Refused
from optdoctor.treatments.embedding_gradient_shrink import EmbeddingGradientShrink

GROWN = 30


class Words(nn.Module):
    """An embedding, a bag, and a head that may be the embedding."""

    def __init__(self, *, tied: bool = False, sparse: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(10, 4, sparse=sparse)
        self.bag = nn.EmbeddingBag(10, 4, sparse=sparse)
        self.head = nn.Linear(4, 10)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(words) + self.bag(words.reshape(-1, 1)))


def step(model: nn.Module, optimizer: Any, number: int) -> None:
    words = torch.randint(0, 10, (8,), generator=torch.Generator().manual_seed(number))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(words), (words + 1) % 10).backward()
    optimizer.step()


def test_gradients_of_embeddings_are_a_tenth_and_all_others_untouched() -> None:
    model, other = Words(), Words()
    treated, plain = (torch.optim.SGD(m.parameters(), lr=0.0) for m in (model, other))
    EmbeddingGradientShrink().apply(treated, model)
    step(model, treated, 0)
    step(other, plain, 0)
    for (name, p), (_, q) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        factor = 0.1 if name in ("embed.weight", "bag.weight") else 1.0
        assert torch.equal(p.grad, q.grad * torch.tensor(factor)), name


def test_it_is_what_the_trick_in_forward_does() -> None:
    torch.manual_seed(0)
    alpha, embed, head = 0.25, nn.Embedding(10, 4), nn.Linear(4, 1)
    model = nn.Sequential(embed, head)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    e = embed(torch.tensor([1, 2, 2]))
    head(e * alpha + e.detach() * (1 - alpha)).square().sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    optimizer.zero_grad()
    EmbeddingGradientShrink(alpha).apply(optimizer, model)
    model(torch.tensor([1, 2, 2])).square().sum().backward()
    optimizer.step()
    for p, gradient in zip(model.parameters(), expected, strict=True):
        assert torch.allclose(p.grad, gradient)


def test_a_sparse_gradient_stays_sparse() -> None:
    model = Words(sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    EmbeddingGradientShrink(0.5).apply(optimizer, model)
    step(model, optimizer, 0)
    assert model.embed.weight.grad.is_sparse
    other = Words()
    step(other, torch.optim.SGD(other.parameters(), lr=0.0), 0)
    assert torch.allclose(model.embed.weight.grad.to_dense(), other.embed.weight.grad * 0.5)


def moved(make: Make, *, treated: bool) -> float:
    model = Words()
    start = model.embed.weight.detach().clone()
    optimizer = make(model.parameters())
    if treated:
        EmbeddingGradientShrink().apply(optimizer, model)
    for number in range(GROWN):
        step(model, optimizer, number)
    return float((model.embed.weight.detach() - start).norm())


def test_adam_hardly_feels_it_and_sgd_does() -> None:
    by_adam = [moved(MAKERS["AdamW"], treated=treated) for treated in (True, False)]
    assert by_adam[0] == pytest.approx(by_adam[1], rel=1e-2)
    by_sgd = [
        moved(lambda ps: torch.optim.SGD(ps, lr=0.05), treated=treated) for treated in (True, False)
    ]
    assert by_sgd[0] < 0.15 * by_sgd[1]


@pytest.mark.parametrize(("name", "told"), [("SGD", False), ("AdamW", True), ("Adafactor", False)])
def test_it_says_where_the_factor_is_hardly_felt(name: str, told: bool) -> None:
    model = Words()
    shrink = EmbeddingGradientShrink().apply(MAKERS[name](model.parameters()), model)
    assert any("hardly feels it" in note for note in shrink.notes) == told


def test_it_is_refused_without_a_model_or_an_embedding_of_its_own() -> None:
    model = Words()
    with pytest.raises(Refused, match="give apply\\(\\) the model"):
        EmbeddingGradientShrink().apply(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(Refused, match="trains no weight of an"):
        EmbeddingGradientShrink().apply(torch.optim.SGD(model.head.parameters(), lr=0.1), model)
    tied = Words(tied=True)
    optimizer = torch.optim.SGD(tied.parameters(), lr=0.1)
    with pytest.raises(Refused, match=r"embed\.weight serves another module too"):
        EmbeddingGradientShrink().apply(optimizer, tied)
    assert not optimizer._optimizer_step_pre_hooks
    for factor in (0.0, 1.0, float("nan")):
        with pytest.raises(ValueError, match="between 0 and 1"):
            EmbeddingGradientShrink(factor)


def test_a_frozen_embedding_is_passed_over() -> None:
    model = Words()
    model.bag.weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shrink = EmbeddingGradientShrink().apply(optimizer, model)
    step(model, optimizer, 0)
    assert shrink.applied
    assert model.bag.weight.grad is None


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_undone_it_is_as_if_it_had_never_been_from_there(make: Make) -> None:
    model = Words()
    optimizer = make(model.parameters())
    shrink = EmbeddingGradientShrink().apply(optimizer, model)
    for number in range(20):
        step(model, optimizer, number)
    shrink.undo()
    assert not optimizer._optimizer_step_pre_hooks
    other = copy.deepcopy(model)
    untreated = make(other.parameters())
    untreated.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for number in range(20, 30):
        step(model, optimizer, number)
        step(other, untreated, number)
    assert same(model, optimizer, other, untreated)
