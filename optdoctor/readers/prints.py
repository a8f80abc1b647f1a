"""Prints of a training loop's own: `epoch 3 loss: 0.12`, `[Step 7] Train Loss = 2.5`, tqdm bars.

Nobody fixes the words, so a name is understood by its parts, and the `loss` of a line that begins
with `Valid`, or that follows the heading `Test Error:`, is that of the evaluation. Steps are those
that the lines say, else their epochs, else the rows are counted.
"""

import math
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from optdoctor.channels import is_channel
from optdoctor.reading.epoch_clock import EpochClock
from optdoctor.reading.lazy_regex import lazy
from optdoctor.reading.log import Log
from optdoctor.reading.overflow_lines import says_overflow
from optdoctor.reading.printed_names import (
    DATA,
    EVALUATION,
    TRAINING,
    Plan,
    Row,
    channel_of,
    is_clock,
    is_loss,
    planned,
    words_of,
)
from optdoctor.reading.prose import alike, is_json
from optdoctor.reading.reader import Head, Rank, Reader, Source
from optdoctor.reading.text_format import (
    NUMBER,
    PAIRS,
    add_overflow,
    clean_lines,
    lines_of,
    value_of,
)

# fmt: off
_CHATTER = frozenset((
    "info", "debug", "warning", "root", "main", "trainer", "logger", "with", "of", "for", "at",
    "in", "after", "and", "got", "has", "new", "now", "log", "finished", "done", "results",
    "result",
))
"""Words in front of a name that do not belong to it."""
_NO_NAMES = _CHATTER | frozenset((
    "is", "to", "from", "on", "by", "the", "a", "was", "or", "than", "took", "every", "last",
    "mon", "tue", "wed", "thu", "fri", "sat", "sun", "jan", "feb", "mar", "apr", "may", "jun",
    "jul", "aug", "sep", "oct", "nov", "dec",
))
"""Words in front of a number that do not name it."""
# fmt: on
_COUNT = r"(?P<at>\d{1,3}(?:,\d{3})+(?!,?\d)|\d++(?:\.\d++)?k(?![^\W_])|\d++)"
_STEP = lazy(
    r"(?i)(?<![\w.])(?:(?:(?:global|train)[ _]?)?steps?|iterations?|iters?|it|updates?"
    r"|batch(?=\W+\d+ ?/))"
    rf"['\"\])]?[ \t]*+(?:[:=#][ \t]*+)?+(?:[\[(][ \t]*+)?+{_COUNT}(?![\d.]*[^\W_]|\.\d)"
)
_STEP_BEHIND = lazy(r"(?i)(?<![\w.,])(?P<at>\d+(?:\.\d+)?k)[ \t]+(?:steps?|iter(?:ation)?s?)\b")
_EPOCH = lazy(
    r"(?i)(?<!\w)(?<!best )(?<!last )(?:epochs?|ep)['\"\])]?[ \t]*+(?:[:=#_][ \t]*+)?+"
    r"(?:[\[(][ \t]*+)?+(?P<at>\d++(?:\.\d++)?+)(?![\d.]*[a-z])"
)
_BAR = lazy(r"\b(?P<at>\d+)/\d+ ?\[[\d:?]+<")
_BRACKETED = lazy(rf"\[(?P<key>[^\W\d][\w ]{{0,40}})\][ \t]*+(?:[:=][ \t]*+)?+(?P<value>{NUMBER})")
_SPACED = lazy(
    r"(?i)(?<![\w.])(?P<key>(?:(?:train|training|val|valid|validation|eval|test|dev|avg|total|mean)"
    r"[ _/])?(?:loss|lr|acc|accuracy|ppl|grad[ _]norm))"
    rf"[ \t]+(?:is[ \t]+|of[ \t]+|->[ \t]*|was[ \t]+)?(?P<value>{NUMBER})"
)
_BESIDE = lazy(
    rf"(?<![^\s|,;])(?P<key>[A-Za-z][\w/-]{{0,40}})[ \t]+(?P<value>{NUMBER})(?![^\s|,;])"
)
_COLON = lazy(PAIRS[":"])
_WORTH_A_LOOK = lazy(r"(?i)los|epoch|step|iter|\blr\b|learning|grad|reward")
_SNIFFED_LINES = 20_000
_LEAST_ROWS = 2
_LEAST_OVERFLOWS = 3
_MAX_HEADING = 120  # characters


def _sniff(head: Head) -> int:
    lines = clean_lines(head.lines[:_SNIFFED_LINES])
    # A line that is an object is a row of JSON lines.
    told = [line for line in lines if "los" in line.lower() and not line.lstrip().startswith("{")]
    if len(told) < _LEAST_ROWS:
        return 0
    sure = 0
    spaced: list[tuple[str, str]] = []
    for line in told:
        pairs = _pairs(line)
        loss = next((pair for pair in pairs if is_loss(_name(pair["key"]))), None)
        if loss is None:
            continue
        if loss.re.pattern == _SPACED.pattern:
            spaced.append((line, line[: loss.start()]))
        else:
            sure += 1
    losses = sure + alike(spaced)
    if losses < _LEAST_ROWS:  # people paste what a gradient scaler says, and nothing else
        overflows = sum(map(says_overflow, told))
        return overflows if overflows >= _LEAST_OVERFLOWS else 0
    return losses


