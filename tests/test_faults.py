"""Whatever breaks inside the doctor: the training does not notice, and one line tells it."""

import errno
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from small_training import batches, events, failures, fingerprint, loss_of, net, quiet, rows, train
from torch import nn
from torch.optim import AdamW

import optdoctor
from optdoctor import readers
from optdoctor.cli import main
from optdoctor.findings import Diagnosis, Evidence, Finding, Notice, Severity, Status, Verdict
from optdoctor.live import incoming as live_incoming
from optdoctor.live import run as live_run
from optdoctor.live.collector import Collector
from optdoctor.live.doctor import Doctor
from optdoctor.live.examiner import Examiner
from optdoctor.live.journal import Journal
from optdoctor.live.schedule import GROWTH, Schedule
from optdoctor.reading.reader import Reader
from optdoctor.report import text
from optdoctor.rules import RULES
from optdoctor.sinks import Sink
from optdoctor.sinks.record import RecordWriter
from optdoctor.trace import Trace

STEPS = 40
DISK_FULL = OSError(errno.ENOSPC, "No space left on device")
Patch = pytest.MonkeyPatch


def breaks(error: BaseException, after: int = 0) -> Callable[..., Any]:
    """A function that raises from its call number `after` + 1 on."""
    calls: list[int] = []

    def broken(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) > after:
            raise error
        return None

    return broken


def breaks_later(owner: type, name: str, error: BaseException, after: int) -> Callable[..., Any]:
    """The real method of a class, which raises from its call number `after` + 1 on."""
    real, calls = getattr(owner, name), []

    def broken(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) > after:
            raise error
        return real(*args, **kwargs)

    return broken


def trained(doctor_of: Callable[..., Doctor] | None) -> tuple[dict[str, Any], Doctor | None]:
    model = net()
    optimizer = AdamW(model.parameters(), lr=1e-2)
    doctor = None if doctor_of is None else doctor_of(model, optimizer)
    train(model, optimizer, STEPS, doctor)
    if doctor is not None:
        doctor.close()
    return fingerprint(model, optimizer), doctor


def survives(out: Path | None = None, **options: Any) -> Doctor:
    """The training with a broken doctor is bit-identical to the one without."""
    watched, doctor = trained(lambda model, optimizer: quiet(model, optimizer, out, **options))
    plain, _ = trained(None)
    assert {name for name in plain if plain[name] != watched[name]} == set()
    assert doctor is not None
    return doctor


def told_once(doctor: Doctor, *words: str) -> None:
    """Exactly one line of the report, and of its short form, tells what broke."""
    (run,) = doctor.runs
    (event,) = [event for event in run.trace.events if event.kind == "doctor-failed"]
    assert "Traceback" in event.text or "record" in words
    report = re.sub(r"\n {15}", " ", text.render(run.diagnosis, run.trace))  # folded lines
    (line,) = [line for line in report.splitlines() if line.startswith("doctor ")]
    short = text.one_line(run.diagnosis, run.trace)
    assert "\n" not in short
    assert short.count("stepped back") == 1
    for word in words:
        assert word in line
        assert word in short


# Rules


@pytest.mark.parametrize("name", [rule.name for rule in RULES])
def test_a_rule_that_breaks_is_an_outcome(name: str, monkeypatch: Patch) -> None:
    broken = tuple(
        replace(
            rule,
            check=breaks(RuntimeError("the rule broke")),
            needs=("lr",),
            spares=(),
            limits=replace(rule.limits, rows=1),
        )
        if rule.name == name
        else rule
        for rule in RULES
    )
    monkeypatch.setattr(live_run, "RULES", broken)
    doctor = survives()
    assert doctor.diagnosis.with_status(Status.CRASHED).keys() == {name}
    report = text.render(doctor.diagnosis, doctor.runs[0].trace).splitlines()
    assert len([line for line in report if "the rule broke" in line]) == 1
    assert failures(doctor) == []
    assert list(rows(doctor, "update_rms")) == [*range(1, STEPS + 1)], "everything else goes on"


def test_an_examination_that_breaks_is_told(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Examiner, "sees_news", breaks(RuntimeError("no examination")))
    doctor = survives()
    told_once(doctor, "examination", "no examination")
    assert len(rows(doctor, "loss")) == STEPS


