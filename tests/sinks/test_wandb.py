"""Offline runs of wandb, their files read back."""

import json
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_training import batches, failures, fingerprint, loss_of, net, rows, train
from torch.optim import AdamW

import optdoctor
from optdoctor.live.doctor import Doctor, start
from optdoctor.sinks import Unwritable

wandb = pytest.importorskip("wandb")
from wandb.proto.wandb_internal_pb2 import Record  # noqa: E402

STEPS = 12
torch.set_num_threads(1)

Begin = Callable[[], Any]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """Begins an offline run; it is ended after the test."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    yield lambda: wandb.init(project="test", dir=tmp_path)
    wandb.finish()


def records(folder: Path) -> list[Any]:
    """All of a finished run; its file is complete a moment after `finish` returns."""
    for _ in range(100):
        (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
        found = list(parsed(file.read_bytes()))
        if any(kind(record) == "exit" for record in found):
            return found
        time.sleep(0.1)
    raise AssertionError("the run has no end")


def parsed(data: bytes) -> Iterator[Any]:
    """The records of a log in LevelDB's format, in blocks of 32 KiB."""
    if len(data) < 7:
        return
    assert struct.unpack("<4sHB", data[:7]) == (b":W&B", 0xBEE1, 0)
    at, whole = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:  # a header does not go over the end of a block
            at += left
            continue
        _, length, part = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if at <= len(data) and part in (1, 4):  # a full record, or the last part of one
            yield Record.FromString(whole)
            whole = b""


def kind(record: Any) -> str:
    return str(record.WhichOneof("record_type"))


def history(folder: Path) -> list[dict[str, Any]]:
    """The rows that were logged."""
    written = []
    for record in records(folder):
        if kind(record) == "history":
            row: dict[str, Any] = {}
            for item in record.history.item:
                name, *inner = item.nested_key or [item.key]
                value = json.loads(item.value_json)
                if inner:
                    row.setdefault(name, {})[inner[0]] = value
                else:
                    row[name] = value
            written.append(row)
    return written


def curve(written: list[dict[str, Any]], name: str, step: str = "optdoctor/step") -> dict[int, Any]:
    return {row[step]: row[name] for row in written if name in row}


def watched(
    out: Path | None = None, steps: int = STEPS, dtype: torch.dtype = torch.float32
) -> tuple[Doctor, Any]:
    """A training with the sink, closed."""
    model = net(dtype)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    doctor = optdoctor.watch(model, optimizer, out=out, interval=1, sinks=("wandb",))
    train(model, optimizer, steps, doctor)
    doctor.close()
    assert failures(doctor) == []
    return doctor, (model, optimizer)


def test_rows_curves_and_histograms_are_in_the_run(tmp_path: Path, begin: Begin) -> None:
    run = begin()
    doctor, (model, optimizer) = watched()
    run.finish()
    written = history(tmp_path)
    for channel in ("loss", "lr", "grad_norm_used"):
        assert curve(written, f"optdoctor/{channel}") == pytest.approx(rows(doctor, channel))
    ratios = {step: row[0] for step, row in rows(doctor, "update_ratio").items()}
    assert curve(written, "optdoctor/update_ratio/embed.weight") == pytest.approx(ratios)
    for name, parameter in model.named_parameters():
        state = {k: v.double().numpy().ravel() for k, v in optimizer.state[parameter].items()}
        v = state["exp_avg_sq"]
        quantities = {"moment1": state["exp_avg"], "log10_moment2": np.log10(v[v > 0])}
        for quantity, elements in quantities.items():
            shown = curve(written, f"optdoctor/{quantity}/{name}")
            assert list(shown) == [*range(1, STEPS + 1)]
            assert shown[STEPS]["_type"] == "histogram"
            edges = shown[STEPS]["bins"]
            # Logarithms differ in their last bit between processors and libraries.
            assert (edges[0], edges[-1]) == pytest.approx((elements.min(), elements.max()), 1e-12)
            inside = np.clip(elements, edges[0], edges[-1])
            assert shown[STEPS]["values"] == np.histogram(inside, edges)[0].tolist()


