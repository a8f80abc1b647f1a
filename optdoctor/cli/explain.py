"""`optdoctor explain RULE`."""

import click

from optdoctor.cli.output import Command, say
from optdoctor.errors import did_you_mean


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
    remedy = did_you_mean(rule, (known.name for known in RULES), "`optdoctor rules` lists them")
    raise click.UsageError(f"no rule is named {rule!r}; {remedy}")