# Sinks

NEWS = Notice(
    1,
    "appeared",
    Finding(Severity.NOTE, "1 thing made up.", (1, 1), (Evidence("loss", "it", 1, 0, "rows"),)),
)


class Sick(Sink):
    """A sink that breaks where it is told to."""

    def __init__(self, at: str, error: BaseException) -> None:
        self._at, self._error, self.calls = at, error, list[str]()

    def tell(self, notices: list[Notice]) -> None:
        self.calls.append("tell")
        if self._at == "tell":
            raise self._error

    def close(self, diagnosis: Diagnosis, trace: Trace, cost: str) -> None:
        self.calls.append("close")
        if self._at == "close":
            raise self._error


@pytest.mark.parametrize("at", ["tell", "close"])
def test_a_sink_that_breaks_is_told_nothing_more_and_closed(at: str, tmp_path: Path) -> None:
    sink = Sick(at, RuntimeError("no ink"))

    def watched(model: nn.Module, optimizer: Any) -> Doctor:
        doctor = quiet(model, optimizer, tmp_path)
        doctor.runs[0]._outlets.sinks.append(sink)
        run = doctor.runs[0]
        run._examiner.examine = lambda trace, step: [NEWS]  # type: ignore[method-assign]
        run._examine()
        run._examine()
        return doctor

    with_doctor, doctor = trained(watched)
    assert doctor is not None
    assert with_doctor == trained(None)[0]
    told_once(doctor, "sink Sick", "no ink")
    tells = [call for call in sink.calls if call == "tell"]
    assert (len(tells) == 1) is (at == "tell")
    assert sink.calls[-1] == "close"
    assert sink.calls.count("close") == 1
    recorded = [e.text for e in optdoctor.read(tmp_path).events if e.kind == "doctor-failed"]
    assert recorded == failures(doctor), "the record tells it too"


def test_a_sink_that_breaks_does_not_silence_the_others(capsys: Any) -> None:
    def watched(model: nn.Module, optimizer: Any) -> Doctor:
        doctor = quiet(model, optimizer, sinks=("console",))
        doctor.runs[0]._outlets.sinks.insert(0, Sick("close", RuntimeError("no ink")))
        return doctor

    trained(watched)
    assert capsys.readouterr().err.startswith("optdoctor  HEALTHY")


def test_a_console_that_broke_once_still_prints_the_report(monkeypatch: Patch, capsys: Any) -> None:
    def watched(model: nn.Module, optimizer: Any) -> Doctor:
        doctor = quiet(model, optimizer, sinks=("console",))
        monkeypatch.setattr(
            doctor.runs[0]._outlets.sinks[0], "tell", breaks(RuntimeError("no ink"))
        )
        doctor.runs[0]._examiner.examine = lambda trace, step: [NEWS]  # type: ignore[method-assign]
        doctor.runs[0]._examine()
        return doctor

    trained(watched)
    assert "stepped back" in " ".join(capsys.readouterr().err.split())


# Collector and schedule


@pytest.mark.parametrize("name", ["before", "after", "rate"])
@pytest.mark.parametrize("at", [0, 7])
def test_a_collector_that_breaks_ends_sampling_only(
    name: str, at: int, monkeypatch: Patch, tmp_path: Path
) -> None:
    error = RuntimeError("no sample")
    monkeypatch.setattr(Collector, name, breaks_later(Collector, name, error, at))
    doctor = survives(tmp_path)
    told_once(doctor, "sampling failed", "RuntimeError: no sample")
    assert len(rows(doctor, "loss")) == STEPS
    assert len(rows(doctor, "update_rms")) <= at
    assert doctor.diagnosis.verdict is Verdict.UNKNOWN, "hardly any update was looked at"
    again = optdoctor.read(tmp_path)
    assert again.series["loss"].rows == STEPS
    assert [e.text for e in again.events if e.kind == "doctor-failed"] == failures(doctor)


