"""Writes docs/rules/ and the pages of channels, formats, optimizers and treatments from the
registries: `make docs`.

The pages are the docstrings of rules, readers, optimizer families and treatments and the sentences
of the channels, nothing else; a test compares them with what this writes. So it does with the index
of the readers, by which only those are loaded that may claim a log.
"""

import argparse
import importlib
import inspect
import json
import re
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from optdoctor.channels import CHANNELS, Axis, Cost
from optdoctor.optimizers import probes
from optdoctor.optimizers.probe import Probe
from optdoctor.readers import registry
from optdoctor.report import formats
from optdoctor.report.explain import kind, limit_docs
from optdoctor.rule import Rule
from optdoctor.rules import RULES
from optdoctor.treatments import interventions

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
        "optimizers.md": _optimizers(),
        "treatments.md": _treatments(),
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
    about += [f"- can bring about {_listed(rule.explains)}"] if rule.explains else []
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


def _formats() -> str:
    """Every reader by the docstring of its file, with its sample."""
    head = (
        "# Log formats\n\nEach file is told by what stands in it, not by its name."
        " `optdoctor analyze --explain-reading LOG` says who read a file and why, `--reader NAME`"
        " chooses. The numbers in the samples are made up.\n\n"
    )
    return GENERATED + head + formats.as_markdown()


def _optimizers() -> str:
    """Every family by the docstring of its file, with the classes that it knows."""
    head = (
        "# Optimizers\n\nOf each of these optdoctor knows where its state holds what, and as a rule"
        " what an update should be: `update_realized` compares it with what was made. Of any other"
        " optimizer the updates are measured from the weights, its moments are not read, and the"
        " report says so. `tests/test_probe_contract.py` and `tests/optimizers/` build and try"
        " them."
    )
    parts = [GENERATED + head]
    families = dict.fromkeys(probe.family for probe in probes() if probe.matches)
    for family in families:
        module = importlib.import_module(f"optdoctor.optimizers.{family}")
        parts.append(f"## {family}\n\n{(module.__doc__ or '').strip()}")
        rows = [
            [_names(dict.fromkeys(_short(name) for name in probe.matches)), _foretold(probe)]
            for probe in probes()
            if probe.family == family
        ]
        parts.append(_table(["classes", "update foretold"], rows).rstrip())
    return "\n\n".join(parts) + "\n"


def _treatments() -> str:
    """Every treatment that acts, by the docstrings of its file and its class."""
    head = (
        "# Treatments that act\n\nEach is switched on by its name, `optdoctor.watch(..,"
        ' treat=["adaptive-clipping"])`, or alone, `AdaptiveClipping().apply(optimizer)`, and off'
        ' by `undo`; none acts unless it is asked for. `treat="safe"` switches on those marked'
        " safe, when a finding proposes them. It acts within steps of the optimizer and leaves"
        " settings between them as they are"
        " ([decision 0023](decisions/0023-treatments-act-within-a-step.md))."
    )
    parts = [GENERATED + head]
    for name, made in interventions().items():
        module = importlib.import_module(made.__module__)
        arguments = str(inspect.signature(made)).partition(" ->")[0]
        own = (inspect.getdoc(made) or "").strip()
        parts.append(f"## {name}\n\n{(module.__doc__ or '').strip()}")
        parts.append(f"`{made.__module__}.{made.__name__}{arguments}`, {made.safety}. {own}")
    return "\n\n".join(parts) + "\n"


def _foretold(probe: Probe) -> str:
    if probe.around is not None:
        return "as of the optimizer inside"
    if probe.foretell is None:
        return f"no: {probe.unforetold}"
    return f"in part: {probe.unforetold}" if probe.unforetold else "yes"


def _short(name: str) -> str:
    """ "torch.optim.AdamW" of "torch.optim.adamw.AdamW": package and class."""
    package, _, kind = name.rpartition(".")
    package = "torch.optim" if package.startswith("torch.optim") else package.partition(".")[0]
    return f"{package}.{kind}"


def index() -> str:
    """{module: rank and marks} of every reader as JSON, null where a module holds none."""
    lines = []
    for module in registry.modules():
        reader = registry.reader_of(module)
        entry = reader and {"rank": reader.rank.name, "marks": list(reader.marks)}
        lines.append(f"  {json.dumps(module)}: {json.dumps(entry, ensure_ascii=False)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


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
    registry.INDEX.write_text(index(), "utf-8")


if __name__ == "__main__":
    main()
