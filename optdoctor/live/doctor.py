"""`watch`: the doctor of a training, from the first line to the report."""

import atexit
import operator
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from optdoctor import settings as settings_file
from optdoctor.channels import Axis, channel, is_channel
from optdoctor.findings import SEVERITIES, Diagnosis, Verdict
from optdoctor.live.batches import NO_FOLDER, Batches, Entry, Process, num_bytes
from optdoctor.live.candidates import Asked, Trained, candidates
from optdoctor.live.loss_graph import loss_facts
from optdoctor.live.run import Run
from optdoctor.live.scaler import beware, check_scaler, count_skips
from optdoctor.live.schedule import Schedule
from optdoctor.live.setup import scaler_facts
from optdoctor.live.told import checked
from optdoctor.live.treating import SAFE
from optdoctor.live.trial import Supply, checked_steps, try_all
from optdoctor.live.verdicts import Trial
from optdoctor.optimizers import innermost
from optdoctor.sinks import Place, make, sink_names
from optdoctor.sinks.record import make_room
from optdoctor.trace import Fact
from optdoctor.treatments import Intervention
from optdoctor.treatments import make as make_treatment

_GRAVITY = (Verdict.HEALTHY, Verdict.UNKNOWN, Verdict.SICK)

LOSSES = 3
"""Losses whose graph is looked at."""

_OPEN: "weakref.WeakSet[Doctor]" = weakref.WeakSet()


