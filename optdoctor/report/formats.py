"""The log formats: one line each, or one with its sample."""

import sys

from optdoctor.readers import registry
from optdoctor.reading.reader import Rank, Reader
from optdoctor.report.wording import beginning

RANKS = {
    Rank.BYTES: "Binary files",
    Rank.FORMAT: "Formats of one tool",
    Rank.TABLE: "General forms, where no tool claims a file",
    Rank.GUESS: "The last resort",
}


def known() -> list[tuple[Reader, str]]:
    """Every reader with the docstring of its file, by name."""
    found = []
    for module in registry.modules():
        if reader := registry.reader_of(module):
            doc = sys.modules[f"optdoctor.readers.{module}"].__doc__ or ""
            found.append((reader, doc.strip()))
    return sorted(found, key=lambda one: (one[0].rank, one[0].name))


def render_list() -> str:
    """A line a format, under the headings of their ranks."""
    found = known()
    wide = max(len(reader.name) for reader, _ in found)
    lines: list[str] = []
    for rank, heading in RANKS.items():
        lines += ["", heading] if lines else [heading]
        for reader, doc in found:
            if reader.rank is rank:
                first = " ".join(doc.partition("\n\n")[0].split())
                lines.append(f"  {reader.name:<{wide}}  {beginning(first, 76 - wide)}")
    return "\n".join([*lines, "", "optdoctor formats NAME      for one with a sample"])


def render(name: str) -> str | None:
    """What a format is, and its sample; None where there is none of that name."""
    for reader, doc in known():
        if reader.name == name:
            sample = "".join(f"    {line}\n" for line in reader.sample.splitlines())
            return f"{reader.name}\n\n{doc}\n" + (f"\n{sample}" if sample else "")
    return None


def as_markdown() -> str:
    """All of them, each with its sample."""
    parts = []
    for rank, heading in RANKS.items():
        parts.append(f"## {heading}\n")
        for reader, doc in (one for one in known() if one[0].rank is rank):
            parts.append(f"### {reader.name}\n\n{doc}\n")
            if sample := "\n".join(reader.sample.splitlines()):
                parts.append(f"```\n{sample}\n```\n")
    return "\n".join(parts)
