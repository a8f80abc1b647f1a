"""The callback in real trainings of the Hugging Face Trainer: tiny models, Python's own texts."""

import copy
import io
import math
import os
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data import topics
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional as F
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    logging,
)
from transformers.trainer_callback import PrinterCallback, ProgressCallback

import optdoctor
from optdoctor.adapters.huggingface import OptDoctorCallback, _classes
from optdoctor.findings import Verdict
from optdoctor.trace import Trace

BATCH, CONTEXT, ROWS = 4, 16, 52
"""52 rows in batches of 4 are 13 micro-batches an epoch: the last window is shorter for 2 and 3."""

OLD = int(transformers.__version__.split(".")[0]) < 5

pytestmark = pytest.mark.slow
torch.set_num_threads(1)
logging.set_verbosity_error()


class Texts(Dataset[dict[str, torch.Tensor]]):
    """Windows of bytes of Python's help texts; labels are the bytes, or a class of two."""

    def __init__(self, rows: int = ROWS, first: int = 0, *, classes: bool = False) -> None:
        text = "\n".join(topics.topics.values()).encode()
        bytes_ = torch.tensor(list(text[first * CONTEXT : (first + rows) * CONTEXT]))
        self._rows, self._classes = bytes_.reshape(rows, CONTEXT), classes

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = self._rows[index]
        labels = (row.sum() % 2) if self._classes else row.clone()
        if not self._classes:
            labels[: index % CONTEXT] = -100  # micro-batches of one update differ in items
        return {"input_ids": row, "labels": labels}


def tiny(kind: Any = GPT2LMHeadModel, dropout: float = 0.1, dtype: Any = torch.float32) -> Any:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256,
        n_positions=CONTEXT,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
    )
    return kind(config).to(dtype)


@dataclass
class Spy(TrainerCallback):
    """Sees what the Trainer does, independently of the doctor."""

    rates: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    at_step: dict[int, Callable[[Any], None]] = field(default_factory=dict)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        groups = kwargs["optimizer"].param_groups
        self.rates.append(groups[0]["lr"])
        squares = [p.grad.double().square().sum() for g in groups for p in g["params"]]
        self.norms.append(float(torch.stack(squares).sum().sqrt()))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step in self.at_step:
            self.at_step[state.global_step](kwargs["model"])


@dataclass
class Run:
    """What is left of one training."""

    trainer: Any
    callback: OptDoctorCallback
    spy: Spy

    @property
    def trace(self) -> Trace:
        assert self.callback.doctor is not None, self.callback.failure
        return self.callback.doctor.runs[0].trace

    def rows(self, channel: str) -> dict[int, float]:
        series = self.trace.series.get(channel)
        return (
            {} if series is None else dict(zip(series.steps.tolist(), series.values, strict=True))
        )

    def logged(self, key: str) -> dict[int, float]:
        return {row["step"]: row[key] for row in self.trainer.state.log_history if key in row}

    def events(self, kind: str) -> list[str]:
        return [event.text for event in self.trace.events if event.kind == kind]


def train(
    out: Path,
    *,
    model: Any = None,
    watch: bool = True,
    callback: OptDoctorCallback | None = None,
    trainer: type = Trainer,
    spy: Spy | None = None,
    resume: Any = None,
    data: Any = None,
    more: dict[str, Any] | None = None,
    **changes: Any,
) -> Run:
    """One training; `changes` are training arguments, `more` are arguments of the Trainer."""
    arguments = {
        "max_steps": 10,
        "per_device_train_batch_size": BATCH,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "use_cpu": True,
        "seed": 0,
        "disable_tqdm": True,
        **changes,
    }
    os.environ.pop("ACCELERATE_MIXED_PRECISION", None)  # transformers 4.46 leaves it behind
    spy = spy or Spy()
    callback = callback or OptDoctorCallback(interval=1, sinks=())
    made = trainer(
        model=tiny() if model is None else model,
        args=TrainingArguments(output_dir=str(out), **arguments),
        train_dataset=Texts() if data is None else data,
        callbacks=[callback, spy] if watch else [spy],
        **(more or {}),
    )
    made.remove_callback(PrinterCallback)
    made.remove_callback(ProgressCallback)
    untouched = Trainer.training_step
    made.train(resume_from_checkpoint=resume)
    assert Trainer.training_step is untouched, "the tap was left behind"
    return Run(made, callback, spy)


