"""What part of a network a tensor is, and which block it belongs to, from module class and name."""

import re

from optdoctor.trace import Kind

_WRAPPERS = re.compile(r"(^|\.)(_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)(?=\.|$)")
_BLOCK = re.compile(r"(?:^|\.)((?:h|layers?|blocks?|stages?|encoder|decoder)\.\d+)(?=\.)", re.I)

# First match wins; module classes are matched before names.
_BY_MODULE: tuple[tuple[str, Kind], ...] = (
    (r"lora|adapter", "adapter"),
    (r"norm", "norm"),
    (r"embedding", "embedding"),
    (r"conv\dd|convtranspose", "conv"),
    (r"^(rnn|lstm|gru)(cell)?$", "recurrent"),
    (r"attention", "attention"),
)
_BY_NAME: tuple[tuple[str, Kind], ...] = (
    (r"lora_|adapter", "adapter"),
    (r"(^|\.)(ln|norm|layer_?norm|bn|rms)\w*\.(weight|bias)$|norm\w*\.weight$", "norm"),
    (r"(^|\.)(wte|wpe|embed\w*|\w*embeddings?|shared)\.", "embedding"),
    (r"(^|\.)(lm_head|head|classifier|score|qa_outputs|cls)\.", "head"),
    (r"att(n|ention)|(^|\.)(q|k|v|o|query|key|value)(_proj)?\.", "attention"),
    (r"mlp|ffn|feed_?forward|densereludense|intermediate|(^|\.)(fc|gate|up|down)\w*\.", "mlp"),
    (r"(^|\.)conv\w*\.", "conv"),
    (r"(rnn|lstm|gru)", "recurrent"),
)


def clean(name: str) -> str:
    """A parameter's name without the marks of compile, checkpoint and sharding wrappers."""
    return re.sub(r"\.{2,}", ".", _WRAPPERS.sub(r"\1", name)).strip(".")


def layer_of(name: str) -> str:
    """The innermost numbered block: "h.3" of "transformer.h.3.attn.c_attn.weight"; else ""."""
    found = _BLOCK.findall(name)
    return found[-1] if found else ""


def kind_of(name: str, module: str = "") -> Kind:
    """The kind of a tensor from its module's class and its name; `other` where neither tells."""
    for pattern, kind in _BY_MODULE:
        if re.search(pattern, module, re.I):
            return "bias" if name.endswith("bias") and kind != "norm" else kind
    if name.endswith("bias") and not re.search(_BY_NAME[1][0], name, re.I):
        return "bias"
    for pattern, kind in _BY_NAME:
        if re.search(pattern, name, re.I):
            return kind
    return "other"
