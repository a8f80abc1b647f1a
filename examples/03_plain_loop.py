"""The doctor in a plain PyTorch loop: a fault that is known before the first step, and its cure.

In pure float16 the epsilon of Adam rounds to 0, unless the optimizer is fused. The doctor says so
when it starts; the second run changes what it advises.

    python examples/03_plain_loop.py
"""

from pydoc_data import topics

import torch
from torch import nn
from torch.nn import functional as F

import optdoctor

TEXT = torch.tensor(list("\n".join(topics.topics.values()).encode()))
STEPS, BATCH, CONTEXT = 60, 64, 8


def train(half: bool, out: str) -> optdoctor.Diagnosis:
    """Learns to guess the next byte from the last few."""
    torch.manual_seed(0)
    embed, guess = nn.Embedding(256, 16), nn.Linear(64, 256)
    model = nn.Sequential(embed, nn.Flatten(), nn.Linear(16 * CONTEXT, 64), nn.ReLU(), guess)
    model = model.half() if half else model.float()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    with optdoctor.watch(model, optimizer, out=out) as doctor:
        for finding in doctor.diagnosis.findings:
            print(f"known before step 1: {finding.rule}")
        for _ in range(STEPS):
            starts = torch.randint(len(TEXT) - CONTEXT, (BATCH, 1))
            windows = TEXT[starts + torch.arange(CONTEXT + 1)]
            with torch.autocast("cpu", torch.bfloat16, enabled=not half):
                guesses = model(windows[:, :-1])
            loss = F.cross_entropy(guesses.float(), windows[:, -1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            doctor.log(loss=loss)
    print(f"{out}: last loss {loss.item():.3g}, {doctor.diagnosis.verdict}\n")
    return doctor.diagnosis


def main() -> None:
    """The sick run, the advice, the treated run."""
    sick = train(True, "optdoctor-run/float16")
    cause = next(f for f in sick.findings if f.rule == sick.causes[0].rule)
    print(f"to change, because of {cause.rule}: {cause.treatments[0].title}\n")
    train(False, "optdoctor-run/treated")


if __name__ == "__main__":
    main()