def fingerprint(run: Run) -> dict[str, Any]:
    """Every bit that must stay: weights, optimizer state, generators, and what was logged."""
    model, optimizer = run.trainer.model, run.trainer.optimizer
    parts: dict[str, Any] = {f"weight {n}": bits(t) for n, t in model.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        parts |= {f"state {number} {key}": bits(value) for key, value in state.items()}
    parts["torch"] = bits(torch.get_rng_state())
    parts["numpy"] = repr(np.random.get_state())  # noqa: NPY002
    parts["python"] = random.getstate()
    parts["losses"] = run.logged("loss")
    parts["norms"] = run.logged("grad_norm")
    return parts


def bits(tensor: torch.Tensor) -> tuple[Any, ...]:
    flat = tensor.detach().contiguous().reshape(-1)
    return tensor.dtype, tuple(tensor.shape), flat.view(torch.uint8).numpy().tobytes()


def exactly(values: dict[int, float]) -> dict[int, str]:
    """As text, so that NaN equals NaN."""
    return {step: repr(float(value)) for step, value in values.items()}


def as_logged(losses: dict[int, float]) -> dict[int, str]:
    """As the Trainer's log shows them: transformers before 5.0 rounds to 4 decimals."""
    return exactly({step: round(v, 4) for step, v in losses.items()} if OLD else losses)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trainings")


@pytest.fixture(scope="module")
def clipped(folder: Path) -> Run:
    """50 updates of 2 micro-batches, clipped at 0.5, dropout on, 7 updates an epoch."""
    options = {"gradient_accumulation_steps": 2, "max_grad_norm": 0.5, "max_steps": 50}
    return train(folder / "clipped", **options)


@pytest.fixture(scope="module")
def evaluated(folder: Path) -> Run:
    """Accumulation 3, a log every 10 updates, an evaluation with a metric and a save every 4."""
    return train(
        folder / "evaluated",
        gradient_accumulation_steps=3,
        logging_steps=10,
        max_steps=20,
        eval_strategy="steps",
        eval_steps=4,
        save_strategy="steps",
        save_steps=4,
        more={
            "eval_dataset": Texts(8, ROWS),
            "compute_metrics": lambda predicted: {"accuracy": 0.25, "text": "no number"},
        },
        spy=Spy(at_step={5: copied}),
    )


@pytest.fixture(scope="module")
def sick(folder: Path) -> tuple[Run, str]:
    """Pure float16, a log every 3 updates, told on the console; what standard error showed."""
    said, before = io.StringIO(), sys.stderr
    sys.stderr = said
    try:
        callback = OptDoctorCallback(out=folder / "sick-record", interval=1)
        half = tiny(dtype=torch.float16)
        options = {"max_steps": 40, "logging_steps": 3, "learning_rate": 3e-3}
        options |= {"optim": "adamw_torch_fused"}  # the default since 5.0
        run = train(folder / "sick", model=half, callback=callback, **options)
    finally:
        sys.stderr = before
    return run, said.getvalue()


def copied(model: Any) -> None:
    """What users do to a model between two updates."""
    model.train()
    batch = {key: value[None] for key, value in Texts(1)[0].items()}
    with torch.random.fork_rng():
        clone = copy.deepcopy(model)
        clone(**batch).loss.backward()
        pickle.loads(pickle.dumps(model))(**batch)
        buffer = io.BytesIO()
        torch.save(model, buffer)
        torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)(**batch)
        with torch.no_grad():
            model(**batch)


# (a) inert


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bfloat16 autocast"])
def test_fifty_steps_leave_every_bit_as_it_was(bf16: bool, folder: Path, clipped: Run) -> None:
    options = {"gradient_accumulation_steps": 2, "max_grad_norm": 0.5, "max_steps": 50}
    plain = train(folder / f"plain-{bf16}", watch=False, bf16=bf16, **options)
    watched = train(folder / f"watched-{bf16}", bf16=bf16, **options)
    without, with_doctor = fingerprint(plain), fingerprint(watched)
    assert {name for name in without if without[name] != with_doctor.get(name)} == set()
    assert without.keys() == with_doctor.keys()
    assert len(watched.rows("update_rms")) == 50, "a doctor that measures nothing is inert too"
    assert watched.events("doctor-failed") == []


# (b) the loss