class Doctor:
    """Watches one training; each optimizer is a run of its own in `runs`.

    A context manager: leaving it closes the doctor, and lets an exception of the training pass.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        undoing: Sequence[Callable[[], None]] = (),
        *,
        model: nn.Module | None = None,
        given: Sequence[Any] = (),
    ) -> None:
        """`given`: the optimizers as the loop has them, with what is around them."""
        self.runs = tuple(runs)
        self._model, self._given = model, tuple(given)
        self.batches: Supply | None = None
        """Those that the last trial was made with and the rest behind them, also if it raised."""
        self._undoing, self._process = undoing, os.getpid()
        self._losses = LOSSES
        _OPEN.add(self)
        for run in self.runs:
            run.keeper = self  # a doctor that nobody holds lives as long as the optimizer's hooks
        close = weakref.WeakMethod(self.close)
        # A training that dies leaves its report all the same.
        self._at_exit = atexit.register(lambda: (method := close()) and method())

    @property
    def diagnosis(self) -> Diagnosis:
        """The last diagnosis, of the worst run where there are several."""

        def gravity(diagnosis: Diagnosis) -> tuple[int, int]:
            worst = diagnosis.worst
            severity = -1 if worst is None else SEVERITIES.index(worst)
            return _GRAVITY.index(diagnosis.verdict), severity

        return max((run.diagnosis for run in self.runs), key=gravity)

    def log(self, *, run: int | None = None, **values: float | Tensor) -> None:
        """Takes numbers of the training: loss, eval_loss, batch_index or any metric.

        A loss belongs to the update being made; values without one, as of an evaluation, to the
        last finished update. Several of one update, as of micro-batches, are averaged. Tensors are
        copied where they are, without waiting for them. `run` names one of several optimizers.
        """
        if self._is_paused:
            return
        with self.runs[0].logging:
            self._log(values, run)

    def _log(self, values: Mapping[str, Any], run: int | None) -> None:
        try:
            chosen = self.runs if run is None else (self.runs[operator.index(run)],)
        except (IndexError, TypeError):
            self.runs[0].refuse(f"there is no run={run!r}")
            return
        numbers = {}
        for name, value in values.items():
            number = _number(value)
            if number is not None:
                numbers[_step_channel(name)] = number
            elif value is not None:
                for one in chosen:
                    one.refuse(f"{name} is no number but a {type(value).__name__}")
        for one in chosen:
            one.log(numbers)
        if isinstance(loss := values.get("loss"), Tensor):
            self.see_loss(loss, chosen)

    @property
    def wants_losses(self) -> bool:
        """Whether the graph of the next loss is looked at."""
        return self._losses > 0 and not self._is_paused

    @property
    def _is_paused(self) -> bool:
        """Whether a trial is at work: what it does enters no record."""
        return any(run.is_paused for run in self.runs)

    def see_loss(self, loss: Tensor, runs: Sequence[Run] = ()) -> None:
        """Learns what the graph of one of the first losses tells; of all runs where none is named.

        For whoever has the loss with its graph and logs its number later."""
        if self.wants_losses and loss.grad_fn is not None:
            self._losses -= 1
            told = loss_facts(loss)
            for one in runs or self.runs:
                one.learn({k: v for k, v in told.items() if k not in one.journal.facts})

    @property
    def treatments(self) -> tuple[Intervention, ...]:
        """Those that are switched on."""
        return tuple(one for run in self.runs for one in run.treating.on)

    def treat(self, treatment: str | Intervention, *, run: int | None = None) -> None:
        """Switches a treatment on from the next update, by name or made with its arguments.

        Of several optimizers each gets one of its own; `run` names one of them.

        Raises:
            ValueError: no treatment has that name, it is switched on already, or it cannot act on
                this training: the sentence says why.
        """
        chosen = self._chosen(run)
        several = [treatment, *(deepcopy(treatment) for _ in chosen[1:])]
        for one, asked in zip(chosen, several, strict=True):
            one.treating.apply(asked, one.step)

    def undo(self, treatment: str | None = None, *, run: int | None = None) -> None:
        """Switches one off, or all: the run goes on as one that was never treated would from here.

        Raises:
            ValueError: that treatment is not switched on.
        """
        for one in self._chosen(run):
            one.treating.undo(treatment)

    def trial(
        self,
        step_fn: Callable[..., Any],
        treatments: Asked | Iterable[Asked | Sequence[Asked]],
        *,
        batches: Iterable[Any] | None = None,
        steps: int = 50,
        also: Iterable[Any] = (),
    ) -> Trial:
        """Tries treatments on this training as it stands, and puts it back to the bit.

        Between two updates of a loop `for batch in batches`:

            trial = doctor.trial(update, ["adaptive-clipping", {"lr": 1e-4}], batches=batches)
            batches = trial.batches  # those of the trial and then the rest: none is lost
            print(trial)

        Untreated and then with each candidate, `steps` updates are made on the same batches from
        the same weights, optimizer state and random numbers. Treatments that are switched on act
        in all of them. Nothing of it enters the record but one event that tells what it showed.

        Args:
            step_fn: makes one whole update of one batch, from `zero_grad` to the step of optimizer
                and schedule, and returns the loss, as a number or a tensor of one.
            treatments: each a name, an `Intervention`, settings of the optimizer's groups as
                {"lr": 1e-4}, which hold at each step of the trial whatever a schedule sets, or a
                list of these to be tried together. One that cannot act is reported with its reason.
            batches: where they come from; each step is given a copy of its own. If it has fewer
                than `steps`, all are used; pass the iterator of the epoch, not its loader, to go on
                within it. None calls `step_fn()`: where its data come from is then not put back,
                unless `also` has it, and candidates may see others.
            steps: at least 10.
            also: what else an update moves on: schedules, a GradScaler, averaged models, generators
                of random numbers, or anything with `state_dict` and `load_state_dict`.

        Put back in place are parameters, buffers, gradients, settings and modes of the model's
        modules, the optimizers with their groups and states, what is in `also`, the generators of
        torch (each device in use), numpy and Python, also after an exception or an interruption,
        which pass; `batches` of the doctor then has the batches. It takes one more copy of all of
        this in memory, and `steps` updates for each candidate and the untreated run. Counters and
        files of the loop's own are not seen. Random numbers that the batches themselves drew from
        the global generators stay drawn: a loader without workers that augments by these goes on
        with others than without a trial. In a distributed training every process makes the trial,
        and each tells of its own losses.

        What it tells is of the short term only: see `Trial`.

        Raises:
            ValueError: no treatment has that name, too few steps, no batch, a model that is not
                built yet, a doctor that is closed or at a trial.
            TypeError: `step_fn` returns no loss, or `also` holds what has no state.
        """
        asked, steps = candidates(treatments), checked_steps(steps)
        if self not in _OPEN or self._model is None:
            raise ValueError("the doctor is closed: watch the training again for a trial")
        if self._is_paused:
            raise ValueError("a trial is at work already")
        self.batches = None if batches is None else Supply(batches)
        trained = [Trained(r.optimizer, dict(r.journal.facts), r.treating.on) for r in self.runs]
        with ExitStack() as pauses:
            for run in self.runs:
                pauses.enter_context(run.paused())
            result = try_all(
                self._model,
                trained,
                step_fn,
                asked,
                supply=self.batches,
                steps=steps,
                wrappers=self._given,
                also=also,
            )
        for run in self.runs:
            run.event("treatment", result.summary)
        return result

    def state_dict(self) -> dict[str, Any]:
        """What treatments remember, for a checkpoint: plain numbers and tensors."""
        return {str(i): run.treating.state_dict() for i, run in enumerate(self.runs)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Gives it back to those that are switched on, or will be."""
        for i, run in enumerate(self.runs):
            run.treating.load_state_dict(state.get(str(i), {}))

    def _chosen(self, run: int | None) -> Sequence[Run]:
        return self.runs if run is None else (self.runs[operator.index(run)],)

    def close(self) -> Diagnosis:
        """Takes every hook away, examines for the last time and reports; twice gives the same.

        In a forked child it does nothing: the doctor is its parent's.
        """
        if os.getpid() != self._process:
            return self.diagnosis
        for undo in self._undoing:
            undo()
        _OPEN.discard(self)
        atexit.unregister(self._at_exit)
        for run in self.runs:
            run.close()
        return self.diagnosis

    def __enter__(self) -> "Doctor":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()


