"""Lines that are read by place mean what they mean when the format reads each of them."""

import math
import random
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from optdoctor.readers import readers
from optdoctor.reading.log import Log
from optdoctor.reading.reader import Source
from optdoctor.reading.text_format import NUMBER, PAIRS, Line, TextFormat
from optdoctor.reading.text_rows import Distances
from optdoctor.reading.text_shapes import Shape, is_blind, masks_of
from optdoctor.reading.text_stretches import Stretches
from optdoctor.trace import Trace

FORMATS = {
    reader.name: (reader, text_format)
    for reader in readers()
    if isinstance(text_format := getattr(reader.sniff, "__self__", None), TextFormat)
}
SPELLINGS = ("nan", "-nan", "inf", "-inf", "NaN", "1.#QNAN", "1.#INF", "1,234.5", "12,345", "1e-05")
BETWEEN = (
    "",
    "saving a checkpoint to out",
    "\x1b[32mINFO\x1b[0m all is well 12",
    "WARNING: 3 workers, loss scale 12",
    "Attempted loss scale: 65536, reducing to 32768.0",
    "Traceback (most recent call last):",
    "caf\u00e9 \u0663 \u2588\u2588 50%",
)


class Blocks(Source):
    """Text that comes in given blocks."""

    def __init__(self, blocks: list[str]) -> None:
        super().__init__("".join(blocks).encode(), "log")
        self._texts = blocks

    def blocks(self) -> Iterator[str]:
        return iter(self._texts)


def told(name: str, blocks: list[str]) -> dict[str, object]:
    """All that a reader says of a text."""
    reader, _ = FORMATS[name]
    log = Log(aliases=reader.aliases)
    reader.read(Blocks(blocks), log)
    return all_of(log.trace("log", name))


def all_of(trace: Trace) -> dict[str, object]:
    """What two traces must agree on."""
    return {
        "series": {
            channel: [
                (int(step), float(value).hex(), math.copysign(1, value))
                for step, value in zip(series.steps, series.values, strict=True)
            ]
            for channel, series in trace.series.items()
        },
        "events": trace.events,
        "facts": trace.facts,
        "skipped": trace.lines_skipped,
        "reading": trace.reading,
        "names": list(trace.reading.names.items()) if trace.reading else [],
    }


def line_by_line(
    monkeypatch: pytest.MonkeyPatch, name: str, blocks: list[str]
) -> dict[str, object]:
    with monkeypatch.context() as patched:
        patched.setattr(Stretches, "add", lambda self, lines: [self._by_line(s) for s in lines])
        return told(name, blocks)


