"""What the doctor sees of gradients before a clip, at every update, against norms taken by hand."""

import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from small_training import batches, loss_of, net, quiet
from torch import nn
from torch.nn.utils import clip_grad, clip_grad_norm_

import optdoctor
from optdoctor.live import clip_tap, sentinel
from optdoctor.trace import Trace

MAX_NORM = 0.05
PUBLIC = torch.nn.utils.clip_grad_norm_
EARLY = clip_grad_norm_
"""The function as a module holds it that imported it before anything was watched."""


def norm_of(parameters: list[nn.Parameter]) -> float:
    squares = (p.grad.double().square().sum() for p in parameters if p.grad is not None)
    return math.sqrt(sum(float(square) for square in squares))


def series(trace: Trace, name: str) -> dict[int, float]:
    kept = trace.series.get(name)
    return {} if kept is None else dict(zip(kept.steps.tolist(), kept.values.tolist(), strict=True))


def first_bad(trace: Trace) -> dict[str, float]:
    row = trace.series["first_nonfinite_step"].values[-1]
    return {t.name: float(s) for t, s in zip(trace.tensors, row, strict=True) if np.isfinite(s)}


@pytest.mark.parametrize("early", [False, True], ids=["looked up", "imported before"])
@pytest.mark.parametrize("interval", [1, 7])
def test_the_norm_before_the_clip_stands_at_its_own_update(early: bool, interval: int) -> None:
    model = net()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    raw, used = [], []
    with quiet(model, optimizer, None, interval=interval) as doctor:
        for batch in batches(20):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            raw.append(norm_of(parameters))
            clip = EARLY if early else torch.nn.utils.clip_grad_norm_
            clip((p for p in parameters), MAX_NORM)
            used.append(norm_of(parameters))
            optimizer.step()
    trace = doctor.runs[0].trace
    assert series(trace, "grad_norm") == pytest.approx(dict(enumerate(raw, 1)), rel=1e-6)
    sampled = series(trace, "grad_norm_used")
    assert list(sampled) == [*range(1, 21, interval)]
    assert sampled == pytest.approx({step: used[step - 1] for step in sampled}, rel=1e-6)
    raw_rms = trace.series["grad_rms_raw"].values[-1]
    used_rms = trace.series["grad_rms"].values[-1]
    step = int(trace.series["grad_rms_raw"].steps[-1])
    assert raw_rms / used_rms == pytest.approx(raw[step - 1] / used[step - 1], rel=1e-4)


def test_without_a_clip_every_update_has_the_norm_that_was_used() -> None:
    model = net()
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=1e-2)
    used = []
    with quiet(model, optimizer, None, interval=7) as doctor:
        for batch in batches(20):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            used.append(norm_of(parameters))
            optimizer.step()
    trace = doctor.runs[0].trace
    assert "grad_norm" not in trace.series
    assert series(trace, "grad_norm_used") == pytest.approx(dict(enumerate(used, 1)), rel=1e-6)


def test_clipping_part_by_part_and_then_as_a_whole_tells_the_norm_before_both() -> None:
    model = net()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    raw = []
    with quiet(model, optimizer, None) as doctor:
        for batch in batches(5):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            raw.append(norm_of(parameters))
            for parameter in parameters[:2]:
                torch.nn.utils.clip_grad_norm_(parameter, MAX_NORM / 10)
            torch.nn.utils.clip_grad_norm_(parameters, MAX_NORM)
            optimizer.step()
    assert series(doctor.runs[0].trace, "grad_norm") == pytest.approx(
        dict(enumerate(raw, 1)), rel=1e-6
    )


def test_a_gradient_that_was_clipped_and_not_used_belongs_to_no_update() -> None:
    model = net()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    raw = []
    with quiet(model, optimizer, None) as doctor:
        for i, batch in enumerate(batches(12)):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            (loss * math.inf if i == 5 else loss).backward()
            norm = norm_of(parameters)
            if not torch.nn.utils.clip_grad_norm_(parameters, MAX_NORM).isfinite():
                continue
            raw.append(norm)
            optimizer.step()
    trace = doctor.runs[0].trace
    assert series(trace, "grad_norm") == pytest.approx(dict(enumerate(raw, 1)), rel=1e-6)
    assert "first_nonfinite_step" not in trace.series


