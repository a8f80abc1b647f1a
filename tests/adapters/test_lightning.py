"""The callback in real trainings of Lightning, of both packages that ship it."""

import copy
import importlib
import logging
import math
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_training import Net, batches, fingerprint, loss_of, rows, seed
from torch import Tensor, nn
from torch.utils.data import DataLoader

import optdoctor
from optdoctor.live.doctor import Doctor
from optdoctor.trace import Trace

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
pl = pytest.importorskip("lightning.pytorch")
adapter = importlib.import_module("optdoctor.adapters.lightning")
OptDoctorCallback = adapter.OptDoctorCallback

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning"),
]
torch.set_num_threads(1)
for name in ("lightning", "lightning.pytorch", "pytorch_lightning", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)


class Spy(adapter._Callback):  # type: ignore[misc, name-defined]
    """Sees what the Trainer does, independently of the doctor."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.raw: list[float] = []
        self.used: list[float] = []
        self.rates: list[float] = []

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.raw.append(norm(optimizer))

    def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
        if not trainer.fit_loop._should_accumulate():
            self.used.append(norm(trainer.optimizers[0]))


def norm(optimizer: Any) -> float:
    """Global norm of the gradients as they are, in double precision."""
    squares = [
        p.grad.double().square().sum()
        for group in optimizer.param_groups
        for p in group["params"]
        if p.grad is not None
    ]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


def module(base: Any = pl, kind: str = "automatic", **options: Any) -> Any:
    """A LightningModule of one of the packages, trained in one of several ways."""
    seed()

    class Module(base.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()
            self.seen: list[float] = []
            """Losses as they were computed, one a micro-batch."""
            self.at: dict[int, Any] = options.get("at", {})
            self.automatic_optimization = kind == "automatic"

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = loss_of(self.net, batch)
            if batch_idx in self.at:
                loss = self.at[batch_idx](loss)
                if loss is None:
                    return None
            self.seen.append(loss.item())
            self.log("train_loss", loss)
            return loss if kind == "automatic" else self.by_hand(loss, batch_idx)

        def by_hand(self, loss: Tensor, batch_idx: int) -> Any:
            optimizers = self.optimizers()
            several = optimizers if isinstance(optimizers, list) else [optimizers]
            self.manual_backward(loss)
            for i, optimizer in enumerate(several):
                if batch_idx % (i + 1) == 0:  # the second one at every other batch
                    self.clip_gradients(optimizer, 0.5, "norm")
                    optimizer.step()
                    optimizer.zero_grad()
            return {"loss": loss, "more": 1}

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            loss = loss_of(self.net, batch)
            self.log("val_loss", loss)
            self.log("val_accuracy", 0.25)

        def configure_optimizers(self) -> Any:
            make = options.get("make", lambda ps: torch.optim.AdamW(ps, lr=1e-2))
            if kind != "two optimizers":
                return make(list(self.parameters()))
            head = [p for n, p in self.named_parameters() if "head" in n]
            body = [p for n, p in self.named_parameters() if "head" not in n]
            return [make(body), make(head)]

    return Module()


@dataclass
class Run:
    """What is left of one training."""

    trainer: Any
    module: Any
    callback: Any
    spy: Spy

    @property
    def doctor(self) -> Doctor:
        assert self.callback.failure is None
        assert self.callback.doctor is not None
        return self.callback.doctor

    @property
    def trace(self) -> Trace:
        return self.doctor.runs[0].trace

    def rows(self, channel: str, run: int = 0) -> dict[int, float]:
        return rows(self.doctor, channel, run)

    def events(self, kind: str) -> list[str]:
        return [event.text for event in self.trace.events if event.kind == kind]


def train(
    out: Path,
    *,
    base: Any = pl,
    model: Any = None,
    watch: bool = True,
    callback: Any = None,
    callbacks: Any = (),
    resume: Path | None = None,
    num_batches: int = 10,
    validate: bool = False,
    alone: bool = False,
    **options: Any,
) -> Run:
    """One epoch of `num_batches` unless told otherwise; `options` are those of the Trainer."""
    model = module(base) if model is None else model
    callback = OptDoctorCallback(interval=1, sinks=()) if callback is None else callback
    spy = Spy()
    trainer = base.Trainer(
        **{
            "max_epochs": 1,
            "accelerator": "cpu",
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": str(out),
            "callbacks": callback if alone else [callback, spy, *callbacks][not watch :],
            **options,
        }
    )
    trainer.fit(model, load(num_batches), load(2) if validate else None, ckpt_path=resume)
    return Run(trainer, model, callback, spy)


def load(num_batches: int) -> DataLoader[Any]:
    return DataLoader(list(batches(num_batches)), batch_size=None)  # type: ignore[arg-type]


def close(given: dict[int, float], wanted: list[float], rel: float = 1e-6) -> bool:
    """Whether rows 1, 2, .. hold these numbers."""
    return list(given) == list(range(1, len(wanted) + 1)) and all(
        math.isclose(a, b, rel_tol=rel) for a, b in zip(given.values(), wanted, strict=True)
    )


def pairs(values: list[float], size: int = 2) -> list[float]:
    """Means over the micro-batches of each update."""
    windows = [values[i : i + size] for i in range(0, len(values), size)]
    return [sum(window) / len(window) for window in windows]


each_package = pytest.mark.parametrize("package", PACKAGES)
CLIPPED = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}


# both packages


@each_package
@pytest.mark.parametrize("in_a_list", [True, False])
def test_a_trainer_of_either_package_takes_the_callback(
    package: str, in_a_list: bool, tmp_path: Path
) -> None:
    base = importlib.import_module(package)
    callback = OptDoctorCallback(interval=1, sinks=())
    assert isinstance(callback, base.Callback)
    run = train(
        tmp_path,
        base=base,
        callback=callback,
        alone=not in_a_list,
    )
    assert close(run.rows("loss"), run.module.seen)
    assert len(run.rows("update_rms")) == 10
    assert run.trace.facts["framework"] == "lightning"
    assert exactly_read(tmp_path / "optdoctor-run", "loss") == run.rows("loss")


def exactly_read(record: Path, channel: str) -> dict[int, float]:
    series = optdoctor.read(record).series[channel]
    return dict(zip(series.steps.tolist(), series.values, strict=True))


def test_one_package_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def only(package: str) -> Any:
        if package == "pytorch_lightning":
            raise ImportError(package)
        return real(package)

    monkeypatch.setattr(adapter, "import_module", only)
    assert adapter._bases() == (pl.Callback,)


def test_no_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(package: str) -> Any:
        raise ModuleNotFoundError(package)

    monkeypatch.setattr(adapter, "import_module", none)
    with pytest.raises(ImportError, match="neither lightning nor pytorch_lightning"):
        adapter._bases()


# inert


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_fifty_steps_leave_every_bit_as_it_was(precision: str, tmp_path: Path) -> None:
    options = {**CLIPPED, "num_batches": 100, "precision": precision, "validate": True}
    plain = train(tmp_path / "plain", watch=False, **options)
    without = fingerprint(plain.module, plain.trainer.optimizers)
    watched = train(tmp_path / "watched", **options)
    with_doctor = fingerprint(watched.module, watched.trainer.optimizers)
    assert {name for name in without if without[name] != with_doctor.get(name)} == set()
    assert without.keys() == with_doctor.keys()
    assert plain.module.seen == watched.module.seen
    assert len(watched.rows("update_rms")) == 50, "a doctor that measures nothing is inert too"
    assert watched.events("doctor-failed") == []
    assert {k: v.item() for k, v in plain.trainer.callback_metrics.items()} == {
        k: v.item() for k, v in watched.trainer.callback_metrics.items()
    }


def test_nothing_stays_on_the_optimizer(tmp_path: Path) -> None:
    (optimizer,) = train(tmp_path).trainer.optimizers
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


# automatic optimization


@pytest.fixture(scope="module")
def clipped(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two epochs of 15 micro-batches, 2 an update: the last update of an epoch has only one."""
    out = tmp_path_factory.mktemp("clipped")
    options = {**CLIPPED, "num_batches": 15, "max_epochs": 2, "validate": True}
    return train(out, log_every_n_steps=4, **options)


