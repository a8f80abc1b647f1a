"""Curves, histograms and findings for TensorBoard: in `out/tensorboard`, or a framework's writer.

Steps are the doctor's own, numbers of updates. Histograms come binned: `add_histogram` would sort
and bin every element again on the host.
"""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from optdoctor.findings import Diagnosis, Notice
from optdoctor.report import text
from optdoctor.sinks import Histogram, Place, Sample, Sink, Unwritable, curve_name, curves
from optdoctor.trace import Trace

FOLDER = "tensorboard"
HELD_ROWS = 256
HELD_S = 2.0
"""Rows wait until there are so many or the first has waited so long: the writer's thread computes
checksums in Python, and awake at every update it would contend with the training."""


class TensorBoard(Sink):
    """Event files, begun with the first thing to write."""

    histograms = True

    def __init__(self, place: Place) -> None:
        self._place, self._writer = place, place.writer
        self._held: list[tuple[int, Mapping[str, float], float]] = []

    def row(self, step: int, values: Mapping[str, float]) -> None:
        """One point of each channel's curve."""
        now = time.time()
        self._held.append((step, values, now))
        if len(self._held) >= HELD_ROWS or now - self._held[0][2] > HELD_S:
            self._write_rows()

    def _write_rows(self) -> None:
        held, self._held = self._held, []
        for step, values, when in held:
            writer = self._open(step)
            for name, value in values.items():
                writer.add_scalar(self._tag(curve_name(name)), value, step, walltime=when)
        if held:
            self._open(held[0][0]).flush()

    def sample(self, sample: Sample) -> None:
        """One point of each tensor's curves, and its histograms."""
        self._write_rows()
        writer = self._open(sample.step)
        for name, value in curves(sample).items():
            writer.add_scalar(self._tag(name), value, sample.step)
        for quantity, by_tensor in sample.histograms.items():
            for tensor, histogram in by_tensor.items():
                tag = self._tag(f"{quantity}/{tensor}")
                writer.add_histogram_raw(tag, **_raw(histogram), global_step=sample.step)
        writer.flush()  # what the writer's thread costs is waited for, so that it is billed

    def tell(self, notices: list[Notice]) -> None:
        """A text."""
        self._write_rows()
        step = max(notice.step for notice in notices)
        said = "\n\n".join(map(_markdown, notices))
        self._open(step + 1).add_text(self._tag("findings"), said, step)

    def close(self, diagnosis: Diagnosis, trace: Trace, cost: str) -> None:
        """The report as a text; everything reaches the disk."""
        last = trace.steps[1]
        try:
            self._write_rows()
            writer = self._open(last + 1)
            report = text.render(diagnosis, trace, cost=cost)
            writer.add_text(self._tag("report"), f"```\n{report}\n```", last)
            writer.flush()
        finally:
            if self._place.writer is None and self._writer is not None:
                self._writer.close()

    def _tag(self, name: str) -> str:
        return f"{self._place.prefix}/{name}"

    def _open(self, step: int) -> Any:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            assert self._place.out is not None
            # After a resume, what an earlier process wrote of updates made again is hidden.
            self._writer = SummaryWriter(str(self._place.out / FOLDER), purge_step=step)
        return self._writer


def _raw(histogram: Histogram) -> dict[str, Any]:
    """As TensorBoard keeps it: right edges, and sums that the bins' centres give."""
    edges, counts = histogram.edges, histogram.counts
    centres = (edges[:-1] + edges[1:]) / 2
    return {
        "min": float(edges[0]),
        "max": float(edges[-1]),
        "num": int(counts.sum()),
        "sum": float(np.dot(centres, counts)),
        "sum_squares": float(np.dot(centres**2, counts)),
        "bucket_limits": edges[1:].tolist(),
        "bucket_counts": counts.tolist(),
    }


def _markdown(notice: Notice) -> str:
    finding = notice.finding
    said = f"**{finding.severity.upper()} {finding.rule}** {notice.what}: {finding.summary}"
    return "\n".join([said, *(f"* {treatment.title}" for treatment in finding.treatments)])


def SINK(place: Place) -> Sink:  # noqa: N802 - the registry's constant
    """Event files.

    Raises:
        Unwritable: the package is missing, or there is neither a folder nor a writer.
    """
    if place.writer is None and place.out is None:
        raise Unwritable("the tensorboard sink has no folder to write in", "give `out` a path")
    if place.writer is None:
        try:
            import torch.utils.tensorboard  # noqa: F401
        except ImportError as error:
            raise Unwritable(
                "the tensorboard sink needs the package tensorboard",
                "pip install 'optdoctor[tensorboard]'",
            ) from error
    return TensorBoard(place)
