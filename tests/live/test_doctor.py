"""What `watch` promises a plain loop, from the first line to the report."""

import copy
import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_training import (
    batches,
    events,
    failures,
    loss_of,
    net,
    quiet,
    rows,
    seed,
    train,
)
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from tqdm import tqdm

import optdoctor
from optdoctor.findings import Diagnosis, Severity, Verdict
from optdoctor.live import doctor as live_doctor
from optdoctor.live.doctor import Doctor
from optdoctor.readers.run_record import FINDINGS, json_rows
from optdoctor.reading.log import MAX_METRICS
from optdoctor.report import text

UNDERFLOW, EPSILON = "second-moment-underflow", "epsilon-below-precision"


def adamw(model: nn.Module, **options: Any) -> AdamW:
    return AdamW(model.parameters(), **{"lr": 1e-2, **options})


def found(diagnosis: Diagnosis) -> dict[str, Severity]:
    return {finding.rule: finding.severity for finding in diagnosis.findings}


def told(out: Path) -> list[tuple[int, str, str]]:
    return [(r["announced"], r["what"], r["rule"]) for r in json_rows(out / FINDINGS)]


# The contract of watch and close


def test_a_doctor_has_runs_a_diagnosis_and_a_trace() -> None:
    model = net()
    optimizer = adamw(model)
    doctor = optdoctor.watch(model, optimizer, out=None, sinks=())
    assert isinstance(doctor, Doctor)
    assert doctor.diagnosis.verdict is Verdict.UNKNOWN
    train(model, optimizer, 3, doctor)
    (run,) = doctor.runs
    assert run.trace.steps == (1, 3)
    diagnosis = doctor.close()
    assert diagnosis is doctor.diagnosis is run.diagnosis
    assert doctor.close() is diagnosis


def test_leaving_the_context_closes_the_doctor() -> None:
    model = net()
    optimizer = adamw(model)
    with quiet(model, optimizer) as doctor:
        train(model, optimizer, 2, doctor)
    train(model, optimizer, 2)
    assert list(rows(doctor, "loss")) == [1, 2]


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_exception_of_the_training_passes_and_the_doctor_is_closed(
    kind: type[BaseException],
) -> None:
    model = net()
    optimizer = adamw(model)
    doctors = []

    def training() -> None:
        with quiet(model, optimizer) as doctor:
            doctors.append(doctor)
            train(model, optimizer, 2, doctor)
            raise kind("of the training")

    with pytest.raises(kind, match="of the training"):
        training()
    (doctor,) = doctors
    assert not optimizer._optimizer_step_post_hooks
    assert list(rows(doctor, "loss")) == [1, 2]


def test_after_close_no_hook_is_left() -> None:
    for left_open in list(live_doctor._OPEN):  # by other tests
        left_open.close()
    model = net()
    optimizer = adamw(model)
    scaler = torch.amp.GradScaler("cpu")
    original = scaler.step
    doctor = quiet(model, optimizer, scaler=scaler)
    assert optimizer._optimizer_step_pre_hooks
    assert optimizer._optimizer_step_post_hooks
    assert scaler.step != original
    doctor.close()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert scaler.step == original
    assert "step" not in vars(scaler)
    assert [m for m in model.modules() if m._forward_hooks or m._backward_hooks] == []


def test_a_training_that_goes_on_after_close_is_not_recorded() -> None:
    model = net()
    optimizer = adamw(model)
    doctor = quiet(model, optimizer)
    train(model, optimizer, 2, doctor)
    doctor.close()
    before = doctor.runs[0].trace
    train(model, optimizer, 3, doctor)  # still logs
    assert doctor.close() is doctor.diagnosis
    assert doctor.runs[0].trace.steps == before.steps == (1, 2)


def test_without_a_folder_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = net()
    optimizer = adamw(model)
    with quiet(model, optimizer, None) as doctor:
        train(model, optimizer, 3, doctor)
    assert list(tmp_path.iterdir()) == []


def test_by_default_the_record_lies_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = net()
    optimizer = adamw(model)
    with optdoctor.watch(model, optimizer) as doctor:
        train(model, optimizer, 3, doctor)
    assert (tmp_path / "optdoctor-run" / "run.json").is_file()
    assert optdoctor.read("optdoctor-run").steps == (1, 3)
    assert capsys.readouterr().err.startswith("optdoctor  UNKNOWN")


