"""Real logs, where OPTDOCTOR_CORPUS names a folder of them; `pytest -s` prints a table.

Labels are for measuring. Only single logs without doubt are asserted.
"""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from optdoctor.engine import diagnose
from optdoctor.findings import Diagnosis, Severity, Status
from optdoctor.readers import read

CORPUS = Path(os.environ.get("OPTDOCTOR_CORPUS", ""))
INDEX = CORPUS / "index.jsonl"

pytestmark = pytest.mark.skipif(
    "OPTDOCTOR_CORPUS" not in os.environ or not INDEX.is_file(),
    reason="OPTDOCTOR_CORPUS names no folder with an index.jsonl",
)


def entries() -> list[dict[str, str]]:
    return [json.loads(line) for line in INDEX.read_text(encoding="utf-8").splitlines() if line]


def diagnosis_of(name: str) -> Diagnosis:
    file = next(entry["file"] for entry in entries() if entry["id"] == name)
    return diagnose(read(CORPUS / file))


READERS = {
    "nanogpt-speedrun-01": "llm-c",
    "nanogpt-speedrun-02": "modded-nanogpt",
    "nanogpt-speedrun-04": "llm-c",
    "nanogpt-multiseed": "modded-nanogpt",
    "nanogpt": "nanogpt",
    "joeynmt-val": "joeynmt-validations",
    "joeynmt": "joeynmt",
    "deit-jsonl": "json-lines",
    "lf-trainerlog": "json-lines",
    "mmseg-json": "mmcv-json",
    "mmdet": "mmcv",
    "mmengine": "mmengine",
    "xtuner": "mmengine",
    "galore": "galore",
    "keras-csv": "csv",
    "keras-console": "keras-console",
    "lightning-csv": "csv",
    "yolo-csv": "ultralytics",
    "timm-csv": "timm-summary",
    "algoperf-csv": "algoperf",
    "sb3-csv": "baselines",
    "baselines-csv": "baselines",
    "rllib-csv": "rllib",
    "gdiff-csv": "guided-diffusion",
    "hf-state": "huggingface-state",
    "hf-unsloth-state": "huggingface-state",
    "hf-unsloth-console": "huggingface-console",
    "hf-console": "huggingface-console",
    "trl-reward": "huggingface-console",
    "deepspeed": "huggingface-console",
    "nb-table": "notebook-table",
    "detectron2-json": "detectron2-json",
    "detectron2-log": "detectron2",
    "cyclegan": "cyclegan",
    "allennlp-01": "allennlp",
    "allennlp-02": "allennlp-json",
    "tfevents": "tensorboard",
    "sb3-tfevents": "tensorboard",
    "wordlm": "word-language-model",
    "notebook-step": "prints",
    "plain-epoch": "prints",
    "rwkv-rm": "prints",
    "tqdm-epoch": "prints",
    "tf-print-nan": "prints",
    "megatron-golden": "megatron-golden",
    "megatron": "megatron",
    "fairseq-hydra": "fairseq",
    "fairseq": "fairseq-old",
    "caffe": "caffe",
    "paddleocr": "paddleocr",
    "torchtitan": "torchtitan",
    "litgpt": "litgpt",
    "mlx": "mlx-lm",
    "espnet": "espnet",
    "opennmt": "opennmt",
    "tfod": "tf-slim",
    "tf-estimator": "tf-slim",
    "spacy": "spacy",
    "tesseract": "tesseract",
    "bigdl": "bigdl",
    "dllogger": "dllogger",
    "txl": "transformer-xl",
    "dschat": "deepspeed-examples",
    "ds-gpt-ppl": "deepspeed-examples",
    "torch-imagenet": "torch-imagenet",
    "rwkv-log": "rwkv",
    "torchtune": "torchtune",
    "nemo-automodel": "nemo-automodel",
    "composer-metric": "composer",
    "kaldi-pybind": "kaldi",
    "darknet-region": "darknet",
}
"""{beginning of an id: the reader of its format}; of several the longest counts."""
WITHOUT_LOSS = {"cyclegan", "baselines-csv", "darknet-region", "megatron-bs-10"}
WITH_EVALUATIONS_ONLY = {
    "joeynmt-val",
    "nanogpt-multiseed",
    "nanogpt-wandb-06",
    "dschat-sft",
    "ds-gpt",
}
"""Beginnings of the ids of logs that print nothing else, as their catalogue says."""


