"""What a loop tells as facts: what no rule would understand is refused, not ignored."""

from collections.abc import Mapping
from numbers import Real
from types import MappingProxyType

from optdoctor.channels import CHANNELS, Axis, channel, is_channel
from optdoctor.errors import did_you_mean
from optdoctor.trace import Fact

TOLD = (
    "total_steps",
    "warmup_steps",
    "accumulation_steps",
    "max_grad_norm",
    "num_classes",
    "batch_size",
    "loss_kind",
    "losses_comparable",
    "replicated",
)
"""Facts that a loop knows and hooks cannot see."""
WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "loss_kind": ("falling", "reward", "adversarial", "diffusion", "unknown"),
        "loss_base": ("nats", "bits", "other"),
        "losses_comparable": ("yes", "no"),
        "replicated": ("yes", "no"),
        "casts_kept": ("yes", "no"),
        "state_loaded": ("yes", "no"),
        "scaler": ("on", "off"),
        "nan_filter": ("on", "off"),
    }
)
"""All values of facts that are one of a few words. Of two, the first may be told as True."""
IN_WORDS = frozenset({"name", "dtype", "ranks"})
"""Units of facts that are no numbers."""


def checked(facts: Mapping[str, Fact]) -> dict[str, Fact]:
    """{name: value as rules know it}; a value of None tells nothing.

    Raises:
        ValueError: a name that is no run channel, or a value that it cannot have.
    """
    return {name: _value(name, value) for name, value in facts.items() if value is not None}


def _value(name: str, value: Fact) -> Fact:
    if not is_channel(name) or channel(name).axis is not Axis.RUN:
        known = [one for one in CHANNELS if CHANNELS[one].axis is Axis.RUN]
        remedy = did_you_mean(str(name), known, f"a loop can tell {', '.join(TOLD)}")
        raise ValueError(f"no fact is named {name!r}: {remedy}")
    words = WORDS.get(name, ())
    if words:
        word = words[not value] if isinstance(value, bool) and len(words) == 2 else value
        if word not in words:
            listed = ", ".join(map(repr, words[:-1]))
            raise ValueError(f"the fact {name} is {listed} or {words[-1]!r}, not {value!r}")
        return word
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if name in CHANNELS and CHANNELS[name].unit not in IN_WORDS and not is_number:
        raise ValueError(f"the fact {name} is a number, not {value!r}")
    return value