def watch(
    model: nn.Module,
    optimizer: Any,
    *,
    out: str | Path | None = "optdoctor-run",
    overhead: float = 0.01,
    interval: int | None = None,
    sinks: Iterable[str] = ("console",),
    treat: str | Iterable[str | Intervention] = (),
    scaler: Any = None,
    first_step: int | None = None,
    full_updates: bool = False,
    attention: bool = False,
    save_batches: str | int | None = None,
    facts: Mapping[str, Fact] = MappingProxyType({}),
) -> Doctor:
    """Watches a training from now until `close()`.

    Args:
        model: its parameters give the tensors their names.
        optimizer: any torch optimizer, a wrapper of one, or a list of them.
        out: folder of the run record; None writes nothing.
        overhead: share of training time that watching may cost; free besides are 15 us an update
            for samples, 7.5 us for examinations, a sample whenever the run has grown by half since
            the last (18 in 1,600 updates), an examination after losses that are not finite as
            often at most, and what hooks, gradients and the log cost.
        interval: sample every so many updates instead of as the budget allows.
        sinks: where findings go: "console" is standard error; "tensorboard", in `out` or a
            framework's writer, and "wandb", the active run, also get curves and histograms.
        treat: treatments to apply from the first update, by name or made with their arguments, as
            "adaptive-clipping" or `AdaptiveClipping(2.0)`; "safe" switches on those that cannot
            make a run worse, when a finding proposes them. None acts unless it is named here.
            `treat` and `undo` of the doctor switch more on and off.
        scaler: the GradScaler, so that updates it skips are counted.
        first_step: number of the next update; None follows the optimizer's state, else the record.
        full_updates: measure the update of every weight at every sample, which takes a copy of all
            weights. Else copies take an eighth of them, or 64 MiB where that is more, so that in a
            large model tensors take turns.
        attention: look at queries and keys of `scaled_dot_product_attention` at every sample too:
            how large logits get, and how few keys the softmax is spread over.
        save_batches: "100 MB", or a number of bytes: save what the model was given in an update
            whose loss or gradient turns out not finite, or whose loss stands far above the last
            ones, to `out/batches/step-000253.pt`, for `torch.load`. All files together take no
            more than that, outliers no more than half of it; processes that train together share
            it, and save a file each. Until the numbers of an update are known, one
            or two updates later, its inputs are held, as references and up to as many bytes.
            Labels are among them where the model takes them; what is changed in place meanwhile
            is saved as it is then, and marked.
        facts: what a loop knows and hooks cannot see, by the names of run channels:
            total_steps, warmup_steps, accumulation_steps, max_grad_norm, num_classes, batch_size,
            loss_kind ("falling", "reward", "adversarial", "diffusion" or "unknown"),
            losses_comparable ("yes" where loss and eval_loss are the same function of the data, or
            "no"), replicated ("yes" where all processes are to hold the same weights, or "no").
            Rules that need one are not examined without it.

    Raises:
        TypeError: `optimizer` holds no torch optimizer.
        ValueError: an unknown sink, treatment or fact, a value that a fact cannot have, an
            overhead that is no share, a treatment that cannot act on this training.
        Unwritable: a sink lacks its package or its folder.
        SettingsError: `[tool.optdoctor]` has an unknown key.
    """
    return start(
        model,
        optimizer,
        out=out,
        overhead=overhead,
        interval=interval,
        sinks=sinks,
        treat=treat,
        scaler=scaler,
        first_step=first_step,
        full_updates=full_updates,
        attention=attention,
        save_batches=save_batches,
        facts={"framework": "torch", "step_source": "logged", **checked(facts)},
    )


