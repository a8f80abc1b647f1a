"""`OptDoctorCallback` for the Hugging Face Trainer: `Trainer(.., callbacks=[OptDoctorCallback()])`.

The loss of each update is the sum of what the Trainer's `training_step` returns for its
micro-batches: the log shows a mean over `logging_steps` updates, with NaN replaced. The gradient
norm before clipping is taken at the clip; without one it is the log's, at the steps where it
stands.
"""

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

try:
    from transformers import (
        Trainer,
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
    )
except ImportError as _error:
    _how = "pip install 'optdoctor[huggingface]', or in a clone '.[huggingface]'"
    raise ImportError(f"{_error}; {_how}", name=_error.name) from _error

from optdoctor.adapters.inert import Attendant, inert
from optdoctor.adapters.trainer_trial import check_plain, try_trainer
from optdoctor.live.candidates import Asked, candidates
from optdoctor.live.doctor import start
from optdoctor.live.micro_losses import MicroLosses, Window
from optdoctor.live.trial import checked_steps
from optdoctor.live.verdicts import Trial
from optdoctor.reading.log import number
from optdoctor.trace import Fact

FILTER = (
    "optdoctor  by step {step} a loss is not finite. The Trainer's log hides it, and\n"
    "           shows 0 if that lasts, while logging_nan_inf_filter is on; set\n"
    "           logging_nan_inf_filter=False to see it."
)
TREATMENTS = "optdoctor-treatments.pt"
"""In the folder of a checkpoint."""
NO_METRIC = ("runtime", "per_second", "total_flos", "train_loss")
AGREES = 1e-3
"""Difference, relative to the losses' size, up to which a window of them and its log agree."""
ROUNDED = 1e-4
"""Last place of a logged loss; transformers 5.0 and later log it in full."""