def test_the_loss_of_each_update_is_the_one_that_the_trainer_logs(clipped: Run) -> None:
    assert len(clipped.rows("loss")) == 50
    assert as_logged(clipped.rows("loss")) == exactly(clipped.logged("loss"))
    assert clipped.trace.facts["loss_window"] == 1
    assert clipped.events("fact-changed") == []


def test_losses_stay_one_an_update_where_the_log_shows_the_mean_of_ten(evaluated: Run) -> None:
    losses = evaluated.rows("loss")
    assert list(losses) == list(range(1, 21))
    assert len(set(losses.values())) == 20
    for step, mean in evaluated.logged("loss").items():
        window = [losses[s] for s in range(step - 9, step + 1)]
        assert math.isclose(np.mean(window), mean, rel_tol=1e-6, abs_tol=6e-5 if OLD else 0)
    assert evaluated.events("fact-changed") == []


@pytest.mark.parametrize("steps", [2, 3])
def test_a_model_that_takes_no_loss_arguments_gives_the_logged_loss_too(
    steps: int, folder: Path
) -> None:
    run = train(
        folder / f"classes-{steps}",
        model=tiny(GPT2ForSequenceClassification),
        data=Texts(classes=True),
        gradient_accumulation_steps=steps,
    )
    assert as_logged(run.rows("loss")) == exactly(run.logged("loss"))
    assert len(run.rows("loss")) == 10


class Weighted(Trainer):
    """Trains on another loss than the one that its model computes from the same labels."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        out = model(**inputs)
        loss = 0.25 * out.loss + out.logits.square().mean()
        return (loss, out) if return_outputs else loss


def summed(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    logits = outputs.logits[:, :-1].reshape(-1, 256)
    return F.cross_entropy(logits, labels[:, 1:].reshape(-1), reduction="sum") / 1000


@pytest.mark.parametrize(
    "arguments",
    [
        {"label_smoothing_factor": 0.1},
        {"more": {"compute_loss_func": summed}},
        {"trainer": Weighted},
    ],
    ids=["label smoothing", "compute_loss_func", "compute_loss"],
)
def test_the_loss_is_what_is_trained_on_and_not_what_the_model_says(
    arguments: dict[str, Any], folder: Path, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id.replace(" ", "-")
    options = {"gradient_accumulation_steps": 2, "logging_steps": 1, "max_steps": 8, **arguments}
    run = train(folder / name, **options)
    assert as_logged(run.rows("loss")) == exactly(run.logged("loss"))
    assert len(run.rows("loss")) == 8


class Boasting(Trainer):
    """Logs another loss than it trains on."""

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:
            logs["loss"] *= 2
        super().log(logs, *args, **kwargs)


class Secretive(Trainer):
    """Makes its training steps all by itself."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        model.train()
        loss = model(**inputs).loss
        loss.backward()
        return loss.detach()


def test_a_log_that_disagrees_is_believed_and_the_record_says_so(folder: Path) -> None:
    run = train(folder / "boasting", trainer=Boasting, logging_steps=2)
    logged = run.logged("loss")
    assert {s: v for s, v in run.rows("loss").items() if s > 2} == {
        step: value for step, value in logged.items() if step > 2
    }
    (text,) = run.events("fact-changed")
    assert f"{logged[2]:.4g}" in text
    assert "a mean over 2 updates" in text
    assert run.trace.facts["loss_window"] == 2


def test_a_loss_that_is_not_seen_is_taken_from_the_log(folder: Path) -> None:
    run = train(folder / "secretive", trainer=Secretive, logging_steps=2)
    assert run.rows("loss") == run.logged("loss")
    assert run.trace.facts["loss_window"] == 2
    assert len(run.events("fact-changed")) == 1


def test_a_training_within_the_training_leaves_no_loss_behind(folder: Path) -> None:
    def nested(model: Any) -> None:
        with torch.random.fork_rng():
            train(folder / "inner", max_steps=2, watch=False)
            train(folder / "inner-watched", max_steps=2)

    run = train(folder / "outer", spy=Spy(at_step={2: nested}), gradient_accumulation_steps=2)
    assert as_logged(run.rows("loss")) == exactly(run.logged("loss"))
    assert len(run.rows("loss")) == 10