@pytest.mark.parametrize("name", ["due", "may_spend", "alarm"])
def test_a_schedule_that_breaks_is_told(name: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(Schedule, name, breaks(ZeroDivisionError("no time")))
    if name == "alarm":
        monkeypatch.setattr(
            live_incoming, "Alarms", lambda: lambda row: [("odd", row["lr"], False)]
        )
    told_once(survives(), "ZeroDivisionError: no time")


def test_a_start_that_breaks_leaves_a_doctor_that_does_nothing(monkeypatch: Patch) -> None:
    monkeypatch.setattr(live_run, "track", breaks(RuntimeError("no tensors")))
    doctor = survives()
    told_once(doctor, "start failed", "RuntimeError: no tensors")
    assert doctor.diagnosis.verdict is Verdict.UNKNOWN
    assert rows(doctor, "loss") == {}


def test_a_doctor_that_stepped_back_counts_no_update_as_skipped(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Journal, "sample", breaks(RuntimeError("no row")))
    model = net()
    optimizer = AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu")
    doctor = quiet(model, optimizer, scaler=scaler)
    for batch in batches(5):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, batch)).backward()
        doctor.log(loss=1.0)
        scaler.step(optimizer)
        scaler.update()
    doctor.close()
    told_once(doctor, "step failed", "RuntimeError: no row")
    assert "step-skipped" not in events(doctor)
    assert rows(doctor, "loss") == {1: 1.0}, "losses of later updates are no loss of this one"


def test_a_doctor_that_steps_back_leaves_the_hooks_of_others_alone(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Journal, "sample", breaks(RuntimeError("no row")))
    model, calls = net(), []
    optimizer = AdamW(model.parameters(), lr=1e-2)
    doctor = quiet(model, optimizer)
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    train(model, optimizer, 3, doctor)
    doctor.close()
    told_once(doctor, "step failed", "RuntimeError: no row")
    assert len(calls) == 3


# Disk


@pytest.mark.parametrize(
    "name", ["rows", "sample", "events", "describe", "flush", "begin", "close"]
)
def test_a_disk_that_fills_up_ends_the_record_and_not_the_memory(
    name: str, monkeypatch: Patch, tmp_path: Path
) -> None:
    after = {"rows": 20, "sample": 20}.get(name, 0)
    monkeypatch.setattr(RecordWriter, name, breaks_later(RecordWriter, name, DISK_FULL, after))
    doctor = survives(tmp_path)
    (failure,) = failures(doctor)
    assert "record failed, OSError" in failure
    if name != "close":
        told_once(doctor, "record", "No space left on device")
    assert len(rows(doctor, "loss")) == len(rows(doctor, "update_rms")) == STEPS
    assert doctor.diagnosis.verdict is Verdict.HEALTHY


def test_what_was_written_before_the_disk_was_full_can_be_read(
    monkeypatch: Patch, tmp_path: Path
) -> None:
    monkeypatch.setattr(RecordWriter, "rows", breaks_later(RecordWriter, "rows", DISK_FULL, 20))
    doctor = survives(tmp_path)
    known, kept = list(rows(doctor, "loss").items()), optdoctor.read(tmp_path).series["loss"]
    assert 16 <= kept.rows <= 20, "every whole batch"
    assert list(zip(kept.steps, kept.values, strict=True)) == known[: kept.rows]


def test_a_file_that_refuses_writes_is_a_full_disk(monkeypatch: Patch, tmp_path: Path) -> None:
    doctors = []

    def watched(model: nn.Module, optimizer: Any) -> Doctor:
        doctors.append(quiet(model, optimizer, tmp_path))
        for stream in doctors[0].runs[0].journal._writer._streams.values():
            stream._writer.close()
            stream._file.close()
        return doctors[0]

    with_doctor, doctor = trained(watched)
    assert doctor is not None
    assert with_doctor == trained(None)[0]
    told_once(doctor, "record")
    assert len(rows(doctor, "loss")) == STEPS


