"""How Hugging Face transformers spells the change of a knob. Seen in 4.46.3 and 5.24."""

LABEL = "HF"
PACKAGES = ("transformers",)
LOOK_INSIDE = "Trainer(.., callbacks=[OptDoctorCallback()])"
TREAT = 'OptDoctorCallback(treat=["{new}"])'

_AFTER = "\nmodel.float()  # where it is built from a config\nTrainingArguments(bf16=True)"
_FLOAT32 = f"from_pretrained(.., dtype=torch.float32){_AFTER}"
_OLD_FLOAT32 = f"from_pretrained(.., torch_dtype=torch.float32){_AFTER}"

KNOBS: dict[str, str | dict[str, str]] = {
    "param_dtype": {"float32": _FLOAT32},
    "state_dtype": {"float32": _FLOAT32},
    "math_dtype": {"float32": _FLOAT32},
    "compute_dtype": {"bfloat16": "TrainingArguments(bf16=True)"},
    "eps": "TrainingArguments(adam_epsilon={new})",
    "weight_decay": "TrainingArguments(weight_decay={new})",
    "beta1": "TrainingArguments(adam_beta1={new})",
    "beta2": "TrainingArguments(adam_beta2={new})",
    "momentum": "Trainer(.., optimizers=(torch.optim.SGD(.., momentum={new}), None))",
    "lr": "TrainingArguments(learning_rate={new})",
    "peak_lr": "TrainingArguments(learning_rate={new})",
    "tensor_lr:": "Trainer(.., optimizers=(torch.optim.AdamW({groups[model]}, ..), None))",
    "max_grad_norm": "TrainingArguments(max_grad_norm={new})",
    "schedule": {
        name: f'TrainingArguments(lr_scheduler_type="{name}")'
        for name in ("constant", "constant_with_warmup", "cosine", "inverse_sqrt", "linear")
    },
    "total_steps": "TrainingArguments(max_steps={new})",
    "warmup_steps": "TrainingArguments(warmup_steps={new})",
    "accumulation_steps": "TrainingArguments(gradient_accumulation_steps={new})",
    "batch_size": "TrainingArguments(per_device_train_batch_size={new})",
}
"""{knob: code, or {new value: code}}."""

BEFORE: dict[tuple[int, int], dict[str, str | dict[str, str]]] = {
    (4, 56): {
        knob: {"float32": _OLD_FLOAT32} for knob in ("param_dtype", "state_dtype", "math_dtype")
    },
}
"""{first release that spells them as above: the knobs as earlier ones did}."""
