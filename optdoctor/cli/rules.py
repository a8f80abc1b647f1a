"""`optdoctor rules`."""

import click

from optdoctor.cli.output import Command, say


@click.command("rules", cls=Command)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
def COMMAND(form: str) -> None:  # noqa: N802 - the registry's constant
    """List the rules."""
    from optdoctor.report import explain as page
    from optdoctor.rules import RULES

    say(page.as_json(RULES) if form == "json" else page.render_list(RULES))
