r"""Formats of text lines as data: what a line looks like, what its names mean, a sample.

    READER = TextFormat(
        name="my-trainer",
        lines=(
            Line(r"update <step> of <total>:", pairs=":"),
            Line(r"validation at <step>: <eval_loss>", claims=False),
        ),
        aliases={"train loss": "loss", "rate": "lr"},
        sample="update 1 of 90: train loss: 2.25, rate: 3e-05\n",
    ).reader

One engine reads all of them: it takes colours, carriage returns and prefixes away, finds numbers
in every spelling, and leaves steps, repetitions and resumes to `Log`.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from types import MappingProxyType

from optdoctor.knowledge.log_names import FREE_NAMES, UNUSED_NAMES
from optdoctor.reading.lazy_regex import lazy
from optdoctor.reading.log import MAX_NAME, Log, number
from optdoctor.reading.overflow_lines import add_overflow as add_overflow
from optdoctor.reading.reader import Head, Rank, Reader, Source
from optdoctor.reading.text_rows import Distances
from optdoctor.reading.text_shapes import PLACES, Span
from optdoctor.reading.text_stretches import Stretches
from optdoctor.trace import Fact

NUMBER = (
    r"(?>[-+]?1\.#\w+"  # as C prints NaN and infinity on Windows
    r"|[-+]?\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?"  # thousands are parted by commas
    r"|[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
    r"|[-+]?(?i:nan(?:xxx|\(\w*\))?|inf(?:inity|x{2,3})?)(?![^\W_]))"
)
"""A number in any spelling that logs use. `nanms`, `nanogpt` and `info` are none."""
_ESCAPE = lazy(r"\x1b\[[0-?]*[ -/]*[@-~]|\x08+")
_WORD = r"[^\W\d][\w./@#%+&()^-]{0,60}"
_ASIDE = r"\([^():=]{1,40}\)"  # a pair in brackets belongs to no key
_KEY = rf"(?<![\w.])(?!(?i:nan|inf)\w* )(?P<key>{_WORD}(?: (?:{_WORD}|{_ASIDE})){{0,5}}?)"
_OPENING = r"['\"]?[\[(*'\"]{0,3}(?P<of>tensor\()?[ \t]*"
_VALUE = rf"{_OPENING}(?P<value>{NUMBER})(?![:-]\d)[%A-Za-z°µ]{{0,8}}(?(of)(?:[^()]{{0,99}}\)+)?)"
_BETWEEN = {":": r"['\"*]{0,3}[ \t]*[:=][ \t]*+", " ": r"[ \t]++", "is": r"[ \t]+is[ \t]++"}
PAIRS: Mapping[str, str] = MappingProxyType(
    {mark: _KEY + between + _VALUE for mark, between in _BETWEEN.items()}
)
"""{what stands between a key and its value: a pattern of both}; ":" takes "=" too."""
_LAST_NUMBER = lazy(r"(?<![\w.])[-+]?\d[\d.]*(?:[eE][-+]?\d*)?$")
_ALIKE = 200
"""Lines among which one that begins as the last one does is looked for."""
_DIGITS = lazy(r"\d+")
_PLACEHOLDER = lazy(r"(?<!\(\?P)(?<!\(\?)<([a-z][a-z0-9_]*)>")
_SNIFFED_ROWS = 1000
_THOUSANDS = {"k": 1e3, "M": 1e6, "G": 1e9}


@dataclass(frozen=True, slots=True)
class Line:
    """One kind of line."""

    pattern: str
    """A regular expression, found anywhere in the line. A blank is any number of blanks, none too;
    `<name>` is a number of that name. Places: `<step>` of the run; `<iter>` within the epoch, with
    `<per_epoch>` of them; `<total>` steps planned."""
    pairs: str = ""
    """What stands between the key and the value of further numbers behind the pattern: a key of
    `PAIRS`; "" where there are none."""
    names: Mapping[str, str] = field(default_factory=dict)
    """{name in this kind of line: channel}, before those of the format; "" drops it."""
    prefix: str = ""
    """Before the names of further numbers that `names` does not hold, as "eval " where lines of
    training have the same."""
    values: Mapping[str, float] = field(default_factory=dict)
    """{channel: value} that such a line says by being there."""
    mark: str = ""
    """Text that every such line holds, by which all others are passed over quickly."""
    claims: bool = True
    """Whether a line of this kind tells the format."""
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """Facts that such a line tells, before those of the format."""
    offset: int = 0
    """What to add to the step, as 1 where a line names the last update that is finished."""

    @property
    def regex(self) -> str:
        """The pattern as Python's `re` takes it."""
        spaced = re.sub(r" +[?*+]?", lambda _: r"[ \t]*+", self.pattern)
        return _PLACEHOLDER.sub(lambda found: f"(?P<{found[1]}>{NUMBER})", spaced)