def start(
    model: nn.Module,
    optimizer: Any,
    *,
    out: str | Path | None,
    overhead: float,
    interval: int | None,
    sinks: Iterable[str],
    treat: str | Iterable[str | Intervention],
    scaler: Any = None,
    first_step: int | None = None,
    full_updates: bool = False,
    attention: bool = False,
    save_batches: str | int | None = None,
    facts: Mapping[str, Fact],
    writers: Mapping[str, Any] = MappingProxyType({}),
    batches_told: Entry | None = None,
) -> Doctor:
    """`watch` for a framework, with the facts that it knows.

    `writers`, {sink: writer}, are what the framework itself writes to, a SummaryWriter for
    "tensorboard" or a run for "wandb": those sinks write there too, named in `sinks` or not.
    `batches_told` names what takes the batches that the framework tells by `Run.given`; None sees
    those that the model is given.
    """
    check(overhead=overhead, interval=interval, treat=treat, save_batches=save_batches)
    check_scaler(scaler)
    given = optimizer if isinstance(optimizer, list | tuple) and optimizer else [optimizer]
    several = [innermost(one) for one in given]
    settings = settings_file.load()
    place_of_all = _absolute(out) if out is not None else None
    folder = place_of_all if _process().rank == 0 else None
    facts = _world() | scaler_facts(scaler) | dict(facts)
    names = tuple(dict.fromkeys([*sink_names(sinks), *writers])) if _process().rank == 0 else ()
    for name in names:  # what cannot be had is refused before anything is changed
        make(name, Place(folder, writer=writers.get(name)))
    _relieve(several, folder)
    parts = [str(i) for i in range(len(several))] if len(several) > 1 else []
    if folder is not None:
        with suppress(OSError):  # the record will fail too, and tell it
            make_room(folder, parts)
    runs = []
    for i, one in enumerate(several):
        place = folder / parts[i] if folder is not None and parts else folder
        prefix = f"optdoctor/{i}" if parts else "optdoctor"
        kept = _batches(save_batches, place_of_all, parts[i : i + 1], len(several), batches_told)
        runs.append(
            Run(
                model,
                one,
                out=place,
                schedule=Schedule(overhead, interval, 1 / len(several)),
                sinks=[make(n, Place(place, prefix, writers.get(n))) for n in names],
                settings=settings,
                facts=facts,
                first_step=first_step,
                full_updates=full_updates,
                attention=attention,
                batches=kept,
                beside=several,
            )
        )
        if save_batches is not None and kept is None:
            runs[-1].event("gap", NO_FOLDER)
    undoing = [beware(runs)]
    if scaler is not None:
        undoing.append(count_skips(scaler, runs))
    doctor = Doctor(runs, undoing, model=model, given=given)
    _treat(doctor, asked_for(treat))
    return doctor