def test_the_loss_of_an_update_is_the_mean_of_its_micro_batches(clipped: Run) -> None:
    seen = clipped.module.seen
    assert close(clipped.rows("loss"), pairs(seen[:15]) + pairs(seen[15:]))
    assert clipped.trace.facts["accumulation_steps"] == 2
    assert clipped.trace.facts["loss_window"] == 1
    assert clipped.events("gap") == []


def test_the_norm_used_is_the_one_after_clipping(clipped: Run) -> None:
    assert len(clipped.spy.used) == 16
    assert close(clipped.rows("grad_norm_used"), clipped.spy.used, 1e-6)
    assert max(clipped.spy.raw) > 0.5
    assert max(clipped.spy.used) <= 0.5 * (1 + 1e-6)
    assert clipped.trace.facts["max_grad_norm"] == 0.5


def test_the_norm_before_clipping_is_the_raw_one(clipped: Run) -> None:
    assert close(clipped.rows("grad_norm"), clipped.spy.raw)


@pytest.mark.parametrize(
    "options",
    [{}, {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}],
    ids=["no clipping", "clipping by value"],
)
def test_the_raw_norm_is_seen_where_no_norm_is_clipped(
    options: dict[str, Any], tmp_path: Path
) -> None:
    run = train(tmp_path, **options)
    assert run.trace.facts.get("max_grad_norm") == (None if options else 0)
    assert close(run.rows("grad_norm_used"), run.spy.used, 1e-6)
    assert close(run.rows("grad_norm"), run.spy.raw)


