"""The page of one rule from its own docstring, and the list of all rules."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable
from dataclasses import fields
from itertools import pairwise
from typing import Any

from optdoctor.channels import Axis, channel
from optdoctor.knowledge.rates import UNMEASURED, Measured, rates_of
from optdoctor.knowledge.recording import TELLS
from optdoctor.report.document import dumps
from optdoctor.report.wording import number, prose, wrap
from optdoctor.rule import SECTIONS, SYMPTOMS, Limits, Rule

SCHEMA = "optdoctor/rules-1"
_LABEL = 12  # columns of the labels below the sections


def render(rule: Rule, *, width: int = 80) -> str:
    """The page of `rule` in lines of at most `width` columns."""
    about = f"{kind(rule)} rule, {rule.stage}"
    gap = max(width - len(rule.name) - len(about), 2)
    lines = [*wrap(f"{rule.name}{' ' * gap}{about}", width), ""]
    lines += [*wrap(prose(rule.title), width), ""]
    for heading in SECTIONS:
        if text := rule.section(heading):
            lines.append(heading)
            items = _items(text)
            indent = "    " if len(items) > 1 else "  "
            for item in items:
                first, *rest = wrap(prose(item, ticks=True), width - 4)
                lines += [f"  {first}", *(indent + line for line in rest)]
    lines.append("Measured")
    for text in map(str, rates_of(rule.name) or [UNMEASURED]):
        first, *rest = wrap(text, width - 4)
        lines += [f"  {first}", *("    " + line for line in rest)]
    lines.append("")
    for label, text in _about(rule):
        head, *rest = wrap(prose(text, ticks=True), width - _LABEL)
        lines += [f"{label:<{_LABEL}}{head}", *(" " * _LABEL + line for line in rest)]
    return "\n".join(lines)


def render_list(rules: Iterable[Rule], *, width: int = 80) -> str:
    """One line per rule: its name, kind and stage, and what it is about."""
    rules = list(rules)
    names = max((len(rule.name) for rule in rules), default=0)
    lines = []
    for rule in rules:
        head = f"{rule.name:<{names}}  {kind(rule):<7}  {rule.stage:<7}  "
        first, *rest = wrap(prose(rule.title), max(width - len(head), 20))
        lines += [head + first, *(" " * len(head) + line for line in rest)]
    preview = sum(rule.stage == "preview" for rule in rules)
    open_ones = [rule.name for rule in rules if not rates_of(rule.name)]
    measured = f"{UNMEASURED}: {', '.join(open_ones)}" if open_ones else "all measured"
    return "\n".join(
        [
            *lines,
            "",
            *wrap(
                f"{len(rules)} rules, {preview} in preview, {measured}. optdoctor explain RULE for"
                " one.",
                width,
            ),
        ]
    )


def as_json(rules: Iterable[Rule]) -> str:
    """The rules for other programs: schema `optdoctor/rules-1`."""
    return dumps({"schema": SCHEMA, "rules": [_entry(rule) for rule in rules]})


def kind(rule: Rule) -> str:
    """`cause` or `symptom`."""
    return "symptom" if rule.name in SYMPTOMS else "cause"


def limit_docs(limits: Limits) -> dict[str, str]:
    """{limit: the sentence under its field in the source}, "" where there is none."""
    docs = {field.name: "" for field in fields(limits)}
    for cls in reversed(type(limits).__mro__):
        if cls is not object:
            docs |= _sentences(cls)
    return docs


def _sentences(cls: type) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):  # a class typed in, or shipped without source
        return {}
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    found = {}
    for statement, follower in pairwise(body):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if isinstance(follower, ast.Expr) and isinstance(follower.value, ast.Constant):
            found[statement.target.id] = " ".join(str(follower.value.value).split())
    return found


def _items(section: str) -> list[str]:
    """The paragraphs of a section; a line that opens with `name:` after a full stop begins one."""
    items: list[str] = []
    ended = True
    for line in section.splitlines():
        line = line.strip()
        if not line:
            ended = True
            continue
        opens = re.match(r"[^.:]{1,60}:( |$)", line) is not None
        if not items or ended is True or (items[-1].endswith(".") and opens):
            items.append(line)
        else:
            items[-1] += f" {line}"
        ended = False
    return items


def _about(rule: Rule) -> list[tuple[str, str]]:
    facts = [name for name in (*rule.needs, *rule.uses) if _axis(name) is Axis.RUN]
    series = [name for name in (*rule.needs, *rule.uses) if name not in facts]
    read = [", ".join(series)] if series else []
    read += [f"facts {', '.join(facts)}"] if facts else []
    rows: list[tuple[str, str]] = [("reads", "; ".join(read))]
    if rule.uses:
        rows.append(("of these", f"{', '.join(rule.uses)}: only where measured"))
    if rule.explains:
        rows.append(("explains", ", ".join(rule.explains)))
    for position, (name, tells) in enumerate(TELLS.get(rule.name, {}).items()):
        rows.append(("" if position else "from a log", f"{name} tells {tells}"))
    docs = limit_docs(rule.limits)
    for position, field in enumerate(fields(rule.limits)):
        value = number(getattr(rule.limits, field.name))
        rows.append(("" if position else "limits", f"{field.name} = {value}: {docs[field.name]}"))
    rows.append(("turn off", f'ignore = ["{rule.name}"] under [tool.optdoctor]'))
    return rows


def _axis(need: str) -> Axis:
    return channel(need.partition("|")[0]).axis


def _entry(rule: Rule) -> dict[str, Any]:
    docs = limit_docs(rule.limits)
    return {
        "name": rule.name,
        "title": rule.title,
        "kind": kind(rule),
        "stage": rule.stage,
        "mechanism": rule.mechanism,
        "static": rule.static,
        "needs": list(rule.needs),
        "uses": list(rule.uses),
        "explains": list(rule.explains),
        "limits": {
            field.name: {"value": getattr(rule.limits, field.name), "doc": docs[field.name]}
            for field in fields(rule.limits)
        },
        "measured": [_measured(entry) for entry in rates_of(rule.name)],
        "sections": {heading: rule.section(heading) for heading in SECTIONS},
    }


def _measured(entry: Measured) -> dict[str, Any]:
    return {
        "on": entry.on,
        "named": list(entry.named[:2]) if entry.named else None,
        "alarms": list(entry.alarms[:2]),
    }