def test_losses_around_zero_are_not_mistaken_for_others(folder: Path) -> None:
    class Signed(Trainer):
        """Losses of 10^5 and -10^5: their mean is small and made of rounding."""

        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            loss = model(**inputs).loss
            sign = 1 if self.state.global_step % 2 else -1
            return loss - loss.detach() + sign * (1e5 + loss.detach())

    options = {"logging_steps": 10, "gradient_accumulation_steps": 3}
    run = train(folder / "signed", trainer=Signed, **options)
    assert run.events("fact-changed") == []
    losses = [run.rows("loss")[step] for step in range(1, 11)]
    assert min(map(abs, losses)) > 1e5
    assert abs(np.mean(losses)) < 10


# (c) norms, (d) rates


def test_the_norm_before_clipping_is_the_logged_one(clipped: Run, evaluated: Run) -> None:
    """Seen at the clip, so at every update; the Trainer's is float32, and logged now and then."""
    assert clipped.rows("grad_norm") == pytest.approx(clipped.logged("grad_norm"), rel=1e-6)
    assert max(clipped.rows("grad_norm").values()) > 0.5
    assert list(evaluated.rows("grad_norm")) == list(range(1, 21))
    logged = evaluated.logged("grad_norm")
    assert list(logged) == [10, 20]
    assert {s: evaluated.rows("grad_norm")[s] for s in logged} == pytest.approx(logged, rel=1e-6)


def test_the_norm_used_is_the_one_after_clipping(clipped: Run) -> None:
    used, raw = clipped.rows("grad_norm_used"), clipped.rows("grad_norm")
    for step, by_hand in enumerate(clipped.spy.norms, 1):
        assert math.isclose(used[step], by_hand, rel_tol=1e-6)
        assert math.isclose(used[step], min(raw[step], 0.5), rel_tol=1e-4)
        assert used[step] <= 0.5 * (1 + 1e-6)
    assert clipped.trace.facts["max_grad_norm"] == 0.5


def test_the_rate_is_the_one_that_the_update_used(clipped: Run) -> None:
    rates = clipped.rows("lr")
    assert [rates[step] for step in range(1, 51)] == clipped.spy.rates
    assert clipped.spy.rates[0] == 1e-3
    assert clipped.spy.rates[49] == pytest.approx(1e-3 / 50)


# (e) evaluation, (j) copies


def test_peak_and_warm_up_are_those_of_the_scheduler(clipped: Run, folder: Path) -> None:
    options = {"max_steps": 4, "warmup_steps": 3, "learning_rate": 2e-3}
    facts = train(folder / "warmed", lr_scheduler_type="cosine", **options).trace.facts
    assert (facts["peak_lr"], facts["warmup_steps"]) == (2e-3, 3)
    assert clipped.trace.facts["warmup_steps"] == 0
    constant = train(folder / "constant", lr_scheduler_type="constant", **options).trace.facts
    assert (constant["peak_lr"], constant.get("warmup_steps")) == (2e-3, None)
    assert (facts["schedule"], constant["schedule"]) == ("cosine", "constant")
    assert facts["norm_placement"] == "pre"


def test_only_a_language_model_chooses_among_its_vocabulary() -> None:
    words = tiny()
    assert _classes(words) == 256
    words.resize_token_embeddings(264)
    assert _classes(words) == 264
    assert _classes(tiny(GPT2ForSequenceClassification)) is None
    assert _classes(torch.nn.Linear(2, 2)) is None


def test_an_evaluation_stands_at_the_update_it_followed(evaluated: Run) -> None:
    assert list(evaluated.rows("eval_loss")) == [4, 8, 12, 16, 20]
    assert evaluated.rows("eval_loss") == evaluated.logged("eval_loss")
    assert set(evaluated.rows("metric:eval_accuracy").values()) == {0.25}
    assert [name for name in evaluated.trace.series if name.startswith("metric:")] == [
        "metric:eval_accuracy"
    ]


def test_copies_of_the_model_work_and_leave_no_loss_behind(evaluated: Run, folder: Path) -> None:
    # `copied` ran after update 5, with forward and backward passes of copies and of the model.
    assert len(evaluated.rows("loss")) == 20
    assert evaluated.events("doctor-failed") == []
    evaluated.trainer.save_model(str(folder / "saved"))
    loaded = GPT2LMHeadModel.from_pretrained(folder / "saved")
    weights = evaluated.trainer.model.state_dict()
    assert all(torch.equal(weights[name], t) for name, t in loaded.state_dict().items())