def test_an_evaluation_stands_at_the_update_it_followed(clipped: Run) -> None:
    assert list(clipped.rows("eval_loss")) == [8, 16]
    assert math.isclose(
        clipped.rows("eval_loss")[16], clipped.trainer.callback_metrics["val_loss"].item()
    )
    assert clipped.rows("metric:val_accuracy") == {8: 0.25, 16: 0.25}


def test_what_is_logged_becomes_a_metric_as_often_as_lightning_logs(clipped: Run) -> None:
    logged = clipped.rows("metric:train_loss")
    assert {4, 12} <= set(logged)
    assert logged[4] == pytest.approx(clipped.module.seen[7])
    assert [name for name in clipped.trace.series if name.startswith("metric:")] == [
        "metric:train_loss",
        "metric:val_accuracy",
    ]


def test_epoch_and_position_of_the_batch_are_told(clipped: Run) -> None:
    epochs = clipped.rows("epoch")
    assert epochs[1] == pytest.approx(2 / 15)
    assert epochs[8] == 1
    assert epochs[16] == 2
    assert [clipped.rows("batch_index")[step] for step in (1, 8, 9)] == [1, 14, 1]
    assert clipped.trace.facts["total_steps"] == 16


def test_accumulation_that_changes_with_the_epochs_is_followed(tmp_path: Path) -> None:
    schedule = pl.callbacks.GradientAccumulationScheduler({0: 1, 1: 3})
    run = train(tmp_path, callbacks=[schedule], num_batches=6, max_epochs=2)
    seen = run.module.seen
    assert close(run.rows("loss"), seen[:6] + pairs(seen[6:], 3))


def test_a_step_without_a_loss_is_an_update_without_one(tmp_path: Path) -> None:
    run = train(tmp_path, model=module(at={3: lambda loss: None}))
    assert list(run.rows("lr")) == list(range(1, 11))
    assert list(run.rows("loss")) == [1, 2, 3, 5, 6, 7, 8, 9, 10]
    assert [run.rows("loss")[step] for step in (3, 5)] == pytest.approx(run.module.seen[2:4])
    assert run.events("step-skipped") == []


