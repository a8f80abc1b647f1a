"""A run diagnosed while it trains and read again from its own record is the same to the bit."""

import json
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from small_training import batches, failures, loss_of, net, quiet, train
from torch import nn

import optdoctor
from optdoctor.cli import main
from optdoctor.engine import LEAST_LOSSES
from optdoctor.findings import Diagnosis, Outcome, Severity, Status
from optdoctor.live import journal
from optdoctor.live.doctor import Doctor
from optdoctor.report import document
from optdoctor.store import Series
from optdoctor.trace import Recorder, Trace

SMALL = {"step_capacity": 8, "tensor_capacity": 4, "recent": 2}
Scenario = Callable[[Path], Doctor]


def healthy(out: Path) -> Doctor:
    """60 updates that are well."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    doctor = quiet(model, optimizer, out)
    train(model, optimizer, 60, doctor)
    return doctor


def float16(out: Path, **options: Any) -> Doctor:
    """Pure float16, fused: the second moment underflows, the loss is NaN."""
    model = net(torch.float16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    doctor = quiet(model, optimizer, out, **options)
    train(model, optimizer, 60, doctor)
    return doctor


def sampled_as_the_budget_allows(out: Path) -> Doctor:
    """The same, not sampled at each update, so that an alarm asks for samples."""
    return float16(out, interval=None)


def late_metrics(out: Path) -> Doctor:
    """Names that appear when rows and samples are on their way, logged after each step."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    doctor = quiet(model, optimizer, out)
    for i, batch in enumerate(batches(40)):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        late = {"accuracy": float(i), "nothing": float("nan")} if i >= 10 else {}
        doctor.log(loss=loss.detach(), **late)
        if i == 20:
            doctor.log(eval_loss=1.25, perplexity=float("inf"))
    return doctor


def late_metrics_logged_before(out: Path) -> Doctor:
    """The same, logged before each step."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    doctor = quiet(model, optimizer, out)
    for i, batch in enumerate(batches(40)):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        doctor.log(loss=loss, **({"accuracy": float(i)} if i >= 10 else {}))
        optimizer.step()
    return doctor


def skipped(out: Path, *, fused: bool = False) -> Doctor:
    """A gradient scaler leaves out the updates whose gradient is infinite."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    doctor = quiet(model, optimizer, out, scaler=scaler)
    for i, batch in enumerate(batches(40)):
        optimizer.zero_grad()
        loss = loss_of(model, batch) * (float("inf") if i in (5, 6, 20) else 1.0)
        scaler.scale(loss).backward()
        doctor.log(loss=loss.detach(), loss_scale=scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
    return doctor


def skipped_by_a_fused_optimizer(out: Path) -> Doctor:
    """The same where hooks run on skipped updates too."""
    return skipped(out, fused=True)


def resumed(out: Path) -> Doctor:
    """Goes on after 20 updates, then from 30 again after 40, the second time without moments."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with quiet(model, optimizer, out) as doctor:
        train(model, optimizer, 20, doctor)
    with quiet(model, optimizer, out) as doctor:
        train(model, optimizer, 20, doctor, first=20)
        doctor.log(eval_loss=2.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    doctor = quiet(model, optimizer, out, first_step=31)
    train(model, optimizer, 15, doctor, first=30)
    return doctor


def more_parameters(out: Path) -> Doctor:
    """A group is added after 10 updates, and rows before it had no such tensors."""
    model = net()
    frozen = list(model.head.parameters())
    for parameter in frozen:
        parameter.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    doctor = quiet(model, optimizer, out)
    train(model, optimizer, 10, doctor)
    model.extra = nn.Linear(3, 3)
    for parameter in frozen:
        parameter.requires_grad_(True)
    optimizer.add_param_group({"params": [*frozen, *model.extra.parameters()], "lr": 1e-3})
    train(model, optimizer, 30, doctor, first=10)
    return doctor


def other_dtype(out: Path) -> Doctor:
    """Weights and moments are cast in mid-run; each tensor keeps its row."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    doctor = quiet(model, optimizer, out)
    train(model, optimizer, 10, doctor)
    model.bfloat16()
    optimizer.load_state_dict(optimizer.state_dict())
    train(model, optimizer, 20, doctor, first=10)
    return doctor


def huggingface(out: Path) -> Doctor:
    """The demo's sick training: a Trainer, GPT-2, pure float16."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
    from transformers.trainer_callback import PrinterCallback

    from optdoctor.adapters.huggingface import OptDoctorCallback

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=64,
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    rows = np.random.default_rng(0).integers(0, 64, (32, 16))
    data = [{"input_ids": row, "labels": row} for row in rows]
    callback = OptDoctorCallback(out=out, sinks=())
    trainer = Trainer(
        model=GPT2LMHeadModel(config).half(),
        args=TrainingArguments(
            output_dir=str(out.parent / "trainer"),
            max_steps=40,
            per_device_train_batch_size=4,
            learning_rate=1e-3,
            eval_strategy="steps",
            eval_steps=10,
            logging_steps=2,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=data,
        eval_dataset=data[:4],
        callbacks=[callback],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    assert callback.doctor is not None, callback.failure
    return callback.doctor


SCENARIOS: list[Scenario] = [
    healthy,
    float16,
    sampled_as_the_budget_allows,
    late_metrics,
    late_metrics_logged_before,
    skipped,
    skipped_by_a_fused_optimizer,
    resumed,
    more_parameters,
    other_dtype,
    huggingface,
]
Roads = tuple[Doctor, Path]


@pytest.fixture(scope="module", params=[{}, SMALL], ids=["all rows", "thinned"])
def capacities(request: pytest.FixtureRequest) -> Iterator[dict[str, int]]:
    """What the journal of each run keeps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "Recorder", partial(Recorder, **request.param))
        yield request.param


