"""What names mean that the author of a training loop chose: each is understood by its words.

`Train_loss`, `avg loss` and `loss` are the training loss, `Val Loss` that of the evaluation,
`cls_loss` is a part of the loss beside a whole one and a guess where there is none.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from optdoctor.knowledge.log_names import GRADIENTS, RATES, prefixed
from optdoctor.reading.lazy_regex import lazy

# fmt: off
TRAINING = frozenset(("train", "training", "tr", "trn"))
EVALUATION = frozenset((
    "val", "vali", "valid", "validation", "validating", "eval", "evaluation", "evaluating", "test",
    "testing", "dev",
))
DATA = TRAINING | EVALUATION
_LOSS = frozenset(("loss", "losses", "los", "lossval"))
_FILLING = frozenset((
    "avg", "ave", "average", "mean", "total", "batch", "step", "epoch", "running", "current", "cur",
    "value", "final", "overall", "global", "set", "iter", "iteration", "the",
))
"""Words beside `loss` that make no other quantity of it."""
_CRITERIA = frozenset((
    "ce", "cross", "entropy", "crossentropy", "xent", "nll", "mse", "rmse", "mae", "l1", "l2",
    "bce", "ctc", "lm", "mlm", "hinge", "huber", "smooth", "focal", "dice", "triplet",
    "contrastive", "recon", "reconstruction", "classification", "cls", "regression", "sft",
))
"""Words for what falls in a good run, where it is the only loss of a log."""
_PENALTIES = frozenset((
    "entropy", "ent", "kl", "aux", "auxiliary", "reg", "regularization", "penalty",
))
"""Words for a part of a loss that tells least of the whole."""
_EXTREMES = frozenset((
    "min", "max", "best", "lowest", "highest", "last", "prev", "previous", "old",
))
_ADVERSARIES = frozenset((
    "d", "g", "discriminator", "generator", "disc", "gen", "netd", "netg",
))
_REWARDS = frozenset(("reward", "rewards", "return", "returns"))
_CLOCKS = frozenset((
    "eta", "time", "elapsed", "remaining", "mem", "memory", "vram", "speed", "seed", "date", "dur",
    "sec", "seconds", "ms", "s", "pid", "port", "rank", "gpu", "num", "version", "v", "epoch",
    "epochs", "step", "steps", "iter", "iters", "iteration", "iterations", "it", "batch",
))
# fmt: on
_WORD = lazy(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_NUMBER = lazy(r"\d+(?:\.\d+)?")
_MANY = 3
"""Names alike but for their numbers, from which on each of them has to come again."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one row says."""

    values: Mapping[str, float]  # {name in the log}
    step: float | None
    epoch: float | None


