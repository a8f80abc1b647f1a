"""`optdoctor watch LOG`: findings as they appear in a log that grows."""

import sys
from time import strftime

import click

from optdoctor.analysis import failed
from optdoctor.cli.output import CLEAR, FAILED, FOUND, UNREADABLE, Command, Failure, complain, say
from optdoctor.cli.settings import reaches, settings_of
from optdoctor.findings import Notice
from optdoctor.settings import FAIL_ON
from optdoctor.trace import Trace


@click.command("watch", cls=Command)
@click.argument("log")
@click.option(
    "--idle",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="End when the log did not change for so long; without it, at Ctrl-C.",
)
@click.option("--reader", metavar="NAME", help="Log format, where it is not recognised by itself.")
@click.option("--fail-on", type=click.Choice(FAIL_ON), help="Least severity for exit code 1.")
@click.option("--select", multiple=True, metavar="RULES", help="Only these rules, by comma.")
@click.option("--ignore", multiple=True, metavar="RULES", help="All but these rules, by comma.")
def COMMAND(  # noqa: N802 - the registry's constant
    log: str,
    idle: float | None,
    reader: str | None,
    fail_on: str | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
) -> None:
    """Follow a log that grows and say what appears in it; at the end print the report.

    The log may be rotated or cut while it is followed. Exit codes as those of `analyze`.
    """
    from optdoctor.follow import Follower
    from optdoctor.report import text

    settings, failures = settings_of(select, ignore)
    for failure in failures:
        complain(failure)
        sys.exit(failure.code)
    idle_s = float("inf") if idle is None else idle
    try:
        follower = Follower(log, _tell, reader=reader, settings=settings, idle_s=idle_s)
        diagnosis, trace = follower.run()
        report = text.render(diagnosis, trace)
    except Exception as error:
        why = failed(log, error)
        code = FAILED if why.is_ours else UNREADABLE
        complain(Failure(log, why.reason, why.remedy, code))
        sys.exit(code)
    code = FOUND if reaches(diagnosis, fail_on or settings.fail_on) else CLEAR
    say(report, code)
    sys.exit(code)


def _tell(notice: Notice, trace: Trace) -> None:
    from optdoctor.report import slots
    from optdoctor.report.own_steps import counts_from_zero, words_as_logged
    from optdoctor.report.wording import plain

    finding, step = notice.finding, notice.step
    if notice.what == "ended":
        said = f"{finding.rule}: no longer found"
    else:
        said = f"{finding.severity.upper()} {finding.rule}: {slots.worded(finding.summary, trace)}"
    if notice.what == "renamed":
        said = f"{notice.was} is now {finding.rule}: {said}"
    if counts_from_zero(trace):
        said, step = words_as_logged(said), step - 1
    say(plain(f"{strftime('%H:%M:%S')}  {slots.unit(trace)} {step}  {said}"))