@pytest.mark.parametrize(
    "wrong",
    [
        {"sinks": ("telegraph",)},
        {"treat": ("eps",)},
        {"overhead": 0.0},
        {"overhead": -0.1},
        {"overhead": 1.5},
        {"overhead": math.nan},
        {"interval": 0},
        {"interval": -3},
    ],
    ids=str,
)
def test_arguments_that_cannot_be_meant_are_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    model = net()
    optimizer = adamw(model)
    with pytest.raises(ValueError, match=next(iter(wrong)).rstrip("s")):
        quiet(model, optimizer, tmp_path / "out", **wrong)
    assert not optimizer._optimizer_step_post_hooks
    assert not (tmp_path / "out").exists()


def test_what_is_no_optimizer_is_refused() -> None:
    model = net()
    with pytest.raises(TypeError, match="Net holds no torch"):
        quiet(model, model)
    optimizer = adamw(model)
    with pytest.raises(TypeError, match="list holds no torch"):
        quiet(model, [])
    with pytest.raises(TypeError, match="str holds no torch"):
        quiet(model, [optimizer, "adam"])
    assert not optimizer._optimizer_step_post_hooks, "the first was already being watched"


def test_several_optimizers_have_a_run_each(tmp_path: Path) -> None:
    model = net()
    slow, fast = SGD(model.head.parameters(), lr=0.1), AdamW(model.layers.parameters(), lr=0.01)
    doctor = quiet(model, [slow, fast], tmp_path)
    for i, batch in enumerate(batches(6)):
        loss = loss_of(model, batch)
        loss.backward()
        doctor.log(loss=loss)
        doctor.log(run=1, penalty=i / 2)
        fast.step()
        if i % 2:
            slow.step()
    doctor.close()
    for i, (name, steps) in enumerate([("SGD", 3), ("AdamW", 6)]):
        trace = doctor.runs[i].trace
        assert trace.facts["optimizer"] == name
        assert list(rows(doctor, "loss", i)) == list(range(1, steps + 1))
        assert optdoctor.read(tmp_path / str(i)).series.keys() == trace.series.keys()
    assert rows(doctor, "metric:penalty", 0) == {}
    assert list(rows(doctor, "metric:penalty", 1).values()) == [0, 0.5, 1, 1.5, 2, 2.5]
    assert not (tmp_path / "run.json").exists()


def test_the_diagnosis_of_several_is_that_of_the_worst() -> None:
    model = net(torch.float16)
    well, sick = (
        SGD(model.head.parameters(), lr=0.1),
        AdamW(model.layers.parameters(), foreach=False),
    )
    doctor = quiet(model, [well, sick])
    assert doctor.runs[0].diagnosis.verdict is Verdict.UNKNOWN
    assert doctor.diagnosis == doctor.runs[1].diagnosis
    assert doctor.diagnosis.verdict is Verdict.SICK


# Numbers that the loop logs


def test_metrics_that_are_no_channels_are_kept_under_their_own_name() -> None:
    model = net()
    optimizer = adamw(model)
    doctor = quiet(model, optimizer)
    for name in ("accuracy", "beta1", "momentum", "update_ratio", "batch_size", "param_rms"):
        doctor.log(**{name: 0.5})  # five of them are channels that no loop can log
    train(model, optimizer, 2, doctor)
    doctor.close()
    assert failures(doctor) == []
    assert rows(doctor, "metric:accuracy") == {0: 0.5}
    for name in ("beta1", "momentum", "update_ratio", "batch_size", "param_rms"):
        assert rows(doctor, f"metric:{name}") == {0: 0.5}
    assert list(rows(doctor, "update_ratio")) == [1, 2]


@pytest.mark.parametrize("after", [False, True], ids=["logs before step", "logs after step"])
def test_a_metric_logged_with_the_loss_and_again_alone_counts_once(
    after: bool, tmp_path: Path
) -> None:
    model = net()
    optimizer = adamw(model)
    doctor = quiet(model, optimizer, tmp_path)
    for i, batch in enumerate(batches(4)):
        loss = loss_of(model, batch)
        loss.backward()
        if after:
            optimizer.step()
        doctor.log(loss=loss, accuracy=i / 4, lr=0.5)
        if not after:
            optimizer.step()
        doctor.log(eval_loss=1.0, accuracy=0.9, lr=0.25, grad_norm_used=3.0)
    doctor.close()
    assert failures(doctor) == []
    assert list(rows(doctor, "loss")) == list(rows(doctor, "eval_loss")) == [1, 2, 3, 4]
    assert list(rows(doctor, "metric:accuracy").values()) == [0, 0.25, 0.5, 0.75]
    assert set(rows(doctor, "lr").values()) == {1e-2}, "the hook knows the rate that was used"
    assert 3.0 not in rows(doctor, "grad_norm_used").values()
    again = optdoctor.read(tmp_path)
    for name, series in doctor.runs[0].trace.series.items():
        assert np.array_equal(again.series[name].values, series.values, equal_nan=True), name


