"""Values of real logs, read a second time by a line of code that knows one file.

Each entry takes the numbers out of the raw text without any of the package's readers; first, last,
least and count must be those of the trace. Runs where OPTDOCTOR_CORPUS names a folder of logs.
"""

import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from optdoctor.readers import read

CORPUS = Path(os.environ.get("OPTDOCTOR_CORPUS", ""))
INDEX = CORPUS / "index.jsonl"

pytestmark = pytest.mark.skipif(
    "OPTDOCTOR_CORPUS" not in os.environ or not INDEX.is_file(),
    reason="OPTDOCTOR_CORPUS names no folder with an index.jsonl",
)

Take = Callable[[str], list[float]]


def every(pattern: str) -> Take:
    """The number behind the pattern, each time it occurs."""
    return lambda text: [to_float(found) for found in re.findall(pattern, text, re.M)]


def by_step(pattern: str) -> Take:
    """The same of pairs (step, number): of equal steps the last."""

    def take(text: str) -> list[float]:
        found = {int(step): to_float(value) for step, value in re.findall(pattern, text, re.M)}
        return [found[step] for step in sorted(found)]

    return take


def column(name: str, index: str | None = None) -> Take:
    """The filled cells of a CSV column; with `index`, of rows that have both."""

    def take(text: str) -> list[float]:
        rows = csv.DictReader(io.StringIO(text), skipinitialspace=True)
        clean = [{(k or "").strip(): (v or "").strip() for k, v in row.items()} for row in rows]
        kept = [row for row in clean if row[name] not in ("", name)]
        if index is None:
            return [float(row[name]) for row in kept]
        found = {float(row[index]): float(row[name]) for row in kept if row[index]}
        return [found[step] for step in sorted(found)]

    return take


def history(name: str) -> Take:
    """A key of the rows of a trainer state."""
    return lambda text: [row[name] for row in json.loads(text)["log_history"] if name in row]


def lines(name: str) -> Take:
    """A key of JSON lines."""

    def take(text: str) -> list[float]:
        rows = [json.loads(line) for line in text.splitlines() if line.strip()]
        return [to_float(row[name]) for row in rows if name in row]

    return take


def to_float(value: object) -> float:
    text = str(value).replace("nanxxx", "nan").replace("Infinity", "inf")
    return float(text)


