"""What the samples of formats of translation, speech and vision are read to, whole.

Facts say what their losses are; the channels show that clocks, sizes and counters are dropped.
"""

import pytest

from optdoctor.readers import read_source, readers
from optdoctor.reading.reader import Source

_KNOWN = ("loss_base", "loss_form", "loss_kind", "loss_window", "nan_filter", "step_source")
EXPECTED: dict[str, tuple[dict[str, object], list[str]]] = {
    "fairseq": (
        {
            "loss_base": "bits",
            "loss_form": "mean",
            "loss_kind": "falling",
            "loss_window": 100,
            "step_source": "logged",
        },
        [
            "epoch",
            "eval_loss",
            "grad_norm",
            "loss",
            "loss_scale",
            "lr",
            "metric:clip",
            "metric:ppl",
            "metric:valid_nll_loss",
            "metric:valid_ppl",
            "step_skipped",
        ],
    ),
    "fairseq-old": (
        {
            "loss_base": "bits",
            "loss_form": "running mean",
            "loss_kind": "falling",
            "step_source": "logged",
        },
        [
            "epoch",
            "eval_loss",
            "grad_norm",
            "loss",
            "loss_scale",
            "lr",
            "metric:clip",
            "metric:nll_loss",
            "metric:ppl",
            "metric:valid_ppl",
            "step_skipped",
        ],
    ),
    "joeynmt": (
        {
            "loss_base": "nats",
            "loss_form": "mean",
            "loss_kind": "falling",
            "loss_window": 1,
            "step_source": "logged",
        },
        ["epoch", "eval_loss", "loss", "lr", "metric:bleu"],
    ),
    "joeynmt-validations": (
        {"loss_base": "nats", "loss_kind": "falling", "step_source": "logged"},
        ["eval_loss", "lr", "metric:bleu"],
    ),
    "opennmt": (
        {
            "loss_base": "nats",
            "loss_form": "mean",
            "loss_kind": "falling",
            "loss_window": 50,
            "step_source": "logged",
        },
        ["eval_loss", "loss", "lr", "metric:acc", "metric:ppl", "metric:valid_acc"],
    ),
    "espnet": (
        {
            "loss_form": "mean",
            "loss_kind": "falling",
            "loss_window": 100,
            "nan_filter": "on",
            "step_source": "logged",
        },
        [
            "epoch",
            "eval_loss",
            "grad_norm",
            "loss",
            "loss_scale",
            "lr",
            "metric:acc",
            "metric:clip",
            "metric:loss_att",
            "metric:loss_ctc",
        ],
    ),
    "mmcv": (
        {"loss_form": "mean", "loss_kind": "falling", "loss_window": 50, "step_source": "logged"},
        [
            "epoch",
            "grad_norm",
            "loss",
            "lr",
            "metric:acc",
            "metric:bbox_mAP",
            "metric:loss_bbox",
            "metric:loss_cls",
        ],
    ),
    "mmengine": (
        {"loss_form": "mean", "loss_kind": "falling", "step_source": "logged"},
        [
            "epoch",
            "loss",
            "lr",
            "metric:acc",
            "metric:base_lr",
            "metric:coco/bbox_mAP",
            "metric:loss_bbox",
            "metric:loss_cls",
        ],
    ),
    "mmengine-json": (
        {"loss_form": "mean", "loss_kind": "falling", "step_source": "logged"},
        ["epoch", "loss", "lr", "metric:coco/bbox_mAP", "metric:loss_cls"],
    ),
    "mmcv-json": (
        {"loss_form": "mean", "loss_kind": "falling", "loss_window": 50, "step_source": "logged"},
        [
            "epoch",
            "loss",
            "lr",
            "metric:aAcc",
            "metric:aux.loss_seg",
            "metric:decode.loss_seg",
            "metric:mIoU",
        ],
    ),
    "detectron2": (
        {"loss_form": "window median", "loss_kind": "falling", "step_source": "logged"},
        ["loss", "lr", "metric:loss_box_reg", "metric:loss_cls"],
    ),
    "detectron2-json": (
        {"loss_form": "window median", "loss_kind": "falling", "step_source": "logged"},
        [
            "loss",
            "lr",
            "metric:bbox/AP",
            "metric:bbox/AP50",
            "metric:loss_box_reg",
            "metric:loss_cls",
        ],
    ),
    "maskrcnn-benchmark": (
        {"loss_form": "window median", "loss_kind": "falling", "step_source": "logged"},
        ["loss", "lr", "metric:loss_box_reg", "metric:loss_classifier"],
    ),
    "metric-logger": (
        {"loss_form": "window median", "loss_kind": "falling", "step_source": "logged"},
        ["epoch", "eval_loss", "loss", "lr"],
    ),
    "timm-console": (
        {"loss_form": "mean", "loss_kind": "falling", "loss_window": 1, "step_source": "logged"},
        ["epoch", "eval_loss", "loss", "lr"],
    ),
    "swin": (
        {"loss_form": "mean", "loss_kind": "falling", "loss_window": 1, "step_source": "logged"},
        ["epoch", "eval_loss", "grad_norm", "loss", "lr"],
    ),
    "torch-imagenet": (
        {"loss_form": "mean", "loss_kind": "falling", "loss_window": 1, "step_source": "logged"},
        ["epoch", "eval_loss", "loss", "metric:Acc@1", "metric:Acc@5"],
    ),
    "paddleocr": (
        {"loss_form": "window median", "loss_kind": "falling", "step_source": "logged"},
        [
            "epoch",
            "loss",
            "lr",
            "metric:CTCLoss",
            "metric:acc",
            "metric:eval_acc",
            "metric:eval_norm_edit_dis",
        ],
    ),
    "paddledetection": (
        {"loss_form": "window median", "loss_kind": "falling", "step_source": "logged"},
        ["epoch", "loss", "lr", "metric:loss_bbox", "metric:loss_cls"],
    ),
    "paddleclas": (
        {"loss_form": "running mean", "loss_kind": "falling", "step_source": "logged"},
        ["epoch", "eval_loss", "loss", "lr", "metric:CELoss", "metric:top1", "metric:top5"],
    ),
    "paddleseg": (
        {"loss_form": "mean", "loss_kind": "falling", "loss_window": 10, "step_source": "logged"},
        ["epoch", "loss", "lr", "metric:Acc", "metric:Kappa", "metric:mIoU"],
    ),
    "allennlp": (
        {"loss_form": "mean", "loss_kind": "falling", "step_source": "epochs"},
        ["eval_loss", "loss", "metric:training_accuracy", "metric:validation_accuracy"],
    ),
    "allennlp-json": (
        {"loss_form": "mean", "loss_kind": "falling", "step_source": "epochs"},
        ["eval_loss", "loss", "metric:training_accuracy", "metric:validation_accuracy"],
    ),
    "pytorch-mnist": (
        {
            "loss_form": "mean",
            "loss_kind": "falling",
            "loss_window": 1,
            "step_source": "counted rows",
        },
        ["epoch", "eval_loss", "loss", "metric:accuracy"],
    ),
    "open-clip": (
        {
            "loss_form": "mean",
            "loss_kind": "falling",
            "loss_window": 1,
            "step_source": "counted rows",
        },
        ["epoch", "eval_loss", "loss", "lr"],
    ),
    "yolox": (
        {"loss_form": "mean", "loss_kind": "falling", "loss_window": 1, "step_source": "logged"},
        [
            "epoch",
            "loss",
            "lr",
            "metric:cls_loss",
            "metric:conf_loss",
            "metric:iou_loss",
            "metric:l1_loss",
        ],
    ),
    "speechbrain": (
        {"loss_form": "mean", "loss_kind": "falling", "step_source": "epochs"},
        ["epoch", "eval_loss", "loss", "lr", "metric:valid CER"],
    ),
    "wenet": (
        {"loss_form": "mean", "loss_kind": "falling", "loss_window": 1, "step_source": "logged"},
        ["epoch", "eval_loss", "loss", "lr", "metric:loss_att", "metric:loss_ctc"],
    ),
    "icefall": (
        {"loss_form": "mean", "loss_kind": "falling", "loss_window": 1, "step_source": "logged"},
        ["epoch", "eval_loss", "loss", "loss_scale", "lr"],
    ),
    "nemo-bar": (
        {"loss_form": "mean", "loss_kind": "falling", "loss_window": 1, "step_source": "logged"},
        ["epoch", "eval_loss", "loss"],
    ),
    "nnunet": (
        {"loss_form": "mean", "loss_kind": "falling", "step_source": "epochs"},
        ["eval_loss", "loss", "lr"],
    ),
    "kohya": (
        {"loss_form": "running mean", "loss_kind": "diffusion", "step_source": "logged"},
        ["loss"],
    ),
    "diffusers-bar": (
        {"loss_form": "mean", "loss_kind": "diffusion", "loss_window": 1, "step_source": "logged"},
        ["loss", "lr"],
    ),
    "fastai": (
        {"loss_form": "running mean", "loss_kind": "falling", "step_source": "epochs"},
        ["epoch", "eval_loss", "loss", "metric:accuracy"],
    ),
    "ultralytics-console": (
        {"loss_form": "mean", "loss_kind": "falling", "step_source": "epochs"},
        [
            "epoch",
            "loss",
            "metric:P",
            "metric:R",
            "metric:box_loss",
            "metric:cls_loss",
            "metric:dfl_loss",
            "metric:mAP50",
            "metric:mAP50-95",
        ],
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_facts_and_channels_are_those_of_the_format(name: str) -> None:
    sample = next(reader.sample for reader in readers() if reader.name == name)
    trace = read_source(Source(sample.encode(), "train.log"))
    facts, channels = EXPECTED[name]
    assert trace.reader == name
    assert {fact: value for fact, value in trace.facts.items() if fact in _KNOWN} == facts
    assert sorted(trace.series) == channels
