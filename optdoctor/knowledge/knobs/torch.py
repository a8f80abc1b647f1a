"""How a plain PyTorch loop spells the change of a knob."""

LABEL = "plain"
PACKAGES = ("torch",)
LOOK_INSIDE = "doctor = optdoctor.watch(model, optimizer)"
TREAT = 'optdoctor.watch(.., treat=["{new}"])'

_GROUP = "for g in optimizer.param_groups: g"
_AUTOCAST = 'with torch.autocast("cuda", torch.bfloat16): loss = ...'
_FLOAT32 = f"model.float()\n{_AUTOCAST}"
_SCHEDULE = "torch.optim.lr_scheduler."

KNOBS: dict[str, str | dict[str, str]] = {
    "param_dtype": {"float32": _FLOAT32},
    "state_dtype": {"float32": _FLOAT32},
    "math_dtype": {"float32": _FLOAT32},
    "compute_dtype": {"bfloat16": _AUTOCAST},
    "eps": _GROUP + '["eps"] = {new}',
    # Groups without decay, of norms and biases, stay so.
    "weight_decay": _GROUP + '["weight_decay"] = g["weight_decay"] and {new}',
    "beta1": _GROUP + '["betas"] = ({new}, g["betas"][1])',
    "beta2": _GROUP + '["betas"] = (g["betas"][0], {new})',
    "momentum": _GROUP + '["momentum"] = {new}',
    "lr": _GROUP + '["lr"] = {new}  # before the scheduler',
    "peak_lr": _GROUP + '["lr"] = {new}  # before the scheduler',
    "tensor_lr:": "torch.optim.AdamW({groups[model]}, ..)",
    "max_grad_norm": {
        # A bound of 0 makes every gradient 0 there.
        "0": "leave out torch.nn.utils.clip_grad_norm_",
        "any other value": "torch.nn.utils.clip_grad_norm_(model.parameters(), {new})",
    },
    "schedule": {
        "constant": _SCHEDULE + "ConstantLR(optimizer, 1.0)",
        "cosine": _SCHEDULE + "CosineAnnealingLR(optimizer, T_max=total_steps)",
        "linear": _SCHEDULE + "LinearLR(optimizer, 1.0, 0.0, total_iters=total_steps)",
    },
    "total_steps": _SCHEDULE + "CosineAnnealingLR(optimizer, T_max={new})",
    "warmup_steps": _SCHEDULE + "LinearLR(optimizer, 0.001, total_iters={new})",
    "accumulation_steps": "(loss / {new}).backward()  # optimizer.step() after every {new}",
    "batch_size": "torch.utils.data.DataLoader(.., batch_size={new})",
}
"""{knob: code, or {new value: code}}."""

BEFORE: dict[tuple[int, int], dict[str, str | dict[str, str]]] = {}