@pytest.fixture(scope="module", params=SCENARIOS, ids=lambda scenario: scenario.__name__)
def roads(
    request: pytest.FixtureRequest,
    capacities: dict[str, int],
    tmp_path_factory: pytest.TempPathFactory,
) -> Roads:
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("run") / "optdoctor-run"
    doctor = request.param(out)
    doctor.close()
    assert failures(doctor) == []
    return doctor, out


def test_every_array_is_the_same_to_the_bit(roads: Roads) -> None:
    doctor, out = roads
    live, read = doctor.runs[0].trace, optdoctor.read(out)
    assert live.series.keys() == read.series.keys()
    for name in live.series:
        for field in fields(Series):
            one, other = (
                getattr(live.series[name], field.name),
                getattr(read.series[name], field.name),
            )
            assert (one.dtype, one.shape) == (other.dtype, other.shape), (name, field.name)
            assert one.tobytes() == other.tobytes(), (name, field.name)
    assert {"loss", "lr", "update_rms", "grad_rms"} <= live.series.keys()


def test_facts_tensors_and_events_are_the_same(roads: Roads) -> None:
    doctor, out = roads
    live, read = doctor.runs[0].trace, optdoctor.read(out)
    assert {k: repr(v) for k, v in live.facts.items()} == {
        k: repr(v) for k, v in read.facts.items()
    }
    assert live.tensors == read.tensors
    assert live.events == read.events


def test_verdict_outcomes_findings_and_causes_are_the_same(roads: Roads) -> None:
    doctor, out = roads
    assert without_crash_reasons(doctor.diagnosis) == without_crash_reasons(
        optdoctor.diagnose(optdoctor.read(out))
    )


def test_the_command_line_tells_the_same(roads: Roads) -> None:
    doctor, out = roads
    trace = doctor.runs[0].trace
    result = CliRunner().invoke(main, ["analyze", str(out), "--format", "json"])
    (read,) = json.loads(result.output)["runs"]
    (live,) = json.loads(document.render([(doctor.diagnosis, trace)], []))["runs"]
    assert (read.pop("origin"), read.pop("reader")) == (str(out), "run-record")
    assert (live.pop("origin"), live.pop("reader")) == ("live", None)
    assert read == live
    assert result.exit_code == (doctor.diagnosis.worst is Severity.CRITICAL)


def without_crash_reasons(diagnosis: Diagnosis) -> Diagnosis:
    def quiet(outcome: Outcome) -> Outcome:
        return replace(outcome, reason="") if outcome.status is Status.CRASHED else outcome

    outcomes = {name: quiet(outcome) for name, outcome in diagnosis.outcomes.items()}
    return replace(diagnosis, outcomes=outcomes, origin="")


def rows_of(trace: Trace, name: str) -> list[int]:
    return [] if name not in trace.series else trace.series[name].steps.tolist()


def test_the_scenarios_are_what_they_say(tmp_path: Path) -> None:
    traces: dict[str, Trace] = {}
    verdicts: dict[str, str] = {}
    for scenario in SCENARIOS:
        doctor = scenario(tmp_path / scenario.__name__)
        verdicts[scenario.__name__] = str(doctor.close().verdict)
        traces[scenario.__name__] = doctor.runs[0].trace
    assert verdicts["healthy"] == "healthy"
    sick = {"float16", "sampled_as_the_budget_allows", "huggingface"}
    assert {name for name in sick if verdicts[name] == "sick"} == sick
    assert rows_of(traces["late_metrics"], "metric:accuracy") == list(range(11, 41))
    assert traces["late_metrics"].series["metric:nothing"].bad.sum() == 30
    for name in ("skipped", "skipped_by_a_fused_optimizer"):
        assert rows_of(traces[name], "step_skipped") == [6, 7, 21]
    assert rows_of(traces["resumed"], "loss") == list(range(1, 46))
    assert traces["resumed"].facts["state_loaded"] == "no"
    grown = traces["more_parameters"]
    assert grown.tensors[-1].name == "extra.bias"
    assert grown.series["grad_rms"].rows == 40
    assert len(grown.series["loss"].steps) >= LEAST_LOSSES
    assert traces["other_dtype"].facts["param_dtype"] == "bfloat16"
    assert any(event.kind == "tensors-changed" for event in traces["other_dtype"].events)


def test_both_axes_are_thinned_where_capacities_are_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "Recorder", partial(Recorder, **SMALL))
    healthy(tmp_path / "run").close()
    trace = optdoctor.read(tmp_path / "run")
    assert len(trace.series["loss"].steps) <= 8 < trace.series["loss"].rows == 60
    assert len(trace.series["grad_rms"].steps) <= 6 < trace.series["grad_rms"].rows == 60