@pytest.mark.parametrize("interval", [1, 1000])
@pytest.mark.parametrize("clips", [True, False])
def test_the_tensor_that_broke_first_is_known_after_the_clip_has_smeared_it(
    interval: int, clips: bool
) -> None:
    model = net()
    parameters, names = list(model.parameters()), [name for name, _ in model.named_parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1e-2)
    with quiet(model, optimizer, None, interval=interval) as doctor:
        for i, batch in enumerate(batches(30)):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            if i == 16:
                parameters[2].grad.view(-1)[0] = math.nan
            if clips:
                torch.nn.utils.clip_grad_norm_(parameters, MAX_NORM)
            optimizer.step()
    found = first_bad(doctor.runs[0].trace)
    assert [name for name, step in found.items() if step == 17] == [names[2]]


@pytest.mark.parametrize("early", [False, True], ids=["looked up", "imported before"])
def test_a_clip_that_refuses_a_gradient_leaves_the_name_of_its_tensor(
    early: bool, tmp_path: Path
) -> None:
    model = net()
    parameters, names = list(model.parameters()), [name for name, _ in model.named_parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1e-2)

    def loop() -> None:
        for i, batch in enumerate(batches(9)):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            if i == 8:
                parameters[1].grad.view(-1)[0] = math.inf
            clip = EARLY if early else torch.nn.utils.clip_grad_norm_
            clip(parameters, MAX_NORM, error_if_nonfinite=True)
            optimizer.step()

    doctor = quiet(model, optimizer, tmp_path)
    with pytest.raises(RuntimeError, match="non-finite"), doctor:
        loop()
    for trace in (doctor.runs[0].trace, optdoctor.read(tmp_path)):
        assert first_bad(trace) == {names[1]: 9}