def test_nothing_stays_on_the_model_or_the_optimizer(evaluated: Run) -> None:
    assert not any(module._forward_hooks for module in evaluated.trainer.model.modules())
    inner = evaluated.trainer.optimizer.optimizer
    assert not inner._optimizer_step_pre_hooks
    assert not inner._optimizer_step_post_hooks


# (f) resume


@pytest.fixture
def old_checkpoints_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers 4.46 cannot load its own generators' state with torch 2.6 and later, but so."""
    if OLD:
        monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")


@pytest.mark.usefixtures("old_checkpoints_load")
def test_a_resumed_run_goes_on_in_a_new_segment(evaluated: Run, folder: Path) -> None:
    # 12 updates, as if killed; on to 16; then back to the checkpoint of 4 and on to 8.
    options = {"save_strategy": "steps", "save_steps": 4, "lr_scheduler_type": "constant"}
    out = folder / "resumed"
    record = out / "optdoctor-run"
    straight = train(folder / "straight", max_steps=16, **options)
    train(out, max_steps=12, **options)
    assert [p.name for p in sorted(record.glob("steps-*"))] == ["steps-0001.arrows"]
    on = train(out, max_steps=16, resume=True, **options)
    assert list(on.rows("loss")) == list(range(1, 17))
    assert exactly(on.rows("loss")) == exactly(straight.rows("loss"))
    assert on.trace.facts["resumed_from"] == 12
    assert on.trace.facts["state_loaded"] == "yes"
    assert [p.name for p in sorted(record.glob("steps-*"))][1:] == ["steps-0002.arrows"]
    assert exactly_read(record, "loss") == exactly(on.rows("loss"))

    back = train(out, max_steps=8, resume=str(out / "checkpoint-4"), **options)
    assert list(back.rows("loss")) == list(range(1, 9))
    assert list(back.rows("update_rms")) == list(range(1, 9))
    assert back.trace.facts["resumed_from"] == 4
    assert all(event.step <= 8 for event in back.trace.events)
    again = optdoctor.read(record)
    assert exactly_read(record, "loss") == exactly(back.rows("loss"))
    assert again.events == back.trace.events

    fresh = train(out, max_steps=3, **options)
    assert list(fresh.rows("loss")) == [1, 2, 3]
    assert "resumed_from" not in fresh.trace.facts
    assert exactly_read(record / "earlier-1", "loss") == exactly(back.rows("loss"))
    assert exactly_read(record, "loss") == exactly(fresh.rows("loss"))


@pytest.mark.usefixtures("old_checkpoints_load")
def test_a_resume_without_optimizer_state_is_told_as_such(folder: Path) -> None:
    options = {"save_strategy": "steps", "save_steps": 2, "save_only_model": True}
    out = folder / "weights-only"
    train(out, max_steps=2, **options)
    run = train(out, max_steps=4, resume=True, **options)
    assert run.trace.facts["state_loaded"] == "no"
    assert list(run.rows("loss")) == [1, 2, 3, 4]


def exactly_read(record: Path, channel: str) -> dict[int, str]:
    series = optdoctor.read(record).series[channel]
    return exactly(dict(zip(series.steps.tolist(), series.values, strict=True)))


def test_a_first_step_of_ones_own_moves_every_channel(folder: Path) -> None:
    callback = OptDoctorCallback(interval=1, sinks=(), first_step=101)
    run = train(folder / "moved", callback=callback, max_steps=3)
    for channel in ("loss", "grad_norm", "lr", "update_rms"):
        assert list(run.rows(channel)) == [101, 102, 103], channel
    assert run.events("step-skipped") == []


# (g) pure float16


def test_pure_float16_is_found_out_within_three_steps(sick: tuple[Run, str]) -> None:
    run, said = sick
    assert run.callback.doctor is not None
    diagnosis = run.callback.doctor.diagnosis
    assert diagnosis.verdict is Verdict.SICK
    assert diagnosis.causes[0].rule == "second-moment-underflow"
    (nan,) = (f for f in diagnosis.findings if f.rule == "nan-pulse")
    assert "second-moment-underflow" in nan.causes.found
    told = [line for line in said.splitlines() if line.startswith("optdoctor  step ")]
    assert [line.split()[2] for line in told if "second-moment-underflow" in line] == ["3"]


