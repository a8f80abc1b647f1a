"""Event files of real trainings, read back with TensorBoard's own reader."""

import errno
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_training import failures, fingerprint, net, rows, train
from torch import nn
from torch.optim import AdamW

import optdoctor
from optdoctor.errors import Told
from optdoctor.live.collector import Collector
from optdoctor.live.doctor import Doctor, start
from optdoctor.sinks import PER_TENSOR, Place, Unwritable, make
from optdoctor.sinks.tensorboard import FOLDER

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

STEPS = 12
EVERYTHING = {"scalars": 0, "histograms": 0, "tensors": 0}
torch.set_num_threads(1)


def events(folder: Path) -> Any:
    accumulator = EventAccumulator(str(folder), size_guidance=EVERYTHING)
    return accumulator.Reload()


def curve(written: Any, tag: str) -> dict[int, float]:
    return {event.step: event.value for event in written.Scalars(tag)}


def texts(written: Any, tag: str) -> str:
    found = written.Tensors(f"{tag}/text_summary")
    return "\n".join(t.decode() for e in found for t in e.tensor_proto.string_val)


def watched(out: Path | None, dtype: torch.dtype = torch.float32, **options: Any) -> Doctor:
    """A training with the sink, closed."""
    model = net(dtype)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    options = {"interval": 1, "sinks": ("tensorboard",), **options}
    doctor = optdoctor.watch(model, optimizer, out=out, **options)
    train(model, optimizer, STEPS, doctor)
    doctor.close()
    assert failures(doctor) == []
    return doctor


def must_show_the_moments(written: Any, model: nn.Module, state: Any, prefix: str) -> None:
    """The last histograms of m and log10 v are those of the optimizer's own state, exactly."""
    for name, parameter in model.named_parameters():
        m = state[parameter]["exp_avg"].double().numpy().ravel()
        v = state[parameter]["exp_avg_sq"].double().numpy().ravel()
        for tag, elements in {"moment1": m, "log10_moment2": np.log10(v[v > 0])}.items():
            event = written.Histograms(f"{prefix}/{tag}/{name}")[-1]
            assert event.step == STEPS
            shown = event.histogram_value
            edges = [shown.min, *shown.bucket_limit]
            ends = elements.min(), elements.max()
            # The logarithm of one library may differ from another's in the last place.
            assert (edges[0], edges[-1]) == pytest.approx(ends, rel=1e-14)
            edges[0], edges[-1] = ends
            assert shown.bucket == np.histogram(elements, edges)[0].tolist()
            assert shown.num == len(elements)
            width = (edges[-1] - edges[0]) / 64
            assert abs(shown.sum / shown.num - elements.mean()) <= width / 2
            assert shown.sum_squares == pytest.approx((elements**2).sum(), rel=0.1)


