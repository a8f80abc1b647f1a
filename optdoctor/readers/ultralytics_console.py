"""The table of YOLOv5 and what Ultralytics made since: a bar an epoch under names of columns.

A number is the mean of the epoch so far; that of the last bar stands, the mean of the epoch. The
losses beside each other are weighted already: their sum is what is optimised. Older versions print
it as `total`.
"""

import re
from collections.abc import Iterator

from optdoctor.reading.log import Log
from optdoctor.reading.reader import Head, Reader, Source
from optdoctor.reading.text_format import NUMBER, clean_lines, value_of

_HEADER = re.compile(r"\s*Epoch\s+(?:GPU_mem|gpu_mem)\s+(?P<names>\S.*)")
_ROW = re.compile(
    rf"\s*(?P<epoch>\d+)/\d+\s+[\d.]+[GMK]?\s+(?P<cells>{NUMBER}(?:\s+{NUMBER})+)(?=:|\s|$)"
)
_ALL = re.compile(rf"\s*all\s+\d+\s+\d+\s+(?P<cells>{NUMBER}(?:\s+{NUMBER})+)\s*$")
_COUNTS = frozenset({"Instances", "Size", "labels", "img_size", "targets"})
_SCORES = ("P", "R", "mAP50", "mAP50-95")


def _sniff(head: Head) -> int:
    return sum("loss" in row for _, row in _rows(iter(head.lines)))


def _read(source: Source, log: Log) -> None:
    log.facts |= {"loss_kind": "falling", "loss_form": "mean", "step_source": "epochs"}
    log.count_from_one()
    for epoch, row in _rows(source.lines()):
        log.row(row if epoch is None else {**row, "epoch": epoch}, epoch)


def _rows(lines: Iterator[str]) -> Iterator[tuple[float | None, dict[str, float]]]:
    """(epoch, {name: value}) of each bar of the training, (None, ..) of each evaluation."""
    names: list[str] = []
    for line in clean_lines(lines):
        if header := _HEADER.match(line):
            names = header["names"].split()
        elif names and (found := _ROW.match(line)):
            if row := _training(names, found["cells"].split()):
                yield value_of(found["epoch"]), row
        elif names and (found := _ALL.match(line)):
            yield None, _evaluation(found["cells"].split())


def _training(names: list[str], cells: list[str]) -> dict[str, float]:
    losses = [name for name in names if name not in _COUNTS]
    if not losses or len(cells) < len(losses):
        return {}
    parts = dict(zip(losses, map(value_of, cells), strict=False))
    if "total" in parts:
        return {"loss": parts.pop("total"), **parts}
    return {"loss": sum(parts.values()), **parts}


def _evaluation(cells: list[str]) -> dict[str, float]:
    """The scores of boxes; those of masks or key points stand behind them."""
    if len(cells) < len(_SCORES):
        return {}
    return dict(zip(_SCORES, map(value_of, cells[: len(_SCORES)]), strict=True))


READER = Reader(
    name="ultralytics-console",
    sniff=_sniff,
    read=_read,
    aliases={"loss": "loss", "epoch": "epoch"},
    marks=("GPU_mem", "gpu_mem"),
    sample="""
      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size
      1/100      2.31G       1.25        2.5       1.25         48        640: 100%|██| 8/8
                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100%|██|
                   all        128        929       0.75        0.5      0.625      0.375

      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size
      2/100      2.31G          1       2.25       1.25         40        640: 100%|██| 8/8
                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100%|██|
                   all        128        929       0.75      0.625       0.75        0.5
""",
)
