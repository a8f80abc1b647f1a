"""A trial on the user's own run: each candidate on the same batches, and everything put back."""

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from small_training import fingerprint, leaves, quiet, seed
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import optdoctor
from optdoctor.live.candidates import Settings
from optdoctor.live.doctor import Doctor
from optdoctor.live.verdicts import Outcome, Trial, judged
from optdoctor.treatments import Intervention, Refused
from optdoctor.treatments.adaptive_clipping import AdaptiveClipping

Batch = tuple[Tensor, Tensor]


class Turned(Intervention):
    """Goes uphill: turns every gradient around."""

    name = "turned"
    safety = "risky"

    def before(self) -> None:
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad.neg_()


class Failing(Intervention):
    """Is taken away at its third step."""

    name = "failing"
    safety = "risky"
    _steps = 0

    def before(self) -> None:
        self._steps += 1
        if self._steps == 3:
            raise ValueError("no third step")


class Unwilling(Intervention):
    """Never acts."""

    name = "unwilling"
    safety = "risky"

    def check(self) -> None:
        raise Refused("unwilling never acts", "try another")


class Odd(nn.Module):
    """Whatever moves within an update: dropout, batch norm, a buffer replaced, a count, a list."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 12), nn.BatchNorm1d(12)
        self.dropout, self.last = nn.Dropout(0.3), nn.Linear(12, 3)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("mean", torch.zeros(12), persistent=False)
        self.calls, self.seen = 0, [0]

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.norm(self.first(inputs)).relu()
        self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)
        self.calls += 1
        self.seen.append(len(inputs))
        noise = 0.01 * float(np.random.rand()) + 0.01 * random.random()  # noqa: NPY002
        return self.last(self.dropout(hidden)) * self.frozen + noise


def data(count: int = 90) -> Iterator[Batch]:
    for i in range(count):
        inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(i))
        yield inputs, inputs[:, :3].argmax(1)


Make = Callable[[list[nn.Parameter]], Any]
KINDS: dict[str, Make] = {
    "AdamW": lambda ps: torch.optim.AdamW(ps, lr=1e-2),
    "AdamW amsgrad fused": lambda ps: torch.optim.AdamW(ps, lr=1e-2, amsgrad=True, fused=True),
    "AdamW rate in a tensor": lambda ps: torch.optim.AdamW(ps, lr=torch.tensor(1e-2)),
    "SGD": lambda ps: torch.optim.SGD(ps, lr=1e-1, momentum=0.9),
    "LBFGS": lambda ps: torch.optim.LBFGS(ps, lr=0.1, max_iter=2),
}
if hasattr(torch.optim, "Adafactor"):  # torch 2.5
    KINDS["Adafactor"] = lambda ps: torch.optim.Adafactor(ps, lr=1e-2)


def schedule_free(parameters: list[nn.Parameter]) -> Any:
    optimizer = pytest.importorskip("schedulefree").AdamWScheduleFree(parameters, lr=1e-2)
    optimizer.train()
    return optimizer


def lookahead(parameters: list[nn.Parameter]) -> Any:
    several = pytest.importorskip("pytorch_optimizer")
    return several.Lookahead(torch.optim.AdamW(parameters, lr=1e-2), k=3)


KINDS |= {"schedule-free": schedule_free, "Lookahead": lookahead}


class Loop:
    """A training with a schedule, and what one update is."""

    def __init__(self, make: Make = KINDS["AdamW"], **options: Any) -> None:
        seed()
        self.model = Odd()
        self.optimizer = make(list(self.model.parameters()))
        inner = getattr(self.optimizer, "optimizer", self.optimizer)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(inner, 100)
        self.doctor = quiet(self.model, self.optimizer, **{"interval": 8, **options})
        self.keeps = False
        """Whether gradients are added up from update to update."""
        self.losses: list[float] = []
        self.fail_at = -1
        self.error: BaseException = ValueError("out of luck")

    def update(self, batch: Batch) -> Tensor:
        inputs, labels = batch

        def closure() -> Tensor:
            if not self.keeps:
                self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(inputs), labels)
            loss.backward()
            return loss

        if isinstance(self.optimizer, torch.optim.LBFGS):
            loss = self.optimizer.step(closure)
        else:
            loss = closure()
            nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
            self.optimizer.step()
        self.schedule.step()
        self.doctor.log(loss=loss)
        inputs.zero_()  # a loop may do as it likes with its batch
        self.fail_at -= 1
        if self.fail_at == 0:
            raise self.error
        return loss

    def train(self, batches: Iterator[Batch], steps: int) -> None:
        for _ in range(steps):
            self.losses.append(float(self.update(next(batches)).detach()))

    def trial(self, batches: Iterator[Batch], treatments: Any, **more: Any) -> Trial:
        options = {"steps": 10, "also": [self.schedule], **more}
        return self.doctor.trial(self.update, treatments, batches=batches, **options)

    def bits(self) -> dict[str, Any]:
        known = fingerprint(self.model, [self.optimizer])
        known |= {f"model {k}": v for k, v in leaves(dict(self.model.named_buffers()))}
        known |= {f"schedule {k}": v for k, v in leaves(self.schedule.state_dict())}
        known["modes"] = [m.training for m in self.model.modules()]
        known["trained"] = [p.requires_grad for p in self.model.parameters()]
        known["own"] = (self.model.calls, list(self.model.seen))
        known["versions"] = [p._version for p in self.model.parameters()]
        return known


CANDIDATES: list[Any] = [
    Turned(),
    {"lr": 1.0},
    "adaptive-clipping",
    [AdaptiveClipping(1.1), {"lr": 0.0}],
]


def differing(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    return {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}


@pytest.mark.parametrize("before", [0, 5], ids=["before the first update", "in mid-run"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_with_a_trial_goes_on_as_one_without_to_the_bit(kind: str, before: int) -> None:
    plain = Loop(KINDS[kind])
    plain.train(data(), before + 12)
    expected = plain.bits()
    tried, batches = Loop(KINDS[kind]), data()
    tried.train(batches, before)
    then, identities = tried.bits(), list(map(id, everything(tried)))
    asked = CANDIDATES[:2] if kind == "LBFGS" else CANDIDATES
    trial = tried.trial(batches, asked)
    assert differing(then, tried.bits()) == set()
    assert list(map(id, everything(tried))) == identities, "every tensor is the one that it was"
    assert [one.refused for one in trial.candidates] == [""] * len(trial.candidates)
    assert trial.batches is not None
    tried.train(trial.batches, 12)
    assert tried.losses == plain.losses
    assert differing(expected, tried.bits()) - {"versions"} == set()
    for loop in (plain, tried):
        loop.doctor.close()


def everything(loop: Loop) -> list[Any]:
    inner = getattr(loop.optimizer, "optimizer", loop.optimizer)
    tensors = [*loop.model.parameters(), *loop.model.buffers()]
    tensors += [p.grad for p in tensors if p.is_leaf and p.grad is not None]
    states = [v for s in inner.state.values() for v in s.values() if isinstance(v, Tensor)]
    return [*tensors, *states, *inner.param_groups]


@pytest.mark.parametrize("before", [0, 5])
@pytest.mark.parametrize("error", [ValueError("out of luck"), KeyboardInterrupt()])
def test_all_is_put_back_where_the_update_raises_and_no_batch_is_lost(
    error: BaseException, before: int
) -> None:
    loop, batches = Loop(), data()
    loop.doctor.treat(AdaptiveClipping(1.2, memory=3))
    loop.train(batches, before)
    then, after = loop.bits(), list(data())[before:]
    loop.fail_at, loop.error = 3, error
    with pytest.raises(type(error)):
        loop.trial(batches, "adaptive-clipping")
    assert differing(then, loop.bits()) == set()
    if not before:
        assert not loop.optimizer.state
    assert loop.doctor.batches is not None
    rest = list(loop.doctor.batches)
    assert len(rest) == len(after)
    assert all(
        torch.equal(a, b)
        for one, other in zip(rest, after, strict=True)
        for a, b in zip(one, other, strict=True)
    )
    assert [one.name for one in loop.doctor.treatments] == ["adaptive-clipping"]
    loop.doctor.close()


def test_an_error_within_the_optimizers_step_is_put_back_too() -> None:
    loop, batches = Loop(), data()
    loop.train(batches, 3)
    then, groups = loop.bits(), loop.optimizer.param_groups
    loop.optimizer.register_step_post_hook(Breaking())
    with pytest.raises(RuntimeError, match="within"):
        loop.trial(batches, [{"lr": 1.0}])
    assert differing(then, loop.bits()) == set()
    assert loop.optimizer.param_groups is groups
    loop.doctor.close()


def test_a_treatment_that_is_on_has_given_back_what_it_borrowed_for_a_broken_step() -> None:
    loop, batches = Loop(), data()
    loop.doctor.treat(Settings({"lr": 0.5}))
    loop.train(batches, 3)
    then = loop.bits()
    handle = loop.optimizer.register_step_pre_hook(Breaking())
    with pytest.raises(RuntimeError, match="within"):
        loop.trial(batches, [{"eps": 1.0}])
    handle.remove()
    assert differing(then, loop.bits()) == set()
    around = loop.doctor.treatments[0]._around
    assert around is not None
    assert not around._at_work
    loop.doctor.close()


def test_weights_that_a_step_replaced_lie_where_they_did() -> None:
    loop, batches = Loop(), data()
    places = [p.data_ptr() for p in loop.model.parameters()]
    then = loop.bits()

    def update(batch: Batch) -> Tensor:
        loss = loop.update(batch)
        for parameter in loop.model.parameters():
            parameter.data = parameter.data * 0.99
        loop.model.first.weight = nn.Parameter(torch.ones(12, 6))
        loop.model.eval()
        return loss

    loop.doctor.trial(update, [{"lr": 1.0}], batches=batches, steps=10, also=[loop.schedule])
    assert differing(then, loop.bits()) == set()
    assert [p.data_ptr() for p in loop.model.parameters()] == places
    loop.doctor.close()


class Breaking:
    def __call__(self, *args: Any) -> None:
        raise RuntimeError("within the step")


def test_a_treatment_that_raises_is_reported_and_the_others_are_tried() -> None:
    loop, batches = Loop(), data()
    trial = loop.trial(batches, [{"betas": 3}, Failing(), Unwilling(), {"lr": 1e-3}])
    wrong, failing, unwilling, small = trial.candidates[1:]
    assert wrong.refused.startswith("stopped at step 1, TypeError: ")
    assert failing.refused == "failing failed and is switched off, ValueError: no third step"
    assert unwilling.refused == "unwilling never acts; try another"
    assert small.refused == ""
    assert [one.verdict for one in (wrong, failing, unwilling)] == ["refused"] * 3
    assert (
        not loop.optimizer._optimizer_step_pre_hooks
        or len(loop.optimizer._optimizer_step_pre_hooks) == 1
    ), "only the doctor's own hook is left"
    loop.doctor.close()


def test_a_setting_that_no_group_has_is_refused_with_the_nearest() -> None:
    loop = Loop()
    trial = loop.trial(data(), {"epss": 1e-4})
    assert loop.doctor.wants_losses, "those of the training are still to come"
    assert trial.candidates[1].refused == ("AdamW has no setting named 'epss'; did you mean eps?")
    loop.doctor.close()


def test_the_untreated_candidate_does_what_the_training_then_does() -> None:
    loop, batches = Loop(), data()
    loop.train(batches, 4)
    trial = loop.trial(batches, [Turned(), {"lr": 1e-3}])
    loop.train(trial.batches, 10)
    assert loop.losses[4:] == list(trial.candidates[0].losses)
    assert len({one.losses[0] for one in trial.candidates}) == 1, "all begin at the same loss"
    loop.doctor.close()


def test_settings_hold_at_each_step_against_a_schedule() -> None:
    loop, batches = Loop(lambda ps: torch.optim.SGD(ps, lr=0.1)), data()
    used: list[float] = []
    inner = loop.optimizer
    inner.register_step_pre_hook(lambda o, *_: used.append(o.param_groups[0]["lr"]))
    loop.trial(batches, [{"lr": 0.025}])
    assert used[10:] == [0.025] * 10
    assert len(set(used[:10])) == 10, "the untreated run follows its schedule"
    loop.doctor.close()


def test_a_tensor_of_a_rate_stays_that_tensor() -> None:
    loop, batches = Loop(KINDS["AdamW rate in a tensor"]), data()
    rate = loop.optimizer.param_groups[0]["lr"]
    loop.trial(batches, [{"lr": 0.5}])
    assert loop.optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == pytest.approx(1e-2)
    loop.doctor.close()


def traces(with_trial: bool, keeps: bool, **options: Any) -> tuple[Doctor, list[float]]:
    loop, batches = Loop(interval=1, **options), data()
    loop.keeps = keeps
    loop.train(batches, 7)
    if with_trial:
        trial = loop.trial(batches, CANDIDATES)
        batches = trial.batches
    loop.train(batches, 12)
    loop.doctor.close()
    return loop.doctor, loop.losses


TIMES = ("step_time_s",)


@pytest.mark.parametrize("keeps", [False, True], ids=["", "gradients never set to zero"])
def test_the_record_goes_on_as_if_there_had_been_no_trial(keeps: bool) -> None:
    (one, losses), (other, same) = traces(False, keeps), traces(True, keeps)
    assert losses == same
    plain, tried = one.runs[0].trace, other.runs[0].trace
    assert plain.series.keys() == tried.series.keys()
    for name in plain.series:
        if name in TIMES:
            continue
        a, b = plain.series[name], tried.series[name]
        assert np.array_equal(a.steps, b.steps), name
        assert a.values.tobytes() == b.values.tobytes(), name
    assert dict(plain.facts) == dict(tried.facts)
    assert plain.tensors == tried.tensors
    told = [e for e in tried.events if e.kind == "treatment"]
    assert [e for e in tried.events if e.kind != "treatment"] == list(plain.events)
    (event,) = told
    assert event.step == 7
    assert event.text.startswith("a trial of 10 steps: untreated ends at a loss of ")
    assert "turned" in event.text.lower()


def test_batches_that_are_saved_are_none_of_a_trial(tmp_path: Any) -> None:
    loop, batches = Loop(out=tmp_path, save_batches="10 MB"), data()
    loop.train(batches, 3)
    before = loop.doctor.runs[0]._batches._num_passes
    loop.trial(batches, [{"lr": float("nan")}])
    assert loop.doctor.runs[0]._batches._num_passes == before
    loop.doctor.close()
    assert not (tmp_path / "batches").exists()


def test_a_trial_names_what_harms_and_what_helps() -> None:
    def slow(parameters: list[nn.Parameter]) -> Any:
        return torch.optim.SGD(parameters, lr=1e-3)

    loop = Loop(slow)
    trial = loop.trial(data(), [{"lr": 10.0}, {"lr": 0.1}, {"lr": float("nan")}], steps=50)
    wild, faster, broken = trial.candidates[1:]
    assert (wild.verdict, faster.verdict, broken.verdict) == ("harmed", "helped", "harmed")
    assert wild.diverged
    assert broken.diverged
    assert trial.best is faster
    assert trial.helped == (faster,)
    assert trial.harmed == (wild, broken)
    loop.doctor.close()


def test_the_same_treatment_as_none_makes_no_difference() -> None:
    loop = Loop(lambda ps: torch.optim.SGD(ps, lr=0.1))
    trial = loop.trial(data(), [AdaptiveClipping(1e6)], steps=50)
    assert trial.candidates[1].losses == trial.candidates[0].losses
    assert trial.candidates[1].verdict == "no difference"
    assert trial.best.name == "untreated"
    loop.doctor.close()


def test_a_table_of_eighty_columns_says_what_it_cannot_tell() -> None:
    loop = Loop()
    trial = loop.trial(
        data(), [AdaptiveClipping(1.5, floor=0.001), Unwilling(), {"lr": 1.0}], steps=50
    )
    text = str(trial)
    assert max(map(len, text.splitlines())) <= 80
    flat = " ".join(text.split())
    assert "trial of 50 steps on the same batches" in flat
    assert "unwilling never acts; try another" in flat
    assert "tells of the short term only" in flat
    loop.doctor.close()


def test_fewer_batches_than_steps_are_all_used_and_too_few_judge_nothing() -> None:
    loop = Loop()
    trial = loop.trial(data(6), [{"lr": 1.0}])
    assert trial.steps == 6
    assert [len(one.losses) for one in trial.candidates] == [6, 6]
    assert trial.candidates[1].verdict == "not told"
    assert len(list(trial.batches or ())) == 6
    with pytest.raises(ValueError, match="needs a batch"):
        loop.trial(iter(()), [{"lr": 1.0}])
    with pytest.raises(ValueError, match="at least 10"):
        loop.trial(data(), [{"lr": 1.0}], steps=3)
    loop.doctor.close()


def test_an_epoch_of_a_loader_goes_on_in_its_order() -> None:
    def epoch(tried: bool) -> list[float]:
        loop = Loop()
        inputs = torch.arange(240, dtype=torch.float32).reshape(40, 6).sin()
        rows = TensorDataset(inputs, torch.arange(40) % 3)
        loader = DataLoader(rows, 2, shuffle=True, generator=torch.Generator().manual_seed(3))
        for number in range(2):
            batches: Any = iter(loader)
            loop.train(batches, 4)
            if tried:
                batches = loop.trial(batches, [{"lr": 1.0}], also=[loop.schedule, loader]).batches
            loop.train(batches, 16)
            assert next(batches, None) is None
            assert number < 2
        loop.doctor.close()
        return loop.losses

    assert epoch(tried=True) == epoch(tried=False)


def test_without_batches_the_step_gets_its_own_from_what_is_put_back() -> None:
    loop = Loop()
    generator = torch.Generator().manual_seed(1)

    def step() -> float:
        inputs = torch.randn(8, 6, generator=generator)
        return float(loop.update((inputs, inputs[:, :3].argmax(1))).detach())

    first = generator.get_state()
    trial = loop.doctor.trial(step, [{"lr": 1.0}], steps=10, also=[loop.schedule, generator])
    assert torch.equal(generator.get_state(), first)
    assert trial.candidates[0].losses[0] == trial.candidates[1].losses[0]
    assert not trial.paired
    assert trial.batches is None
    loop.doctor.close()


def test_a_gradient_scaler_and_an_averaged_model_are_put_back() -> None:
    loop, batches = Loop(lambda ps: torch.optim.AdamW(ps, lr=1e-2, fused=True)), data()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    average = torch.optim.swa_utils.AveragedModel(loop.model)

    def update(batch: Batch) -> Tensor:
        loop.optimizer.zero_grad()
        loss = F.cross_entropy(loop.model(batch[0]), batch[1])
        scaler.scale(loss).backward()
        scaler.step(loop.optimizer)
        scaler.update()
        average.update_parameters(loop.model)
        return loss

    for _ in range(3):
        update(next(batches))
    then = loop.bits(), copy.deepcopy(scaler.state_dict()), copy.deepcopy(average.state_dict())
    loop.doctor.trial(update, [{"lr": 1.0}], batches=batches, steps=10, also=[scaler, average])
    assert differing(then[0], loop.bits()) == set()
    assert scaler.state_dict() == then[1]
    assert all(torch.equal(v, average.state_dict()[k]) for k, v in then[2].items())
    loop.doctor.close()


def test_what_is_switched_on_acts_in_all_candidates_and_remembers_none_of_them() -> None:
    loop, batches = Loop(), data()
    loop.doctor.treat(AdaptiveClipping(1.2, memory=3))
    loop.train(batches, 6)
    state, notes = loop.doctor.state_dict(), list(loop.doctor.treatments[0].notes)
    trial = loop.trial(batches, ["adaptive-clipping", {"lr": 1.0}])
    assert loop.doctor.state_dict() == state
    assert list(loop.doctor.treatments[0].notes) == notes
    assert "switched on already" in trial.candidates[1].refused
    loop.doctor.close()


def test_two_optimizers_are_both_tried_and_put_back() -> None:
    seed()
    model = Odd()
    first = torch.optim.SGD(model.first.parameters(), lr=0.1)
    second = torch.optim.AdamW(model.last.parameters(), lr=0.01)
    doctor = quiet(model, [first, second])

    def update(batch: Batch) -> Tensor:
        model.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        first.step()
        second.step()
        return loss

    then = fingerprint(model, [first, second])
    trial = doctor.trial(update, [{"lr": 0.0}, {"momentum": 0.9}], batches=data(), steps=10)
    assert differing(then, fingerprint(model, [first, second])) == set()
    assert trial.candidates[1].refused == ""
    assert "AdamW has no setting named 'momentum'" in trial.candidates[2].refused
    doctor.close()


def test_what_cannot_be_meant_is_refused_before_a_batch_is_taken() -> None:
    loop, batches = Loop(), data(20)
    with pytest.raises(ValueError, match="no treatment is named 'adaptive-cliping'"):
        loop.trial(batches, ["adaptive-cliping"])
    with pytest.raises(ValueError, match="needs a treatment"):
        loop.trial(batches, [])
    with pytest.raises(ValueError, match="no settings"):
        loop.trial(batches, [{}])
    with pytest.raises(TypeError, match="a object has no state_dict"):
        loop.trial(batches, [{"lr": 1.0}], also=[object()])
    assert len(list(loop.doctor.batches or ())) == 20
    with pytest.raises(TypeError, match=r"step_fn must return the loss.*NoneType"):
        loop.doctor.trial(lambda: None, "adaptive-clipping")
    with pytest.raises(ValueError, match="at work already"):
        loop.doctor.trial(lambda: loop.trial(data(), ["adaptive-clipping"]), "adaptive-clipping")
    loop.doctor.close()
    with pytest.raises(ValueError, match="closed"):
        loop.trial(data(), ["adaptive-clipping"])


def test_a_model_that_is_not_built_yet_is_refused() -> None:
    model = nn.Sequential(nn.LazyLinear(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    doctor = optdoctor.watch(model, optimizer, out=None, sinks=())
    with pytest.raises(ValueError, match="give it one before"):
        doctor.trial(lambda batch: 1.0, "adaptive-clipping", batches=data())
    doctor.close()


def outcomes(*losses: Any) -> tuple[Outcome, ...]:
    several = [
        Outcome("untreated" if i == 0 else f"c{i}", tuple(map(float, one)))
        for i, one in enumerate(losses)
    ]
    return judged(several)[0]


def test_a_difference_within_the_noise_is_none_and_a_clear_one_is_told() -> None:
    rng = np.random.default_rng(0)
    base = 2 - 0.01 * np.arange(50) + 0.1 * rng.standard_normal(50)
    tiny, clear = base - 1e-3, base - 0.2 * np.linspace(0, 1, 50)
    assert [o.verdict for o in outcomes(base, tiny, clear, 2 * base - clear)[1:]] == [
        "no difference",
        "helped",
        "harmed",
    ]


def test_a_run_that_breaks_off_untreated_is_helped_by_what_does_not() -> None:
    base = np.linspace(2, 1, 50)
    broken = np.where(np.arange(50) > 20, np.nan, base)
    untreated, well, ill = outcomes(broken, base, broken)
    assert untreated.diverged
    assert (well.verdict, ill.verdict) == ("helped", "no difference")
    assert not well.diverged
    assert ill.diverged
