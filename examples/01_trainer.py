"""The doctor on a Hugging Face Trainer: one line, and nothing to say about a healthy run.

A tiny GPT-2 with random weights learns Python's own help texts; nothing is downloaded.

    python examples/01_trainer.py
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


def main() -> None:
    """Trains, and prints what the doctor thinks of it."""
    torch.manual_seed(0)
    logging.set_verbosity_error()
    config = GPT2Config(
        vocab_size=256, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=2, bos_token_id=0
    )
    doctor = OptDoctorCallback(out="optdoctor-run/trainer")
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            output_dir="optdoctor-run",
            max_steps=100,
            learning_rate=3e-3,
            logging_steps=25,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=windows(),
        callbacks=[doctor],  # the one line
    )
    trainer.train()

    diagnosis = doctor.doctor.diagnosis
    print(f"verdict: {diagnosis.verdict}, {len(diagnosis.findings)} findings")
    print("read it again: optdoctor analyze optdoctor-run/trainer")


if __name__ == "__main__":
    main()
