"""Prints of a training loop's own: `epoch 3 loss: 0.12`, `[Step 7] Train Loss = 2.5`, tqdm bars.

Nobody fixes the words, so a name is understood by its parts: `Train_loss`, `avg loss` and `loss`
are the training loss, `Val Loss` and the `loss` of a line that begins with `Valid` that of the
evaluation. Steps are those that the lines say, else their epochs, else the rows are counted.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache

from optdoctor.reading.lazy_regex import lazy
from optdoctor.reading.log import Log
from optdoctor.reading.reader import Head, Rank, Reader, Source
from optdoctor.reading.text_format import (
    NUMBER,
    PAIRS,
    add_overflow,
    clean_lines,
    lines_of,
    value_of,
)

_TRAINING = frozenset({"train", "training", "tr", "trn"})
_EVALUATION = frozenset(
    {"val", "vali", "valid", "validation", "eval", "evaluation", "test", "testing", "dev"}
)
_DATA = _TRAINING | _EVALUATION
_LOSS = frozenset({"loss", "losses", "los", "lossval"})
_FILLING = frozenset(
    {"avg", "ave", "average", "mean", "total", "batch", "step", "epoch", "running", "current"}
    | {"cur", "value", "final", "overall", "global", "set", "iter", "iteration", "the"}
)
"""Words beside `loss` that make no other quantity of it."""
_CRITERIA = frozenset(
    {"ce", "cross", "entropy", "crossentropy", "xent", "nll", "mse", "rmse", "mae", "l1", "l2"}
    | {"bce", "ctc", "lm", "mlm", "hinge", "huber", "smooth", "focal", "dice", "triplet"}
    | {"contrastive", "recon", "reconstruction", "classification", "cls", "regression", "sft"}
)
"""Words for what falls in a good run, where it is the only loss of a log."""
_EXTREMES = frozenset(
    {"min", "max", "best", "lowest", "highest", "last", "prev", "previous", "old"}
)
_ADVERSARIES = frozenset({"d", "g", "discriminator", "generator", "disc", "gen", "netd", "netg"})
_REWARDS = frozenset({"reward", "rewards", "return", "returns"})
_CLOCKS = frozenset(
    {"eta", "time", "elapsed", "remaining", "mem", "memory", "vram", "speed", "seed", "date"}
    | {"sec", "seconds", "ms", "s", "pid", "port", "rank", "gpu", "num", "version", "v"}
    | {
        "epoch",
        "epochs",
        "step",
        "steps",
        "iter",
        "iters",
        "iteration",
        "iterations",
        "it",
        "batch",
    }
)
_CHATTER = frozenset(
    {"info", "debug", "warning", "root", "main", "trainer", "logger", "with", "of", "for", "at"}
    | {
        "in",
        "after",
        "and",
        "got",
        "has",
        "new",
        "now",
        "log",
        "finished",
        "done",
        "results",
        "result",
    }
)
"""Words in front of a name that do not belong to it."""
_RATES = frozenset({"lr", "learning rate", "learningrate", "current lr", "lr0"})
_GRADIENTS = frozenset({"grad norm", "gnorm", "gradient norm", "gradnorm", "total grad norm"})

_STEP = lazy(
    r"(?i)(?<![\w.])(?:(?:(?:global|train)[ _]?)?steps?|iterations?|iters?|it|updates?"
    r"|batch(?=\W+\d+ ?/))"
    r"['\"\])]?[ \t]*[:=#]?[ \t]*[\[(]?[ \t]*(?P<at>\d+)(?![\d.]*[^\W_]|\.\d)"
)
_EPOCH = lazy(
    r"(?i)(?<!\w)(?<!best )(?<!last )(?:epochs?|ep)['\"\])]?[ \t]*[:=#_]?[ \t]*[\[(]?[ \t]*"
    r"(?P<at>\d+(?:\.\d+)?)(?![\d.]*[a-z])"
)
_BAR = lazy(r"\b(?P<at>\d+)/\d+ ?\[[\d:?]+<")
_BRACKETED = lazy(rf"\[(?P<key>[^\W\d][\w ]{{0,40}})\][ \t]*[:=]?[ \t]*(?P<value>{NUMBER})")
_SPACED = lazy(
    r"(?i)(?<![\w.])(?P<key>(?:(?:train|training|val|valid|validation|eval|test|dev|avg|total|mean)"
    r"[ _/])?(?:loss|lr|acc|accuracy|ppl|grad[ _]norm))"
    rf"[ \t]+(?:is[ \t]+|of[ \t]+|->[ \t]*|was[ \t]+)?(?P<value>{NUMBER})"
)
_COLON = lazy(PAIRS[":"])
_WORTH_A_LOOK = lazy(r"(?i)los|epoch|step|iter|\blr\b|learning|grad|reward")
_WORD = lazy(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SNIFFED_LINES = 20_000
_LEAST_ROWS = 2


@dataclass(frozen=True, slots=True)
class _Row:
    """What one line says."""

    values: dict[str, float]  # {name in the log}
    step: float | None
    epoch: float | None


@dataclass(frozen=True, slots=True)
class _Plan:
    """How this very log is read, settled by its beginning."""

    loss: str = ""  # the name that is the training loss
    clock: str = "rows"  # or "step" or "epoch"
    kind: str = "unknown"
    aliases: dict[str, str] = field(default_factory=dict)


def _sniff(head: Head) -> int:
    lines = clean_lines(head.lines[:_SNIFFED_LINES])
    # A line that is an object is a row of JSON lines.
    told = [line for line in lines if "los" in line.lower() and not line.lstrip().startswith("{")]
    if len(told) < _LEAST_ROWS:
        return 0
    rows = (row for line in told if (row := _row(line)))
    losses = sum(any(_is_loss(name) for name in row.values) for row in rows)
    return losses if losses >= _LEAST_ROWS else 0


def _read(source: Source, log: Log) -> None:
    plan = _planned(_rows(source.head))
    log.facts["loss_kind"] = plan.kind
    log.count_from_one()
    if plan.clock != "step":
        log.facts["step_source"] = "epochs" if plan.clock == "epoch" else "counted rows"
    epoch: float | None = None
    for line in lines_of(source):
        if add_overflow(line, log) or (row := _row(line)) is None:
            continue
        epoch = epoch if row.epoch is None else row.epoch
        has_loss = any(map(_is_loss, row.values))
        named = {
            channel: value
            for name, value in row.values.items()
            if (channel := _channel(name, plan)) and (has_loss or _stands_alone(name, channel))
        }
        if not named:
            continue
        step = {"step": row.step, "epoch": epoch}.get(plan.clock)
        log.row(named if epoch is None else {**named, "epoch": epoch}, step)


def _rows(head: Head) -> list[_Row]:
    """What the beginning says."""
    return [row for line in clean_lines(head.lines[:_SNIFFED_LINES]) if (row := _row(line))]


def _row(line: str) -> _Row | None:
    """What a line says, None where it has nothing to do with a training."""
    if not _WORTH_A_LOOK.search(line):
        return None
    pairs = [*_COLON.finditer(line), *_BRACKETED.finditer(line)]
    if not any(_is_loss(_name(pair["key"])) for pair in pairs):
        pairs += _SPACED.finditer(line)
    begins = min((pair.start() for pair in pairs), default=len(line))
    first = min(pairs, key=lambda pair: pair.start())["key"] if pairs else ""
    tag = {*_words(line[:begins]), *(_words(first) if _is_clock(first) else ())}
    prefix = "val " if tag & _EVALUATION and not tag & _TRAINING else ""
    values: dict[str, float] = {}
    for pair in pairs:
        name = _name(pair["key"])
        values.setdefault(prefix + name if _is_loss(name) else name, value_of(pair["value"]))
    step, epoch = _STEP.search(line) or _BAR.search(line), _EPOCH.search(line)
    return _Row(values, float(step["at"]) if step else None, float(epoch["at"]) if epoch else None)


def _planned(rows: Sequence[_Row]) -> _Plan:
    counts = Counter(name for row in rows for name in row.values if _is_loss(name))
    whole = {name: n for name, n in counts.items() if _is_whole(name)}
    training = {n: rows for n, rows in whole.items() if _EVALUATION.isdisjoint(_words(n))}
    parts = {n: r for n, r in counts.items() if n not in whole and not _is_extreme(n)}
    candidates = training or (parts if not whole else {})
    # What is printed most often is the finest; one that says that it is of the training goes first.
    loss = max(
        candidates,
        key=lambda name: (candidates[name], not _TRAINING.isdisjoint(_words(name))),
        default="",
    )
    names = {name for row in rows for name in row.values}
    return _Plan(loss, _clock(rows, loss), _kind(loss, names, len(parts)))


def _clock(rows: Sequence[_Row], loss: str) -> str:
    own = [row for row in rows if loss in row.values]
    if sum(row.step is not None for row in own) * 2 > len(own):
        return "step"
    epochs = {row.epoch for row in rows if row.epoch is not None}
    # Rows that share an epoch are not told apart by it.
    return "epoch" if epochs and len(epochs) * 1.5 >= len(own) else "rows"


def _kind(loss: str, names: set[str], num_parts: int) -> str:
    words = set(_words(loss))
    losses = {word for name in names if _is_loss(name) for word in _words(name)}
    if len(losses & _ADVERSARIES) >= 2:
        return "adversarial"
    if any(not _REWARDS.isdisjoint(_words(name)) for name in names):
        return "reward"
    is_named = _is_whole(loss) and bool(loss)
    is_only = num_parts == 1 and words <= _CRITERIA | _LOSS | _TRAINING | _FILLING and bool(loss)
    return "falling" if is_named or is_only else "unknown"


def _channel(name: str, plan: _Plan) -> str:
    """The channel of a name, "" where it is dropped."""
    if name == plan.loss:
        return "loss"
    words = _words(name)
    if _is_loss(name) and _is_whole(name) and not _EVALUATION.isdisjoint(words):
        return "eval_loss"
    if _is_loss(name):
        return f"metric:{name}"
    plain = " ".join(words)
    if plain in _RATES:
        return "lr"
    if plain in _GRADIENTS:
        return "grad_norm"
    return "" if not words or not _CLOCKS.isdisjoint(words) else f"metric:{name}"


def _stands_alone(name: str, channel: str) -> bool:
    """Whether it tells of the training in a line that prints no loss."""
    return not channel.startswith("metric:") or not _DATA.isdisjoint(_words(name))


def _is_loss(name: str) -> bool:
    return not _LOSS.isdisjoint(_words(name))


def _is_whole(name: str) -> bool:
    """Whether it is the loss and no part or extreme of it."""
    return set(_words(name)) <= _LOSS | _DATA | _FILLING


def _is_extreme(name: str) -> bool:
    return not _EXTREMES.isdisjoint(_words(name))


def _is_clock(name: str) -> bool:
    return not _CLOCKS.isdisjoint(_words(name))


@cache
def _name(key: str) -> str:
    """A key without the chatter in front of it."""
    pieces = key.split(" ")
    last = max((i for i, piece in enumerate(pieces) if piece.lower() in _CHATTER), default=-1)
    return " ".join(pieces[last + 1 :]) or key


@lru_cache(maxsize=10_000)
def _words(name: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in _WORD.findall(name[:200]))


READER = Reader(
    name="prints",
    sniff=_sniff,
    read=_read,
    rank=Rank.TABLE,
    sample="""Epoch 1 step 100: train loss = 2.25, lr = 0.001
Epoch 1 step 200: train loss = 2.125, lr = 0.001
Valid epoch 1, loss: 2.0625, accuracy: 0.25
Epoch 2 step 300: train loss = nan, lr = 0.0005
""",
)