def _read(source: Source, log: Log) -> None:
    head = list(clean_lines(source.head.lines[:_SNIFFED_LINES]))
    plan = planned([row for _, row in _rows(head) if row])
    log.facts["loss_kind"] = plan.kind
    log.count_from_one()
    if plan.clock != "step":
        log.facts["step_source"] = "epochs" if plan.clock == "epoch" else "counted rows"
    _spell_others(head, plan, log)
    place = _Place(plan)
    for line, row in _rows(lines_of(source)):
        if add_overflow(line, log) or row is None:
            continue
        has_loss = any(map(is_loss, row.values))
        place.see(row)
        named = {}
        for name, value in row.values.items():
            channel = channel_of(name, plan)
            if not channel and not is_channel(name):
                log.drop(name)
            elif channel and (has_loss or _stands_alone(name, channel)):
                named[channel] = value
                log.spell(name, channel)
        if named:
            epoch = place.epoch
            log.row(named if epoch is None else {**named, "epoch": epoch}, place.step(has_loss))


def _spell_others(head: list[str], plan: Plan, log: Log) -> None:
    """Says what became of words in front of numbers that are no pair: a clock, or nothing."""
    for line, row in _rows(head):
        if row is None or not any(map(is_loss, row.values)):
            continue
        clocks = {"step": _STEP.search(line)} if plan.clock == "step" else {}
        clocks["epoch"] = _EPOCH.search(line)
        at = {found.start("at"): clock for clock, found in clocks.items() if found}
        for pair in _BESIDE.finditer(line):
            name = pair["key"]
            if name.lower() not in _NO_NAMES and not any(n.endswith(name) for n in row.values):
                log.spell(name, at.get(pair.start("value"), ""))


class _Place:
    """Where a row stands."""

    def __init__(self, plan: Plan) -> None:
        self.epoch: float | None = None
        self._plan = plan
        self._said: float | None = None  # the step in the newest row
        self._counted = 0
        self._clock = EpochClock()

    def see(self, row: Row) -> None:
        """Takes what the newest row says."""
        self.epoch = self.epoch if row.epoch is None else row.epoch
        self._said = row.step

    def step(self, has_loss: bool) -> float | None:
        """The step of the newest row, None where the log is to count."""
        if self._plan.clock == "epoch":
            return self.epoch
        if self._plan.loss or not has_loss:
            return self._said if self._plan.clock == "step" else None
        # No series is the loss, whose rows alone the log counts and adds up over epochs.
        if self._plan.clock == "rows":
            self._counted += 1
            return self._counted
        if self._said is None or self.epoch is None:
            return self._said
        if not math.isfinite(self.epoch + self._said):
            return self._said
        return self._clock.step(int(self.epoch), int(self._said))


def _rows(lines: Iterable[str]) -> Iterator[tuple[str, Row | None]]:
    """Each line with what it says, a heading before it included.

    A heading is of the line that follows, and of those after it that stand further in.
    """
    heading: frozenset[str] = frozenset()
    depth, is_next = 0, False
    for line in lines:
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        if heading and not is_next and indent <= depth:
            heading = frozenset()
        is_next = False
        if found := _heading(line):
            heading, depth, is_next = found, indent, True
        yield line, _row(line, heading)


def _heading(line: str) -> frozenset[str]:
    """The words of a line that says of which data the numbers below it are."""
    text = line.rstrip()
    if not text.endswith(":") or len(text) > _MAX_HEADING:
        return frozenset()
    return DATA.intersection(words_of(text))


def _row(line: str, heading: frozenset[str]) -> Row | None:
    """What a line says, None where it has nothing to do with a training."""
    if not _WORTH_A_LOOK.search(line) or is_json(line):
        return None
    pairs = _pairs(line)
    begins = min((pair.start() for pair in pairs), default=len(line))
    first = min(pairs, key=lambda pair: pair.start())["key"] if pairs else ""
    tag = {*words_of(line[:begins]), *(words_of(first) if is_clock(first) else ())}
    tag = tag if tag & DATA else set(heading)
    prefix = "val " if tag & EVALUATION and not tag & TRAINING else ""
    values: dict[str, float] = {}
    for pair in pairs:
        name = _name(pair["key"])
        values.setdefault(prefix + name if is_loss(name) else name, value_of(pair["value"]))
    step = _STEP.search(line) or _BAR.search(line) or _STEP_BEHIND.search(line)
    epoch = _EPOCH.search(line)
    return Row(
        values,
        value_of(step["at"].lower()) if step else None,
        float(epoch["at"]) if epoch else None,
    )


def _pairs(line: str) -> list[re.Match[str]]:
    """Names and numbers of a line, those between which nothing stands last."""
    if is_json(line):
        return []
    pairs = [*_COLON.finditer(line), *_BRACKETED.finditer(line)]
    if any(is_loss(_name(pair["key"])) for pair in pairs):
        return pairs
    spaced = list(_SPACED.finditer(line))
    pairs += spaced
    if any(is_loss(pair["key"]) for pair in spaced):
        known = {pair.start("value") for pair in pairs}
        pairs += [
            pair
            for pair in _BESIDE.finditer(line)
            if pair.start("value") not in known and pair["key"].lower() not in _NO_NAMES
        ]
    return pairs


def _stands_alone(name: str, channel: str) -> bool:
    """Whether it tells of the training in a line that prints no loss."""
    return not channel.startswith("metric:") or not DATA.isdisjoint(words_of(name))


@lru_cache(maxsize=10_000)
def _name(key: str) -> str:
    """A key without the chatter in front of it."""
    pieces = key.split(" ")
    last = max((i for i, piece in enumerate(pieces) if piece.lower() in _CHATTER), default=-1)
    return " ".join(pieces[last + 1 :]) or key


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