class OptDoctorCallback(Attendant, TrainerCallback):
    """Puts a doctor on a Trainer.

    Takes the keywords of `optdoctor.watch`; `out=None` stands for `<output_dir>/optdoctor-run`.
    `doctor` is None before training begins and stays readable after it.
    """

    _own_losses = True
    _told_filter = False
    _ahead = 0
    """What `first_step` adds to the Trainer's count."""

    @inert
    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Starts the doctor; the optimizer is prepared and, on a resume, loaded."""
        self._end()
        self._micro, self._window, self._own_losses = MicroLosses(), Window(), True
        out = self._out if self._out is not None else Path(args.output_dir or ".") / "optdoctor-run"
        first_step = self._first_step or state.global_step + 1
        self._ahead = first_step - (state.global_step + 1)
        self.doctor = start(
            kwargs["model"],
            kwargs["optimizer"],
            out=out,
            scaler=self._scaler,
            first_step=first_step,
            facts=_facts(args, state, kwargs["model"])
            | _schedule(kwargs.get("lr_scheduler"), args)
            | self._told,
            batches_told="model",
            **self._options,
        )
        self._resume(Path(args.output_dir or ".") / f"checkpoint-{state.global_step}" / TREATMENTS)
        _tap(self)

    def trial(
        self, trainer: Trainer, treatments: Asked | Iterable[Any], *, steps: int = 50
    ) -> Trial:
        """Tries treatments on a Trainer before its `train()`, or after one that was stopped.

        Each is a name, an `Intervention`, settings as {"lr": 1e-4}, or a list of these to be tried
        together. From where the model stands `steps` updates, at least 10, are made as the Trainer
        makes them, with its batches, accumulation, clip, optimizer and schedule, warm-up included;
        then model, optimizer, schedule and generators are put back to the bit, and `train()` goes
        on as if nothing had been. What only `train()` switches on, as gradient checkpointing or
        NEFTune's noise, is not there before it. No callback is told, and no record written.

        Raises:
            ValueError: no treatment has that name, too few steps, no data, a schedule that has
                ended, several processes or devices, fp16, or within a training.
        """
        asked, steps = candidates(treatments), checked_steps(steps)
        if self in _LISTENING:
            raise ValueError("a trial of a Trainer is made before or after its train(), not within")
        check_plain(trainer)

        def facts(total: int) -> Mapping[str, Fact]:
            known = _facts(trainer.args, trainer.state, trainer.model)
            schedule = _schedule(trainer.lr_scheduler, trainer.args)
            return known | {"total_steps": total} | schedule | self._told

        return try_trainer(trainer, asked, steps, facts)

    def _resume(self, path: Path) -> None:
        """Gives treatments back what they remembered at the checkpoint; no pickle is loaded."""
        if self.doctor is not None and path.is_file():
            self.doctor.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))

    @inert
    def _foresee(self, trainer: Trainer, model: Any, inputs: Any, *rest: Any, **more: Any) -> None:
        """With the labels, which the Trainer may keep from the model."""
        if self._is_of(trainer) and self.doctor is not None:
            given = ((), inputs) if isinstance(inputs, Mapping) else ((inputs,), {})
            self.doctor.runs[0].given(*given)

    @inert
    def _hear(self, trainer: Trainer, loss: Any) -> None:
        if self._is_of(trainer):
            self._micro.add(loss)

    def _is_of(self, trainer: Trainer) -> bool:
        return any(callback is self for callback in trainer.callback_handler.callbacks)

    def _looks_at(self, trainer: Trainer) -> bool:
        """Whether the graph of its next loss is looked at."""
        is_looking = self.failure is None and self.doctor is not None and self.doctor.wants_losses
        return is_looking and self._is_of(trainer)

    @inert
    def _overhear(self, loss: Any) -> None:
        if self.doctor is not None and isinstance(loss, Tensor):
            self.doctor.see_loss(loss)

    @inert
    def _break_off(self, trainer: Trainer) -> None:
        """The training raises, or is interrupted: the Trainer tells no callback of it."""
        if self._is_of(trainer):
            self._end()

    @inert
    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Gives the update its loss."""
        loss = self._micro.take()
        if loss is not None and self.doctor is not None and self._own_losses:
            self._window.add(loss)
            self.doctor.log(loss=loss)

    @inert
    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Counts an update that fired no hook: a gradient scaler left it out."""
        last = state.global_step + self._ahead
        if self.doctor is not None and self.doctor.runs[0].step <= last:
            self.doctor.runs[0].skip()

    @inert
    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Takes the gradient norm, the evaluation and, where no other is to be had, the loss."""
        if self.doctor is None or not logs:
            return
        values = {_channel(key): value for key, value in logs.items()}
        row = {n: v for n, value in values.items() if n and (v := number(value)) is not None}
        if "loss" in row:
            window, self._window = self._window, Window()
            self._compare(window, row["loss"], args, state.global_step)
            if self._own_losses:
                del row["loss"]
        if row:
            self.doctor.runs[0].log_at(state.global_step + self._ahead, row)

    @inert
    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Notes the checkpoint, and leaves in it what treatments remember."""
        if self.doctor is None:
            return
        name = f"checkpoint-{state.global_step}"
        self.doctor.runs[0].event("checkpoint", name)
        folder = Path(args.output_dir or ".") / name
        if self.doctor.treatments and state.is_world_process_zero and folder.is_dir():
            torch.save(self.doctor.state_dict(), folder / TREATMENTS)

    @inert
    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Reports."""
        self._end()

    def _end(self) -> None:
        _untap(self)
        super()._end()

    def _compare(self, window: Window, logged: float, args: TrainingArguments, step: int) -> None:
        """Tells once that the Trainer prints 0 for NaN; takes its losses where ours are others."""
        if self.doctor is None or not self._own_losses:
            return
        run, mean = self.doctor.runs[0], f"a mean over {args.logging_steps:g} updates"
        if not window.count:
            self._own_losses = False
            run.event("fact-changed", f"no training step told its loss; the log's is {mean}")
            run.learn({"loss_window": args.logging_steps})
            return
        own, size = float(window.total) / window.count, float(window.size) / window.count
        if not math.isfinite(own):
            if math.isfinite(logged) and not self._told_filter:
                self._told_filter = True
                self._say(FILTER.format(step=step))
        elif not math.isfinite(logged):
            return  # the Trainer's running sum stays NaN after one NaN; each loss seen is its own
        elif args.world_size == 1 and not abs(own - logged) <= AGREES * size + ROUNDED:
            self._own_losses = False
            said = f"the loss seen, {own:.4g}, is not the Trainer's, {logged:.4g}; from here the"
            run.event("fact-changed", f"{said} loss is the log's, {mean}")
            run.learn({"loss_window": args.logging_steps})

    def _say(self, message: str) -> None:
        if "console" in self._options["sinks"]:
            from optdoctor.sinks.console import say

            say(message)


# Callbacks whose Trainer trains; weak, because a training that raises never tells its end.
_LISTENING: "weakref.WeakSet[OptDoctorCallback]" = weakref.WeakSet()
_TRAINING_STEP = Trainer.training_step


@wraps(_TRAINING_STEP)
def _training_step(self: Trainer, *args: Any, **kwargs: Any) -> Any:
    """Tells the loss of each micro-batch to the callback of its Trainer.

    A callback has no reference to its Trainer. What `training_step` returns is what the Trainer
    adds up for its log: seen in transformers 4.46.3 and 5.24.
    """
    for callback in list(_LISTENING):
        callback._foresee(self, *args, **kwargs)
    try:
        with _overheard(self):
            loss = _inner(self, *args, **kwargs)
    except BaseException:
        for callback in list(_LISTENING):
            callback._break_off(self)
        raise
    for callback in list(_LISTENING):
        callback._hear(self, loss)
    return loss