def test_lbfgs_is_watched_through_its_closure(tmp_path: Path) -> None:
    def make(parameters: list[nn.Parameter]) -> Any:
        return torch.optim.LBFGS(parameters, lr=0.1, max_iter=3)

    run = train(tmp_path, model=module(make=make))
    assert list(run.rows("loss")) == list(range(1, 11))
    assert list(run.rows("update_rms")) == list(range(1, 11))


# a gradient scaler


def with_scaler(base: Any = pl) -> Any:
    """16-mixed as on a GPU, on this CPU."""
    plugins = importlib.import_module(f"{base.__name__}.plugins.precision")
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    return plugins.MixedPrecision("16-mixed", device="cpu", scaler=scaler)


def endless(loss: Tensor) -> Tensor:
    return loss * float("inf")


@each_package
def test_updates_that_a_scaler_skips_are_counted(package: str, tmp_path: Path) -> None:
    base = importlib.import_module(package)
    model = module(base, at={2: endless, 5: endless})
    run = train(
        tmp_path, base=base, model=model, plugins=[with_scaler(base)], gradient_clip_val=0.5
    )
    assert list(run.rows("step_skipped")) == [3, 6]
    assert run.events("step-skipped") == ["the update was not made"] * 2
    assert list(run.rows("lr")) == [1, 2, 4, 5, 7, 8, 9, 10]
    assert list(run.rows("loss")) == list(range(1, 11))
    assert run.rows("loss")[3] == math.inf
    assert run.trainer.global_step == run.doctor.runs[0].step == 10
    assert run.trace.facts["compute_dtype"] == "float16"
    made = {step: run.spy.used[step - 1] for step in run.rows("lr")}
    for step, used in run.rows("grad_norm_used").items():
        assert math.isclose(used, made[step], rel_tol=1e-6), "no scaled gradient is recorded"
    assert list(run.rows("grad_norm")) == list(run.rows("lr"))
    for step, raw in run.rows("grad_norm").items():
        assert math.isclose(raw, run.spy.raw[step - 1], rel_tol=1e-6)


def test_no_loss_under_a_scaler_is_an_update_that_was_not_made(tmp_path: Path) -> None:
    model = module(at={3: lambda loss: None})
    run = train(tmp_path, model=model, plugins=[with_scaler()])
    assert list(run.rows("step_skipped")) == [4]
    assert list(run.rows("loss")) == [1, 2, 3, 5, 6, 7, 8, 9, 10]
    assert run.doctor.runs[0].step == run.trainer.global_step == 10


def test_a_fused_optimizer_shows_no_scaled_gradient(tmp_path: Path) -> None:
    def make(parameters: list[nn.Parameter]) -> Any:
        return torch.optim.AdamW(parameters, lr=1e-2, fused=True)

    model = module(at={2: endless}, make=make)
    run = train(tmp_path, model=model, plugins=[with_scaler()])
    assert list(run.rows("step_skipped")) == [3]
    assert run.rows("grad_norm") == {}
    assert max(run.rows("grad_norm_used").values()) < min(run.spy.raw) * 4, "8 is the scale"


def test_a_scaler_leaves_every_bit_as_it_was(tmp_path: Path) -> None:
    def once(watch: bool) -> dict[str, Any]:
        model, scaler = module(at={2: endless, 5: endless}), with_scaler()
        options = {**CLIPPED, "plugins": [scaler], "num_batches": 30}
        run = train(tmp_path / str(watch), model=model, watch=watch, **options)
        prints = fingerprint(run.module, run.trainer.optimizers)
        return prints | {"scaler": scaler.scaler.state_dict()}

    assert once(True) == once(False)


# manual optimization


def test_manual_optimization_is_watched(tmp_path: Path) -> None:
    run = train(tmp_path, model=module(kind="manual"))
    assert close(run.rows("loss"), run.module.seen)
    assert max(run.rows("grad_norm_used").values()) <= 0.5 * (1 + 1e-6)
    assert "max_grad_norm" not in run.trace.facts
    assert max(run.rows("grad_norm").values()) > 0.5
    for step, raw in run.rows("grad_norm").items():
        assert math.isclose(run.rows("grad_norm_used")[step], min(raw, 0.5), rel_tol=1e-5)


