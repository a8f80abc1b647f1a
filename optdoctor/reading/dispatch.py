"""Which reader gets a log, why, and what comes nearest where none does."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from optdoctor.reading.lazy_regex import lazy
from optdoctor.reading.reader import HEAD_BYTES, Head, Rank, Reader, Source, Unreadable, decode

_NUM_NEAREST = 3
_FORM_LINES = 100
_FIRST_BYTES = 1 << 16
"""What decides where most of its lines are rows of one format."""
_ENOUGH_ROWS = 1000
"""Rows that decide too; most readers count no further."""
_MANY_ROWS = 50
"""Rows of a tool's format that decide where no other has a tenth of them."""
_PART_BYTES = 1 << 17
_SHOWN = 44
"""Characters of a line of a sample that a message shows."""
_WORD = lazy(r"[^\W\d][\w./-]{2,}")
_CONTROL = lazy(r"[\x01-\x08\x0e-\x1a\x1c-\x1f\ufffd]+")

Votes = list[tuple[Reader, int]]
"""Readers of one rank with the rows that each sees, most rows first."""


_SURE = (Rank.FORMAT, Rank.TABLE)
_ORDER = ((Rank.BYTES,), _SURE, (Rank.GUESS,))
"""Ranks that are asked one group after another.

Guesses are last: what a training prints of its settings looks like numbers too.
"""
Candidates = Callable[[Rank, Head], Sequence[Reader]]
"""Gives the readers of a rank that may claim a head."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The reader of a log, and the source from where it is to be read."""

    reader: Reader
    why: str
    source: Source


def claim_of(source: Source, candidates: Candidates) -> Claim | None:
    """The reader that claims the beginning, or what follows in a log that begins with other things.

    None where no reader does.
    """
    windows: list[tuple[int, Head]] = []
    for ranks in _ORDER:
        votes, where = _votes_of_beginning(source.head, candidates, ranks)
        if votes:
            return Claim(votes[0][0], _why(votes, where), source)
        if Rank.BYTES in ranks:
            continue
        if source.has_more and not windows:
            windows = list(source.windows())
        # A guess costs most, and hardly anything that holds a log ends in other things.
        for at in range(len(windows)) if ranks is _SURE else ():
            if votes := votes_of(_part(windows, at), candidates, ranks):
                # What was not looked at of the window before may hold rows.
                before = votes_of(windows[at - 1][1], candidates, ranks) if at else []
                votes, begin = (before, windows[at - 1]) if before else (votes, windows[at])
                return Claim(votes[0][0], _why(votes, f"MiB {begin[0] + 1}"), source.later(*begin))
        if votes := votes_of(_last(source), candidates, ranks):
            # Where the rows begin is not known: all is read.
            return Claim(votes[0][0], _why(votes, "the last MiB"), source)
    return None


def claiming(head: Head, candidates: Candidates) -> Reader | None:
    """The reader whose format a beginning shows: of the lowest rank, then with the most rows."""
    for ranks in _ORDER:
        votes, _ = _votes_of_beginning(head, candidates, ranks)
        if votes:
            return votes[0][0]
    return None


def _votes_of_beginning(
    head: Head, candidates: Candidates, ranks: tuple[Rank, ...]
) -> tuple[Votes, str]:
    """The votes on a head and where it was looked at: its first lines where they are clear."""
    first = _first_lines(head) if ranks is _SURE else None
    if first and _is_clear(votes := votes_of(first, candidates, ranks), first):
        return votes, f"the first {_FIRST_BYTES >> 10} KiB"
    return votes_of(head, candidates, ranks), "the first MiB"


def _is_clear(votes: Votes, head: Head) -> bool:
    """Whether what follows a head will hardly be of another format than what most of it shows.

    A tool's format is clear between lines of other things too, as progress bars.
    """
    if not votes:
        return False
    (reader, rows), *others = votes
    if reader.rank is Rank.FORMAT and rows >= _MANY_ROWS:
        return all(10 * seen < rows for _, seen in others)
    return rows >= _ENOUGH_ROWS or 2 * rows > len(head.lines)


