"""`OptDoctorCallback` for Lightning: `Trainer(.., callbacks=[OptDoctorCallback()])`.

One class serves `lightning.pytorch` and `pytorch_lightning`, of which the Trainers ask for a
`Callback` of their own: it inherits from that of each package that is installed.

Seen in 2.2.5 and 2.6.6: what `on_train_batch_end` gets as the loss is divided by
`accumulate_grad_batches` in automatic optimization; `global_step` counts an update that a gradient
scaler skipped; `on_before_optimizer_step` comes after unscaling and before clipping, but in manual
optimization after the user's own clipping.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from optdoctor.adapters.inert import Attendant, inert
from optdoctor.knowledge.log_names import FREE_NAMES
from optdoctor.live.doctor import start
from optdoctor.trace import Fact

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
WRITERS = {"TensorBoardLogger": "tensorboard", "WandbLogger": "wandb"}
"""{class of a logger: sink that can write into its run}."""


def _bases() -> tuple[type, ...]:
    """The Callback of each package that is installed; the second shares what takes long to load."""
    found, failures = [], []
    for package in PACKAGES:
        try:
            found.append(import_module(package).Callback)
        except Exception as error:  # a broken one must not take the other's users along
            failures.append(error)
    if not found:
        why = "neither lightning nor pytorch_lightning can be imported"
        how = "pip install 'optdoctor[lightning]', or in a clone '.[lightning]'"
        raise ImportError(f"{why}; {how}", name="lightning") from failures[0]
    return tuple(dict.fromkeys(found))


_Callback: Any = type("_Callback", _bases(), {})


class MeanLoss:
    """The mean over the micro-batches of the update being made, without waiting for it."""

    def __init__(self) -> None:
        self._total: Tensor | None = None
        self._count = 0

    def add(self, loss: Tensor) -> None:
        """Takes one."""
        self._total = loss if self._total is None else self._total + loss
        self._count += 1

    def take(self) -> Tensor | None:
        """The mean of those since the last one; None if there were none."""
        total, count = self._total, self._count
        self._total, self._count = None, 0
        return None if total is None else total / count


class OptDoctorCallback(Attendant, _Callback):
    """Puts a doctor on a Trainer of Lightning.

    Takes the keywords of `optdoctor.watch`; `out=None` stands for
    `<default_root_dir>/optdoctor-run`, and `scaler=None` for that of the Trainer's precision.
    `doctor` is None before training begins and stays readable after it.

    The loss is what `training_step` returns, the mean over the micro-batches of an update. In
    manual optimization each optimizer has a run of its own, and the loss goes to those that made an
    update; a step that returns none can tell it with `doctor.log(run=0, loss=..)`.
    """

    _ahead = 0
    """What the doctor's count of updates is ahead of the Trainer's."""
    _steps: tuple[int, ...] = ()
    """Updates attempted of each optimizer, as a checkpoint told them."""
    _treated: Mapping[str, Any] = MappingProxyType({})
    """What treatments remembered then."""

    @inert
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Starts the doctor; the optimizers are set up and, on a resume, loaded."""
        self._end()
        optimizers = [o for o in trainer.optimizers if type(o).__name__ != "_MockOptimizer"]
        if not optimizers:
            return
        options = self._options
        if trainer.fast_dev_run:  # a run that leaves nothing behind
            options = {**options, "sinks": tuple(s for s in options["sinks"] if s == "console")}
        self.doctor = start(
            pl_module,
            optimizers,
            out=self._folder(trainer),
            scaler=_scaler(trainer) if self._scaler is None else self._scaler,
            first_step=self._first(trainer, pl_module, len(optimizers)),
            facts=_facts(trainer, pl_module) | self._told,
            writers=_writers(trainer),
            batches_told="training_step",
            **options,
        )
        treated, self._treated = self._treated, {}
        if treated:
            self.doctor.load_state_dict(treated)
        self._losses = [MeanLoss() for _ in optimizers]
        self._done = [run.step for run in self.doctor.runs]
        self._seen: dict[str, Any] = {}

    @inert
    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Shows what `training_step` will be given."""
        if self.doctor is not None and self._options["save_batches"] is not None:
            takes_index = len(signature(pl_module.training_step).parameters) > 1
            for run in self.doctor.runs:
                run.given((batch, batch_idx) if takes_index else (batch,), {})

    @inert
    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Shows the loss with its graph."""
        if self.doctor is not None and self.doctor.wants_losses:
            self.doctor.see_loss(loss)

    @inert
    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Shows the gradient, unscaled and not yet clipped."""
        if self.doctor is not None and pl_module.automatic_optimization:
            self.doctor.runs[0].see_gradients()

    @inert
    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Gives the update its loss, once all of its micro-batches are seen."""
        if self.doctor is None:
            return
        if pl_module.automatic_optimization:
            run = self.doctor.runs[0]
            for _ in range(trainer.global_step + self._ahead - run.step):
                run.skip()  # `training_step` returned None under a scaler: no hook was fired
        loss = _loss(outputs, trainer, pl_module)
        place = {"epoch": _epoch(trainer, batch_idx), "batch_index": float(batch_idx)}
        updated = False
        for i, run in enumerate(self.doctor.runs):
            if loss is not None:
                self._losses[i].add(loss)
            if run.step == self._done[i]:
                continue
            self._done[i], updated = run.step, True
            mean = self._losses[i].take()
            self.doctor.log(run=i, **(place if mean is None else {"loss": mean, **place}))
        every = trainer.log_every_n_steps
        if updated and every and trainer.global_step % every == 0:
            self._tell(trainer.logged_metrics)

    @inert
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Takes the evaluation; at the sanity check nothing is watched yet."""
        losses = {n: v for n, v in trainer.callback_metrics.items() if _is_eval_loss(n)}
        self._tell({**losses, **trainer.logged_metrics})

    @inert
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Takes what was logged at the end of the last epoch."""
        self._tell(trainer.logged_metrics)

    @inert
    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """Notes the checkpoint."""
        if self.doctor is not None and trainer.state.status == "running":
            for run in self.doctor.runs:
                run.event("checkpoint", f"global_step={trainer.global_step}")

    @property
    def state_key(self) -> str:
        """Its place in the checkpoint: two doctors of one Trainer write into two folders."""
        name = type(self).__qualname__
        return name if self._out is None else f"{name}{{'out': {str(self._out)!r}}}"

    def state_dict(self) -> dict[str, Any]:
        """How far the record is, and what treatments remember: numbers and tensors only."""
        with suppress(Exception):
            if self.doctor is not None and self.failure is None:
                steps = [run.step for run in self.doctor.runs]
                told = {"ahead": self._ahead, "steps": steps}
                treated = {"treatments": self.doctor.state_dict()} if self.doctor.treatments else {}
                return {**told, **treated}
        return {}

    @inert
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Remembers where the record of the checkpoint ended."""
        self._ahead = int(state_dict["ahead"])
        self._steps = tuple(map(int, state_dict["steps"]))
        self._treated = dict(state_dict.get("treatments", {}))

    @inert
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Reports."""
        self._tell(trainer.logged_metrics)
        self._end()

    @inert
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Reports what there is of a training that raised."""
        self._end()

    @inert
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Ends what a training left early did not."""
        if stage == "fit":
            self._end()

    def __getstate__(self) -> dict[str, Any]:
        """A copy, as for another process, has no doctor, nor the module's `log` that Lightning put
        here: both are of this training."""
        left_out = ("doctor", "_seen", "_losses", "log", "log_dict")
        return {k: v for k, v in self.__dict__.items() if k not in left_out} | {"doctor": None}

    def _folder(self, trainer: Any) -> str | Path | None:
        if trainer.fast_dev_run:  # an earlier record stays where it is
            return None
        return Path(trainer.default_root_dir) / "optdoctor-run" if self._out is None else self._out

    def _first(self, trainer: Any, pl_module: Any, num_optimizers: int) -> int | None:
        """Number of the next update; None lets each optimizer's own state tell."""
        steps, self._steps = self._steps, ()
        done = int(trainer.global_step)
        if not pl_module.automatic_optimization:
            same = len(steps) == num_optimizers and len(set(steps)) == 1
            return self._first_step or (steps[0] + 1 if same else None)
        if not steps and not done:
            self._ahead = 0
        if self._first_step is not None:
            self._ahead = self._first_step - 1 - done
        return done + self._ahead + 1

    def _tell(self, metrics: Mapping[str, Any]) -> None:
        """Logs what was not logged yet: each new value of Lightning is a new tensor."""
        if self.doctor is None:
            return
        fresh = {name: v for name, v in metrics.items() if self._seen.get(name) is not v}
        self._seen |= fresh
        losses = [name for name in fresh if _is_eval_loss(name)]
        values = {f"metric:{name}": value for name, value in fresh.items() if name not in losses}
        if losses:
            values["eval_loss"] = fresh[losses[0]]
        if values:
            self.doctor.log(**values)


