"""One sick training, its cause, its treatment, and the second run: with the real Trainer, offline.

A tiny GPT-2 with random weights learns the texts that ship with Python. In pure float16 the second
moment of AdamW underflows, and the loss is NaN after a few steps.
"""

import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path
from pydoc_data import topics
from typing import Any

import click
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, logging
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from optdoctor.adapters.huggingface import OptDoctorCallback
from optdoctor.engine import diagnose
from optdoctor.findings import Diagnosis, Finding, Knob, Verdict
from optdoctor.readers import read
from optdoctor.report import curve
from optdoctor.report.tensors import fold
from optdoctor.report.wording import number
from optdoctor.store import Series
from optdoctor.trace import Trace

STEPS, BATCH, CONTEXT, SEED = 80, 8, 64, 0
WIDTH = 80


@dataclass(frozen=True, slots=True)
class Result:
    """One training of the demo."""

    diagnosis: Diagnosis
    trace: Trace
    from_log: Diagnosis
    """What its trainer_state.json alone tells."""
    printed: list[dict[str, float]]
    """Rows of the Trainer's own log."""


def run() -> int:
    """Tells the story; 0 if the cause was found and the second run recovered."""
    torch.set_num_threads(1)
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    _say("1  A tiny GPT-2 in pure float16, AdamW as in the Trainer. One line is added:")
    _say("     Trainer(.., callbacks=[OptDoctorCallback()])\n")
    sick = train({"state_dtype": "float16"})
    _say("\n2  What the Trainer itself logged:")
    for row in _around_the_break(sick.printed):
        shown = "   ".join(f"{name} {row[name]:.4g}" for name in ("step", "loss", "grad_norm"))
        _say(f"     {shown}")
    found = [finding.rule for finding in sick.from_log.findings]
    _tell(f"   From this log alone optdoctor finds {', '.join(found) or 'nothing'}, and no cause.")
    cause = _cause(sick.diagnosis)
    if cause is None or not cause.treatments:
        _say("\nNo cause was found: the demo did not go as it should.")
        return 1
    treatment = cause.treatments[0]
    _say("")
    _tell(f"3  The treatment, applied: {treatment.title}.")
    _say("")
    treated = train({knob: new for knob, (_, new) in treatment.changes.items()})
    _say("\n4  Both runs:\n")
    for title, result in (("float16", sick), ("treated", treated)):
        loss = _loss(result)
        _say(f"   {title}: {_ending(result)}")
        _say("\n".join(curve.draw(loss, result.trace.steps)) + "\n")
    recovered = treated.diagnosis.verdict is Verdict.HEALTHY
    _say(f"   cause      {cause.rule}")
    _tell(f"   where      {fold(cause.tensors, sick.trace.tensors)}", 14)
    _tell(f"   worst      {', '.join(cause.tensors[:3])}", 14)
    _say(f"   recovered  {'yes' if recovered else 'no'}")
    return 0 if recovered else 1


def train(changes: dict[str, Knob]) -> Result:
    """Trains for `STEPS` updates: in float16, or in float32 under bfloat16 autocast."""
    half = changes.get("state_dtype") == "float16"
    torch.manual_seed(SEED)
    config = GPT2Config(
        vocab_size=256,
        n_positions=CONTEXT,
        n_embd=64,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    model: Any = GPT2LMHeadModel(config)
    model = model.half() if half else model.float()
    callback = OptDoctorCallback()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                max_steps=STEPS,
                per_device_train_batch_size=BATCH,
                learning_rate=5e-4,
                bf16=not half,
                logging_steps=1,
                report_to=[],
                save_strategy="no",
                use_cpu=True,
                seed=SEED,
            ),
            train_dataset=_Texts(),
            callbacks=[callback],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.remove_callback(ProgressCallback)
        trainer.train()
        state = Path(folder) / "trainer_state.json"
        trainer.state.save_to_json(str(state))
        from_log = diagnose(read(state))
    if callback.doctor is None:
        raise RuntimeError(f"the doctor did not start: {callback.failure}")
    printed = [row for row in trainer.state.log_history if "loss" in row]
    return Result(callback.doctor.diagnosis, callback.doctor.runs[0].trace, from_log, printed)


class _Texts(Dataset[dict[str, torch.Tensor]]):
    """Bytes of Python's own help texts, cut into windows."""

    def __init__(self) -> None:
        self._bytes = torch.tensor(list("\n".join(topics.topics.values()).encode()))

    def __len__(self) -> int:
        return len(self._bytes) // CONTEXT

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        window = self._bytes[index * CONTEXT : (index + 1) * CONTEXT]
        return {"input_ids": window, "labels": window}


def _cause(diagnosis: Diagnosis) -> Finding | None:
    """The root of the worst symptom."""
    roots = [cause.rule for cause in diagnosis.causes if cause.explains]
    return next((f for f in diagnosis.findings if roots and f.rule == roots[0]), None)


def _around_the_break(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    masked = [i for i, row in enumerate(rows) if row["loss"] == 0]
    first = masked[0] if masked else len(rows) - 1
    return rows[max(first - 2, 0) : first + 2]


def _ending(result: Result) -> str:
    loss = _loss(result)
    first, last = (number(float(loss.values[i])) for i in (0, -1))
    return f"loss {first} -> {last}, {result.diagnosis.verdict}"


def _loss(result: Result) -> Series:
    loss = curve.loss_of(result.trace)
    if loss is None:
        raise RuntimeError("the training logged no loss")
    return loss


def _tell(text: str, indent: int = 3) -> None:
    """Says one paragraph; `indent` is that of its later lines."""
    _say(textwrap.fill(text, WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False))


def _say(text: str) -> None:
    click.echo(text)