@pytest.mark.parametrize("clips", [True, False])
def test_what_stays_on_a_device_is_the_same_as_what_is_read_at_once(
    clips: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the host plays the device: norms and first bad steps are kept as tensors."""

    def watched() -> Trace:
        torch.manual_seed(0)
        model = net()
        parameters = list(model.parameters())
        optimizer = torch.optim.SGD(parameters, lr=1e-2)
        with quiet(model, optimizer, None, interval=5) as doctor:
            for i, batch in enumerate(batches(12)):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                if i in (6, 8):
                    parameters[i // 6].grad.view(-1)[0] = math.nan
                if clips:
                    torch.nn.utils.clip_grad_norm_(parameters, MAX_NORM)
                optimizer.step()
        return doctor.runs[0].trace

    here = watched()
    monkeypatch.setattr(sentinel, "is_host", lambda device: False)
    there = watched()
    name = "grad_norm" if clips else "grad_norm_used"
    assert series(there, name) == pytest.approx(series(here, name), rel=1e-6, nan_ok=True)
    assert first_bad(there) == first_bad(here) != {}


def test_a_scaled_gradient_is_not_taken_for_one(tmp_path: Path) -> None:
    model = net()
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    raw = []
    with quiet(model, optimizer, tmp_path, scaler=scaler) as doctor:
        for i, batch in enumerate(batches(12)):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            scaler.scale(loss * math.inf if i == 5 else loss).backward()
            if i % 2:
                scaler.unscale_(optimizer)
                raw.append(norm_of(parameters))
            torch.nn.utils.clip_grad_norm_(parameters, 1e4)
            scaler.step(optimizer)
            scaler.update()
    trace = doctor.runs[0].trace
    skipped = series(trace, "step_skipped")
    assert skipped == {6: 1.0}
    wanted = {2 * (i + 1): norm for i, norm in enumerate(raw) if i != 2}
    assert series(trace, "grad_norm") == pytest.approx(wanted, rel=1e-6)
    assert max(series(trace, "grad_norm_used").values()) < 100 * max(wanted.values())


@pytest.mark.parametrize("fused", [False, True])
def test_nor_where_nobody_told_of_the_scaler(fused: bool) -> None:
    """Clipped while scaled, which is a mistake; the step divides by the scale, and is seen to."""
    model = net()
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, lr=1e-2, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with quiet(model, optimizer, None) as doctor:
        for batch in batches(6):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, batch)).backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1e9)
            raw = norm_of(parameters) / 2.0**10
            scaler.step(optimizer)
            scaler.update()
    trace = doctor.runs[0].trace
    assert "grad_norm" not in trace.series
    assert series(trace, "grad_norm_used")[6] == pytest.approx(raw, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_gradients_of_any_float_dtype_have_a_norm(dtype: torch.dtype) -> None:
    model = net(dtype)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=1e-2)
    raw = []
    with quiet(model, optimizer, None) as doctor:
        for batch in batches(4):
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            raw.append(norm_of(parameters))
            torch.nn.utils.clip_grad_norm_(parameters, MAX_NORM)
            optimizer.step()
    assert not [e for e in doctor.runs[0].trace.events if e.kind == "doctor-failed"]
    assert series(doctor.runs[0].trace, "grad_norm") == pytest.approx(
        dict(enumerate(raw, 1)), rel=1e-5
    )


def test_a_gradient_whose_square_overflows_is_finite_all_the_same() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-33)
    with quiet(model, optimizer, None) as doctor:
        for _ in range(3):
            optimizer.zero_grad()
            (model(torch.ones(2, 4)).sum() * 1e25).backward()
            optimizer.step()
    trace = doctor.runs[0].trace
    assert "first_nonfinite_step" not in trace.series
    assert series(trace, "grad_norm_used")[3] == pytest.approx(norm_of([*model.parameters()]))


def test_of_two_optimizers_each_sees_its_own_gradients() -> None:
    models = [net(), net()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-2) for model in models]
    both = nn.ModuleList(models)
    raw: list[list[float]] = [[], []]
    with optdoctor.watch(both, optimizers, out=None, sinks=()) as doctor:
        for batch in batches(6):
            for i, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                raw[i].append(norm_of(list(model.parameters())))
                torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
                optimizer.step()
    for i, run in enumerate(doctor.runs):
        assert series(run.trace, "grad_norm") == pytest.approx(dict(enumerate(raw[i], 1)), rel=1e-6)


def test_the_wrapper_is_gone_when_the_last_doctor_has_closed() -> None:
    places: tuple[tuple[ModuleType, str], ...] = clip_tap.PLACES
    before = [getattr(module, name) for module, name in places]
    doctors = []
    for _ in range(2):
        model = net()
        doctors.append(quiet(model, torch.optim.SGD(model.parameters(), lr=1e-2), None))
    assert torch.nn.utils.clip_grad_norm_ is not PUBLIC
    doctors[0].close()
    assert torch.nn.utils.clip_grad_norm_ is not PUBLIC
    doctors[1].close()
    assert [getattr(module, name) for module, name in places] == before


def test_a_wrapper_of_somebody_else_stays() -> None:
    model = net()
    doctor = quiet(model, torch.optim.SGD(model.parameters(), lr=1e-2), None)
    ours = torch.nn.utils.clip_grad_norm_
    try:
        torch.nn.utils.clip_grad_norm_ = lambda *a, **k: ours(*a, **k)
        theirs = torch.nn.utils.clip_grad_norm_
        doctor.close()
        assert torch.nn.utils.clip_grad_norm_ is theirs
        assert torch.isfinite(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
    finally:
        torch.nn.utils.clip_grad_norm_ = PUBLIC
        clip_tap._INNER.clear()


def test_the_private_function_that_clips_is_where_it_was_seen() -> None:
    """A release that moves it costs the tap of names imported before: look at it anew."""
    assert hasattr(clip_grad, "_clip_grads_with_norm_"), sys.modules["torch"].__version__
