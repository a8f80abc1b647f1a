"""How reports spell numbers, names and sentences; shared by all forms."""

import math
import os
import re
import unicodedata
from collections.abc import Sequence
from pathlib import PurePath

import numpy as np

from optdoctor.findings import Evidence
from optdoctor.store import FloatArray

COUNTED = frozenset({"rows", "elements", "steps", "losses", "tensors", "weights", "samples"})
"""Units of counts: the number comes before its noun, which the evidence already holds."""
_GENERIC = re.compile(
    r"(trainer_state|run)\.json|(metrics|log)\.csv|metrics\.jsonl"
    r"|optdoctor-run|(earlier-|version_)?\d+"
)
"""Names of files and folders that say nothing without their folder."""
_WORD = 48  # columns of the longest word of a sentence: a tensor's name may have hundreds
_BREAKS = "/._- "  # where a name is cut rather than within a word


def number(value: float, digits: int = 3) -> str:
    """`value` in `digits` significant figures, integers below 1e6 in full: 15,389, 2.98e-8, NaN."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    if value == 0:
        return "0"
    if float(value).is_integer() and abs(value) < 1e6:
        return f"{int(value):,}"
    rounded = float(f"{value:.{digits}g}")
    if 1e-3 <= abs(rounded) < 1e6:
        places = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
        text = f"{rounded:,.{places}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}e{int(exponent)}"


def fixed(value: float, digits: int = 3) -> str:
    """As `number`, with the zeros at its end, for labels and columns: 2.50."""
    if not math.isfinite(value) or value == 0 or not 1e-3 <= abs(value) < 1e3:
        return number(value, digits)
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{places}f}"


def middle(values: FloatArray) -> float:
    """The median of finite values, also where the sum of two of them would be infinite."""
    return float(np.median(np.asarray(values, np.float64) / 2) * 2)


def percent(value: float) -> str:
    """`value` in percent: 3 significant figures, 2 below 10 %."""
    return f"{number(value, 2 if abs(value) < 10 else 3)} %"


def quantity(value: float, unit: str) -> str:
    """A number with its unit; a share becomes percent."""
    if unit == "%":
        return percent(value)
    if unit == "share":
        return percent(value * 100)
    return number(value) if unit == "1" else f"{number(value)} {unit}"


def sentence(evidence: Evidence) -> str:
    """One row of evidence as a sentence with its number and its limit."""
    what = evidence.what.rstrip(" .")
    in_percent = evidence.unit in ("%", "share")
    limit = quantity(evidence.limit, evidence.unit if in_percent else "1")
    if evidence.unit in COUNTED:
        return prose(f"{number(evidence.observed)} {what} (limit {limit})")
    return prose(f"{what}: {quantity(evidence.observed, evidence.unit)} (limit {limit})")


def plain(text: str) -> str:
    """`text` on one line, without any character that steers a terminal or turns the text round."""
    spaced = re.sub(r"[\t\n\r\v\f\x85\u2028\u2029]+", " ", text)
    return "".join("\ufffd" if unicodedata.category(c)[0] == "C" else c for c in spaced)


def prose(text: str, *, ticks: bool = False) -> str:
    """A rule's words in a terminal: 1e-8 for 1e-08, 7.1 % for 7.1%, no back-ticks.

    With `ticks` they stay around what reads like a word of the sentence, a limit's name: rules and
    symptoms, which have a hyphen, need none.
    """
    text = re.sub(r"(\d)e\+?(-?)0*(\d)", r"\1e\2\3", plain(text))
    text = re.sub(r"(\d)%", r"\1 %", text)
    return re.sub(r"`(\w+(?:-\w+)+)`", r"\1", text) if ticks else text.replace("`", "")


def short_words(text: str) -> str:
    """`text` without the middles of words that would take its place: names of tensors."""
    return " ".join(shorten(word, _WORD) for word in text.split(" "))


def in_units(text: str, unit: str) -> str:
    """`text` of a log whose rows are no steps: a row, or an epoch, is called what it is."""
    if unit == "step":
        return text
    return re.sub(
        r"\b([Ss])tep(s?)(?= \d)|(?<=\d )(s)tep(s?)\b",
        lambda m: f"{unit[0].upper() if m[1] == 'S' else unit[0]}{unit[1:]}{m[2] or m[4] or ''}",
        text,
    )


def listed(items: Sequence[object]) -> str:
    """`a, b and c`."""
    words = [str(item) for item in items]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def counted(count: int, noun: str) -> str:
    """`1 row`, `1,200 rows`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def origin_name(origin: str, *, with_folder: bool = False) -> str:
    """The origin's last path component, with those above it while it is generic: no home directory.

    `with_folder`: one component more.
    """
    if origin == "-":
        return "standard input"
    parts = path_parts(origin)
    if not parts:
        return "."
    first = len(parts) - 1
    while _GENERIC.fullmatch(parts[first]) and _is_folder(parts[:first]):
        first -= 1
    if with_folder and _is_folder(parts[:first]):
        first -= 1
    return plain("/".join(parts[first:]))