def test_tensors_and_numpy_numbers_are_numbers() -> None:
    model = net()
    optimizer = adamw(model)
    doctor = quiet(model, optimizer)
    loss = torch.tensor([2.5], requires_grad=True)
    doctor.log(loss=loss, a=np.float32(0.5), b=torch.tensor(3), c=True, d=np.array(4.0))
    optimizer.step()
    doctor.close()
    assert {n: rows(doctor, n)[1] for n in ("loss", "metric:a", "metric:b", "metric:c")} == {
        "loss": 2.5, "metric:a": 0.5, "metric:b": 3.0, "metric:c": 1.0
    }  # fmt: skip
    assert rows(doctor, "metric:d") == {1: 4.0}
    assert failures(doctor) == []


def test_a_nan_loss_of_a_loop_that_stops_before_its_step_is_in_the_record(tmp_path: Path) -> None:
    model = net()
    optimizer = adamw(model)
    with quiet(model, optimizer, tmp_path) as doctor:
        train(model, optimizer, 3, doctor)
        doctor.log(loss=torch.tensor(math.nan))
    assert found(doctor.diagnosis).keys() == {"nan-pulse"}
    (last,) = doctor.diagnosis.findings
    assert last.steps == (4, 4)
    assert optdoctor.diagnose(optdoctor.read(tmp_path)).findings == doctor.diagnosis.findings


# Starts and resumes


def test_a_start_sets_an_old_record_aside(tmp_path: Path) -> None:
    for steps in (4, 3, 2):
        model = net()
        optimizer = adamw(model)
        with quiet(model, optimizer, tmp_path) as doctor:
            train(model, optimizer, steps, doctor)
        assert events(doctor) == ["start"]
    assert optdoctor.read(tmp_path).steps == (1, 2)
    assert optdoctor.read(tmp_path / "earlier-1").steps == (1, 4)
    assert optdoctor.read(tmp_path / "earlier-2").steps == (1, 3)


def checkpointed(model: nn.Module, optimizer: Optimizer) -> Callable[[], tuple[Any, Any]]:
    """How to get back to now."""
    weights = {k: v.clone() for k, v in model.state_dict().items()}
    kind, saved = type(optimizer), _copied(optimizer.state_dict())

    def load() -> tuple[Any, Any]:
        fresh = net()
        fresh.load_state_dict(weights)
        renewed = kind(fresh.parameters(), lr=1e-2)
        renewed.load_state_dict(_copied(saved))
        return fresh, renewed

    return load


def _copied(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _copied(value) for key, value in node.items()}
    return node.clone() if isinstance(node, torch.Tensor) else node


def test_a_resume_goes_on_with_the_steps_and_keeps_the_rows(tmp_path: Path) -> None:
    model = net()
    optimizer = adamw(model)
    with quiet(model, optimizer, tmp_path) as doctor:
        losses = train(model, optimizer, 5, doctor)
    model, optimizer = checkpointed(model, optimizer)()
    with quiet(model, optimizer, tmp_path) as doctor:
        losses += train(model, optimizer, 3, doctor, first=5)
    assert list(rows(doctor, "loss").items()) == list(enumerate(losses, 1))
    assert list(rows(doctor, "update_rms")) == [*range(1, 9)]
    assert events(doctor) == ["start", "resume"]
    facts = doctor.runs[0].trace.facts
    assert (facts["resumed_from"], facts["state_loaded"]) == (5, "yes")
    assert not (tmp_path / "earlier-1").exists()
    again = optdoctor.read(tmp_path)
    assert again.series["loss"].values.tolist() == losses


def test_a_resume_from_an_older_checkpoint_drops_the_branch_that_was_left(tmp_path: Path) -> None:
    model = net()
    optimizer = adamw(model)
    with quiet(model, optimizer, tmp_path) as doctor:
        train(model, optimizer, 4, doctor)
        load = checkpointed(model, optimizer)
        train(model, optimizer, 6, doctor, first=100)  # left behind
    model, optimizer = load()
    with quiet(model, optimizer, tmp_path) as doctor:
        fresh = train(model, optimizer, 3, doctor, first=4)
    for trace in (doctor.runs[0].trace, optdoctor.read(tmp_path)):
        assert trace.steps == (1, 7)
        assert trace.series["loss"].values[4:].tolist() == fresh
        assert trace.series["update_rms"].steps.tolist() == [*range(1, 8)]