@contextmanager
def _overheard(trainer: Trainer) -> Iterator[None]:
    """Shows the loss with its graph, which `training_step` detaches after the backward pass."""
    callbacks = [callback for callback in list(_LISTENING) if callback._looks_at(trainer)]
    accelerator = getattr(trainer, "accelerator", None)
    if not callbacks or accelerator is None or "backward" in vars(accelerator):
        yield
        return
    inner = accelerator.backward

    def backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
        for callback in callbacks:
            callback._overhear(loss)
        return inner(loss, *args, **kwargs)

    accelerator.backward = backward
    try:
        yield
    finally:
        del accelerator.backward


_inner: Callable[..., Any] = _TRAINING_STEP
_wrapped = False


def _tap(callback: OptDoctorCallback) -> None:
    """Begins to listen; the class is wrapped once, however many Trainers there are."""
    global _inner, _wrapped
    _LISTENING.add(callback)
    if not _wrapped:
        _inner, _wrapped = Trainer.training_step, True
        Trainer.training_step = _training_step  # type: ignore[method-assign]


def _untap(callback: OptDoctorCallback) -> None:
    """Ends it; the last one takes the wrapper off, unless somebody has wrapped it meanwhile."""
    global _wrapped
    _LISTENING.discard(callback)
    if not _LISTENING and Trainer.training_step is _training_step:
        Trainer.training_step = _inner  # type: ignore[method-assign]
        _wrapped = False


def _channel(key: str) -> str:
    """The channel of a key of the Trainer's log, "" for what is no measurement.

    Nor is the learning rate: the hook reads the one that the update used.
    """
    names = {"loss": "loss", "grad_norm": "grad_norm", "eval_loss": "eval_loss", "epoch": "epoch"}
    if key in names:
        return names[key]
    if key == "learning_rate" or any(key.endswith(end) for end in NO_METRIC):
        return ""
    return f"metric:{key}"


def _schedule(scheduler: Any, args: TrainingArguments) -> dict[str, Fact]:
    """Its name and updates of warm-up, from the scheduler itself: arguments say nothing of one that
    was given.

    Those of transformers are made of partial functions that are named after the argument's first
    word (seen in 4.46 and 5.24).
    """
    facts: dict[str, Fact] = {} if scheduler is None else {"schedule": type(scheduler).__name__}
    asked = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    for rule in getattr(scheduler, "lr_lambdas", ()):
        made = getattr(rule, "func", rule)
        own = str(getattr(made, "__module__", "")).startswith("transformers.")
        if own and asked.partition("_")[0] in getattr(made, "__name__", ""):
            facts["schedule"] = asked
        steps = getattr(rule, "keywords", {}).get("num_warmup_steps")
        if isinstance(steps, int):
            facts["warmup_steps"] = steps
    return facts


def _classes(model: Any) -> int | None:
    """The vocabulary that a language model's loss chooses among: the outputs of its last layer.

    A classifier's configuration tells a vocabulary as well, that of its inputs, and `num_labels`
    also where the loss is one of regression or of many labels at once: there nothing is known.
    """
    if "PreTraining" in type(model).__name__:  # another loss is added to that of the words
        return None
    outputs = None
    with suppress(Exception):  # other people's models: one that has no head may raise
        outputs = getattr(model.get_output_embeddings(), "out_features", None)
    return outputs if isinstance(outputs, int) and outputs > 1 else None


def _facts(args: TrainingArguments, state: TrainerState, model: Any) -> dict[str, Fact]:
    facts: dict[str, Fact] = {
        "framework": "huggingface",
        "step_source": "logged",
        "loss_window": 1,
        "loss_kind": "falling",
        "nan_filter": "on" if args.logging_nan_inf_filter else "off",
        "accumulation_steps": args.gradient_accumulation_steps,
        "batch_size": args.per_device_train_batch_size,
        "max_grad_norm": args.max_grad_norm,
        "world_size": args.world_size,
        "total_steps": state.max_steps,
        "num_classes": _classes(model),
        "compute_dtype": "bfloat16" if args.bf16 else "float16" if args.fp16 else None,
    }
    # A number of numpy's or torch's would not fit into the record.
    plain = {name: getattr(value, "item", lambda v=value: v)() for name, value in facts.items()}
    return {name: value for name, value in plain.items() if value is not None}