@pytest.mark.parametrize("kind", ["a file", "beneath a file", "forbidden"])
def test_a_folder_that_cannot_be_written_costs_the_record_only(
    kind: str, monkeypatch: Patch, tmp_path: Path
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    if kind == "forbidden":  # root may write anywhere, so that permissions prove nothing
        monkeypatch.setattr(Path, "mkdir", breaks(PermissionError(errno.EACCES, "denied")))
    out = {"a file": taken, "beneath a file": taken / "run", "forbidden": tmp_path / "run"}[kind]
    doctor = survives(out)
    told_once(doctor, "record")
    assert len(rows(doctor, "loss")) == len(rows(doctor, "update_rms")) == STEPS
    assert taken.read_text() == "mine"


# What the loop logs


class Hostile:
    """No number, and rude about it."""

    def __float__(self) -> float:
        raise RuntimeError("not a number")


NONSENSE = {
    "text": "3.5",
    "bytes": b"3",
    "two elements": torch.ones(2),
    "no element": torch.ones(0),
    "complex": torch.tensor(1j),
    "without a value": torch.ones((), device="meta"),
    "list": [1.0, 2.0],
    "too large": 10**400,
    "hostile": Hostile(),
}


@pytest.mark.parametrize("kind", NONSENSE)
def test_nonsense_in_the_log_is_told_and_the_rest_is_kept(kind: str) -> None:
    def watched(model: nn.Module, optimizer: Any) -> Doctor:
        doctor = quiet(model, optimizer)
        optimizer.register_step_post_hook(lambda *_: doctor.log(accuracy=0.5, odd=NONSENSE[kind]))
        return doctor

    with_doctor, doctor = trained(watched)
    assert doctor is not None
    assert with_doctor == trained(None)[0]
    told_once(doctor, "odd is no number")
    assert len(rows(doctor, "loss")) == STEPS
    assert len(rows(doctor, "metric:accuracy")) == STEPS
    assert rows(doctor, "metric:odd") == {}


@pytest.mark.parametrize("run", [9, 1.5, "first"])
def test_a_run_that_is_none_is_told_and_ends_nothing(run: Any) -> None:
    def watched(model: nn.Module, optimizer: Any) -> Doctor:
        doctor = quiet(model, optimizer)
        optimizer.register_step_post_hook(lambda *_: doctor.log(run=run, accuracy=1.0))
        return doctor

    with_doctor, doctor = trained(watched)
    assert doctor is not None
    assert with_doctor == trained(None)[0]
    told_once(doctor, f"there is no run={run!r}")
    assert len(rows(doctor, "loss")) == STEPS


def test_nothing_in_the_log_is_nothing() -> None:
    model = net()
    optimizer = AdamW(model.parameters())
    doctor = quiet(model, optimizer)
    doctor.log(loss=1.0, eval_loss=None)
    doctor.log()
    doctor.log(**{"": 1.0})
    optimizer.step()
    doctor.close()
    assert failures(doctor) == []
    assert rows(doctor, "loss") == {1: 1.0}
    assert rows(doctor, "eval_loss") == {}


@pytest.mark.parametrize("broken", [math.nan, math.inf, torch.tensor(math.nan)])
def test_a_nan_in_the_log_is_a_loss_like_any_other(broken: Any) -> None:
    model = net()
    optimizer = AdamW(model.parameters())
    doctor = quiet(model, optimizer)
    for i in range(5):
        doctor.log(loss=broken if i == 2 else 1.0, a=broken)
        optimizer.step()
    doctor.close()
    assert failures(doctor) == []
    assert doctor.runs[0].trace.series["loss"].first_bad[2] == 3
    assert "nan-pulse" in doctor.diagnosis.with_status(Status.FOUND)


# Interrupts


@pytest.mark.parametrize("owner", [(Collector, "before"), (Collector, "after"), (Journal, "rows")])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_inside_the_doctor_ends_the_training(
    owner: tuple[type, str], kind: type[BaseException], monkeypatch: Patch
) -> None:
    monkeypatch.setattr(*owner, breaks_later(*owner, kind("now"), 3))
    model = net()
    optimizer = AdamW(model.parameters())
    doctor = quiet(model, optimizer)
    with pytest.raises(kind, match="now"):
        train(model, optimizer, STEPS, doctor)
    assert doctor.runs[0].step in (3, 4)
    assert failures(doctor) == []


# Readers


def broken_read(source: Any, log: Any) -> None:
    raise IndexError("list index out of range")


BROKEN = Reader("broken", sniff=lambda head: 1, read=broken_read)
"""A reader whose code is wrong."""


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_reader_that_breaks_is_exit_3_and_one_sentence(
    form: str, monkeypatch: Patch, tmp_path: Path
) -> None:
    log = tmp_path / "train.log"
    log.write_text("{'loss': 1.0}\n")
    monkeypatch.setattr(readers, "candidates", lambda rank, head: [BROKEN])
    result = CliRunner().invoke(main, ["analyze", str(log), "--format", form])
    assert result.exit_code == 3
    (line,) = result.stderr.strip().splitlines()
    assert "IndexError: list index out of range" in line
    assert str(log) in line
    assert "Traceback" not in result.output
    assert (result.stdout == "") is (form == "text")


@pytest.mark.parametrize("held", [True, False], ids=["held", "held by nobody"])
def test_a_training_that_dies_leaves_its_report(held: bool) -> None:
    code = (
        "import gc, torch, optdoctor\n"
        "model = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "doctor = optdoctor.watch(model, optimizer, out=None)\n"
        "doctor.log(loss=1.0)\n"
        f"{'' if held else 'del doctor; gc.collect()'}\n"
        "optimizer.step()\n"
        "raise RuntimeError('of the training')\n"
    )
    died = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert died.returncode == 1
    assert "RuntimeError: of the training" in died.stderr
    assert died.stderr.count("optdoctor  UNKNOWN") == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_leaves_the_doctor_to_its_parent(tmp_path: Path) -> None:
    code = (
        "import os, sys, torch, optdoctor\n"
        "model = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "def step():\n"
        "    doctor.log(loss=1.0)\n"
        "    model(torch.ones(1, 2)).sum().backward()\n"
        "    optimizer.step()\n"
        "doctor = optdoctor.watch(model, optimizer, out=sys.argv[1], interval=1)\n"
        "step()\n"
        "if os.fork() == 0:\n"
        "    step()\n"
        "    doctor.log(loss='nonsense')\n"
        "    assert doctor.runs[0].step == 1\n"
        "    sys.exit()\n"
        "assert os.wait()[1] == 0\n"
        "step()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("optdoctor  UNKNOWN") == 1
    record = optdoctor.read(tmp_path)
    assert [event.kind for event in record.events] == ["start"]
    assert record.series["loss"].steps.tolist() == [1, 2]
    assert record.series["update_rms"].steps.tolist() == [1, 2]


def test_losses_that_are_nan_now_and_then_are_examined_within_the_bill(
    monkeypatch: Patch,
) -> None:
    exams, real = [], Examiner.examine
    monkeypatch.setattr(
        Examiner,
        "examine",
        lambda *args: exams.append(1) or real(*args),  # type: ignore[func-returns-value]
    )
    monkeypatch.setattr(Schedule, "may_spend", lambda *_: False)
    model = net()
    optimizer = AdamW(model.parameters())
    doctor = quiet(model, optimizer, interval=10_000)
    for i in range(600):
        doctor.log(loss=math.nan if i % 2 else 1.0)
        optimizer.step()
    doctor.close()
    least = 2 * live_run.PROMPT + 2  # an alarm, its aftermath, the start and the end
    assert len(exams) <= least + math.log(600 / least, GROWTH) + 1, "one when it has grown by half"
    assert len(exams) > live_run.PROMPT
    assert events(doctor).count("alarm") == live_run.MAX_EVENTS
    assert doctor.runs[0].trace.series["loss"].bad.sum() == 300


def test_updates_that_are_skipped_without_end_are_counted_and_a_hundred_told() -> None:
    model = net()
    doctor = quiet(model, AdamW(model.parameters()))
    for _ in range(150):
        doctor.runs[0].skip()
    doctor.close()
    assert events(doctor).count("step-skipped") == live_run.MAX_EVENTS
    assert len(rows(doctor, "step_skipped")) == 150


def test_a_compiled_step_is_watched_and_not_traced(tmp_path: Path) -> None:
    """Traced, hooks and clip would be compiled again and again, and fail in the compiler."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch._dynamo.reset()

    @torch.compile(backend="eager")
    def step() -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()

    doctor = quiet(model, optimizer, tmp_path)
    for batch in batches(12):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        step()
        doctor.log(loss=loss)
    doctor.close()
    trace = doctor.runs[0].trace
    assert [event.text for event in trace.events if event.kind == "doctor-failed"] == []
    assert trace.series["grad_norm"].rows == trace.series["update_rms"].rows == 12