def test_an_optimizer_that_does_not_count_goes_on_after_the_record(tmp_path: Path) -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=1e-2, momentum=0.9)
    with quiet(model, optimizer, tmp_path) as doctor:
        train(model, optimizer, 5, doctor)
    with quiet(model, optimizer, tmp_path) as doctor:
        train(model, optimizer, 2, doctor)
    assert list(rows(doctor, "loss")) == [*range(1, 8)]


def test_the_first_step_can_be_given(tmp_path: Path) -> None:
    model = net()
    optimizer = adamw(model)
    with quiet(model, optimizer, tmp_path, first_step=31) as doctor:
        train(model, optimizer, 2, doctor)
    assert list(rows(doctor, "loss")) == list(rows(doctor, "update_rms")) == [31, 32]
    assert events(doctor) == ["resume"]


def test_after_a_resume_the_first_updates_are_sampled_again(tmp_path: Path) -> None:
    model = net()
    optimizer = adamw(model)
    with quiet(model, optimizer, tmp_path, interval=None) as doctor:
        train(model, optimizer, 200, doctor)
    with quiet(model, optimizer, tmp_path, interval=None, overhead=1e-6) as doctor:
        train(model, optimizer, 3, doctor)
    assert list(rows(doctor, "update_rms"))[-3:] == [201, 202, 203]


def test_a_new_process_does_not_tell_again_what_the_old_one_told(tmp_path: Path) -> None:
    model = net(torch.float16)
    optimizer = adamw(model, fused=True, lr=1e-4)
    with quiet(model, optimizer, tmp_path) as doctor:
        train(model, optimizer, 3, doctor)
    assert [what for _, what, rule in told(tmp_path) if rule == UNDERFLOW] == ["appeared"]
    with quiet(model, optimizer, tmp_path) as doctor:
        train(model, optimizer, 3, doctor)
    assert [what for _, what, rule in told(tmp_path) if rule == UNDERFLOW] == ["appeared"]


def test_a_finding_of_a_branch_that_was_left_has_ended(tmp_path: Path) -> None:
    model = net()
    optimizer = adamw(model)
    with quiet(model, optimizer, tmp_path) as doctor:
        train(model, optimizer, 3, doctor)
        load = checkpointed(model, optimizer)
        doctor.log(loss=math.nan)
        optimizer.step()
    assert "nan-pulse" in found(doctor.diagnosis)
    model, optimizer = load()
    with quiet(model, optimizer, tmp_path) as doctor:
        train(model, optimizer, 3, doctor)
    assert found(doctor.diagnosis) == {}
    of_nan = [line for line in told(tmp_path) if line[2] == "nan-pulse"]
    assert of_nan == [(4, "appeared", "nan-pulse"), (3, "ended", "nan-pulse")]


# Tensors that change in mid-run


def test_new_parameters_in_mid_run_begin_a_segment_and_the_old_rows_stay(tmp_path: Path) -> None:
    model = net()
    optimizer = AdamW(model.head.parameters(), lr=1e-2)
    doctor = quiet(model, optimizer, tmp_path)
    train(model, optimizer, 3, doctor)
    head = [t.name for t in doctor.runs[0].trace.tensors].index("head.weight")
    norm = [t.name for t in doctor.runs[0].trace.tensors].index("norm.weight")
    optimizer.add_param_group({"params": model.norm.parameters(), "lr": 0.5})
    train(model, optimizer, 3, doctor)
    stray = nn.Parameter(torch.ones(2))
    stray.grad = torch.ones(2)
    optimizer.add_param_group({"params": [stray], "lr": 0.25})
    optimizer.step()
    doctor.close()
    assert failures(doctor) == []
    assert events(doctor).count("tensors-changed") == 2
    assert [e.step for e in doctor.runs[0].trace.events if e.kind == "tensors-changed"] == [4, 7]
    for trace in (doctor.runs[0].trace, optdoctor.read(tmp_path)):
        moved = trace.series["update_rms"]
        assert moved.steps.tolist() == [*range(1, 8)]
        assert np.isfinite(moved.values[:, head]).all()
        assert np.isnan(moved.values[:3, norm]).all()
        assert np.isfinite(moved.values[3:, norm]).all()
        assert np.isnan(moved.values[:6, -1]).all()
        assert trace.tensors[-1].name == "group2.0"
        assert trace.series["tensor_lr"].values[-1, [head, norm, -1]].tolist() == [
            pytest.approx(1e-2), 0.5, 0.25
        ]  # fmt: skip
    assert len(list(tmp_path.glob("tensors-*.arrows"))) == 3