def path_parts(origin: str) -> tuple[str, ...]:
    """The components of a path of any system, without those that name nothing."""
    parts = PurePath(origin.replace("\\", "/")).parts
    return tuple(part for part in parts if part.strip("/") not in ("", "..", "~"))


def is_home(parts: tuple[str, ...]) -> bool:
    """Whether these components are those of somebody's home directory."""
    if parts[-2:-1] in (("home",), ("Users",), ("users",)):
        return True
    return parts in (("root",), path_parts(os.path.expanduser("~")))


def _is_folder(parts: tuple[str, ...]) -> bool:
    return bool(parts) and not is_home(parts)


def columns(text: str) -> int:
    """Terminal columns that `text` takes."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def shorten(text: str, width: int) -> str:
    """`text` in at most `width` columns, its middle left out where it is longer."""
    if columns(text) <= width:
        return text
    head, tail = text, ""
    room = max(width - 2, 0)
    while head and columns(head) > (room + 1) // 2:
        head = head[:-1]
    if (whole := max(map(head.rfind, _BREAKS))) * 2 > len(head):
        head = head[:whole]
    rest = text[len(head) :]
    tail = rest
    while tail and columns(head) + columns(tail) > room:
        tail = tail[1:]
    starts = [at for at in map(tail.find, _BREAKS) if 0 <= at * 2 < len(tail)]
    tail = tail[min(starts, default=0) :]
    return f"{head}..{tail.removeprefix('.')}"


def short_name(name: str, width: int) -> str:
    """The name of a run in at most `width` columns: first without a file that says nothing."""
    folder, _, last = name.rpartition("/")
    if columns(name) <= width or not folder:
        return shorten(name, width)
    return short_name(folder if _GENERIC.fullmatch(last) else last, width)


def beginning(text: str, width: int) -> str:
    """`text` in at most `width` columns, its end left out where it is longer.

    It ends with a whole clause where a third of the room or more is filled, else with a whole word.
    """
    if columns(text) <= width:
        return text
    clause = re.split(r"[;:,](?= )", text)
    for kept in range(len(clause) - 1, 0, -1):
        end = len(text) - sum(len(part) + 1 for part in clause[kept:])
        if columns(text[:end]) <= width and 3 * end >= width:
            return text[:end]
    while text and columns(text) > width - 2:
        text = text[:-1]
    words = text.rpartition(" ")[0]
    text = words if 2 * len(words) > len(text) else text
    return f"{text.rstrip(' ,;:.')}.."


def cut(lines: list[str], most: int) -> list[str]:
    """At most that many lines; what was left out shows as `..`."""
    if len(lines) <= most:
        return lines
    last = lines[most - 1]
    kept = last
    while kept and columns(kept) + 3 > columns(last):
        kept = kept.rpartition(" ")[0]
    return [*lines[: most - 1], f"{kept} .." if kept else ".."]


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns; a longer word is broken."""
    lines, line = [], ""
    for word in text.split(" "):
        joined = f"{line} {word}" if line else word
        if columns(joined) <= width:
            line = joined
            continue
        if line:
            lines.append(line)
        while columns(word) > width:
            size = width
            while columns(word[:size]) > width:
                size -= 1
            lines.append(word[: max(size, 1)])
            word = word[max(size, 1) :]
        line = word
    return [*lines, line] if line or not lines else lines


def fitting(texts: Sequence[str], between: str, room: int, most: int) -> list[str]:
    """The first of these in at most `most` lines, and how many more there are."""
    for count in range(len(texts), 0, -1):
        left = len(texts) - count
        more = [f"and {left} more"] if left else []
        lines = wrap(between.join([*texts[:count], *more]), room)
        if len(lines) <= most:
            return lines
    return cut(wrap(between.join(texts), room), most)