def begins(name: str, beginnings: set[str]) -> bool:
    return any(name.startswith(beginning) for beginning in beginnings)


def test_every_log_is_read_by_its_reader_with_its_loss() -> None:
    wrong = []
    for entry in entries():
        name, trace = entry["id"], read(CORPUS / entry["file"])
        expected = READERS[max((b for b in READERS if name.startswith(b)), key=len)]
        loss = "eval_loss" if begins(name, WITH_EVALUATIONS_ONLY) else "loss"
        has_loss = loss in trace.series or begins(name, WITHOUT_LOSS)
        if trace.reader != expected or not has_loss:
            wrong.append((name, trace.reader, expected, sorted(trace.series)))
    print(f"\n{len(entries())} logs read")
    assert wrong == []


def test_no_log_without_an_illness_raises_an_alarm() -> None:
    table: Counter[tuple[str, str]] = Counter()
    alarms = []
    for entry in entries():
        diagnosis = diagnose(read(CORPUS / entry["file"]))
        assert diagnosis.with_status(Status.CRASHED) == {}, entry["id"]
        table[entry["diagnosis"], str(diagnosis.verdict)] += 1
        found = [f.rule for f in diagnosis.findings if f.severity is not Severity.NOTE]
        if entry["diagnosis"] in ("healthy", "too short") and found:
            alarms.append((entry["id"], found))
    verdicts = sorted({verdict for _, verdict in table})
    print("\n" + " " * 24 + "".join(f"{verdict:>12}" for verdict in verdicts))
    for label in sorted({label for label, _ in table}):
        print(f"{label:24}" + "".join(f"{table[label, verdict]:12}" for verdict in verdicts))
    assert alarms == []


@pytest.mark.parametrize(
    "names",
    [
        ("hf-state-01", "lf-trainerlog-02"),
        ("allennlp-01", "allennlp-02"),
        ("rllib-csv-01", "tfevents-01"),
        ("sb3-csv-01", "sb3-tfevents-01"),
    ],
)
def test_one_run_in_two_formats_gets_one_verdict(names: tuple[str, str]) -> None:
    one, other = map(diagnosis_of, names)
    assert one.verdict == other.verdict
    assert {f.rule for f in one.findings} == {f.rule for f in other.findings}


def test_a_passage_of_a_run_shows_what_the_whole_run_does_there() -> None:
    whole, passage = map(diagnosis_of, ("hf-unsloth-state-01", "hf-unsloth-console-01"))
    assert whole.verdict == passage.verdict == "sick"
    assert {f.rule for f in passage.findings} <= {f.rule for f in whole.findings}


@pytest.mark.parametrize("name", ["hf-state-01", "hf-console-04", "lightning-csv-02"])
def test_a_healthy_log_raises_no_alarm(name: str) -> None:
    diagnosis = diagnosis_of(name)
    assert diagnosis.verdict in ("healthy", "unknown")
    assert all(finding.severity is Severity.NOTE for finding in diagnosis.findings)


def test_an_evaluation_that_worsens_while_the_task_improves_is_a_note() -> None:
    diagnosis = diagnosis_of("hf-state-03")
    assert [(f.rule, f.severity) for f in diagnosis.findings] == [("bimodal-gap", Severity.NOTE)]


@pytest.mark.parametrize(
    ("name", "rule"), [("allennlp-01", "bimodal-gap"), ("keras-csv-01", "early-plateau")]
)
def test_a_log_with_a_clear_shape_is_found(name: str, rule: str) -> None:
    diagnosis = diagnosis_of(name)
    assert diagnosis.verdict == "sick"
    assert {f.rule for f in diagnosis.findings if f.severity is not Severity.NOTE} == {rule}


def test_a_log_that_turned_nan_is_found() -> None:
    assert "nan-pulse" in {finding.rule for finding in diagnosis_of("hf-console-01").findings}