VALUES: Iterable[tuple[str, str, Take]] = [
    ("nanogpt-speedrun-01", "loss", every(r"^s:\d+ trl:(\S+)")),
    ("nanogpt-speedrun-01", "eval_loss", every(r"^s:\d+ tel:(\S+)")),
    ("nanogpt-speedrun-02", "loss", every(r"^step:\d+/\d+ train_loss:(\S+)")),
    ("nanogpt-speedrun-02", "eval_loss", every(r"^step:\d+/\d+ val_loss:(\S+)")),
    ("nanogpt-speedrun-04", "loss", every(r"^s:\d+ trl:(\S+)")),
    ("nanogpt-speedrun-04", "lr", every(r"^s:\d+ trl:\S+ lr:(\S+)")),
    ("nanogpt-console-01", "loss", by_step(r"iter (\d+): loss ([\d.naN]+),")),
    ("nanogpt-wandb-01", "loss", by_step(r"iter (\d+): loss ([\d.naN]+) BPC")),
    ("joeynmt-01", "loss", every(r"Batch Loss: +(\S+)")),
    ("joeynmt-val-01", "metric:bleu", every(r"bleu: (\S+)")),
    ("deit-jsonl-01", "loss", lines("train_loss")),
    ("deit-jsonl-01", "eval_loss", lines("test_loss")),
    ("mmseg-json-01", "lr", every(r'"mode": "train".*"lr": ([\d.e-]+)')),
    ("mmseg-json-01", "loss", every(r'"mode": "train".* "loss": ([\d.e-]+)')),
    ("galore-wandb-01", "loss", every(r"^loss at \d+ ([\d.]+)")),
    ("keras-csv-01", "loss", column("loss")),
    ("keras-csv-03", "eval_loss", column("val_loss")),
    ("keras-csv-04", "loss", column("loss")),
    ("lightning-csv-02", "loss", column("train_loss")),
    ("lightning-csv-04", "loss", column("train_loss")),
    ("timm-csv-01", "loss", column("train_loss")),
    ("timm-csv-03", "eval_loss", column("eval_loss", "epoch")),
    ("algoperf-csv-01", "loss", column("loss")),
    ("algoperf-csv-02", "grad_norm", column("grad_norm")),
    ("algoperf-csv-07", "loss", column("train/loss")),
    ("baselines-csv-01", "metric:mean 100 episode reward", column("mean 100 episode reward")),
    ("sb3-csv-01", "metric:rollout/ep_rew_mean", column("rollout/ep_rew_mean")),
    ("hf-state-01", "loss", history("loss")),
    ("hf-state-03", "eval_loss", history("eval_loss")),
    ("hf-unsloth-state-01", "grad_norm", history("grad_norm")),
    ("hf-unsloth-state-03", "loss", history("loss")),
    ("lf-trainerlog-02", "loss", lines("loss")),
    ("hf-console-04", "loss", every(r"'loss': ([\d.]+)[^}\n]*\}")),
    ("trl-reward-01", "grad_norm", every(r"'grad_norm': ([\d.naif]+)")),
    ("plain-epoch-01", "loss", by_step(r"epoch: (\d+) loss: (\S+)")),
    ("plain-epoch-02", "eval_loss", every(r"Valid Loss:([\d.]+)")),
    ("notebook-step-01", "loss", every(r"Train loss: ([\d.]+)")),
    ("notebook-step-04", "loss", every(r"Train loss: ([\d.]+)")),
    ("rwkv-rm-03", "loss", every(r"^Epoch \d+, Loss: ([\d.naN]+)")),
    ("megatron-bs-01", "loss", by_step(r"iteration +(\d+)/ .*lm loss: (\S+)")),
    ("megatron-bs-02", "loss", by_step(r"iteration +(\d+)/ .*lm-loss: (\S+)")),
    ("megatron-bs-03", "grad_norm", by_step(r"iteration +(\d+)/ .*grad norm: (\S+)")),
    ("torchtitan-01", "loss", by_step(r"step: +(\d+) +loss: +([\d.]+) ")),
    ("torchtune-01", "loss", by_step(r"Step (\d+) \| loss:([\d.]+)")),
    ("nemo-automodel-01", "loss", by_step(r"step (\d+) \|.* loss ([\d.]+) \|")),
    ("litgpt-01", "loss", by_step(r"step (\d+): loss ([\d.]+)")),
    ("mlx-01", "loss", by_step(r"Iter (\d+): Train loss ([\d.]+)")),
    ("fairseq-hydra-01", "loss", every(r'\[train_inner\].*?"loss": "([\d.]+)"')),
    ("fairseq-hydra-01", "grad_norm", every(r'\[train_inner\].*?"gnorm": "([\d.]+)"')),
    ("txl-01", "loss", by_step(r"step +(\d+) \|.*\| loss +([\d.]+) \|")),
    ("txl-01", "eval_loss", every(r"valid loss +([\d.]+)")),
    ("wordlm-01", "loss", every(r"batches \|.*\| loss +([\d.naN]+) \|")),
    ("detectron2-log-01", "loss", by_step(r"iter: (\d+) +total_loss: ([\d.]+)")),
    ("caffe-03", "loss", by_step(r"Iteration (\d+), loss = ([\d.]+)")),
    ("espnet-01", "loss", every(r"batch: .* loss=([\d.]+), backward")),
    ("paddleocr-01", "lr", by_step(r"global_step: (\d+), lr: ([\d.]+)")),
    ("tf-print-nan-01", "loss", every(r"total_loss: ([\d.naN]+)")),
    ("tfod-01", "loss", by_step(r"global step (\d+): loss = ([\d.]+)")),
    ("tf-estimator-01", "loss", every(r"loss = ([\d.]+), step")),
    ("bigdl-01", "loss", by_step(r"\[Iteration (\d+)\].*Loss is (Infinity|[\d.]+\d)")),
    ("dllogger-01", "loss", every(r"average_loss : ([\d.]+)")),
    ("tesseract-01", "loss", every(r"char train=([\d.]+)%")),
    ("keras-console-01", "loss", every(r" - loss: ([\d.]+) - acc: [\d.]+ - val")),
    ("keras-console-05", "loss", every(r"\[=+\].* - loss: ([\d.]+)")),
    ("nb-table-01", "loss", every(r"<td>\d+</td>\s*<td>([\d.]+)</td>")),
]


def entry(name: str) -> Path:
    known = (json.loads(line) for line in INDEX.read_text(encoding="utf-8").splitlines() if line)
    return CORPUS / next(row["file"] for row in known if row["id"] == name)


@pytest.mark.parametrize(
    ("name", "channel", "take"), [pytest.param(*v, id=f"{v[0]}:{v[1]}") for v in VALUES]
)
def test_a_second_reading_finds_the_same_values(name: str, channel: str, take: Take) -> None:
    path = entry(name)
    expected = np.array(take(path.read_bytes().decode("utf-8", "replace")))
    assert expected.size
    series = read(path).series[channel]
    assert series.rows == expected.size
    low, finite = series.low[np.isfinite(series.low)], expected[np.isfinite(expected)]
    found = [series.values[0], series.values[-1], low.min(initial=np.inf)]
    wanted = [expected[0], expected[-1], finite.min(initial=np.inf)]
    assert np.array_equal(found, wanted, equal_nan=True)


def test_at_least_25_files_are_read_twice() -> None:
    assert len({name for name, _, _ in VALUES}) >= 25