def test_curves_stand_over_our_own_step(tmp_path: Path, begin: Begin) -> None:
    run = begin()
    watched()
    run.finish()
    (metric,) = [r.metric for r in records(tmp_path) if kind(r) == "metric" and r.metric.glob_name]
    assert (metric.glob_name, metric.step_metric) == ("optdoctor/*", "optdoctor/step")


def test_findings_are_a_table_and_what_is_critical_an_alert(tmp_path: Path, begin: Begin) -> None:
    run = begin()
    model = net()
    optimizer = AdamW(model.parameters(), lr=1e-2)
    with optdoctor.watch(model, optimizer, out=None, interval=1, sinks=("wandb",)) as doctor:
        train(model, optimizer, 40, doctor)
        with torch.no_grad():
            model.head.weight.fill_(torch.nan)
        train(model, optimizer, 40, doctor)
    assert run.summary["optdoctor/verdict"] == "sick"
    run.finish()
    critical = [f for f in doctor.diagnosis.findings if f.severity == "critical"]
    assert critical
    assert failures(doctor) == []
    alerts = [r.alert for r in records(tmp_path) if kind(r) == "alert"]
    assert {a.title for a in alerts} >= {f"optdoctor: {f.rule}" for f in critical}
    assert {a.level for a in alerts} == {"ERROR"}
    assert all(f.summary for f in critical)
    (table,) = tmp_path.glob("wandb/offline-run-*/files/media/table/optdoctor/findings*.json")
    content = json.loads(table.read_text())
    told = [(row[0], row[1], row[4]) for row in content["data"]]
    assert told == [(f.severity, f.rule, f.summary) for f in doctor.diagnosis.findings]
    assert content["columns"][:2] == ["severity", "rule"]


def test_a_run_that_begins_after_the_doctor_is_found(
    tmp_path: Path, begin: Begin, capsys: Any
) -> None:
    model = net(torch.float16)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    doctor = optdoctor.watch(model, optimizer, out=None, interval=1, sinks=("wandb",))
    begin()
    train(model, optimizer, 3, doctor)
    doctor.close()
    wandb.finish()
    assert list(curve(history(tmp_path), "optdoctor/loss")) == [1, 2, 3]
    assert "no run is active" not in capsys.readouterr().err


def test_without_a_run_there_is_one_sentence_and_none_is_begun(capsys: Any) -> None:
    assert wandb.run is None
    watched()
    assert capsys.readouterr().err.count("no run is active. Call wandb.init()") == 1
    assert wandb.run is None


def test_without_the_package_it_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(Unwritable, match=r"pip install 'optdoctor\[wandb\]'"):
        watched()


def test_the_package_is_not_mistaken_for_our_own_module() -> None:
    from optdoctor.sinks import wandb as ours

    assert ours.__name__ == "optdoctor.sinks.wandb"
    assert wandb.__name__ == "wandb"
    assert hasattr(wandb, "init")