class Writer:
    """Writes logs of a format: lines of its sample with other numbers."""

    def __init__(self, text_format: TextFormat, seed: int) -> None:
        self._format, self._random = text_format, random.Random(seed)
        self._samples = [line for line in text_format.sample.split("\n") if line]
        self._step = self._random.choice((0, 1, 95))
        self._epoch = 1
        self._renames = self._random.choice((0.0, 0.0, 0.2))  # share of names with other digits
        self._constants: dict[str, bool] = {}
        self._wild = self._random.choice((0.0, 0.0, 0.02))  # share of numbers in odd spellings

    def blocks(self, lines: int) -> list[str]:
        """Text of so many lines, torn off at its end, in a few pieces."""
        found: list[str] = []
        while len(found) < lines:
            found += self._stretch()
        ends = [self._random.choice(("\n", "\n", "\n", "\r\n")) for _ in range(3)]
        blocks = []
        while found:
            size = self._random.randint(1, len(found))
            blocks.append("".join(line + ends[0] for line in found[:size]))
            found = found[size:]
        torn = self._random.randint(1, 30) if self._random.random() < 0.5 else 0
        blocks[-1] = blocks[-1][:-torn] or "x" if torn else blocks[-1]
        return blocks

    def _stretch(self) -> list[str]:
        what = self._random.random()
        if what < 0.05:  # a resume, or another run
            self._step = self._random.choice((0, 1, max(self._step - 7, 0)))
        if what < 0.1:
            self._epoch += 1
            self._step = self._step if self._random.random() < 0.5 else 1
        if what < 0.25:
            return [self._random.choice(BETWEEN)]
        chosen = self._random.sample(
            self._samples, self._random.randint(1, min(3, len(self._samples)))
        )
        lines: list[str] = []
        for _ in range(self._random.choice((1, 5, 40, 80))):
            self._step += 0 if self._random.random() < 0.02 else 1
            lines += [self._line(line) for line in chosen]
            if self._random.random() < 0.02:
                lines.append(lines[-1])
        return lines

    def _line(self, line: str) -> str:
        for kind in self._format.lines:
            if kind.mark in line and (found := list(self._format.spans(kind, line))):
                spans = {span: name for names, _ in found for name, span in names.items()}
                return self._with(
                    self._renamed(line, [key for _, keys in found for key in keys]), spans
                )
        return re.sub(r"\d", lambda _: str(self._random.randint(0, 9)), line)

    def _renamed(self, line: str, keys: list[tuple[int, int]]) -> str:
        for start, stop in keys:
            if self._random.random() < self._renames:
                name = re.sub(r"\d", lambda _: str(self._random.randint(0, 9)), line[start:stop])
                line = line[:start] + name + line[stop:]
        return line

    def _with(self, line: str, spans: dict[tuple[int, int], str]) -> str:
        for (start, stop), name in sorted(spans.items(), reverse=True):
            text = self._number(name, line[start:stop])
            padded = text.rjust(stop - start) if line[start - 1 : start] == " " else text
            line = line[:start] + padded + line[stop:]
        return line

    def _number(self, name: str, text: str) -> str:
        if name in ("step", "iter", "num_updates"):
            return str(self._step)
        if name == "epoch":
            return str(self._epoch) if text.isdigit() else f"{self._step / 90:.2f}"
        if name in ("per_epoch", "total") or self._is_constant(name):
            return text
        if self._random.random() < self._wild:
            return self._random.choice(SPELLINGS)
        wider = str(self._random.randint(0, 99)) if self._random.random() < 0.1 else ""
        return wider + re.sub(r"\d", lambda _: str(self._random.randint(0, 9)), text)

    def _is_constant(self, name: str) -> bool:
        """Whether a number stays what it is in most lines, as a scale of gradients does."""
        if name not in self._constants:
            self._constants[name] = self._random.random() < 0.4
        return self._constants[name] and self._random.random() < 0.98


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", FORMATS)
def test_lines_read_by_place_mean_the_same(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = Writer(FORMATS[name][1], seed).blocks(400)
    fast = told(name, blocks)
    assert fast == line_by_line(monkeypatch, name, blocks)


def counted(monkeypatch: pytest.MonkeyPatch, text_format: TextFormat, text: str) -> tuple[Log, int]:
    """The log, and how many lines the format itself has read."""
    seen: list[str] = []
    read_line = TextFormat._read_line

    def noted(self: TextFormat, line: str, *further: object) -> bool:
        seen.append(line)
        return read_line(self, line, *further)  # type: ignore[arg-type]

    log = Log(aliases=text_format.reader.aliases)
    with monkeypatch.context() as patched:
        patched.setattr(TextFormat, "_read_line", noted)
        text_format.read(Source(text.encode(), "log"), log)
    return log, len(seen)


def losses(log: Log) -> list[tuple[int, float]]:
    loss = log.trace("log", "own").series["loss"]
    return list(zip(loss.steps.tolist(), loss.values.tolist(), strict=True))


def own(*lines: Line, **further: object) -> TextFormat:
    return TextFormat("own", lines, "", **further)  # type: ignore[arg-type]


def test_only_the_first_lines_of_a_shape_are_read_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    form = own(Line("update <step>:", pairs=":", mark="update"))
    text = "".join(
        f"update {step:5d}: loss: {step / 8:8.3f}\n" + "saved a checkpoint\n" * (step % 9 == 0)
        for step in range(1, 2001)
    )
    log, read = counted(monkeypatch, form, text)
    assert losses(log) == [(step, step / 8) for step in range(1, 2001)]
    assert read < 24


def test_a_long_log_of_megatron_and_of_nanogpt_is_read_by_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, megatron = FORMATS["megatron"]
    head, tail = (
        "consumed samples: {0:8d} | elapsed time per iteration (ms): 312.5 |",
        "loss scale: 1.0",
    )
    text = "".join(
        f" iteration {i:8d}/ 9000 | {head.format(i * 8)} lm loss: {9 / i:.6E} | {tail} |"
        " number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        for i in range(1, 1001)
    )
    log, read = counted(monkeypatch, megatron, text)
    assert len(losses(log)) == 1000
    assert log.trace("log", "megatron").facts["loss_window"] == 1
    assert read < 30
    _, nanogpt = FORMATS["nanogpt"]
    text = "".join(
        f"iter {i}: loss {9 / (i + 1):.4f}, time 52.10ms, mfu 7.09%\n" for i in range(900)
    )
    log, read = counted(monkeypatch, nanogpt, text)
    assert len(losses(log)) == 900
    assert read < 10


def test_names_that_differ_in_a_digit_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    form = own(Line("update <step>:", pairs=":", mark="update"))
    text = "".join(
        f"update {i}: loss: {i}, top{1 if i % 3 else 5}: {i + 100}\n" for i in range(100, 400)
    )
    log, _ = counted(monkeypatch, form, text)
    series = log.trace("log", "own").series
    assert series["metric:top1"].steps.tolist() == [i for i in range(100, 400) if i % 3]
    assert series["metric:top5"].steps.tolist() == [i for i in range(100, 400) if not i % 3]


def test_a_kind_that_wants_certain_digits_is_left_to_the_format(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    form = own(Line("rank 1 update <step>: <loss>", mark="update"))
    text = "".join(f"rank {i % 3} update {i}: {i}\n" for i in range(100, 400))
    log, read = counted(monkeypatch, form, text)
    assert losses(log) == [(i, i) for i in range(100, 400) if i % 3 == 1]
    assert read == 300


def test_a_mark_or_a_new_run_with_digits_is_told_from_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    form = own(Line("update <step> <loss>", mark="v2:"))
    text = "".join(f"v{1 + i % 2}: update {i} {i}\n" for i in range(100, 200))
    log, _ = counted(monkeypatch, form, text)
    assert losses(log) == [(i, i) for i in range(101, 200, 2)]
    form = own(Line("update <step> <loss>", mark="update"), new_run="seed 0")
    text = "".join(f"update {i} {i} seed {int(i < 150)}\n" for i in range(100, 200))
    log, _ = counted(monkeypatch, form, text)
    assert losses(log) == [(199, 199)]


def test_a_number_whose_digits_decide_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def fix(values: dict[str, float]) -> dict[str, float]:
        if values.pop("bad") == 1:
            values["loss"] = math.nan
        return values

    form = own(Line("update <step>: <loss> bad <bad>", mark="update"), fix=fix)
    text = "".join(f"update {i}: {i} bad {int(i % 7 == 0)}\n" for i in range(100, 400))
    log, read = counted(monkeypatch, form, text)
    assert [step for step, loss in losses(log) if math.isnan(loss)] == list(range(105, 400, 7))
    assert read < 20


def test_a_fix_that_makes_new_values_of_all_is_asked_for_every_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fix(values: dict[str, float]) -> dict[str, float]:
        return {name: value * 2 for name, value in values.items()}

    form = own(Line("update <step>: <loss>", mark="update"), fix=fix)
    text = "".join(f"update {i}: {i}\n" for i in range(100, 400))
    assert losses(counted(monkeypatch, form, text)[0]) == [(i, 2 * i) for i in range(100, 400)]


def test_a_fix_that_wants_a_dictionary_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    form = own(
        Line("update <step>: <loss>", mark="update"), fix=lambda values: values | {"lr": 0.5}
    )
    text = "".join(f"update {i}: {i % 3}\n" for i in range(100, 400))
    log, read = counted(monkeypatch, form, text)
    assert losses(log) == [(i, i % 3) for i in range(100, 400)]
    assert set(log.trace("log", "own").series["lr"].values.tolist()) == {0.5}
    assert read < 20


def test_a_repeated_value_counts_where_it_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    form = own(
        Line("update <step>: <loss> best <eval_loss>", mark="update"),
        repeated=frozenset({"eval_loss"}),
    )
    text = "".join(f"update {i}: {i} best {(i // 50) % 2 + 5}\n" for i in range(100, 400))
    log, read = counted(monkeypatch, form, text)
    assert log.trace("log", "own").series["eval_loss"].steps.tolist() == list(range(100, 400, 50))
    assert read < 20


def test_a_digit_of_c_s_spellings_is_not_as_good_as_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    form = own(Line("update <step>:", pairs=":", mark="update"))
    text = "".join(f"update {i}: loss: {i % 2}.#INF\n" for i in range(100, 200))
    log, read = counted(monkeypatch, form, text)
    assert [loss for _, loss in losses(log)] == [0.0, math.inf] * 50
    assert read == 100


def test_shapes_are_forgotten_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optdoctor.reading.text_stretches._MAX_SHAPES", 8)
    form = own(Line("update <step>:", pairs=":", mark="update"))
    words = [f"update {{0}}: loss: {{0}}, {'x' * (k % 20)}: 1\n" for k in range(60)]
    text = "".join(words[i // 5 % 60].format(i) for i in range(100, 900))
    sizes: list[int] = []
    groups: list[int] = []
    see = Stretches._see

    def noted(self: Stretches[Line], line: str, mask: bytes) -> None:
        see(self, line, mask)
        sizes.append(len(self._shapes))
        groups.append(len(self._learned._groups))

    monkeypatch.setattr(Stretches, "_see", noted)
    log, read = counted(monkeypatch, form, text)
    assert losses(log) == [(i, i) for i in range(100, 900)]
    assert 300 < read < 500
    assert max(sizes) == 4  # and as many variants
    assert max(groups) <= 4


def agreed(monkeypatch: pytest.MonkeyPatch, text_format: TextFormat, text: str) -> Log:
    """The log, which is the same where each line is read by the format."""
    log, read = counted(monkeypatch, text_format, text)
    assert read < text.count("\n") / 4
    with monkeypatch.context() as patched:
        patched.setattr(Stretches, "add", lambda self, lines: [self._by_line(s) for s in lines])
        other, _ = counted(monkeypatch, text_format, text)
    assert all_of(log.trace("log", "own")) == all_of(other.trace("log", "own"))
    return log


def test_the_newest_kind_of_line_tells_the_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    form = own(
        Line("update <step>: <loss>", mark="update", facts={"loss_base": "nats"}),
        Line("bits <step>: <loss>", mark="bits", facts={"loss_base": "bits"}),
    )
    words = ["update"] * 40 + ["bits"] * 40 + ["update"] * 40
    text = "".join(f"{word} {i}: {i}\n" for i, word in enumerate(words, 100))
    assert agreed(monkeypatch, form, text).facts["loss_base"] == "nats"


def test_a_total_counts_as_soon_as_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    form = own(Line("update <step>/<total>: <loss>", mark="update"))
    text = "".join(f"update {i}/{900 if i > 102 else '000'}: {i}\n" for i in range(100, 200))
    assert agreed(monkeypatch, form, text).facts["total_steps"] == 900


def test_what_a_line_says_by_being_there_is_a_column_too(monkeypatch: pytest.MonkeyPatch) -> None:
    form = own(
        Line("update <step>: <loss>", mark="update"),
        Line("skipped <step>", mark="skipped", values={"step_skipped": 1.0}),
    )
    text = "".join(f"update {i}: {i}\nskipped {i}\n" for i in range(100, 200))
    series = agreed(monkeypatch, form, text).trace("log", "own").series
    assert series["step_skipped"].values.tolist() == [1.0] * 100


def test_an_epoch_that_is_no_number_places_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    form = own(Line("epoch <epoch> update <iter>/<per_epoch>: <loss>", mark="update"))
    text = "".join(f"epoch nan update {i}/900: {i}\n" for i in range(100, 200))
    assert losses(agreed(monkeypatch, form, text))[0] == (100, 100)


def test_a_number_of_too_many_digits_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    form = own(Line("update <step>: <loss>", mark="update"))
    text = "".join(f"update {i}: {'7' * 70}\n" for i in range(100, 200))
    assert all(math.isnan(loss) for _, loss in losses(agreed(monkeypatch, form, text)))


def test_a_meaning_that_changes_with_each_line_is_learned_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fix(values: dict[str, float]) -> dict[str, float]:
        return values if values["loss"] >= 0 else {}

    form = own(Line("update <step>: <loss>", mark="update"), fix=fix)
    shapes: list[int] = []
    vary = Stretches._vary

    def noted(self: Stretches[Line], shape: Shape[Line], line: str) -> None:
        vary(self, shape, line)
        shapes.append(len(shape.variants))

    monkeypatch.setattr(Stretches, "_vary", noted)
    text = "".join(f"update {i}: {i}\n" for i in range(100, 900))
    assert len(losses(counted(monkeypatch, form, text)[0])) == 800
    assert max(shapes) == shapes[-1] == 64
    assert len(shapes) == 65


def test_a_line_that_is_no_row_of_the_log_is_not_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optdoctor.reading.log.MAX_METRICS", 0)
    form = own(
        Line("update <step>: <loss>", mark="update"), Line("size <step>: <norm>", mark="size")
    )
    text = "".join(f"size {i}: {i}\nupdate {i}: {i}\n" for i in range(100, 200))
    log, _ = counted(monkeypatch, form, text)
    assert log.lines_skipped == 200  # by the row and by its line
    assert len(losses(log)) == 100


def updates(epoch: object, *steps: int, loss: str = "loss") -> str:
    return "".join(f"epoch {epoch} ep {epoch} update {step:04d}, {loss}: 5\n" for step in steps)


EVALUATIONS = "eval 0005: 5\n" * 2
OTHER = "a line of another kind\n"
WINDOWS = {
    "steps that rise": (7, updates(1, *range(1000, 2000, 50), *range(1957, 2900, 50))),
    "a first row near the one before": (7, updates(1, 1000, 1500, *range(1507, 3000, 50))),
    "a resume": (2, updates(1, *range(1000, 4000, 50), *range(3002, 6000, 50), 5954)),
    "another epoch": (3, updates(1, *range(1000, 4000, 50)) + updates(2, *range(3, 900, 50))),
    "another epoch at the same step": (
        1000,
        updates(10, 1000, 9500, 1000) + OTHER + "".join(updates(e, 1000) for e in range(11, 40)),
    ),
    "another epoch behind an evaluation": (
        10,
        EVALUATIONS
        + updates(1, *range(1000, 4000, 50))
        + "eval 0005: 5\n"
        + updates(2, *range(10, 900, 50)),
    ),
    "an epoch that begins amid rows without a loss": (
        50,
        updates(1, 2000, 2500)
        + updates(1, 2600, 2700, loss="rate")
        + updates(1, 9000, 9500)
        + OTHER
        + updates(2, *range(1000, 1993, 50), 1993 + 50, loss="rate")
        + updates(2, *range(2050, 4000, 50)),
    ),
    "epochs that fall": (
        10,
        updates(1, *range(1000, 4000, 50))
        + updates(2, *range(10, 900, 50))
        + OTHER
        + updates(2, *range(910, 2000, 50))
        + updates(1, *range(1967, 2900, 50)),
    ),
    "an epoch that is no number": (
        50,
        updates(1, *range(1000, 2000, 50)) + updates("nan", *range(2000, 4000, 50)),
    ),
    "evaluations alone": (500, updates(1, 1000, 1500) + EVALUATIONS * 20),
    "an evaluation at each row": (
        7,
        "".join(updates(1, i) + f"eval {i:04d}: 5\n" for i in (*range(1000, 4000, 50), 3957)),
    ),
    "no steps": (1, "".join(f"update, loss: {i}\n" for i in range(100, 200))),
    "steps that are none": (1, "".join(f"update {i}e300, loss: 5\n" for i in range(100, 200))),
}


@pytest.mark.parametrize(("window", "text"), WINDOWS.values(), ids=WINDOWS)
def test_windows_are_the_same_for_rows_added_as_columns(
    window: int | None, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = own(
        Line(r"(?:epoch <epoch> ep <ep>)? update(?: <step>)?,", pairs=":", mark="update"),
        Line("eval <step>: <eval_loss>", mark="eval"),
        is_window_mean=True,
        aliases={"ep": "epoch"},
    )
    assert agreed(monkeypatch, form, text).facts["loss_window"] == window
    single = replace(form, aliases={"ep": ""})
    assert agreed(monkeypatch, single, text).facts["loss_window"] == window


def test_windows_go_by_the_epoch_that_the_log_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    form = own(
        Line("epoch <epoch> ep <ep> update <step>: <loss>", mark="update"),
        is_window_mean=True,
        aliases={"ep": "epoch"},
    )
    text = "".join(
        f"epoch 1 ep {ep} update {step:04d}: 5\n" + OTHER * (step == 860)
        for ep, steps in (
            (1, range(1000, 4000, 50)),
            (2, range(10, 1000, 50)),
            (2, range(1010, 2000, 50)),
            (1, range(1967, 2900, 50)),
        )
        for step in steps
    )
    assert agreed(monkeypatch, form, text).facts["loss_window"] == 10


def test_a_block_of_line_ends_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = ["\n\n", "iter 1: loss 2.5, time 52.10ms\n", "\r\n", "iter 2: loss 2.25, time 52.10ms"]
    assert told("nanogpt", blocks) == line_by_line(monkeypatch, "nanogpt", blocks)


@pytest.mark.parametrize(
    ("expression", "blind"),
    [
        (r"\bstep \d+/[0-9.]{2,4} loss\x20\d", True),
        (r"[-+.\de]+(?=\S)", True),
        (r"20\d\d", False),
        (r"[1-9]\d*", False),
        (r"[+-5]", False),
        (r"\x31", False),
        (r"(\d)\1", False),
        (r"(?P<a>\d)(?P=a)", False),
    ],
)
def test_an_expression_that_tells_digits_apart_is_known(expression: str, blind: bool) -> None:
    assert is_blind(expression) == blind


def test_the_expressions_of_pairs_and_numbers_tell_no_digits_apart_but_of_c_s_spellings() -> None:
    assert all(is_blind(pairs.replace(NUMBER, "")) for pairs in PAIRS.values())
    assert is_blind(NUMBER.replace(r"1\.#", ""))


def test_a_mask_keeps_all_but_ascii_digits() -> None:
    assert masks_of(["a 12.5e-07", "\u0663 9"]) == [b"a 00.0e-00", "\u0663 0".encode()]


def test_the_shortest_distance_is_the_same_for_rows_one_by_one_and_together() -> None:
    import numpy as np

    steps = [10, 10, 30, 33, 33, 60]
    one_by_one, together = Distances(), Distances()
    for step in steps:
        one_by_one.see(step)
    together.see_all(np.array(steps[:2]))
    together.see_all(np.array(steps[2:]))
    assert one_by_one == together
    assert one_by_one.shortest == 3