def _is_eval_loss(name: str) -> bool:
    return FREE_NAMES.get(name.removesuffix("_epoch")) == "eval_loss"


def _scaler(trainer: Any) -> Any:
    """The gradient scaler of the Trainer's precision; None if it has none."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return scaler if hasattr(type(scaler), "step") else None


def _loss(outputs: Any, trainer: Any, pl_module: Any) -> Tensor | None:
    """The loss of one micro-batch, as `training_step` returned it."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        return None
    divisor = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
    return loss.detach().double().reshape(()) * divisor


def _epoch(trainer: Any, batch_idx: int) -> float:
    """Epochs finished; fractional where their length is known."""
    batches = trainer.num_training_batches
    part = (batch_idx + 1) / batches if math.isfinite(batches) else 0
    return float(trainer.current_epoch + part)


def _writers(trainer: Any) -> dict[str, Any]:
    """{sink: writer} of the loggers into whose runs a sink can write."""
    found: dict[str, Any] = {}
    for logger in trainer.loggers:
        for kind in type(logger).__mro__:
            if kind.__name__ in WRITERS:
                found.setdefault(WRITERS[kind.__name__], logger.experiment)
    return found


def _facts(trainer: Any, pl_module: Any) -> dict[str, Fact]:
    facts: dict[str, Fact] = {
        "framework": "lightning",
        "step_source": "logged",
        "loss_window": 1,
        "world_size": trainer.world_size,
    }
    loader = trainer.train_dataloader
    batch_size = getattr(loader, "batch_size", None)
    if isinstance(batch_size, int):
        facts["batch_size"] = batch_size
    dtypes = {"16-mixed": "float16", "bf16-mixed": "bfloat16"}
    if trainer.precision in dtypes:
        facts["compute_dtype"] = dtypes[trainer.precision]
    for config in trainer.lr_scheduler_configs:
        facts.setdefault("schedule", type(config.scheduler).__name__)
    if not pl_module.automatic_optimization:
        return facts
    facts["accumulation_steps"] = trainer.accumulate_grad_batches
    algorithm = getattr(trainer.gradient_clip_algorithm, "value", trainer.gradient_clip_algorithm)
    clips_itself = pl_module.configure_gradient_clipping.__func__.__module__.startswith(PACKAGES)
    if clips_itself and (algorithm in (None, "norm") or not trainer.gradient_clip_val):
        facts["max_grad_norm"] = float(trainer.gradient_clip_val or 0)
    with suppress(Exception):  # refuses to count where accumulation changes with the epochs
        planned = trainer.estimated_stepping_batches
        if math.isfinite(planned) and planned > 0:
            facts["total_steps"] = int(planned)
    return facts
