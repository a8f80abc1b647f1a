"""How Hugging Face transformers spells the change of a knob. Seen in transformers 5.24."""

LABEL = "HF"
LOOK_INSIDE = "Trainer(.., callbacks=[OptDoctorCallback()])"

# Releases before 4.56 call the first argument torch_dtype.
_FLOAT32 = "from_pretrained(.., dtype=torch.float32), TrainingArguments(bf16=True)"

KNOBS: dict[str, str | dict[str, str]] = {
    "param_dtype": {"float32": _FLOAT32},
    "state_dtype": {"float32": _FLOAT32},
    "math_dtype": {"float32": _FLOAT32},
    "eps": "TrainingArguments(adam_epsilon={new})",
    "weight_decay": "TrainingArguments(weight_decay={new})",
    "beta2": "TrainingArguments(adam_beta2={new})",
    "max_grad_norm": "TrainingArguments(max_grad_norm={new})",
}
"""{knob: code, or {new value: code}}."""
