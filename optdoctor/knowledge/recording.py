"""What a log could hold that decides between causes, how to record it, and what it would tell."""

from collections.abc import Mapping
from types import MappingProxyType

HOW: Mapping[str, str] = MappingProxyType(
    {
        "loss": "the loss of every update",
        "lr": "scheduler.get_last_lr()[0] with each loss",
        "grad_norm": "what clip_grad_norm_ returns, with each loss",
        "loss_scale": "scaler.get_scale() with each loss, in float16",
        "epoch": "the epoch with each loss",
        "eval_loss": "the loss on held-out data, several times an epoch",
    }
)
"""{channel: how a training loop prints it}: what anybody can log without the doctor."""

HOW_IN: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "huggingface": MappingProxyType(
            {"eval_loss": 'TrainingArguments(eval_strategy="steps", eval_steps=..)'}
        ),
        "lightning": MappingProxyType(
            {
                "lr": "Trainer(.., callbacks=[LearningRateMonitor()])",
                "grad_norm": "lightning.pytorch.utilities.grad_norm in on_before_optimizer_step",
                "eval_loss": 'self.log("val_loss", loss) in validation_step',
            }
        ),
    }
)
"""{framework: the same where it has a word of its own}."""

_RISE = {
    "lr": "whether the rate rose before the loss did",
    "grad_norm": "whether the gradient grew with the loss, as under too large steps",
    "eval_loss": "whether the model got worse or its training data harder",
    "loss_scale": "whether the number format overflowed meanwhile",
}

TELLS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "upward-drift": _RISE,
        "divergence": _RISE,
        "early-plateau": {
            "lr": "whether the rate had run out, or the run stopped learning by itself",
            "grad_norm": "whether a gradient was left",
            "loss_scale": "whether the updates were skipped",
            "eval_loss": "whether the evaluation stands still too",
        },
        "staircase-oscillation": {
            "epoch": "whether the period is one pass over the data: its order is at fault then",
            "lr": "whether the rate swings in the same rhythm",
            "grad_norm": "whether single batches bring it",
        },
        "loss-spike": {
            "grad_norm": "whether the gradient jumped with the loss: a batch, or too large a step",
            "lr": "whether the rate was high when it came",
        },
        "nan-pulse": {
            "grad_norm": "whether the gradient or the loss broke first",
            "lr": "whether the rate rose before the loss broke",
            "loss_scale": "whether those updates were skipped",
        },
        "bimodal-gap": {"loss": "whether the training loss falls meanwhile: without, it diverges"},
        "gradient-outlier": {"loss": "whether the loss jumped with the gradient"},
        "nonfinite-gradient": {"loss": "whether the loss or the gradient broke first"},
        "loss-scale-collapse": {
            "grad_norm": "whether gradients are infinite at every scale",
            "loss": "whether the loss itself broke",
        },
    }
)
"""{symptom: {channel: what a log with it would tell}}, the most telling first. Every channel here
is one that the symptom's rule, or one that can explain it, reads."""


def how(channel: str, framework: str | None = None) -> str:
    """How that channel gets into a log of the framework."""
    return HOW_IN.get(framework or "", {}).get(channel) or HOW[channel]