def test_the_filter_of_nan_is_explained_once(sick: tuple[Run, str]) -> None:
    run, said = sick
    broken = next(step for step, loss in run.rows("loss").items() if math.isnan(loss))
    assert all(math.isfinite(loss) for loss in run.logged("loss").values())
    assert said.count("logging_nan_inf_filter=False") == 1
    line = next(line for line in said.splitlines() if "a loss is not finite" in line)
    assert int(line.split()[3]) == 3 * math.ceil(broken / 3)
    assert run.events("fact-changed") == []
    assert run.trace.facts["nan_filter"] == "on"


def test_without_the_filter_nothing_is_explained(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(
        folder / "unfiltered",
        model=tiny(dtype=torch.float16),
        callback=OptDoctorCallback(interval=1),
        logging_nan_inf_filter=False,
        max_steps=40,
        logging_steps=3,
    )
    said = capsys.readouterr().err
    assert "nan-pulse" in said
    assert "logging_nan_inf_filter" not in said
    assert any(math.isnan(loss) for loss in run.logged("loss").values())
    assert run.trace.facts["nan_filter"] == "off"
    assert run.events("fact-changed") == []


# (h) failures


METHODS = [
    "on_train_begin",
    "on_pre_optimizer_step",
    "on_optimizer_step",
    "on_log",
    "on_save",
    "on_train_end",
    "_hear",
]
PARTS = {
    "on_train_begin": "optdoctor.adapters.huggingface.start",
    "on_pre_optimizer_step": "optdoctor.live.micro_losses.MicroLosses.take",
    "on_optimizer_step": "optdoctor.live.run.Run.step",
    "on_log": "optdoctor.adapters.huggingface._channel",
    "on_save": "optdoctor.live.run.Run.event",
    "on_train_end": "optdoctor.live.doctor.Doctor.close",
    "_hear": "optdoctor.live.micro_losses.MicroLosses.add",
}


def broken(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("planted")


@pytest.fixture(scope="module")
def unwatched(folder: Path) -> dict[str, Any]:
    options = {"max_steps": 3, "save_strategy": "steps", "save_steps": 2}
    return fingerprint(train(folder / "unwatched", watch=False, **options))


@pytest.mark.parametrize("method", METHODS)
def test_a_failing_callback_is_told_once_and_the_training_goes_on(
    method: str,
    folder: Path,
    unwatched: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    part = property(broken) if PARTS[method].endswith(".step") else broken
    monkeypatch.setattr(PARTS[method], part)
    options = {"max_steps": 3, "save_strategy": "steps", "save_steps": 2}
    run = train(folder / f"broken-{method}", **options)
    assert fingerprint(run) == unwatched
    assert isinstance(run.callback.failure, RuntimeError)
    assert capsys.readouterr().err.count("RuntimeError: planted; it is off") == 1


def test_a_failing_callback_leaves_its_traceback_in_the_record(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PARTS["on_pre_optimizer_step"], broken)
    run = train(folder / "traced", max_steps=3)
    events = optdoctor.read(folder / "traced" / "optdoctor-run").events
    (text,) = (event.text for event in events if event.kind == "doctor-failed")
    assert "planted" in text
    assert "Traceback" in text
    inner = run.trainer.optimizer.optimizer
    assert not inner._optimizer_step_pre_hooks


class Foreign(torch.optim.Optimizer):
    """Steps by itself and never ran the constructor of its base, as an engine's wrapper does."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.engine = inner
        self.defaults = inner.defaults

    param_groups = property(lambda self: self.engine.param_groups)
    state = property(lambda self: self.engine.state)

    def step(self, closure: Any = None) -> None:
        self.engine.step()

    def state_dict(self) -> dict[str, Any]:
        return self.engine.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.engine.load_state_dict(state_dict)


def test_an_optimizer_that_is_none_of_torchs_is_left_alone(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny()
    optimizer = Foreign(torch.optim.AdamW(model.parameters(), lr=1e-3))
    run = train(folder / "foreign", model=model, more={"optimizers": (optimizer, None)})
    assert len(run.logged("loss")) == 10
    assert run.callback.doctor is None
    said = [line for line in capsys.readouterr().err.splitlines() if "optdoctor" in line]
    assert said == [
        "optdoctor  TypeError: AcceleratedOptimizer holds no torch.optim.Optimizer; it is off,"
        " training goes on"
    ]


# (i) arguments


def test_the_doctor_is_there_from_the_beginning_of_training_and_after_it(
    folder: Path, evaluated: Run, sick: tuple[Run, str]
) -> None:
    assert OptDoctorCallback().doctor is None
    assert evaluated.callback.doctor is not None
    assert evaluated.callback.doctor.diagnosis.origin == "live"
    assert (folder / "evaluated" / "optdoctor-run" / "run.json").is_file()
    assert (folder / "sick-record" / "run.json").is_file()
    assert not (folder / "sick" / "optdoctor-run").exists()


# (l) compiled


@pytest.fixture
def no_compiled_code_left() -> Iterator[None]:
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("no_compiled_code_left")
def test_a_compiled_model_gives_its_losses_too(folder: Path) -> None:
    run = train(folder / "compiled", torch_compile=True, torch_compile_backend="eager", max_steps=4)
    assert len(run.rows("loss")) == 4
    assert as_logged(run.rows("loss")) == exactly(run.logged("loss"))
    assert any(tensor.name == "transformer.wte.weight" for tensor in run.trace.tensors)


def test_a_training_that_is_interrupted_reports_at_once(folder: Path) -> None:
    """The Trainer tells no callback that it was interrupted."""

    class Interrupted(Trainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            if self.state.global_step == 4:
                raise KeyboardInterrupt
            return super().compute_loss(*args, **kwargs)

    callback = OptDoctorCallback(out=folder / "interrupted", sinks=())
    before = Trainer.training_step, torch.nn.utils.clip_grad_norm_
    with pytest.raises(KeyboardInterrupt):
        train(folder / "out", callback=callback, trainer=Interrupted)
    assert (Trainer.training_step, torch.nn.utils.clip_grad_norm_) == before
    assert callback.doctor is not None
    assert callback.doctor.runs[0].trace.series["loss"].rows == 4
    assert (folder / "interrupted" / "report.html").is_file()


def test_a_callback_that_watched_can_be_copied_to_another_process(folder: Path) -> None:
    run = train(folder / "pickled")
    copy = pickle.loads(pickle.dumps(run.callback))
    assert copy.doctor is None
    assert run.callback.doctor is not None


# (g) what a clip and a gradient scaler do between


class ByHand(Trainer):
    """Takes the norm of each update's gradient after its last micro-batch, unscaled."""

    norms: ClassVar[dict[int, float]]

    def training_step(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        loss = super().training_step(model, *args, **kwargs)
        scaler = self.accelerator.scaler
        scale = 1.0 if scaler is None else float(scaler.get_scale())
        grads = [p.grad.double() / scale for p in model.parameters() if p.grad is not None]
        square = torch.stack([g.square().sum() for g in grads]).sum()
        self.norms[self.state.global_step + 1] = float(square.sqrt())
        return loss


def test_the_norm_before_clipping_is_that_of_the_accumulated_gradient(folder: Path) -> None:
    ByHand.norms = {}
    run = train(
        folder / "by hand", trainer=ByHand, gradient_accumulation_steps=2, max_grad_norm=0.5
    )
    assert run.rows("grad_norm") == pytest.approx(ByHand.norms, rel=1e-6)
    assert max(ByHand.norms.values()) > 0.5


class Scaled(ByHand):
    """float16 autocast with a gradient scaler, which a Trainer without a GPU does not make."""

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        self.accelerator.native_amp = True
        self.accelerator.state._mixed_precision = "fp16"
        self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)

    def training_step(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        loss = super().training_step(model, *args, **kwargs)
        if self.state.global_step == 5:  # the sixth update
            next(model.parameters()).grad.view(-1)[0] = torch.inf
        return loss


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused"])
def test_under_a_scaler_skipped_updates_count_and_no_scaled_gradient_is_taken(
    optim: str, folder: Path
) -> None:
    ByHand.norms = {}
    run = train(
        folder / f"scaled {optim}",
        trainer=Scaled,
        gradient_accumulation_steps=2,
        max_grad_norm=0.5,
        optim=optim,
    )
    assert run.rows("step_skipped") == {6: 1.0}
    by_hand = {step: norm for step, norm in ByHand.norms.items() if step != 6}
    seen = {step: norm for step, norm in run.rows("grad_norm").items() if step != 6}
    assert seen == pytest.approx(by_hand, rel=1e-3)
    assert max(run.rows("grad_norm_used").values()) <= 0.5 * (1 + 1e-3)
    assert list(run.rows("loss")) == list(range(1, 11))
