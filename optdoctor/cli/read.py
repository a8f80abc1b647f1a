"""`optdoctor read PATH`: the channels of a log as a table for other programs."""

import sys

import click

from optdoctor.analysis import failed
from optdoctor.cli.output import FAILED, UNREADABLE, Command, Failure, complain, save, say


@click.command("read", cls=Command)
@click.argument("path")
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "jsonl", "parquet"]),
    default="csv",
    help="One row a step, one column a channel; an empty cell was not measured.",
)
@click.option("-o", "--output", metavar="FILE", help="Write here instead of standard output.")
@click.option("--reader", metavar="NAME", help="Log format, where it is not recognised by itself.")
def COMMAND(  # noqa: N802 - the registry's constant
    path: str, form: str, output: str | None, reader: str | None
) -> None:
    """Turn a log ("-" is standard input) or a run folder into a table of its step channels.

    From 65,536 rows of a channel on, neighbouring rows are one: the last of them is shown.
    """
    try:
        from optdoctor import readers
        from optdoctor.report import table

        trace = readers.read(path, reader)
        written = table.render(trace, form)
    except Exception as error:
        why = failed(path, error)
        code = FAILED if why.is_ours else UNREADABLE
        complain(Failure(path, why.reason, why.remedy, code))
        sys.exit(code)
    if output is None:
        say(written)
    elif unwritable := save(written, output):
        complain(unwritable)
        sys.exit(unwritable.code)
