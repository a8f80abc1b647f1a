"""A recorded curve, and how many of them are kept in one file."""

import io
import json
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
BITS = 14
"""Bits of the mantissa that are kept: the fifth digit is the first to go, and files stay small."""
SERIES = ("loss", "grad_norm", "lr", "eval_steps", "eval_loss")
EARLIEST = (1980, 1, 1, 0, 0, 0)
"""The time of each entry: the same runs give the same bytes."""


@dataclass(frozen=True)
class Record:
    """What a log of one training would hold."""

    family: str
    seed: int
    held: bool
    group: str
    """"pretraining", "fine-tuning" or "from scratch"."""
    truth: str
    """"healthy", or the kind of the shape that the run shows."""
    onset: int | None
    """Update at which the fault begins, where that is known."""
    loss: Floats
    """[updates], every one of them."""
    grad_norm: Floats
    """[updates], before clipping."""
    lr: Floats
    """[updates]."""
    eval_steps: Floats
    """[evaluations]: the update after which the evaluation was made."""
    eval_loss: Floats
    """[evaluations]."""

    @property
    def healthy(self) -> bool:
        return self.truth == "healthy"

    @staticmethod
    def of(family: str, seed: int, **rest: object) -> "Record":
        """Turns lists into series."""
        series = {name: np.asarray(rest.pop(name), np.float64) for name in SERIES}
        return Record(family, seed, **rest, **series)  # type: ignore[arg-type]


def save(path: Path, records: Iterable[Record]) -> None:
    """One array for each series of all the runs, one after the other, and a table of the runs."""
    ordered = sorted(records, key=lambda r: (not r.healthy, r.family, r.seed))
    table = [
        {
            **{name: getattr(r, name) for name in _FACTS},
            "updates": len(r.loss),
            "evaluations": len(r.eval_loss),
        }
        for r in ordered
    ]
    arrays = {name: _joined([getattr(r, name) for r in ordered]) for name in SERIES}
    arrays["table"] = np.frombuffer(json.dumps(table).encode(), np.uint8)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, array, allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy", EARLIEST)
            archive.writestr(entry, content.getvalue(), zipfile.ZIP_LZMA)


def load(path: Path) -> tuple[Record, ...]:
    with np.load(path) as file:
        table = json.loads(file["table"].tobytes())
        series = {name: _apart(file[name]) for name in SERIES}
    made, updates, evaluations = [], 0, 0
    for row in table:
        n, m = row.pop("updates"), row.pop("evaluations")
        cut = {
            name: values[evaluations : evaluations + m]
            if name.startswith("eval")
            else values[updates : updates + n]
            for name, values in series.items()
        }
        made.append(Record(**row, **cut))
        updates, evaluations = updates + n, evaluations + m
    return tuple(made)


_FACTS = ("family", "seed", "held", "group", "truth", "onset")


def _joined(parts: Sequence[Floats]) -> NDArray[np.uint8]:
    """[4, values]: float32 with short mantissas, bytes of one rank together, which packs better."""
    with np.errstate(over="ignore"):
        bits = np.concatenate(parts).astype(np.float32).view(np.uint32)
    finite = np.isfinite(bits.view(np.float32))
    half = np.uint32(1 << (22 - BITS))
    rounded = (bits + half) & np.uint32(0xFFFFFFFF << (23 - BITS) & 0xFFFFFFFF)
    whole = np.where(finite, rounded, bits)
    return np.ascontiguousarray(whole.view(np.uint8).reshape(-1, 4).T)


def _apart(planes: NDArray[np.uint8]) -> Floats:
    whole = np.ascontiguousarray(planes.T).view(np.uint32)[:, 0]
    return whole.view(np.float32).astype(np.float64)
