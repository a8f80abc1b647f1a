"""The command line: one file a command, imported when it is called."""

import gc
import importlib
from typing import Any

import click

from optdoctor import __version__
from optdoctor.cli.output import Command

COMMANDS = ("analyze", "demo", "explain", "formats", "read", "rules", "watch")


class _Group(Command, click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        found: Any = importlib.import_module(f"{__name__}.{cmd_name}").COMMAND
        gc.freeze()  # what is loaded stays; to look for garbage in it at the end takes 20 ms
        return found if isinstance(found, click.Command) else None


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="optdoctor", message="%(prog)s %(version)s")
def main() -> None:
    """A doctor for neural-network training: what is wrong, where, since when, what to change."""