def test_new_parameters_are_noticed_between_two_samples() -> None:
    model = net()
    optimizer = AdamW(model.head.parameters(), lr=1e-2)
    doctor = quiet(model, optimizer, interval=100)
    train(model, optimizer, 5, doctor)
    optimizer.add_param_group({"params": model.norm.parameters()})
    train(model, optimizer, 5, doctor)
    doctor.close()
    (change,) = [e for e in doctor.runs[0].trace.events if e.kind == "tensors-changed"]
    assert change.step == 6
    assert list(rows(doctor, "update_rms")) == [1, 6], "a change is sampled, whatever the interval"


def test_parameters_exchanged_in_mid_run_are_followed(tmp_path: Path) -> None:
    model = net()
    optimizer = adamw(model)
    doctor = quiet(model, optimizer, tmp_path)
    train(model, optimizer, 2, doctor)
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    optimizer.param_groups[0]["params"] = list(model.parameters())
    train(model, optimizer, 2, doctor)
    doctor.close()
    assert failures(doctor) == []
    assert [e.step for e in doctor.runs[0].trace.events if e.kind == "tensors-changed"] == [3]
    head = [t.name for t in doctor.runs[0].trace.tensors].index("head.weight")
    moved = [row[head] for row in rows(doctor, "update_rms").values()]
    assert len(moved) == 4
    assert min(moved) > 0, "the old tensor stands still"


def test_a_cast_in_mid_run_is_an_event_and_keeps_the_rows(tmp_path: Path) -> None:
    model = net()
    optimizer = SGD(model.parameters(), lr=1e-2)
    doctor = quiet(model, optimizer, tmp_path)
    train(model, optimizer, 3, doctor)
    model.half()
    train(model, optimizer, 3, doctor)
    doctor.close()
    assert failures(doctor) == []
    (change,) = [e for e in doctor.runs[0].trace.events if e.kind == "tensors-changed"]
    assert change.step == 4
    assert "param_dtype float32 -> float16" in change.text
    for trace in (doctor.runs[0].trace, optdoctor.read(tmp_path)):
        assert trace.facts["param_dtype"] == "float16"
        assert {t.dtype for t in trace.tensors} == {"float16"}
        weights = trace.series["param_rms"]
        assert weights.steps.tolist() == [*range(1, 7)]
        assert np.isfinite(weights.values).all()
    assert len(list(tmp_path.glob("tensors-*.arrows"))) == 2


