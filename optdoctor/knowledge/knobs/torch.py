"""How a plain PyTorch loop spells the change of a knob."""

LABEL = "plain"
LOOK_INSIDE = "doctor = optdoctor.watch(model, optimizer)"

_GROUP = "for g in optimizer.param_groups: g"
_FLOAT32 = "model.float(), forward in torch.autocast(.., bfloat16)"

KNOBS: dict[str, str | dict[str, str]] = {
    "param_dtype": {"float32": _FLOAT32},
    "state_dtype": {"float32": _FLOAT32},
    "math_dtype": {"float32": _FLOAT32},
    "eps": _GROUP + '["eps"] = {new}',
    "weight_decay": _GROUP + '["weight_decay"] = {new}',
    "beta2": _GROUP + '["betas"] = (g["betas"][0], {new})',
    "max_grad_norm": "torch.nn.utils.clip_grad_norm_(model.parameters(), {new})",
}
"""{knob: code, or {new value: code}}."""
