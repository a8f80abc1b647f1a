"""`optdoctor demo`."""

import sys

import click

from optdoctor.cli.output import UNREADABLE, Command, Failure, complain


@click.command("demo", cls=Command)
@click.option(
    "--framework", type=click.Choice(["huggingface", "lightning", "torch"]), default="huggingface"
)
@click.option(
    "--fault",
    type=click.Choice(["underflow", "rounding"]),
    default="underflow",
    help="underflow: float16, breaks at once. rounding: bfloat16, the loss shows it late.",
)
def COMMAND(framework: str, fault: str) -> None:  # noqa: N802 - the registry's constant
    """Train a small model until it is sick, name the cause, treat it, train again."""
    try:
        from optdoctor.demo.story import run

        code = run(framework, fault)
    except ImportError as error:
        reason = f"needs {error.name or framework}"
        remedy = f"pip install 'optdoctor[{framework}]', or in a clone pip install '.[{framework}]'"
        complain(Failure("the demo", reason, remedy, UNREADABLE))
        sys.exit(UNREADABLE)
    sys.exit(code)