LOOPS: dict[str, tuple[int, Callable[[int, dict[str, float]], None]]] = {
    "steps from 0": (1, lambda i, row: wandb.log(row, step=i)),
    "steps from 1": (1, lambda i, row: wandb.log(row, step=i + 1)),
    "no steps": (1, lambda i, row: wandb.log(row)),
    "steps, now and then": (5, lambda i, row: wandb.log(row, step=i)),
    "no steps, now and then": (5, lambda i, row: wandb.log(row)),
    "never": (1000, lambda i, row: None),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_nothing_that_the_loop_logs_itself_is_lost(loop: str, tmp_path: Path, begin: Begin) -> None:
    run = begin()
    every, log = LOOPS[loop]
    model = net()
    optimizer = AdamW(model.parameters(), lr=1e-2)
    doctor = optdoctor.watch(model, optimizer, out=None, interval=1, sinks=("wandb",))
    logged = []
    for i, batch in enumerate(batches(20)):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        doctor.log(loss=loss)
        optimizer.step()
        if i % every == every - 1:
            log(i, {"mine": float(i)})
            logged.append(float(i))
    doctor.close()
    run.finish()
    assert failures(doctor) == []
    written = history(tmp_path)
    logged = [] if loop == "never" else logged
    assert [row["mine"] for row in written if "mine" in row] == logged
    ours, wanted = curve(written, "optdoctor/loss"), rows(doctor, "loss")
    assert {step: wanted[step] for step in ours} == pytest.approx(ours)
    if loop == "steps from 0":  # a loop's first step is wandb's own: the second row must wait
        assert list(ours) == [1, *range(3, 21)]
    elif loop == "steps, now and then":
        assert len(ours) >= 4, "what waits is not overwritten"
    else:
        assert list(ours) == [*range(1, 21)]
    for row in written:
        if "optdoctor/weight/embed.weight" in row and "optdoctor/loss" in row:
            assert row["optdoctor/loss"] == pytest.approx(wanted[row["optdoctor/step"]])


def test_of_several_optimizers_each_has_its_number_in_a_lent_run(
    tmp_path: Path, begin: Begin
) -> None:
    run = begin()
    model = net()
    several = [AdamW(model.embed.parameters()), AdamW(model.head.parameters())]
    doctor = start(
        model,
        several,
        out=None,
        overhead=0.01,
        interval=1,
        sinks=(),
        treat=(),
        facts={},
        writers={"wandb": run},
    )
    train(model, several[0], 2, doctor)
    doctor.close()
    run.finish()
    written = history(tmp_path)
    assert list(curve(written, "optdoctor/0/moment1/embed.weight", "optdoctor/0/step")) == [1, 2]
    assert not any("optdoctor/1/lr" in row for row in written)
    assert failures(doctor) == []


def test_watching_with_it_changes_no_bit(begin: Begin) -> None:
    begin()
    _, (model, optimizer) = watched()
    watched_print = fingerprint(model, optimizer)
    plain = net()
    other = AdamW(plain.parameters(), lr=1e-2)
    train(plain, other, STEPS)
    assert watched_print == fingerprint(plain, other)


def test_a_run_that_breaks_ends_the_sink_and_not_the_training(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, calls = begin(), []

    def broken(*args: Any, **kwargs: Any) -> None:
        calls.append(1)
        raise OSError("no connection")

    monkeypatch.setattr(type(run), "log", broken)
    model = net()
    optimizer = AdamW(model.parameters(), lr=1e-2)
    doctor = optdoctor.watch(model, optimizer, out=None, interval=1, sinks=("wandb",))
    train(model, optimizer, STEPS, doctor)
    doctor.close()
    assert len(calls) == 1
    (told,) = failures(doctor)
    assert told.startswith("sink Wandb failed, OSError: no connection")
    assert len(rows(doctor, "update_rms")) == STEPS


@pytest.mark.slow
def test_a_trainer_of_hugging_face_with_its_own_callback_shows_both(
    tmp_path: Path, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    from optdoctor.adapters.huggingface import OptDoctorCallback

    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    wandb.teardown()  # where to write is asked once in a process
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=11,
            n_positions=8,
            n_embd=8,
            n_layer=1,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    words = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 64
    callback = OptDoctorCallback(sinks=("wandb",), interval=1)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        logging_steps=4,
        report_to=["wandb"],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    transformers.Trainer(model, arguments, train_dataset=words, callbacks=[callback]).train()
    wandb.finish()
    assert callback.doctor is not None
    assert failures(callback.doctor) == []
    written = history(tmp_path)
    assert curve(written, "optdoctor/loss") == pytest.approx(rows(callback.doctor, "loss"))
    assert list(curve(written, "train/loss", "train/global_step")) == [4, 8, 12]