def _treat(doctor: Doctor, asked: Iterable[str | Intervention]) -> None:
    try:
        for one in asked:
            if one == SAFE:
                for run in doctor.runs:
                    run.treating.prefer_safe()
                    run.treating.consider(run.diagnosis, run.step)
            else:
                doctor.treat(one)
    except BaseException:
        doctor.close()
        raise


def _relieve(optimizers: Sequence[Any], folder: Path | None) -> None:
    """Closes doctors whose optimizer or folder a new one takes over, as when a cell runs twice."""
    for doctor in list(_OPEN):
        for run in doctor.runs:
            same_folder = folder is not None and run.out is not None and _within(run.out, folder)
            if same_folder or any(run.optimizer is one for one in optimizers):
                doctor.close()
                break


def _within(path: Path, folder: Path) -> bool:
    path, folder = path.resolve(), folder.resolve()
    return folder in (path, path.parent)


def check(
    *,
    overhead: float,
    interval: int | None,
    treat: str | Iterable[str | Intervention],
    save_batches: str | int | None = None,
) -> None:
    """Refuses arguments that cannot be meant.

    Raises:
        ValueError: which one, and what is allowed.
    """
    if not 0 < overhead <= 1:
        raise ValueError(f"overhead must be a share above 0 and at most 1, not {overhead!r}")
    if interval is not None and interval < 1:
        raise ValueError(f"interval must be at least 1, not {interval!r}")
    if save_batches is not None:
        num_bytes(save_batches)
    for one in asked_for(treat):
        if one != SAFE:
            make_treatment(one)


def asked_for(treat: str | Iterable[str | Intervention]) -> tuple[str | Intervention, ...]:
    """One name, or several."""
    return (treat,) if isinstance(treat, str) else tuple(treat)


def _step_channel(name: str) -> str:
    """A name that the user logs; the vocabulary's other channels are not theirs to fill."""
    known = is_channel(name) and channel(name).axis is Axis.STEP
    return name if known else f"metric:{name or '?'}"


def _number(value: Any) -> float | Tensor | None:
    """A number, or a copy on its own device of a tensor that holds one; None for anything else."""
    if isinstance(value, str | bytes):
        return None
    with suppress(Exception):  # whatever the loop logs, it must not end the training
        if not isinstance(value, Tensor):
            return float(value)
        if value.numel() == 1 and not value.is_complex() and not value.is_meta:
            value = value.detach()
            return float(value) if value.device.type == "cpu" else value.reshape(()).clone()
    return None


def _absolute(out: str | Path) -> Path:
    """Where it lies now: the training may change the working directory."""
    with suppress(OSError):
        return Path(out).absolute()
    return Path(out)


def _world() -> dict[str, Fact]:
    """How many processes train, as far as torch knows."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return {}
    return {"world_size": distributed.get_world_size()}


def _process() -> Process:
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return Process()
    return Process(distributed.get_rank(), distributed.get_world_size())


def _batches(
    size: str | int | None, out: Path | None, part: Sequence[str], num_runs: int, told: Entry | None
) -> Batches | None:
    """Those of one run; every process saves its own, and all together keep to the size."""
    if size is None or out is None:
        return None
    process = _process()
    share = num_bytes(size) // (process.world_size * num_runs)
    prefix = "".join(f"{name}/" for name in part)
    return Batches(share, out.joinpath(*part), process, told, prefix)