@dataclass(frozen=True, eq=False)
class TextFormat:
    """One format, whole."""

    name: str
    lines: tuple[Line, ...]
    sample: str
    aliases: Mapping[str, str] = field(default_factory=dict)
    """{name in the log: channel}, before `FREE_NAMES`; "" drops it."""
    facts: Mapping[str, Fact] = field(default_factory=lambda: {"loss_kind": "falling"})
    convert: Mapping[str, Callable[[float], float]] = field(default_factory=dict)
    """{name in the log: what makes its channel of it}, as `math.log` for a perplexity."""
    fix: Callable[[dict[str, float]], dict[str, float]] | None = None
    """Mends one row, {name in the log: value}, where the format leaves out what it means."""
    first_epoch: int | None = 1
    """The number of the first epoch, where steps are counted within epochs; None where the first
    row tells: it is 0 or they count from 1."""
    new_run: str = ""
    """Text of a line that begins a run anew."""
    from_zero: bool | None = None
    """Whether the first update is number 0; None where the rows must tell."""
    has_micro_rows: bool = False
    """Whether rows of one step are its micro-batches, whose mean counts."""
    is_window_mean: bool = False
    """Whether a loss in the first kind of line is the mean over the updates since the last one."""
    repeated: frozenset[str] = frozenset()
    """Names whose newest value stands in every line until there is a newer one: once is enough."""
    rank: Rank = Rank.FORMAT

    @cached_property
    def reader(self) -> Reader:
        """The reader of this format."""
        marks = tuple(dict.fromkeys(line.mark for line in self.lines if line.claims))
        return Reader(
            self.name,
            self.sniff,
            self.read,
            self._aliases,
            self.sample,
            self.rank,
            marks=marks if all(marks) else (),
        )

    def sniff(self, head: Head) -> int:
        """Lines in the beginning that tell the format, `_SNIFFED_ROWS` at most."""
        kinds = [kind for kind in self.lines if kind.claims and kind.mark in head.text]
        if not kinds:
            return 0
        found = 0
        for line in clean_lines(head.lines):
            found += any(kind.mark in line and self._search(kind, line) for kind in kinds)
            if found == _SNIFFED_ROWS:
                break
        return found

    def read(self, source: Source, log: Log) -> None:
        """Fills the log."""
        if self.first_epoch is None:
            replace(self, first_epoch=self._first_epoch(source.head)).read(source, log)
            return
        log.facts.update(self.facts)
        log.has_micro_rows = self.has_micro_rows
        if self.from_zero is not False:
            log.count_from_one(likely=self.from_zero is True)
        shown: dict[str, float] = {}
        distances = Distances()

        def by_line(line: str) -> bool:
            return self._read_line(line, log, shown, distances)

        stretches = Stretches(self, log, by_line, shown, distances)
        for lines in line_lists(source):
            stretches.add(lines)
        if self.is_window_mean:
            log.facts.setdefault("loss_window", distances.shortest)

    def _read_line(
        self, line: str, log: Log, shown: dict[str, float], distances: Distances
    ) -> bool:
        """Whether it was a row."""
        if self.new_run and self.new_run in line:
            log.begin()
        is_row = looks_like_one = False
        for kind in self.lines:
            if kind.mark in line:
                looks_like_one |= bool(kind.mark)
                for row in self._rows(kind, line):
                    is_row |= self._add(kind, self._without_repeated(row, shown), log)
                    if self.is_window_mean and kind is self.lines[0]:
                        distances.see(log.last_step)
        if not is_row and not add_overflow(line, log) and looks_like_one:
            log.skip(first=line)
        return is_row

    def _rows(self, kind: Line, line: str) -> Iterator[dict[str, float]]:
        """{name: number} of each time that the kind stands in the line."""
        for spans, _ in self.spans(kind, line):
            yield {name: value_of(line[start:stop]) for name, (start, stop) in spans.items()}

    def spans(self, kind: Line, line: str) -> Iterator[tuple[dict[str, Span], list[Span]]]:
        """The same as {name: where its number stands}; and where names of further numbers do."""
        pattern = self._patterns[kind.pattern]
        found = list(pattern.finditer(line))
        ends = [*(match.start() for match in found[1:]), len(line)]
        for match, end in zip(found, ends, strict=False):
            spans = {name: match.span(name) for name, text in match.groupdict().items() if text}
            keys: list[Span] = []
            if kind.pairs:
                for pair in _pairs(kind.pairs).finditer(line, match.end(), end):
                    name = pair["key"].strip()
                    name = name if name in kind.names else kind.prefix + name
                    spans.setdefault(name[:MAX_NAME], pair.span("value"))
                    keys.append(pair.span("key"))
            yield spans, keys

    def _without_repeated(self, row: dict[str, float], shown: dict[str, float]) -> dict[str, float]:
        for name in self.repeated & row.keys():
            if shown.get(name) == row[name]:
                del row[name]
            else:
                shown[name] = row[name]
        return row

    def _add(self, kind: Line, row: dict[str, float], log: Log) -> bool:
        step = self._step(row)
        if step is not None:
            step += kind.offset
        log.facts.update(kind.facts)
        if (total := row.get("total")) is not None and 1 <= total < math.inf:
            log.facts.setdefault("total_steps", int(total))
        values = {name: value for name, value in row.items() if name not in PLACES}
        if self.fix is not None:
            values = self.fix(values)
        named: dict[str, float] = dict(kind.values)
        for name, value in values.items():
            if known := self.known(kind, name):
                named[known] = self.converted(name, value)
            else:
                log.drop(name)
        if not named:
            log.at(step)
            return True
        return log.row(named, step)

    def _step(self, row: Mapping[str, float]) -> float | None:
        if "step" in row:
            return row["step"]
        if "iter" not in row:
            return None
        per_epoch, epoch = row.get("per_epoch"), row.get("epoch")
        if per_epoch is None or epoch is None or not math.isfinite(epoch):
            return row["iter"]
        return (math.floor(epoch) - (self.first_epoch or 0)) * per_epoch + row["iter"]

    def _first_epoch(self, head: Head) -> int:
        for line in clean_lines(head.lines):
            for kind in self.lines:
                if kind.claims and kind.mark in line:
                    for row in self._rows(kind, line):
                        if "epoch" in row:
                            return int(row["epoch"] >= 1)
        return 1

    def known(self, kind: Line, name: str) -> str:
        """What a name is called in the log, "" where it is dropped."""
        known = kind.names.get(name, name)
        return "" if self._aliases.get(known) == "" else known

    def expression(self, kind: Line) -> str:
        """The expression of a kind without those of its numbers."""
        return kind.regex.replace(NUMBER, "")

    def number(self, text: str) -> float:
        """The number that a text means."""
        return value_of(text)

    def converted(self, name: str, value: float) -> float:
        """The value of its channel."""
        convert = self.convert.get(name)
        if convert is None:
            return value
        try:
            return convert(value)
        except (ValueError, OverflowError):
            return math.nan

    def _search(self, kind: Line, line: str) -> bool:
        return self._patterns[kind.pattern].search(line) is not None

    @cached_property
    def _patterns(self) -> dict[str, re.Pattern[str]]:
        return {kind.pattern: lazy(kind.regex) for kind in self.lines}

    @cached_property
    def _aliases(self) -> Mapping[str, str]:
        return {**self.aliases, **{n: c for n, c in _DEFAULTS.items() if n not in self.aliases}}