def test_each_of_several_optimizers_has_a_run_and_the_losses_of_its_updates(tmp_path: Path) -> None:
    run = train(tmp_path, model=module(kind="two optimizers"))
    first, second = run.doctor.runs
    assert (first.step, second.step) == (10, 5)
    assert close(run.rows("loss", 0), run.module.seen)
    seen = run.module.seen
    assert close(run.rows("loss", 1), [seen[0], *pairs(seen[1:9])])
    trained = ~np.isnan(rows(run.doctor, "tensor_lr", 1)[1])
    names = [tensor.name for tensor in second.trace.tensors]
    assert {names[i] for i in np.flatnonzero(trained)} == {"net.head.weight", "net.head.bias"}
    record = tmp_path / "optdoctor-run"
    assert list(exactly_read(record / "1", "loss")) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", ["manual", "two optimizers"])
def test_manual_optimization_keeps_every_bit(kind: str, tmp_path: Path) -> None:
    def once(watch: bool) -> dict[str, Any]:
        run = train(tmp_path / str(watch), model=module(kind=kind), watch=watch, num_batches=30)
        return fingerprint(run.module, run.trainer.optimizers)

    assert once(True) == once(False)


# resume


@pytest.mark.parametrize("kind", ["automatic", "manual", "two optimizers"])
def test_a_resumed_training_goes_on_with_its_record(kind: str, tmp_path: Path) -> None:
    first = train(tmp_path, model=module(kind=kind))
    path = tmp_path / "kept.ckpt"
    first.trainer.save_checkpoint(path)
    on = train(tmp_path, model=module(kind=kind), resume=path, max_epochs=2)
    assert list(on.rows("loss")) == list(range(1, 21))
    assert [on.rows("loss")[s] for s in range(1, 11)] == list(first.rows("loss").values())
    assert on.trace.facts["resumed_from"] == 10
    assert on.trace.facts["state_loaded"] == "yes"
    record = tmp_path / "optdoctor-run"
    folder = record / "0" if kind == "two optimizers" else record
    assert exactly_read(folder, "loss") == on.rows("loss")
    assert not (record / "earlier-1").exists()
    assert [run.step for run in on.doctor.runs] == [20, 10][: len(on.doctor.runs)]


def test_an_optimizer_without_state_resumes_too(tmp_path: Path) -> None:
    def make(parameters: list[nn.Parameter]) -> Any:
        return torch.optim.SGD(parameters, lr=1e-2)

    first = train(tmp_path, model=module(kind="manual", make=make))
    first.trainer.save_checkpoint(tmp_path / "kept.ckpt")
    again = module(kind="manual", make=make)
    on = train(tmp_path, model=again, resume=tmp_path / "kept.ckpt", max_epochs=2)
    assert list(on.rows("loss")) == list(range(1, 21))


def test_a_first_step_of_ones_own_is_kept_by_the_checkpoint(tmp_path: Path) -> None:
    callback = OptDoctorCallback(interval=1, sinks=(), first_step=101)
    first = train(tmp_path, callback=callback)
    assert list(first.rows("loss")) == list(range(101, 111))
    assert first.events("step-skipped") == []
    first.trainer.save_checkpoint(tmp_path / "kept.ckpt")
    on = train(tmp_path, resume=tmp_path / "kept.ckpt", max_epochs=2)
    assert list(on.rows("loss")) == list(range(101, 121))
    assert on.events("step-skipped") == []
    train(tmp_path, callback=on.callback, num_batches=2)
    assert list(on.rows("loss")) == [1, 2], "a fresh training begins anew"


def test_the_state_in_the_checkpoint_is_small_and_plain(tmp_path: Path) -> None:
    run = train(tmp_path)
    run.trainer.save_checkpoint(tmp_path / "kept.ckpt")
    saved = torch.load(tmp_path / "kept.ckpt", weights_only=True)["callbacks"]
    assert saved["OptDoctorCallback"] == {"ahead": 0, "steps": [10]}