def _first_lines(head: Head) -> Head | None:
    """The whole lines in the first bytes of a head, None where that is all of it or none."""
    if len(head.data) <= _FIRST_BYTES:
        return None
    text = decode(head.data[:_FIRST_BYTES])
    end = max(text.rfind("\n"), text.rfind("\r")) + 1
    return Head(text[:end].encode(), head.name) if end else None


def _part(windows: list[tuple[int, Head]], at: int) -> Head:
    """What is looked at of a window: all of the last one, the beginning of the others."""
    head = windows[at][1]
    return head if at == len(windows) - 1 else Head(head.data[:_PART_BYTES], head.name)


def _last(source: Source) -> Head:
    return Head(source.last(HEAD_BYTES) if source.has_more else b"", source.name)


def votes_of(head: Head, candidates: Candidates, ranks: tuple[Rank, ...]) -> Votes:
    """The readers of the lowest of these ranks in which one claims the head."""
    for rank in ranks:
        rows = [(reader, reader.sniff(head)) for reader in candidates(rank, head)]
        if votes := sorted((vote for vote in rows if vote[1]), key=lambda vote: -vote[1]):
            return votes
    return []


def _why(votes: Votes, where: str) -> str:
    (reader, rows), *others = votes
    also = "".join(f"; also {other.name}: {seen:,}" for other, seen in others)
    return f"{rows:,} {'row' if rows == 1 else 'rows'} of {reader.name} in {where}{also}"


def known(readers: Sequence[Reader]) -> str:
    """Where the formats stand, a remedy."""
    return f"`optdoctor formats` lists the {len(readers)} known ones; --reader names one"


def unknown(head: Head, readers: Sequence[Reader]) -> Unreadable:
    """What is said of a log that no reader claims."""
    if _is_binary(head):
        return Unreadable("binary data of no known format", known(readers))
    near = ", ".join(f"{r.name} ({missing(r)})" for r in nearest(head, readers))
    reason = "not a training log in a known format"
    return Unreadable(f"{reason}, nearest are {near}" if near else reason, known(readers))


def _is_binary(head: Head) -> bool:
    dirt = len(head.text) - len(_CONTROL.sub("", head.text)) + head.data.count(0)
    return 20 * dirt > len(head.data)


def nearest(head: Head, readers: Sequence[Reader]) -> list[Reader]:
    """The formats whose samples share most of their own words with a head, nearest first."""
    formats = [reader for reader in readers if reader.sample and reader.rank is not Rank.GUESS]
    words = {reader: set(_WORD.findall(reader.sample)) for reader in formats}
    shared = Counter(word for of_one in words.values() for word in of_one)
    present = set(_WORD.findall(head.text))

    def share(reader: Reader) -> float:
        weights = {word: 1 / shared[word] for word in words[reader]}
        found = sum(weight for word, weight in weights.items() if word in present)
        return found / max(sum(weights.values()), 1)

    form = form_of(head)
    order = sorted(words, key=lambda r: (r.name != form, -share(r), -r.rank, r.name))
    return order[:_NUM_NEAREST]


def form_of(head: Head) -> str:
    """The reader of the general form that most lines have, whatever they name; "" for none."""
    lines = [line.strip() for line in head.lines[:_FORM_LINES]]
    if sum(line.startswith("{") and line.endswith("}") for line in lines) * 2 > len(lines):
        return "json-lines"
    cells = Counter(line.count(mark) for mark in ",;\t" for line in lines if mark in line)
    (_, rows), *_ = cells.most_common(1) or [(0, 0)]
    return "csv" if len(lines) > 1 and rows * 10 >= len(lines) * 9 else ""


def missing(reader: Reader) -> str:
    """What a log would have to show to be of this format."""
    if reader.wants:
        return f"no {reader.wants}"
    lines = [" ".join(line.split()) for line in reader.sample.splitlines() if line.strip()]
    telling = [line for line in lines if reader.sniff(Head(line.encode()))] or lines
    line = next((line for line in telling if "loss" in line.lower()), telling[0])
    # Dates and names come first in many a line, and tell nothing.
    start = max(0, min(line.lower().find("loss") - _SHOWN // 2, len(line) - _SHOWN))
    shown = line[start : start + _SHOWN]
    before, after = ".." * (start > 0), ".." * (start + _SHOWN < len(line))
    return f"no line like '{before}{shown}{after}'"