def _without_torn_number(line: str, before: Sequence[str]) -> str:
    torn = _LAST_NUMBER.search(line)
    if torn is None:
        return line
    alike = (other for other in before if _beginning(other) == _beginning(line))
    found = [last for other in alike if (last := _LAST_NUMBER.search(other))]
    shortest = min((len(last[0]) for last in found), default=0)
    return line[: torn.start()] if len(torn[0]) < shortest else line


def _beginning(line: str) -> str:
    return _DIGITS.sub("0", line[:20])[:6]


_DEFAULTS = {**FREE_NAMES, **dict.fromkeys(UNUSED_NAMES, "")}
_compiled: dict[str, re.Pattern[str]] = {}


def _pairs(between: str) -> re.Pattern[str]:
    if between not in _compiled:
        _compiled[between] = re.compile(PAIRS[between])
    return _compiled[between]


def clean_lines(lines: Iterable[str]) -> Iterator[str]:
    """The lines without colours and backspaces."""
    for line in lines:
        yield _ESCAPE.sub(" ", line) if "\x1b" in line or "\x08" in line else line


def lines_of(source: Source) -> Iterator[str]:
    """The same of a source, without a number that was torn off at its end.

    That is one behind which no line end follows, if it is shorter than those at the ends of lines
    that begin alike: `loss: 12.5` cut to `loss: 1` is another loss.
    """
    return chain.from_iterable(line_lists(source))


def line_lists(source: Source) -> Iterator[list[str]]:
    """The same, a list of lines a block of the source."""
    before: list[str] = []
    for block in source.blocks():
        lines = list(filter(None, block.replace("\r", "\n").split("\n")))
        if lines and block[-1] not in "\r\n":
            lines[-1] = _without_torn_number(lines[-1], before + lines[:-1])
        before = lines[-_ALIKE:]
        is_clean = "\x1b" not in block and "\x08" not in block
        yield lines if is_clean else list(clean_lines(lines))


def value_of(text: str) -> float:
    """The number that a text of `NUMBER` means, a `k`, `M` or `G` behind it included."""
    if "," in text:
        text = text.replace(",", "")
    value = number(text.rstrip("x"))  # PaddleOCR fills nan and -inf up to six places
    if value is None and text[-1] in _THOUSANDS and (value := number(text[:-1])) is not None:
        value = round(value * _THOUSANDS[text[-1]], 6)
    return math.nan if value is None else value
