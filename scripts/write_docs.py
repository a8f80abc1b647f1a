"""Writes docs/rules/, docs/channels.md and docs/formats.md from the registries: `make docs`.

The pages are the docstrings of rules and readers and the sentences of the channels, nothing else; a
test compares them with what this writes.
"""

import argparse
import importlib
import pkgutil
import re
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from optdoctor import readers
from optdoctor.channels import CHANNELS, Axis, Cost
from optdoctor.reader import Rank
from optdoctor.report.explain import explained, kind, limit_docs
from optdoctor.rule import Rule
from optdoctor.rules import RULES

DOCS = Path(__file__).parent.parent / "docs"
AXES = {
    Axis.STEP: "One value a step",
    Axis.TENSOR: "One value a tensor and sampled step",
    Axis.RUN: "One value a run",
}
COSTS = {
    Cost.FREE: "on the host already",
    Cost.PASS: "part of the pass over the tensors, exact",
    Cost.SAMPLED: "from at most 4096 elements a tensor",
    Cost.COPY: "needs a copy of the weights from before the step",
}
GENERATED = "<!-- Written by scripts/write_docs.py: change the source, then `make docs`. -->\n\n"


def pages() -> dict[str, str]:
    """{path below docs/: text} of every page."""
    rules = {f"rules/{rule.name}.md": _rule(rule) for rule in RULES}
    return {
        "channels.md": _channels(),
        "formats.md": _formats(),
        "rules/README.md": _index(RULES),
        **rules,
    }


def _rule(rule: Rule) -> str:
    body = re.sub(r"\n+## (.*)\n", r"\n\n## \1\n\n", rule.doc.strip())
    about = [
        f"- a {kind(rule)} rule, {rule.stage}" + (", a counter of the fault" * rule.mechanism),
        f"- needs {_names(rule.needs)}",
    ]
    about += [f"- reads where measured: {_names(rule.uses)}"] if rule.uses else []
    about += [f"- can bring about {_listed(explained(rule))}"] if rule.explains else []
    docs = limit_docs(rule.limits)
    limits = [
        [f"`{field.name}`", f"{getattr(rule.limits, field.name):,}", docs[field.name]]
        for field in fields(rule.limits)
    ]
    return (
        f"{GENERATED}# {rule.name}\n\n{body}\n\n## In short\n\n"
        + "\n".join(about)
        + "\n\n"
        + _table(["limit", "value", "what it means"], limits)
    )


def _index(rules: Iterable[Rule]) -> str:
    rows = [[f"[{r.name}]({r.name}.md)", kind(r), r.stage, r.title] for r in rules]
    return f"{GENERATED}# Rules\n\n" + _table(["rule", "kind", "stage", "what it finds"], rows)


def _channels() -> str:
    parts = [f"{GENERATED}# Channels\n"]
    for axis, heading in AXES.items():
        rows = [
            [f"`{c.name}`", c.unit, COSTS[c.cost], c.doc]
            for c in CHANNELS.values()
            if c.axis is axis
        ]
        parts.append(f"## {heading}\n\n" + _table(["channel", "unit", "cost", "definition"], rows))
    return "\n".join(parts)


RANKS = {
    Rank.FORMAT: "Formats of one tool",
    Rank.TABLE: "General forms, where no tool claims a file",
    Rank.GUESS: "The last resort",
}


def _formats() -> str:
    """Every reader by the docstring of its file, with its sample."""
    names = (m.name for m in pkgutil.iter_modules(readers.__path__))
    modules = [importlib.import_module(f"{readers.__name__}.{name}") for name in names]
    found = sorted((m for m in modules if hasattr(m, "READER")), key=lambda m: m.READER.name)
    parts = [
        f"{GENERATED}# Log formats\n\nEach file is told by what stands in it, not by its name."
        " `optdoctor analyze --explain-reading LOG` says who read a file and why, `--reader NAME`"
        " chooses. The numbers in the samples are made up.\n"
    ]
    for rank, heading in RANKS.items():
        parts.append(f"## {heading}\n")
        for module in (m for m in found if m.READER.rank is rank):
            parts.append(f"### {module.READER.name}\n\n{(module.__doc__ or '').strip()}\n")
            if sample := module.READER.sample.rstrip():
                parts.append(f"```\n{sample}\n```\n")
    return "\n".join(parts)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name.replace('|', '` or `')}`" for name in names)


def _listed(names: Iterable[str]) -> str:
    """As `_names`, with what is said in brackets behind a name outside of its quotes."""
    return ", ".join(re.sub(r"^(\S+)", r"`\1`", name) for name in names)


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = ([" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def main() -> None:
    """Writes every page and removes those of rules that are gone."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    written = pages()
    (DOCS / "rules").mkdir(exist_ok=True)
    for path in (DOCS / "rules").glob("*.md"):
        if f"rules/{path.name}" not in written:
            path.unlink()
    for name, text in written.items():
        (DOCS / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
