"""`optdoctor formats [NAME]`."""

from difflib import get_close_matches

import click

from optdoctor.cli.output import Command, say


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
        near = get_close_matches(name, [reader.name for reader, _ in formats.known()], cutoff=0.3)
        said = f"; did you mean {' or '.join(near)}?" if near else ""
        listed = "; `optdoctor formats` lists them"
        raise click.UsageError(f"no format is named {name!r}{said or listed}")
    say(page)
