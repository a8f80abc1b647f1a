"""Curves, histograms and findings in the active run of Weights & Biases, or in a framework's.

A run is never begun here. It is looked for at every write, because a framework may begin it after
the doctor; there is one sentence if the first update finds none. Curves stand over
`optdoctor/step`: a `step=` of ours would make wandb drop what others log.
"""

from collections.abc import Mapping
from typing import Any

from optdoctor.findings import Diagnosis, Finding, Notice, Severity
from optdoctor.sinks import Place, Sample, Sink, Unwritable, curve_name, curves
from optdoctor.sinks.console import say
from optdoctor.trace import Trace

NO_RUN = (
    "optdoctor  the wandb sink writes nothing: no run is active. Call wandb.init()\n"
    "           before the first update."
)
ENDED = (
    "optdoctor  the wandb run was finished before the doctor closed: its table of\n"
    "           findings is not written. Close the doctor first."
)
COLUMNS: list[str | int] = ["severity", "rule", "first step", "last step", "summary", "do first"]
TITLE = 63
"""Characters of an alert's title that wandb allows."""


class Wandb(Sink):
    """The active run."""

    histograms = True

    def __init__(self, place: Place) -> None:
        self._prefix, self._writer = place.prefix, place.writer
        self._run: Any = None
        self._said = False
        self._alerts: list[Notice] = []
        self._held: tuple[int, int] | None = None
        """wandb's step of the row that waits for a commit, and the update that it belongs to."""

    def tell(self, notices: list[Notice]) -> None:
        """Alerts of what is critical; before a run is active they wait."""
        self._alerts += [
            notice
            for notice in notices
            if notice.what != "ended" and notice.finding.severity is Severity.CRITICAL
        ]
        self._find()

    def row(self, step: int, values: Mapping[str, float]) -> None:
        """One point of each channel's curve."""
        self._log(step, {curve_name(name): value for name, value in values.items()})

    def sample(self, sample: Sample) -> None:
        """One point of each tensor's curves, and its histograms."""
        import wandb

        values: dict[str, Any] = dict(curves(sample))
        for quantity, by_tensor in sample.histograms.items():
            for tensor, histogram in by_tensor.items():
                binned = (histogram.counts, histogram.edges)
                values[f"{quantity}/{tensor}"] = wandb.Histogram(np_histogram=binned)
        self._log(sample.step, values)

    def close(self, diagnosis: Diagnosis, trace: Trace, cost: str) -> None:
        """The verdict in the run's summary, the findings as a table."""
        import wandb

        run = self._find()
        if run is None:
            if self._run is not None:
                say(ENDED)
            return
        run.summary[f"{self._prefix}/verdict"] = str(diagnosis.verdict)
        if diagnosis.findings:
            data = [_cells(finding) for finding in diagnosis.findings]
            table = wandb.Table(columns=COLUMNS, data=data)
            run.log({f"{self._prefix}/findings": table}, commit=not _counts_itself(run))

    def _find(self) -> Any:
        import wandb

        run = wandb.run if self._writer is None else self._writer
        if run is None:
            return None
        if run is not self._run:
            self._run = run
            run.define_metric(f"{self._prefix}/*", step_metric=f"{self._prefix}/step")
        while self._alerts:
            finding = self._alerts.pop(0).finding
            title = f"optdoctor: {finding.rule}"[:TITLE]
            run.alert(title=title, text=finding.summary, level="ERROR")
        return run

    def _log(self, step: int, values: Mapping[str, Any]) -> None:
        """Adds to the history, a row an update, without harm to a loop that passes `step=` itself.

        wandb drops what such a loop logs of a step that a commit of ours has taken. So a row of
        ours is committed only when the next one comes, and never once the loop is known to count
        itself: then rows wait for its own, and are left out while an earlier one waits.
        """
        run = self._find()
        if run is None:
            if not self._said:
                self._said = True
                say(NO_RUN)
            return
        if self._held is not None and self._held[0] == run.step and self._held[1] != step:
            if _counts_itself(run):
                return
            run.log({}, commit=True)
        named = {f"{self._prefix}/{name}": value for name, value in values.items()}
        run.log(named | {f"{self._prefix}/step": step}, commit=False)
        self._held = (run.step, step)


def _counts_itself(run: Any) -> bool:
    """Whether somebody has passed `step=` to the run's `log`, as wandb 0.31.0 notes for itself."""
    feature = getattr(getattr(run, "_telemetry_obj", None), "feature", None)
    return bool(getattr(feature, "set_step_log", False))


def _cells(finding: Finding) -> list[Any]:
    do = finding.treatments[0].title if finding.treatments else ""
    return [str(finding.severity), finding.rule, *finding.steps, finding.summary, do]


def SINK(place: Place) -> Sink:  # noqa: N802 - the registry's constant
    """The active run.

    Raises:
        Unwritable: the package is missing.
    """
    try:
        import wandb  # noqa: F401
    except ImportError as error:
        raise Unwritable(
            "the wandb sink needs the package wandb", "pip install 'optdoctor[wandb]'"
        ) from error
    return Wandb(place)