@dataclass(frozen=True, slots=True)
class Plan:
    """How one log is read, settled by its beginning."""

    loss: str = ""
    """The name that is the training loss, "" where none is."""
    clock: str = "rows"
    """Or "step" or "epoch"."""
    kind: str = "unknown"
    """As the fact `loss_kind`."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """{name: channel} of this log alone."""
    passing: frozenset[str] = frozenset()
    """Names, "#" for their numbers, whose numbers change from row to row."""


def planned(rows: Sequence[Row]) -> Plan:
    """How a log is read that begins with these rows."""
    seen = Counter(name for row in rows for name in row.values)
    passing = _passing(seen)
    names = {name for name in seen if _pattern(name) not in passing}
    losses = {name: n for name, n in seen.items() if name in names and is_loss(name)}
    whole = {name: n for name, n in losses.items() if _is_whole(name)}
    training = {n: rows for n, rows in whole.items() if EVALUATION.isdisjoint(words_of(n))}
    parts = {n: r for n, r in losses.items() if n not in whole and not _is_extreme(n)}
    candidates = training or (parts if not whole else {})
    # What is printed most often is the finest; one that says that it is of the training goes first.
    loss = max(
        candidates,
        key=lambda name: (
            not _is_penalty(name),
            candidates[name],
            not TRAINING.isdisjoint(words_of(name)),
        ),
        default="",
    )
    kind = _kind(loss, names, len(parts))
    if kind == "adversarial" and not _is_whole(loss):
        loss = ""  # what two players minimise is no loss of the training
    return Plan(loss, _clock(rows, loss), kind, _aliases(names), passing)


def _passing(seen: Mapping[str, int]) -> frozenset[str]:
    """Patterns of names most of which a log has but once, as where a value is part of the name."""
    alike: dict[str, list[int]] = {}
    for name, rows in seen.items():
        if (pattern := _pattern(name)) != name:
            alike.setdefault(pattern, []).append(rows)
    return frozenset(
        pattern
        for pattern, rows in alike.items()
        if len(rows) >= _MANY and sum(rows) < 2 * len(rows)
    )


def _pattern(name: str) -> str:
    return _NUMBER.sub("#", name)


def _clock(rows: Sequence[Row], loss: str) -> str:
    own = [r for r in rows if (loss in r.values if loss else any(map(is_loss, r.values)))]
    if sum(row.step is not None for row in own) * 2 > len(own):
        return "step"
    epochs = {row.epoch for row in rows if row.epoch is not None}
    # Rows that share an epoch are not told apart by it.
    return "epoch" if epochs and len(epochs) * 1.5 >= len(own) else "rows"


def _kind(loss: str, names: set[str], num_parts: int) -> str:
    words = set(words_of(loss))
    losses = {word for name in names if is_loss(name) for word in words_of(name)}
    if len(losses & _ADVERSARIES) >= 2:
        return "adversarial"
    is_named = _is_whole(loss) and bool(loss)
    is_only = num_parts == 1 and words <= _CRITERIA | _LOSS | TRAINING | _FILLING and bool(loss)
    if loss and not is_named and not is_only:
        return "unknown"
    if any(not _REWARDS.isdisjoint(words_of(name)) for name in names):
        return "reward"
    return "falling" if is_named or is_only else "unknown"


def _aliases(names: set[str]) -> dict[str, str]:
    """Rates and norms whose names say of what they are: actor/lr, where there is one."""
    plain = {_plain(name) for name in names}
    known = {"lr": RATES, "grad_norm": GRADIENTS}
    return {n: c for n, c in prefixed(names).items() if plain.isdisjoint(known[c])}


def channel_of(name: str, plan: Plan) -> str:
    """The channel of a name, "" where it is dropped."""
    if name == plan.loss:
        return "loss"
    if name in plan.aliases:
        return plan.aliases[name]
    if plan.passing and _pattern(name) in plan.passing:
        return ""
    words = words_of(name)
    if is_loss(name) and _is_whole(name) and not EVALUATION.isdisjoint(words):
        return "eval_loss"
    if is_loss(name):
        return f"metric:{name}"
    plain = _plain(name)
    if plain in RATES:
        return "lr"
    if plain in GRADIENTS or plain == "norm":  # as llm.c and build-nanogpt print it
        return "grad_norm"
    return "" if not words or is_clock(name) else f"metric:{name}"


def is_loss(name: str) -> bool:
    """Whether it is a loss, of whatever."""
    return not _LOSS.isdisjoint(words_of(name))


def is_clock(name: str) -> bool:
    """Whether it numbers rows, or is of time, memory and the like."""
    return not _CLOCKS.isdisjoint(words_of(name))


@lru_cache(maxsize=10_000)
def words_of(name: str) -> tuple[str, ...]:
    """The words of a name in lower case."""
    return tuple(word.lower() for word in _WORD.findall(name[:200]))


def _plain(name: str) -> str:
    return " ".join(words_of(name))


def _is_whole(name: str) -> bool:
    """Whether it is the loss and no part or extreme of it."""
    return set(words_of(name)) <= _LOSS | DATA | _FILLING


def _is_extreme(name: str) -> bool:
    return not _EXTREMES.isdisjoint(words_of(name))


def _is_penalty(name: str) -> bool:
    words = words_of(name)
    return not _PENALTIES.isdisjoint(words) and "cross" not in words