class Lazy(nn.Module):
    """One layer that has its shape at once, one from the first forward, one from the third."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.late, self.later = nn.Linear(2, 3), nn.LazyLinear(4), nn.LazyLinear(5)
        self.calls = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        hidden = self.late(self.plain(inputs))
        return self.later(hidden) if self.calls > 2 else hidden


def test_parameters_without_a_shape_are_waited_for(tmp_path: Path) -> None:
    seed()
    model = Lazy()
    optimizer = adamw(model)
    doctor = quiet(model, optimizer, tmp_path)
    for _ in range(4):
        loss = model(torch.ones(1, 2)).square().sum()
        loss.backward()
        doctor.log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
    doctor.close()
    assert failures(doctor) == []
    assert events(doctor) == ["start", "tensors-changed"]
    for trace in (doctor.runs[0].trace, optdoctor.read(tmp_path)):
        shapes = {tensor.name: tensor.shape for tensor in trace.tensors}
        assert shapes["late.weight"] == (4, 3)
        assert shapes["later.weight"] == (5, 4)
        assert trace.series["loss"].steps.tolist() == [1, 2, 3, 4]
        moved = trace.series["update_rms"]
        late, later = list(shapes).index("late.weight"), list(shapes).index("later.weight")
        assert np.isfinite(moved.values[:, late]).all()
        assert np.isfinite(moved.values[:, later]).tolist() == [False, False, True, True]


def test_a_doctor_of_shapeless_parameters_that_never_trained_is_at_a_loss() -> None:
    model = Lazy()
    doctor = quiet(model, adamw(model))
    doctor.log(loss=1.0)
    assert doctor.close().verdict is Verdict.UNKNOWN
    assert failures(doctor) == []


# Skipped updates


def scaled(fused: bool, watch_scaler: bool, infinite_at: tuple[int, ...] = (3, 4)) -> Doctor:
    model = net()
    optimizer = adamw(model, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    doctor = quiet(model, optimizer, scaler=scaler if watch_scaler else None)
    for i, batch in enumerate(batches(8), 1):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        scaler.scale(loss * (math.inf if i in infinite_at else 1)).backward()
        doctor.log(loss=loss)
        scaler.step(optimizer)
        scaler.update()
    doctor.close()
    return doctor


@pytest.mark.parametrize("fused", [False, True], ids=["unfused", "fused"])
def test_a_skipped_update_counts_and_its_gradients_are_not_recorded(fused: bool) -> None:
    doctor = scaled(fused, watch_scaler=True)
    assert list(rows(doctor, "loss")) == [*range(1, 9)]
    assert rows(doctor, "step_skipped") == {3: 1.0, 4: 1.0}
    assert list(rows(doctor, "grad_nonfinite")) == [1, 2, 5, 6, 7, 8]
    assert all(not row.any() for row in rows(doctor, "grad_nonfinite").values())
    assert [e.step for e in doctor.runs[0].trace.events if e.kind == "step-skipped"] == [3, 4]
    assert doctor.diagnosis.findings == ()


def test_a_fused_optimizer_needs_no_scaler_to_be_known() -> None:
    assert rows(scaled(True, watch_scaler=False), "step_skipped") == {3: 1.0, 4: 1.0}


def test_gradients_seen_with_a_scaler_are_unscaled() -> None:
    plain = [rows(scaled(fused, True, ()), "grad_rms")[1] for fused in (False, True)]
    model = net()
    optimizer = adamw(model)
    doctor = quiet(model, optimizer)
    train(model, optimizer, 1, doctor)
    for row in plain:
        assert row == pytest.approx(rows(doctor, "grad_rms")[1], rel=1e-3)


def test_a_scaler_may_step_an_optimizer_that_is_not_watched() -> None:
    model, other = net(), net()
    optimizer, stranger = adamw(model), adamw(other)
    scaler = torch.amp.GradScaler("cpu")
    doctor = quiet(model, optimizer, scaler=scaler)
    scaler.scale(loss_of(other, next(batches(1)))).backward()
    scaler.step(stranger)
    scaler.update()
    assert doctor.runs[0].step == 0
    doctor.close()


def test_a_scaler_that_is_watched_can_be_copied_and_pickled() -> None:
    model = net()
    optimizer = adamw(model)
    scaler = torch.amp.GradScaler("cpu")
    doctor = quiet(model, optimizer, scaler=scaler)
    for other in (copy.deepcopy(scaler), pickle.loads(pickle.dumps(scaler))):
        other.scale(loss_of(model, next(batches(1))) * math.inf).backward()
        other.step(optimizer)
        other.update()
    assert doctor.runs[0].step == 0, "the copies are not watched"
    doctor.close()


def test_a_scaler_class_that_others_wrapped_meanwhile_is_left_to_them() -> None:
    class Scaler(torch.amp.GradScaler):
        """Inherits its step."""

    model = net()
    optimizer = adamw(model)
    scaler = Scaler("cpu")
    quiet(model, optimizer, scaler=scaler).close()
    assert "step" not in vars(Scaler)
    doctor = quiet(model, optimizer, scaler=scaler)
    ours = Scaler.step
    Scaler.step = lambda self, *args: ours(self, *args)  # type: ignore[method-assign]
    theirs = Scaler.step
    doctor.close()
    assert Scaler.step is theirs
    scaler.scale(loss_of(model, next(batches(1)))).backward()
    scaler.step(optimizer)
    assert doctor.runs[0].step == 0


# Findings


def test_an_epsilon_of_zero_is_told_before_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = net(torch.float16)
    optimizer = adamw(model, foreach=False)
    doctor = quiet(model, optimizer, tmp_path, sinks=("console",))
    assert found(doctor.diagnosis) == {EPSILON: Severity.CRITICAL}
    assert told(tmp_path) == []  # until the first update it may be put right
    train(model, optimizer, 1, doctor)
    assert told(tmp_path)[0] == (0, "appeared", EPSILON)
    assert f"CRITICAL {EPSILON}" in capsys.readouterr().err
    doctor.close()


def test_a_fused_optimizer_keeps_its_epsilon() -> None:
    model = net(torch.float16)
    assert EPSILON not in found(quiet(model, adamw(model, fused=True)).diagnosis)


def quiet_layer(model: nn.Module) -> None:
    """Makes the gradients of the block vanish: what follows it hardly looks at it."""
    with torch.no_grad():
        model.norm.weight[:] = 1e-3


def test_an_underflow_is_found_at_its_third_sample_with_its_layer(tmp_path: Path) -> None:
    model = net(torch.float16)
    quiet_layer(model)
    optimizer = adamw(model, fused=True, lr=1e-4)
    doctor = quiet(model, optimizer, tmp_path)
    train(model, optimizer, 2, doctor)
    assert UNDERFLOW not in found(doctor.diagnosis)
    train(model, optimizer, 1, doctor)
    (finding,) = [f for f in doctor.diagnosis.findings if f.severity is not Severity.NOTE]
    assert (finding.rule, finding.severity, finding.steps) == (UNDERFLOW, Severity.WARN, (1, 3))
    assert "layers.0.weight" in finding.tensors
    assert [line for line in told(tmp_path) if line[2] == UNDERFLOW] == [(3, "appeared", UNDERFLOW)]
    doctor.close()


def test_a_healthy_run_is_healthy_and_nothing_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = net()
    optimizer = adamw(model)
    with optdoctor.watch(model, optimizer, out=tmp_path, interval=10) as doctor:
        losses = train(model, optimizer, 200, doctor)
    assert losses[-1] < losses[0] / 2
    assert doctor.diagnosis.verdict is Verdict.HEALTHY
    assert doctor.diagnosis.findings == ()
    assert told(tmp_path) == []
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("optdoctor  HEALTHY")


def sick_training(doctor: Doctor, model: nn.Module, optimizer: Optimizer, steps: Any) -> None:
    for i in steps:
        train(model, optimizer, 1, doctor, first=i)


@pytest.mark.parametrize("bar", [False, True], ids=["plain", "above a bar"])
def test_the_root_cause_is_told_once_on_standard_error(
    bar: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    model = net(torch.float16)
    optimizer = adamw(model, foreach=False)  # its epsilon is 0: NaN follows
    doctor = quiet(model, optimizer, sinks=("console",))
    steps = tqdm(range(30), mininterval=0, file=None) if bar else range(30)
    sick_training(doctor, model, optimizer, steps)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count(f"CRITICAL {EPSILON}") == 1
    assert said.err.count("nan-pulse") == 0, "a symptom whose cause was told is not told"
    if bar:
        lines = said.err.replace("\r", "\n").splitlines()
        assert any("30/30" in line for line in lines)
        assert not [line for line in lines if "it/s" in line and "optdoctor" in line]
    doctor.close()
    report = capsys.readouterr()
    assert report.out == ""
    assert report.err.count("SICK") == 1
    assert "nan-pulse" in report.err


def test_a_bar_that_is_alive_is_not_torn(capsys: pytest.CaptureFixture[str]) -> None:
    model = net(torch.float16)
    quiet_layer(model)
    optimizer = adamw(model, fused=True, lr=1e-4)
    doctor = quiet(model, optimizer, sinks=("console",))
    for i in tqdm(range(3), mininterval=0):
        train(model, optimizer, 1, doctor, first=i)
    doctor.close()
    lines = capsys.readouterr().err.replace("\r", "\n").splitlines()
    (line,) = [line for line in lines if f"step 3  WARN {UNDERFLOW}" in line]
    assert line.startswith("optdoctor")


# The treatment, applied, and examined again


def test_the_treatments_cure_what_they_are_said_to_cure() -> None:
    def examined(dtype: torch.dtype, eps: float) -> dict[str, Severity]:
        seed()
        model = net(dtype)
        quiet_layer(model)
        optimizer = adamw(model, fused=True, lr=1e-4, eps=eps)
        with quiet(model, optimizer) as doctor:
            train(model, optimizer, 20, doctor)
        return found(doctor.diagnosis)

    assert examined(torch.float16, 1e-8)[UNDERFLOW] is Severity.WARN
    assert UNDERFLOW not in examined(torch.float32, 1e-8)
    assert examined(torch.float16, 1e-4).get(UNDERFLOW, Severity.NOTE) is Severity.NOTE
    assert examined(torch.float16, 1e-6)[UNDERFLOW] is Severity.WARN, "1e-6 is no cure"


def test_losses_that_were_averaged_are_told_unless_a_scaler_tells_why(tmp_path: Path) -> None:
    said = []
    for scaler in (None, torch.amp.GradScaler("cpu", enabled=False)):
        model = net()
        optimizer = adamw(model)
        with quiet(model, optimizer, scaler=scaler) as doctor:
            for _ in range(2):
                doctor.log(loss=1.0)
                doctor.log(loss=3.0)
                optimizer.step()
        assert rows(doctor, "loss") == {1: 2.0, 2: 2.0}
        said.append(text.render(doctor.diagnosis, doctor.runs[0].trace))
    assert "2 updates hold several losses, averaged" in said[0]
    assert "averaged" not in said[1]


@pytest.mark.parametrize("order", ["before", "after"])
def test_the_record_says_whether_the_loop_logs_before_or_after_it_steps(
    order: str, tmp_path: Path
) -> None:
    model = net()
    optimizer = adamw(model)
    with quiet(model, optimizer, tmp_path) as doctor:
        for _ in range(3):
            if order == "before":
                doctor.log(loss=1.0)
            optimizer.step()
            if order == "after":
                doctor.log(loss=1.0)
    assert json.loads((tmp_path / "run.json").read_text())["log_order"] == order


def test_a_second_doctor_relieves_the_first_of_its_optimizer_and_of_its_folder(
    tmp_path: Path,
) -> None:
    model = net()
    optimizer = adamw(model)
    first = quiet(model, optimizer, tmp_path / "a")
    train(model, optimizer, 3, first)
    second = quiet(model, optimizer, tmp_path / "b")
    train(model, optimizer, 3, second)
    assert list(rows(first, "loss")) == [1, 2, 3]
    assert list(rows(second, "loss")) == [4, 5, 6]
    another = net()
    third = quiet(another, adamw(another), tmp_path / "b")
    assert not optimizer._optimizer_step_post_hooks, "the folder is the third's now"
    third.close()
    read = optdoctor.read(tmp_path / "b" / "earlier-1")
    assert read.series["loss"].rows == 3
    assert [event.text for event in read.events if event.kind == "gap"] == []


def test_a_record_that_was_not_closed_says_so(tmp_path: Path) -> None:
    model = net()
    optimizer = adamw(model)
    doctor = quiet(model, optimizer, tmp_path)
    train(model, optimizer, 40, doctor)
    doctor.runs[0].journal.flush()
    (note,) = [event for event in optdoctor.read(tmp_path).events if event.kind == "gap"]
    assert "not closed" in note.text
    doctor.close()
    assert [event for event in optdoctor.read(tmp_path).events if event.kind == "gap"] == []


def test_names_without_end_do_not_fill_the_disk(tmp_path: Path) -> None:
    model = net()
    optimizer = adamw(model)
    with quiet(model, optimizer, tmp_path) as doctor:
        for i in range(300):
            doctor.log(loss=1.0, **{f"name{i}": 1.0})
            optimizer.step()
    kept = [name for name in doctor.runs[0].trace.series if name.startswith("metric:")]
    assert len(kept) == MAX_METRICS
    assert sum(event.kind == "gap" for event in doctor.runs[0].trace.events) == 1
    assert len(rows(doctor, "loss")) == 300


def test_a_nan_that_stays_is_told_within_a_few_updates(tmp_path: Path) -> None:
    model = net()
    optimizer = adamw(model)
    with quiet(model, optimizer, tmp_path) as doctor:
        for step in range(1, 201):
            optimizer.step()
            doctor.log(loss=math.nan if step > 100 else 1.0)
    nan = [(what, rule, step) for step, what, rule in told(tmp_path) if rule == "nan-pulse"]
    assert [what for what, _, _ in nan] == ["appeared", "worsened"]
    assert nan[0][2] <= 102
    assert nan[1][2] <= 110


def test_weights_that_come_broken_are_known_before_the_first_update() -> None:
    model = net()
    with torch.no_grad():
        next(model.parameters()).view(-1)[:3] = math.nan
    doctor = quiet(model, adamw(model))
    assert doctor.runs[0].trace.facts["weights_nonfinite"] == 3
    whole = net()
    assert "weights_nonfinite" not in quiet(whole, adamw(whole)).runs[0].trace.facts


def test_weights_that_were_mended_before_a_resume_are_not_called_broken(tmp_path: Path) -> None:
    model = net()
    optimizer = adamw(model)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        next(model.parameters()).fill_(math.nan)
    with quiet(model, optimizer, tmp_path) as doctor:
        train(model, optimizer, 1, doctor)
    assert doctor.runs[0].trace.facts["weights_nonfinite"]
    model.load_state_dict(kept)
    with quiet(model, optimizer, tmp_path) as doctor:
        assert doctor.runs[0].trace.facts["weights_nonfinite"] == 0
