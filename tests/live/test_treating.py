"""Treatments through the doctor: switched on by name, told, undone, and rolled back by a guard."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import optdoctor
from optdoctor.live.treating import AFTER, harm_since
from optdoctor.treatments import Intervention, Refused
from optdoctor.treatments.adaptive_clipping import AdaptiveClipping


class TooFast(Intervention):
    """Makes things worse: multiplies every gradient."""

    name = "too-fast"
    safety = "risky"

    def before(self) -> None:
        """Turns the gradient around."""
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(-30)


def small() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)


def train(
    model: nn.Module, optimizer: Any, steps: int, doctor: Any = None, *, first: int = 0
) -> list[float]:
    losses = []
    for step in range(first, first + steps):
        inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        loss = (model(inputs) - inputs.sum(1, keepdim=True).sin()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if doctor is not None:
            doctor.log(loss=loss)
        losses.append(float(loss.detach()))
    return losses


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def events(doctor: Any, *kinds: str) -> list[str]:
    return [e.text for e in doctor.runs[0].trace.events if e.kind in kinds]


def test_a_treatment_named_in_watch_acts_and_says_so() -> None:
    model, optimizer = small()
    doctor = optdoctor.watch(model, optimizer, out=None, sinks=(), treat=["adaptive-clipping"])
    assert [one.name for one in doctor.treatments] == ["adaptive-clipping"]
    train(model, optimizer, 80, doctor)
    doctor.undo()
    assert doctor.treatments == ()
    assert "switched on from step 1" in events(doctor, "treatment")[0]
    assert any("adaptive-clipping clipped" in text for text in events(doctor, "undo"))
    assert any("is switched off" in text for text in events(doctor, "undo"))
    doctor.close()


def test_one_made_with_its_arguments_is_taken_as_it_is() -> None:
    model, optimizer = small()
    clip = AdaptiveClipping(3.0, memory=5)
    doctor = optdoctor.watch(model, optimizer, out=None, sinks=(), treat=[clip])
    assert doctor.treatments == (clip,)
    doctor.close()
    assert not clip.applied, "the doctor leaves nothing behind"


def test_an_unknown_name_is_refused_before_anything_is_changed() -> None:
    model, optimizer = small()
    with pytest.raises(ValueError, match=r"no treatment is named 'adaptive-cliping': did you mean"):
        optdoctor.watch(model, optimizer, out=None, sinks=(), treat=["adaptive-cliping"])
    assert not optimizer._optimizer_step_pre_hooks


def test_what_cannot_act_is_refused_and_leaves_no_hook() -> None:
    model, optimizer = small()
    with pytest.raises(Refused, match="nobody clipped"):
        optdoctor.watch(
            model,
            optimizer,
            out=None,
            sinks=(),
            treat="adaptive-clipping",
            facts={"max_grad_norm": 1.0},
        )
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_after_undo_the_run_is_one_that_goes_on_untreated() -> None:
    model, optimizer = small()
    doctor = optdoctor.watch(model, optimizer, out=None, sinks=(), treat=[AdaptiveClipping(1.01)])
    train(model, optimizer, 80, doctor)
    doctor.undo("adaptive-clipping")
    other = copy.deepcopy(model)
    untreated = torch.optim.SGD(other.parameters(), lr=0.02, momentum=0.5)
    untreated.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, optimizer, 30, doctor, first=80)
    train(other, untreated, 30, first=80)
    assert all(map(torch.equal, weights(model), weights(other)))
    doctor.close()


def test_the_doctor_sees_what_the_treatment_leaves_to_the_optimizer() -> None:
    model, optimizer = small()
    doctor = optdoctor.watch(model, optimizer, out=None, sinks=(), interval=1)
    doctor.treat(AdaptiveClipping(1.01, memory=4))
    train(model, optimizer, 60, doctor)
    trace = doctor.runs[0].trace
    before, used = trace.series["grad_norm"].values, trace.series["grad_norm_used"].values
    assert (used <= before * (1 + 1e-5)).all()
    assert (used < 0.99 * before).any(), (
        "some were clipped, and the norm before is known all the same"
    )
    doctor.close()


def test_a_treatment_that_makes_the_loss_worse_is_rolled_back_and_says_so() -> None:
    model, optimizer = small()
    doctor = optdoctor.watch(model, optimizer, out=None, sinks=())
    train(model, optimizer, 100, doctor)
    doctor.treat(TooFast())
    train(model, optimizer, 40, doctor, first=100)
    assert doctor.treatments == ()
    (told,) = [text for text in events(doctor, "undo") if "guard" in text]
    assert "too-fast is switched off, by its guard: " in told
    doctor.close()


def test_a_harmless_treatment_is_left_on() -> None:
    model, optimizer = small()
    doctor = optdoctor.watch(model, optimizer, out=None, sinks=())
    train(model, optimizer, 100, doctor)
    doctor.treat("adaptive-clipping")
    train(model, optimizer, 200, doctor, first=100)
    assert [one.name for one in doctor.treatments] == ["adaptive-clipping"]
    doctor.close()


def test_a_run_that_was_rising_is_not_blamed_on_the_treatment() -> None:
    from optdoctor.trace import Recorder, Vitals

    recorder = Recorder(())
    for step in range(1, 201):
        value = 1 + 0.01 * step if step <= 100 else 2.0
        recorder.add(Vitals(step, {"loss": value}))
    loss = recorder.trace({}, ()).series["loss"]
    assert harm_since(loss, 100) == ""
    assert harm_since(loss, 40) != "", "since step 40 it did rise far above what was before"
    assert AFTER <= 100


def test_a_treatment_switched_on_twice_is_refused() -> None:
    model, optimizer = small()
    doctor = optdoctor.watch(model, optimizer, out=None, sinks=(), treat=["adaptive-clipping"])
    with pytest.raises(ValueError, match="switched on already"):
        doctor.treat("adaptive-clipping")
    with pytest.raises(ValueError, match="'step-guard' is not switched on; adaptive-clipping is"):
        doctor.undo("step-guard")
    doctor.close()


def test_each_of_several_optimizers_has_a_treatment_of_its_own() -> None:
    model, _ = small()
    first, second = (torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[0], model[2]))
    doctor = optdoctor.watch(
        model, [first, second], out=None, sinks=(), treat=[AdaptiveClipping(2.0)]
    )
    one, other = doctor.treatments
    assert one is not other
    assert (one.optimizer, other.optimizer) == (first, second)
    doctor.undo(run=1)
    assert doctor.treatments == (one,)
    doctor.close()


def test_what_treatments_remember_survives_a_checkpoint() -> None:
    model, optimizer = small()
    doctor = optdoctor.watch(model, optimizer, out=None, sinks=(), treat=["adaptive-clipping"])
    train(model, optimizer, 70, doctor)
    kept = doctor.state_dict()
    saved = copy.deepcopy((model, optimizer.state_dict()))
    train(model, optimizer, 20, doctor, first=70)
    doctor.close()
    resumed, state = saved
    again = torch.optim.SGD(resumed.parameters(), lr=0.02, momentum=0.5)
    again.load_state_dict(state)
    doctor = optdoctor.watch(resumed, again, out=None, sinks=(), treat=["adaptive-clipping"])
    doctor.load_state_dict(kept)
    train(resumed, again, 20, doctor, first=70)
    assert all(map(torch.equal, weights(model), weights(resumed)))
    doctor.close()


def test_a_loss_that_is_not_expected_to_fall_is_no_reason_to_undo() -> None:
    model, optimizer = small()
    doctor = optdoctor.watch(
        model, optimizer, out=None, sinks=(), facts={"loss_kind": "adversarial"}
    )
    train(model, optimizer, 100, doctor)
    doctor.treat(TooFast())
    train(model, optimizer, 40, doctor, first=100)
    assert [one.name for one in doctor.treatments] == ["too-fast"]
    doctor.close()