def test_checkpoints_made_while_training_are_noted(tmp_path: Path) -> None:
    keeps = pl.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=5)
    run = train(tmp_path, callbacks=[keeps], enable_checkpointing=True)
    assert "global_step=5" in run.events("checkpoint")
    (path,) = tmp_path.glob("*.ckpt")
    on = train(tmp_path, resume=path, max_epochs=2)
    assert on.trainer.global_step >= 20  # 2.2 makes one more after a checkpoint of a last batch
    assert list(on.rows("loss")) == list(range(1, on.trainer.global_step + 1))


def test_a_training_that_is_fitted_on_goes_on_counting(tmp_path: Path) -> None:
    run = train(tmp_path)
    run.trainer.fit_loop.max_epochs = 2
    run.trainer.fit(run.module, load(10))
    assert list(run.rows("loss")) == list(range(1, 21))


def test_another_training_with_the_same_callback_begins_anew(tmp_path: Path) -> None:
    first = train(tmp_path)
    train(tmp_path, callback=first.callback, num_batches=3)
    assert list(first.rows("loss")) == [1, 2, 3]
    assert list(exactly_read(tmp_path / "optdoctor-run" / "earlier-1", "loss")) == list(
        range(1, 11)
    )


# what is no training


def test_the_sanity_check_is_not_recorded(tmp_path: Path) -> None:
    run = train(tmp_path, validate=True, num_sanity_val_steps=2, check_val_every_n_epoch=2)
    assert run.rows("eval_loss") == {}
    assert list(run.rows("loss")) == list(range(1, 11))


