"""S47: CTC is given an utterance that has fewer frames than labels."""

from pathlib import Path

import torch
from acting import watching
from casing import Case
from torch import Tensor, nn

from optdoctor.findings import Diagnosis

UPDATES, SHORT_AT, RATE = 200, 140, 3e-3
LETTERS, BATCH, WIDTH, LABELS, FRAMES, SHORTEST = 12, 8, 24, 5, 40, 11


class _Recognizer(nn.Module):
    """Every fourth frame is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Conv1d(LETTERS, WIDTH, 5, stride=4, padding=2)
        self.cells = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, LETTERS + 1)

    def forward(self, sound: Tensor) -> Tensor:
        x = self.front(sound.transpose(1, 2)).relu().transpose(1, 2)
        return self.head(self.cells(x)[0]).log_softmax(-1).transpose(0, 1)


def _utterances(step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Letters that sound for eight frames each; one utterance of the data is cut off early."""
    draws = torch.Generator().manual_seed(step)
    letters = torch.randint(LETTERS, (BATCH, LABELS), generator=draws)
    sound = torch.nn.functional.one_hot(letters, LETTERS).float().repeat_interleave(8, 1)
    sound = sound + 0.3 * torch.randn(sound.shape, generator=draws)
    frames = torch.full((BATCH,), FRAMES)
    if step == SHORT_AT:
        frames[0] = SHORTEST
    return sound, letters + 1, frames // 4


def run(folder: Path) -> Diagnosis:
    torch.manual_seed(0)
    model = _Recognizer()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    of = nn.CTCLoss()
    losses = []
    with watching(model, optimizer, out=folder) as doctor:
        for step in range(UPDATES):
            sound, labels, frames = _utterances(step)
            optimizer.zero_grad()
            loss = of(model(sound), labels, frames, torch.full((BATCH,), LABELS))
            loss.backward()
            doctor.log(loss=loss)
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            losses.append(float(loss.detach()))
    assert losses[SHORT_AT - 1] < 0.5 * losses[0]
    assert losses[SHORT_AT] == float("inf")
    assert losses[-1] != losses[-1]
    return doctor.diagnosis


CASE = Case(
    number="S47",
    source="k2-fsa/icefall#135, SeanNaren/deepspeech.pytorch#567, wenet-e2e/wenet#2299",
    says="An infinite loss, then NaN: eleven frames became two, fewer than the labels.",
    run=run,
    rules=("nan-pulse",),
)
