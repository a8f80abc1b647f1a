"""Time of a small training with the doctor over the same training without it, alternated.

Prints the median ratio of the pairs and what the doctor itself billed:
`python tests/benchmarks/overhead.py`.
"""

import statistics
import tempfile
import time

import torch
from torch import nn

import optdoctor

PAIRS = 5
SIZES = {"MLP, 0.01 M weights": (64, 64, 2000), "MLP, 1.1 M weights": (512, 1024, 300)}


def train(width: int, hidden: int, steps: int, watched: bool) -> tuple[float, str]:
    """Seconds of the loop, and the doctor's own account."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.randn(64, width)
    with tempfile.TemporaryDirectory() as folder:
        doctor = optdoctor.watch(model, optimizer, out=folder, sinks=()) if watched else None
        start = time.perf_counter()
        for _ in range(steps):
            loss = (model(inputs) - inputs).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if doctor is not None:
                doctor.log(loss=loss)
        seconds = time.perf_counter() - start
        if doctor is None:
            return seconds, ""
        doctor.close()
        return seconds, doctor.runs[0].cost


def main() -> None:
    """Measures and prints."""
    torch.set_num_threads(1)
    for name, (width, hidden, steps) in SIZES.items():
        train(width, hidden, steps, True)
        pairs = [
            (train(width, hidden, steps, True), train(width, hidden, steps, False)[0])
            for _ in range(PAIRS)
        ]
        ratios = [with_doctor / without for (with_doctor, _), without in pairs]
        base = statistics.median(without for _, without in pairs) / steps
        print(f"{name}: {base * 1e6:.0f} us a step, ratio {statistics.median(ratios):.3f}")
        print(f"  ({min(ratios):.3f}-{max(ratios):.3f}); the doctor says: {pairs[-1][0][1]}")


if __name__ == "__main__":
    main()
