"""`optdoctor formats [NAME]`."""

import click

from optdoctor.cli.output import Command, say
from optdoctor.errors import did_you_mean


@click.command("formats", cls=Command)
@click.argument("name", required=False)
def COMMAND(name: str | None) -> None:  # noqa: N802 - the registry's constant
    """List the log formats that are known, or show one with a sample."""
    from optdoctor.report import formats

    if name is None:
        say(formats.render_list())
        return
    page = formats.render(name)
    if page is None:
        known = (reader.name for reader, _ in formats.known())
        remedy = did_you_mean(name, known, "`optdoctor formats` lists them")
        raise click.UsageError(f"no format is named {name!r}; {remedy}")
    say(page)