class Words(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Counts that go on."""

    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = (torch.arange(8) + index) % 11
        return {"input_ids": words, "labels": words}


@pytest.mark.slow
def test_a_trainer_of_hugging_face_shows_its_moments_beside_its_own_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    from optdoctor.adapters.huggingface import OptDoctorCallback

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "own"))
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    callback = OptDoctorCallback(sinks=("console", "tensorboard"), interval=1)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=STEPS,
        per_device_train_batch_size=4,
        logging_steps=4,
        report_to=["tensorboard"],
        save_strategy="no",
        eval_strategy="steps",
        eval_steps=6,
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(
        model, arguments, train_dataset=Words(), eval_dataset=Words(), callbacks=[callback]
    )
    trainer.train()
    assert callback.doctor is not None
    assert failures(callback.doctor) == []
    written = events(tmp_path / "optdoctor-run" / FOLDER)
    state = optdoctor.optimizers.innermost(trainer.optimizer).state
    must_show_the_moments(written, model, state, "optdoctor")
    for channel in ("loss", "lr", "eval_loss", "grad_norm", "grad_norm_used"):
        wanted = rows(callback.doctor, channel)
        assert wanted
        assert curve(written, f"optdoctor/{channel}") == pytest.approx(wanted, rel=1e-6)
    assert list(curve(written, "optdoctor/eval_loss")) == [6, 12]
    assert list(curve(written, "optdoctor/loss")) == [*range(1, STEPS + 1)]
    assert "12 finite losses" in texts(written, "optdoctor/report")
    assert list(curve(events(tmp_path / "own"), "train/loss")) == [4, 8, 12]


@pytest.mark.slow
@pytest.mark.parametrize("named", [(), ("tensorboard",)], ids=["not named", "named"])
def test_a_trainer_of_lightning_shows_its_moments_in_its_own_logger(
    named: tuple[str, ...], tmp_path: Path
) -> None:
    pytest.importorskip("lightning")
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import TensorBoardLogger

    from optdoctor.adapters.lightning import OptDoctorCallback

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            words = batch["input_ids"]
            loss = nn.functional.cross_entropy(self.net(words).flatten(0, 1), words.flatten())
            self.log("own_loss", loss)
            return loss

        def configure_optimizers(self) -> AdamW:
            return AdamW(self.parameters(), lr=1e-2)

    module, logger = Module(), TensorBoardLogger(str(tmp_path / "own"))
    callback = OptDoctorCallback(out=tmp_path / "run", sinks=named, interval=1)
    trainer = pl.Trainer(
        max_steps=STEPS,
        max_epochs=-1,
        accelerator="cpu",
        logger=logger,
        callbacks=[callback],
        log_every_n_steps=4,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=str(tmp_path),
    )
    trainer.fit(module, torch.utils.data.DataLoader(Words(), batch_size=4))
    assert callback.doctor is not None
    assert failures(callback.doctor) == []
    written = events(Path(logger.log_dir))
    must_show_the_moments(written, module, trainer.optimizers[0].state, "optdoctor")
    assert curve(written, "optdoctor/loss") == pytest.approx(rows(callback.doctor, "loss"))
    assert len(curve(written, "own_loss")) == 3
    assert not (tmp_path / "run" / FOLDER).exists(), "the logger's own folder is the place"


def test_a_plain_loop_shows_each_tensors_curves(tmp_path: Path) -> None:
    doctor = watched(tmp_path)
    written = events(tmp_path / FOLDER)
    (run,) = doctor.runs
    must_show_the_moments(written, run._model, run.optimizer.state, "optdoctor")
    trace = doctor.runs[0].trace
    for channel in PER_TENSOR:
        for i, tensor in enumerate(trace.tensors):
            wanted = {step: row[i] for step, row in rows(doctor, channel).items()}
            wanted = {step: value for step, value in wanted.items() if not math.isnan(value)}
            assert curve(written, f"optdoctor/{channel}/{tensor.name}") == pytest.approx(wanted)
            assert len(wanted) == STEPS
    groups = {tag.split("/")[1] for tag in written.Tags()["scalars"]}
    per_step = {"loss", "lr", "grad_norm_used", "step_time_s", "gradients_kept"}
    assert groups == {*PER_TENSOR, *per_step}


def test_a_metric_of_the_loop_is_a_curve(tmp_path: Path) -> None:
    model = net()
    optimizer = AdamW(model.parameters())
    with optdoctor.watch(model, optimizer, out=tmp_path, sinks=("tensorboard",)) as doctor:
        for step in range(3):
            doctor.log(loss=1.0, accuracy=step / 2)
            optimizer.step()
    assert curve(events(tmp_path / FOLDER), "optdoctor/metric/accuracy") == {1: 0.0, 2: 0.5, 3: 1.0}


def test_findings_are_texts_at_their_step(tmp_path: Path) -> None:
    doctor = watched(tmp_path, torch.float16)
    written = events(tmp_path / FOLDER)
    said = texts(written, "optdoctor/findings")
    for finding in doctor.diagnosis.findings:
        assert f"{finding.severity.upper()} {finding.rule}" in said
    assert "epsilon-below-precision" in said
    assert written.Tensors("optdoctor/findings/text_summary")[0].step == 0
    assert "epsilon-below-precision" in texts(written, "optdoctor/report")


def test_of_several_optimizers_each_has_its_number(tmp_path: Path) -> None:
    model = net()
    several = [AdamW(model.embed.parameters()), AdamW(model.head.parameters())]
    writer = SummaryWriter(str(tmp_path / "own"))
    doctor = start(
        model,
        several,
        out=tmp_path / "run",
        overhead=0.01,
        interval=1,
        sinks=(),
        treat=(),
        facts={},
        writers={"tensorboard": writer},
    )
    train(model, several[0], 2, doctor)
    train(model, several[1], 2, doctor)
    doctor.close()
    writer.add_scalar("mine", 1.0, 1)
    writer.close()
    assert len(list((tmp_path / "own").iterdir())) == 1, "closed, it would have begun a second file"
    written = events(tmp_path / "own")
    tags = written.Tags()["histograms"]
    assert "optdoctor/0/moment1/embed.weight" in tags
    assert "optdoctor/1/moment1/head.weight" in tags
    assert "optdoctor/1/moment1/embed.weight" not in tags
    assert curve(written, "mine") == {1: 1.0}, "a writer that was lent is left open"


def test_without_a_folder_it_is_refused_at_once() -> None:
    with pytest.raises(Unwritable, match="no folder to write in; give `out` a path"):
        watched(None)
    assert issubclass(Unwritable, Told)


def test_without_the_package_it_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(Unwritable, match=r"pip install 'optdoctor\[tensorboard\]'"):
        watched(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_knowing_the_sinks_loads_no_library_of_theirs() -> None:
    code = (
        "import sys; from optdoctor.sinks import sinks\n"
        "assert {'tensorboard', 'wandb', 'console'} <= sinks().keys()\n"
        "loaded = {'tensorboard', 'wandb', 'torch'} & sys.modules.keys()\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_making_one_writes_nothing(tmp_path: Path) -> None:
    make("tensorboard", Place(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_console_alone_costs_no_histogram(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Collector, "histograms", lambda self: pytest.fail("nobody wants them"))
    watched(None, sinks=("console",))


def test_watching_with_it_changes_no_bit(tmp_path: Path) -> None:
    prints = []
    for out in (None, tmp_path):
        model = net()
        optimizer = AdamW(model.parameters(), lr=1e-2)
        doctor = out and optdoctor.watch(
            model, optimizer, out=out, interval=1, sinks=("tensorboard",)
        )
        train(model, optimizer, STEPS, doctor)
        prints.append(fingerprint(model, optimizer))
        if doctor:
            doctor.close()
            assert failures(doctor) == []
    assert {name for name in prints[0] if prints[0][name] != prints[1].get(name)} == set()
    assert events(tmp_path / FOLDER).Tags()["histograms"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("after", [0, 1, 40, 10_000])
def test_a_full_disk_ends_the_sink_and_not_the_training(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.summary.writer.record_writer import RecordWriter

    real, calls = RecordWriter.write, []

    def full(self: Any, data: bytes) -> None:
        calls.append(1)
        if len(calls) > after:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, data)

    monkeypatch.setattr(RecordWriter, "write", full)
    model = net()
    optimizer = AdamW(model.parameters(), lr=1e-2)
    doctor = optdoctor.watch(model, optimizer, out=tmp_path, interval=1, sinks=("tensorboard",))
    train(model, optimizer, 2 * STEPS, doctor)
    doctor.close()
    plain = net()
    other = AdamW(plain.parameters(), lr=1e-2)
    train(plain, other, 2 * STEPS)
    assert fingerprint(model, optimizer) == fingerprint(plain, other)
    assert len(rows(doctor, "loss")) == len(rows(doctor, "update_rms")) == 2 * STEPS
    assert len(failures(doctor)) == (after < 10_000)
    assert all("sink TensorBoard failed, OSError" in told for told in failures(doctor))


def test_histograms_that_fail_are_told_once_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Collector, "histograms", lambda self: 1 / 0)
    model = net()
    optimizer = AdamW(model.parameters(), lr=1e-2)
    doctor = optdoctor.watch(model, optimizer, out=tmp_path, interval=1, sinks=("tensorboard",))
    train(model, optimizer, STEPS, doctor)
    doctor.close()
    (told,) = failures(doctor)
    assert told.startswith("histograms failed, ZeroDivisionError")
    assert len(rows(doctor, "update_rms")) == STEPS
    written = events(tmp_path / FOLDER)
    assert len(curve(written, "optdoctor/update_ratio/embed.weight")) == STEPS


def test_a_resumed_run_shows_an_update_made_again_once(tmp_path: Path) -> None:
    model = net()
    optimizer = AdamW(model.parameters(), lr=1e-2)
    for first in (1, 4):
        options: dict[str, Any] = {"interval": 1, "sinks": ("tensorboard",), "first_step": first}
        with optdoctor.watch(model, optimizer, out=tmp_path, **options) as doctor:
            train(model, optimizer, 5, doctor)
    written = events(tmp_path / FOLDER)
    histograms = written.Histograms("optdoctor/weight/embed.weight")
    for events_ in (written.Scalars("optdoctor/loss"), histograms):
        assert [event.step for event in events_] == [*range(1, 9)]


def test_a_new_run_sets_the_events_of_the_old_one_aside(tmp_path: Path) -> None:
    for _ in range(2):
        watched(tmp_path)
    for folder in (tmp_path, tmp_path / "earlier-1"):
        loss = events(folder / FOLDER).Scalars("optdoctor/loss")
        assert [event.step for event in loss] == [*range(1, STEPS + 1)]
