"""Which reader gets a log, why, and what comes nearest where none does."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from optdoctor.reader import HEAD_BYTES, Head, Rank, Reader, Source, Unreadable

_NUM_NEAREST = 3
_PART_BYTES = 1 << 17
_SHOWN = 44
"""Characters of a line of a sample that a message shows."""
_WORD = re.compile(r"[^\W\d][\w./-]{2,}")
_CONTROL = re.compile(r"[\x01-\x08\x0e-\x1a\x1c-\x1f\ufffd]+")

Votes = list[tuple[Reader, int]]
"""Readers of one rank with the rows that each sees, most rows first."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The reader of a log, and the source from where it is to be read."""

    reader: Reader
    why: str
    source: Source


def claim_of(source: Source, readers: Sequence[Reader]) -> Claim:
    """The reader that claims the first MiB, or a later one of a log that begins with other things.

    Guesses are asked last: what a training prints of its settings looks like numbers too.

    Raises:
        Unreadable: none does.
    """
    sure, guesses = (Rank.BYTES, Rank.FORMAT, Rank.TABLE), (Rank.GUESS,)
    windows: list[tuple[int, Head]] = []
    for ranks in (sure, guesses):
        if votes := votes_of(source.head, readers, ranks):
            return Claim(votes[0][0], _why(votes, "the first MiB"), source)
        if source.has_more and not windows:
            windows = list(source.windows())
        # A guess costs most, and hardly anything that holds a log ends in other things.
        for at in range(len(windows)) if ranks is sure else ():
            if votes := votes_of(_part(windows, at), readers, ranks):
                # What was not looked at of the window before may hold rows.
                before = votes_of(windows[at - 1][1], readers, ranks) if at else []
                votes, begin = (before, windows[at - 1]) if before else (votes, windows[at])
                return Claim(votes[0][0], _why(votes, f"MiB {begin[0] + 1}"), source.later(*begin))
        if votes := votes_of(_last(source), readers, ranks):
            # Where the rows begin is not known: all is read.
            return Claim(votes[0][0], _why(votes, "the last MiB"), source)
    raise _unknown(source.head, readers)


def _part(windows: list[tuple[int, Head]], at: int) -> Head:
    """What is looked at of a window: all of the last one, the beginning of the others."""
    head = windows[at][1]
    return head if at == len(windows) - 1 else Head(head.data[:_PART_BYTES], head.name)


def _last(source: Source) -> Head:
    return Head(source.last(HEAD_BYTES) if source.has_more else b"", source.name)


def votes_of(head: Head, readers: Sequence[Reader], ranks: tuple[Rank, ...]) -> Votes:
    """The readers of the lowest of these ranks in which one claims the head."""
    for rank in ranks:
        rows = [(reader, reader.sniff(head)) for reader in readers if reader.rank is rank]
        if votes := sorted((vote for vote in rows if vote[1]), key=lambda vote: -vote[1]):
            return votes
    return []


def _why(votes: Votes, where: str) -> str:
    (reader, rows), *others = votes
    also = "".join(f"; also {other.name}: {seen:,}" for other, seen in others)
    return f"{rows:,} {'row' if rows == 1 else 'rows'} of {reader.name} in {where}{also}"


def known(readers: Sequence[Reader]) -> str:
    """Where the formats stand, a remedy."""
    return f"docs/formats.md shows the {len(readers)} known formats; --reader names one"


def _unknown(head: Head, readers: Sequence[Reader]) -> Unreadable:
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

    return sorted(words, key=lambda reader: (-share(reader), -reader.rank, reader.name))[
        :_NUM_NEAREST
    ]


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
