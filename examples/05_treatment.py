"""A Trainer run that dies, and the same run with the treatment that its own diagnosis proposes.

Of weights in float16 AdamW keeps its moments in float16 too, where small squares are 0 and the
steps that they should hold down explode. With `treat="safe"` the doctor finds that before the first
step and lets the optimizer work on float32; the model stays in float16. Nothing is downloaded.

    python examples/05_treatment.py
"""

from pydoc_data import topics

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, logging

from optdoctor.adapters.huggingface import OptDoctorCallback

CONTEXT = 32


def windows() -> list[dict[str, torch.Tensor]]:
    """Bytes of the help texts, cut into windows."""
    text = torch.tensor(list("\n".join(topics.topics.values()).encode()))
    rows = text[: len(text) // CONTEXT * CONTEXT].reshape(-1, CONTEXT)
    return [{"input_ids": row, "labels": row} for row in rows]


def train(name: str, **treatment: str) -> None:
    """Trains, and prints what became of it."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=2, bos_token_id=0
    )
    doctor = OptDoctorCallback(out=f"optdoctor-run/{name}", sinks=(), **treatment)
    arguments = {"report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True}
    trainer = Trainer(
        model=GPT2LMHeadModel(config).half(),
        args=TrainingArguments("optdoctor-run", max_steps=150, learning_rate=3e-3, **arguments),
        train_dataset=windows(),
        callbacks=[doctor],
    )
    trainer.train()
    trace = doctor.doctor.runs[0].trace
    loss, causes = trace.series["loss"].values, doctor.doctor.diagnosis.causes
    print(f"{name}: loss {loss[0]:.3g} -> {loss[-1]:.3g}, {doctor.doctor.diagnosis.verdict}")
    for cause in causes[:1]:
        print(f"  cause: {cause.rule}")
    for event in trace.events:
        if event.kind in ("treatment", "undo"):
            print(f"  step {event.step}: {event.text}")


if __name__ == "__main__":
    logging.set_verbosity_error()
    train("untreated")
    train("treated", treat="safe")
    print("the page of each run: report.html in its folder")