def test_validating_alone_does_nothing(tmp_path: Path) -> None:
    callback = OptDoctorCallback(sinks=())
    options = {"logger": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = pl.Trainer(callbacks=[callback], default_root_dir=str(tmp_path), **options)
    trainer.validate(module(), load(2), verbose=False)
    assert callback.doctor is None
    assert callback.failure is None
    assert not (tmp_path / "optdoctor-run").exists()


def test_validating_after_a_training_changes_nothing(tmp_path: Path) -> None:
    run = train(tmp_path, validate=True)
    before = run.trace.series.keys(), run.rows("eval_loss")
    run.trainer.validate(run.module, load(4), verbose=False)
    assert (run.trace.series.keys(), run.rows("eval_loss")) == before


def test_a_fast_development_run_leaves_earlier_records_alone(tmp_path: Path) -> None:
    record = train(tmp_path).rows("loss")
    callback = OptDoctorCallback(interval=1, sinks=("tensorboard",))
    fast = train(tmp_path, callback=callback, fast_dev_run=2)
    assert list(fast.rows("loss")) == [1, 2]
    assert exactly_read(tmp_path / "optdoctor-run", "loss") == record
    assert [path.name for path in tmp_path.iterdir()] == ["optdoctor-run"]


def test_a_search_for_the_rate_is_no_training(tmp_path: Path) -> None:
    class Search(pl.callbacks.LearningRateFinder):
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            pl_module.lr = 1e-2
            super().on_fit_start(trainer, pl_module)

    search = Search(num_training_steps=5, update_attr=False)
    run = train(tmp_path, callbacks=[search], num_batches=12)
    assert run.trainer.global_step in (7, 12)  # 2.2 leaves out the batches that it searched with
    assert list(run.rows("loss")) == list(range(1, run.trainer.global_step + 1))
    assert [run.rows("loss")[1]] == pytest.approx(run.module.seen[5:6])


def test_without_an_optimizer_there_is_nothing_to_watch(tmp_path: Path) -> None:
    callback = OptDoctorCallback(sinks=())
    train(tmp_path, callback=callback, model=module(make=lambda parameters: None))
    assert callback.doctor is None
    assert callback.failure is None


# loggers


@each_package
def test_curves_and_report_go_into_the_run_of_a_tensorboard_logger(
    package: str, tmp_path: Path
) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    loggers = importlib.import_module(f"{package}.loggers")
    logger = loggers.TensorBoardLogger(str(tmp_path), name="kept", version="")
    base = importlib.import_module(package)
    run = train(tmp_path, base=base, logger=logger, log_every_n_steps=5)
    assert run.events("doctor-failed") == []
    folder = tmp_path / "kept"
    events = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    scalars = set(events.Tags()["scalars"])
    assert {"train_loss", "optdoctor/loss"} <= scalars
    points = {event.step: event.value for event in events.Scalars("optdoctor/loss")}
    assert points == pytest.approx(run.rows("loss"), rel=1e-6)
    assert any("optdoctor/report" in tag for tag in events.Tags()["tensors"])
    assert not (tmp_path / "optdoctor-run" / "tensorboard").exists()


def test_curves_and_verdict_go_into_the_run_of_a_wandb_logger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = pl.loggers.WandbLogger(save_dir=str(tmp_path), offline=True)
    run = train(tmp_path, logger=logger, log_every_n_steps=5)
    summary = dict(logger.experiment.summary)
    wandb.finish()
    assert run.events("doctor-failed") == []
    assert summary["optdoctor/verdict"] == str(run.doctor.diagnosis.verdict)
    losses = run.rows("loss")
    assert summary["optdoctor/loss"] in (losses[9], losses[10]), (
        "the last row may wait for a commit"
    )
    assert "train_loss" in summary


# failures


def raises(loss: Tensor) -> Tensor:
    raise RuntimeError("the user's own")


def test_a_training_that_raises_leaves_its_report(tmp_path: Path) -> None:
    callback = OptDoctorCallback(interval=1, sinks=())
    with pytest.raises(RuntimeError, match="the user's own"):
        train(tmp_path, callback=callback, model=module(at={4: raises}))
    assert callback.failure is None
    assert list(exactly_read(tmp_path / "optdoctor-run", "loss")) == [1, 2, 3, 4]
    assert '"closed": true' in (tmp_path / "optdoctor-run" / "run.json").read_text("utf-8")
    train(tmp_path, callback=callback, num_batches=2)
    assert list(rows(callback.doctor, "loss")) == [1, 2]


PARTS = {
    "on_train_start": "optdoctor.adapters.lightning.start",
    "on_before_optimizer_step": "optdoctor.live.run.Run.see_gradients",
    "on_train_batch_end": "optdoctor.adapters.lightning._loss",
    "on_validation_end": "optdoctor.adapters.lightning._is_eval_loss",
    "on_save_checkpoint": "optdoctor.live.run.Run.event",
    "on_train_end": "optdoctor.live.doctor.Doctor.close",
}


def broken(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("planted")


@pytest.mark.parametrize("method", PARTS)
def test_a_failing_callback_is_told_once_and_the_training_goes_on(
    method: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def once(watch: bool) -> Run:
        keeps = pl.callbacks.ModelCheckpoint(dirpath=tmp_path / str(watch), every_n_train_steps=2)
        options = {"callbacks": [keeps], "enable_checkpointing": True, "validate": True}
        return train(tmp_path / str(watch), watch=watch, num_batches=4, **options)

    plain = once(False)
    without = fingerprint(plain.module, plain.trainer.optimizers)
    monkeypatch.setattr(PARTS[method], broken)
    run = once(True)
    assert fingerprint(run.module, run.trainer.optimizers) == without
    assert isinstance(run.callback.failure, RuntimeError)
    assert capsys.readouterr().err.count("RuntimeError: planted; it is off") == 1


def test_the_callback_can_be_copied_and_pickled_after_a_training(tmp_path: Path) -> None:
    callback = train(tmp_path).callback
    assert callback.doctor is not None
    assert pickle.loads(pickle.dumps(callback)).doctor is None
    assert copy.deepcopy(callback).doctor is None


def test_two_doctors_of_one_trainer_keep_apart_in_the_checkpoint(tmp_path: Path) -> None:
    """Lightning refuses two stateful callbacks of one name."""
    keys = {OptDoctorCallback(out=tmp_path / name, sinks=()).state_key for name in "ab"}
    assert len(keys) == 2
    assert OptDoctorCallback(sinks="console").state_key == "OptDoctorCallback"
