"""How Lightning spells the change of a knob. Seen in 2.2.5 and 2.6.6.

Betas, epsilon and decay are set as the training starts, where a checkpoint has been loaded: the
optimizer's state brings the old ones back. A rate is set before the scheduler is made.
"""

LABEL = "Lightning"
PACKAGES = ("lightning", "pytorch-lightning")
LOOK_INSIDE = "Trainer(.., callbacks=[OptDoctorCallback()])"
TREAT = 'OptDoctorCallback(treat=["{new}"])'

_START = "on_train_start: for g in self.optimizers().param_groups: g"
_MAKE = "configure_optimizers: "
# Without an interval, a scheduler steps once an epoch.
_SCHEDULE = _MAKE + '{{"scheduler": torch.optim.lr_scheduler.%s, "interval": "step"}}'
_FLOAT32 = 'Trainer(precision="bf16-mixed")'

KNOBS: dict[str, str | dict[str, str]] = {
    "param_dtype": {"float32": _FLOAT32},
    "state_dtype": {"float32": _FLOAT32},
    "math_dtype": {"float32": _FLOAT32},
    "compute_dtype": {"bfloat16": _FLOAT32, "float32": 'Trainer(precision="32-true")'},
    "eps": _START + '["eps"] = {new}',
    "weight_decay": _START + '["weight_decay"] = g["weight_decay"] and {new}',
    "beta1": _START + '["betas"] = ({new}, g["betas"][1])',
    "beta2": _START + '["betas"] = (g["betas"][0], {new})',
    "momentum": _START + '["momentum"] = {new}',
    "lr": _MAKE + 'for g in optimizer.param_groups: g["lr"] = {new}  # before the scheduler',
    "peak_lr": _MAKE + 'for g in optimizer.param_groups: g["lr"] = {new}  # before the scheduler',
    "tensor_lr:": _MAKE + "torch.optim.AdamW({groups[self]}, ..)",
    "max_grad_norm": "Trainer(gradient_clip_val={new})",
    "schedule": {
        "constant": _SCHEDULE % "ConstantLR(optimizer, 1.0)",
        "cosine": _SCHEDULE % "CosineAnnealingLR(optimizer, T_max=total_steps)",
        "linear": _SCHEDULE % "LinearLR(optimizer, 1.0, 0.0, total_iters=total_steps)",
    },
    "total_steps": "Trainer(max_steps={new})",
    "warmup_steps": _SCHEDULE % "LinearLR(optimizer, 0.001, total_iters={new})",
    "accumulation_steps": "Trainer(accumulate_grad_batches={new})",
    "batch_size": "train_dataloader: torch.utils.data.DataLoader(.., batch_size={new})",
}
"""{knob: code, or {new value: code}}."""

BEFORE: dict[tuple[int, int], dict[str, str | dict[str, str]]] = {}
