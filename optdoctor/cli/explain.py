"""`optdoctor explain RULE`."""

import click

from optdoctor.cli.output import Command, say


@click.command("explain", cls=Command)
@click.argument("rule")
def COMMAND(rule: str) -> None:  # noqa: N802 - the registry's constant
    """Print the page of one rule: what it finds, why it matters, what to do."""
    from optdoctor.report import explain as page
    from optdoctor.rules import RULES

    for known in RULES:
        if known.name == rule:
            say(page.render(known))
            return
    names = ", ".join(known.name for known in RULES)
    raise click.UsageError(f"no rule is named {rule!r}; known: {names}")
