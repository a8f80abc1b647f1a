"""The loss jumps far above both its sides, and comes back.

## What it finds
Rows of the training loss, and of the evaluation loss, that stand above the rows before and after
them by more than the run's own noise and its other peaks let expect. Single rows, rows in a file,
and jumps that take long to come back are looked for on a logarithmic scale, to which 5 % of the
first losses are added; for lasting ones running medians of 5 and 15 rows stand for the loss. Where
the gradient norm stands out at the same place, less is asked of the loss. Several spikes are one
finding. In 8 to 23 rows only a row more than twice as high as its neighbours counts.
It is an alarm where a single row more than doubles, or where several rows are up by as much
together, their number times the height in logarithms. Rows of high ones that batches of two kinds
make by chance are none.
## Why it matters
An update moved the weights to a worse place, or a batch was unlike the others. The run spent the
rows of the spike on winning back what it had; at a higher rate or in lower precision the next one
may not come back.
## What to do
Nothing in this run, while it comes back. Evaluate the batches at the spike again with weights from
before it: high again means the data. If spikes come again, go back about 100 steps and leave out
the batches around it, as was done for PaLM; a faster second moment (a lower beta2) and a clip
bound what one gradient does. A loss that falls back slowly, from half the height to a third in more
than four times the rows above half, is learnt anew: say whether data, objective or model were
changed there on purpose. Record the gradient norm and the batch index: with them `bad-batch`
and `gradient-outlier` tell the causes apart.
## When it is fine
A hard example in a small batch: a single row below a doubling is a note at most, and so are single
rows that come in more than 3 % of all (and more than 3 times). Harder data from a step on: a rise
below 30 % that fades over so much of the run that its height (in logarithms) is below 5.5 times
that share is a note, and so is a jump within the first eight rows, where what is usual is not
known yet. A loss that rises over the first rows before it falls. The loss that jumps where the
learning rate restarts. A reward, an adversarial or a diffusion loss, which the rule does not judge;
nor a loss of which a log shows sums or a running mean.
## Told apart from
`upward-drift` and `divergence`: the loss stays up. Here it comes back to within a third of the
height, and a jump after which the loss ends far above its best level is left to `divergence`.
`staircase-oscillation`: jumps at even distances; this rule leaves them out.
`bad-batch`: loss and gradient norm rise at once, in single batches.
`nan-pulse`: spikes beside losses that are not finite are left to it.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from optdoctor import rule
from optdoctor.curves.deviations import highest, norm_level, resolution, scores
from optdoctor.curves.gradient_norm import READ_FOR_IT, gradient_norm
from optdoctor.curves.level import Curve, Floats, curve
from optdoctor.curves.masked import FILTERED_BY, unmasked, witness
from optdoctor.curves.peaks import BACK, SIDE, Spike
from optdoctor.curves.rise import USUAL, around, gravest, is_certain
from optdoctor.curves.spikes import LOSSES, MEANS, SMOOTHED, beside_nan, spikes_of
from optdoctor.curves.towers import towers
from optdoctor.curves.waves import DOWN, wave_of
from optdoctor.findings import Abstain, Evidence, Finding, Severity, Treatment
from optdoctor.knowledge.losses import NEVER_FALLING, RUNNING_MEAN, SUM, called
from optdoctor.knowledge.remedies import batches
from optdoctor.knowledge.saved_batches import saved_batches
from optdoctor.store import Series
from optdoctor.synthetic import falling_loss, make_trace
from optdoctor.trace import Trace

SHORT = 24
"""Rows below which a curve has no noise of its own: only a row that towers counts."""
SHORT_REACH = 8.0
"""Deviations that such a row needs: heuristic."""
NORM_SPREAD = 0.1
"""Least standard deviation of the logarithm of a gradient norm."""
WAVY = 40
"""Rows in which a wave is looked for."""
TALL = 4.0
"""Heights of a wave that one of its jumps reaches at most."""
ALIGNED = 0.1
"""Share of a period, and at least 2 rows, within which a spike is that of the wave."""
LOST = 0.3
"""Level above the best, in logarithms, from which a run that ends there is lost already."""
RATE_ROSE = 1.5
"""Factor by which a learning rate rises where it restarts."""
AVERAGED = 10
"""Batches in a row from which no single one of them makes a spike."""
SLOW = 5.5
"""Height in logarithms over the share of the run that it takes to come back: slower ones may be
harder data. Of healthy runs whose data grow harder all have less, of short spikes nearly none."""
SLIGHT = 0.262
"""Height in logarithms, 30 %, of the highest that counts as such."""
FADING, FADING_SMOOTHED = 2, 21
"""Rows from half the height to the return, from which it comes back slowly."""
ANEW = 4.0
"""Rows from half the height to the return, over those above half, beyond which what was lost is
learnt anew. A loss that falls by the same share of its height each row takes 0.74 times as many;
spikes of small sick trainings took up to 3.1, harder data and a new layer 9 and more."""
BEGINNING = 8
"""Rows at the start of all but short curves within which a jump is a note: what is usual is not
known yet."""
OFTEN, OFTEN_SHARE = 3, 0.03
"""Most single rows, and the share of all rows, that are spikes and not a kind of batches."""
LISTED = 5
"""Most spikes whose steps are listed."""


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 8
    """Rows of which one can tower above its neighbours."""
    height: float = 0.095
    """Largest jump of the softened loss, in logarithms, that passes: 10 %."""
    clearness: float = 1.0
    """Largest jump that passes, over what the noise and the other peaks of the run let expect.
    With it 6 of 17,220 logs of made-up healthy runs of 41 families alarm, and none of 1,911 logs of
    healthy small trainings."""
    blip: float = 0.69
    """Largest jump of a single row, in logarithms, that is no alarm, or of several rows together: a
    doubling."""
    mean_blip: float = 0.182
    """The same of rows that are means of many batches: 20 %."""


class _Line(NamedTuple):
    """A curve with its spikes."""

    channel: str
    name: str
    curve: Curve
    spikes: list[Spike]
    averaged: bool
    smoothed: bool
    norms: Series | None

    @property
    def short(self) -> bool:
        """Whether it has too few rows for a noise of its own."""
        return self.curve.level.size < SHORT


def check(trace: Trace, limits: Limits) -> list[Finding] | Abstain:
    kind = trace.facts.get("loss_kind")
    if kind in NEVER_FALLING:
        return Abstain(f"{called(str(kind))} jumps in a good run")
    if (form := trace.facts.get("loss_form")) in (RUNNING_MEAN, SUM):
        return Abstain(f"a loss that is logged as a {form} jumps by itself")
    found = []
    for channel in ("loss", "eval_loss"):
        if channel in trace.series:
            line = _line(trace, channel, limits)
            if line is not None and line.spikes:
                found.append(line)
    if len(found) == 2 and _same_place(*found):
        found = found[:1]
    return [_finding(trace, line, limits) for line in found]


def _line(trace: Trace, channel: str, limits: Limits) -> _Line | None:
    series = trace.series[channel]
    if channel == "loss":
        series = unmasked(series, witness(trace))
    shape = curve(highest(series))
    if shape is None:
        return None
    averaged = channel != "loss" or _is_averaged(trace)
    norms, smoothed = None, False
    if shape.level.size < SHORT:
        spikes = towers(shape.level, SHORT_REACH)
        least = limits.blip
    else:
        smoothed = shape.leeway > 1.3 * (1 + 6 / len(shape.blocks))
        company = None
        if channel == "loss" and (norm := gradient_norm(trace)):
            norms, company = _company(trace.series[norm], shape)
        spikes = spikes_of(
            shape.level,
            MEANS if averaged else SMOOTHED if smoothed else LOSSES,
            least_height=limits.height / 2,
            least_spread=resolution(shape),
            company=company,
        )
        least = limits.height
    spikes = [
        spike
        for spike in spikes
        if round(spike.clearness, 2) > limits.clearness and round(spike.height, 3) > least
    ]
    spikes = [spike for spike in spikes if not beside_nan(series, shape.steps, spike)]
    spikes = [spike for spike in spikes if not _rate_rose(trace, shape, spike)]
    spikes = _before_the_end(shape, spikes)
    if channel == "loss":
        spikes = _no_divergences(trace, shape, spikes)
    name = "evaluation loss" if channel != "loss" else "loss"
    return _Line(
        channel, name, shape, _aperiodic(shape, spikes), averaged, smoothed and not averaged, norms
    )


def _is_averaged(trace: Trace) -> bool:
    """Whether a row is the mean of so many batches that none of them makes it."""
    window = trace.facts.get("loss_window")
    many = isinstance(window, int | float) and AVERAGED <= window < math.inf
    return many or trace.facts.get("step_source") == "epochs"


def _company(norm: Series, shape: Curve) -> tuple[Series | None, Floats | None]:
    """The rows of the norm, and its deviations [n] at the rows of the curve, NaN where unknown."""
    rows, level = norm_level(norm)
    if level.size < SHORT:
        return None, None
    score = scores(level, NORM_SPREAD)
    at = np.minimum(np.searchsorted(rows.steps, shape.steps), level.size - 1)
    inside = (rows.starts[at] <= shape.steps) & (shape.steps <= rows.steps[at])
    return rows, np.where(inside, score[at], np.nan)


def _rate_rose(trace: Trace, shape: Curve, spike: Spike) -> bool:
    """Whether the learning rate rose again at the spike, to where it had been before."""
    series = trace.series.get("lr")
    if series is None or not series.steps.size:
        return False
    at = np.searchsorted(series.steps, shape.steps[[max(spike.first - SIDE, 0), spike.top]])
    before, now = np.minimum(at, series.steps.size - 1)
    rate = np.asarray(series.values, np.float64)
    risen = rate[now] > RATE_ROSE * rate[before]
    return bool(risen and np.nanmax(rate[: before + 1]) > RATE_ROSE * rate[before])


def _before_the_end(shape: Curve, spikes: list[Spike]) -> list[Spike]:
    """Those that came before the run was lost, where it ends far above its best."""
    if not spikes:
        return []
    best = np.minimum.accumulate(shape.blocks)
    end = float(np.median(shape.blocks[-3:]))
    if end <= best[-1] + LOST:
        return spikes
    block = np.searchsorted(shape.block_steps, [shape.steps[s.first] for s in spikes], "right") - 1
    return [
        spike for spike, at in zip(spikes, block, strict=True) if spike.before <= best[at] + LOST
    ]


def _no_divergences(trace: Trace, shape: Curve, spikes: list[Spike]) -> list[Spike]:
    """Those that are not the jump that left the loss far above its best level: `divergence`'s."""
    rise = gravest(shape, USUAL) if any(spike.lasting for spike in spikes) else None
    if rise is None or not (rise.diverges and is_certain(rise, USUAL)) or rise.learns:
        return spikes
    if trace.facts.get("loss_kind", "falling") != "falling" or not shape.soft:
        return spikes  # that rule does not judge it
    low, high = around(shape, rise)

    def stays(spike: Spike) -> bool:
        first, last = shape.steps[[spike.first, spike.last]]
        return spike.lasting and bool(low <= last and first <= high)

    return [spike for spike in spikes if not stays(spike)]


def _aperiodic(shape: Curve, spikes: list[Spike]) -> list[Spike]:
    """Those that are no part of a wave: at another place of its period, or far above it."""
    wave = wave_of(shape) if spikes and shape.level.size >= WAVY else None
    if wave is None or wave.skew < DOWN:
        return spikes
    near = max(2.0, ALIGNED * wave.period)

    def apart(spike: Spike) -> bool:
        ahead = wave.jumps - spike.first
        nearest = float(ahead[np.abs(ahead).argmin()])
        off = nearest - round(nearest / wave.period) * wave.period
        return abs(off) > near or spike.height > TALL * wave.amplitude

    return [spike for spike in spikes if apart(spike)]


def _same_place(train: _Line, evaluation: _Line) -> bool:
    """Whether every spike of the evaluation lies at one of the training loss."""
    spans = [_span(train, spike) for spike in train.spikes]
    apart = float(np.median(np.diff(evaluation.curve.steps)))
    steps = [int(evaluation.curve.steps[spike.top]) for spike in evaluation.spikes]
    return all(any(a <= step <= b + apart for a, b in spans) for step in steps)


def _span(line: _Line, spike: Spike) -> tuple[int, int]:
    """First step of a spike, and the step at which it is known that it came back."""
    known = min(spike.known, line.curve.steps.size - 1)
    return int(line.curve.steps[spike.first]), int(line.curve.steps[known])


def _alarms(line: _Line, spike: Spike, limits: Limits) -> bool:
    if spike.first < BEGINNING and not line.short:
        return False
    solved = _usual(line, spike) < line.curve.soft  # hard examples alone make such a loss
    if spike.lasting:
        if not solved:
            return not _is_slow(line, spike) and _cost(spike) > _blip(line, limits)
    elif _is_usual(line):
        return False
    return round(spike.height, 3) > _blip(line, limits)


def _cost(spike: Spike) -> float:
    """What its rows are up by together, in logarithms."""
    return round((spike.rows if spike.lasting else 1) * spike.height, 3)


def _is_slow(line: _Line, spike: Spike) -> bool:
    """Whether a slight rise fades over so much of the run that the data may have become harder."""
    share = (spike.back - spike.first) / line.curve.level.size
    fading = FADING_SMOOTHED if line.smoothed else FADING
    is_fading = spike.back - spike.last >= fading
    return is_fading and spike.height <= SLIGHT and spike.height < SLOW * share


def _anew(spike: Spike) -> float:
    """Rows from half its height to its return, over those above half; 0 of a single row."""
    return (spike.back - spike.last) / spike.rows if spike.lasting else 0.0


def _is_usual(line: _Line) -> bool:
    """Whether single rows stand out so often that they are a kind of batches, or of evaluations."""
    singles = sum(not spike.lasting for spike in line.spikes)
    return singles > _most_singles(line)


def _most_singles(line: _Line) -> float:
    return max(OFTEN, OFTEN_SHARE * line.curve.level.size)


def _blip(line: _Line, limits: Limits) -> float:
    return limits.mean_blip if line.averaged and not line.short else limits.blip


def _finding(trace: Trace, line: _Line, limits: Limits) -> Finding:
    spikes = line.spikes
    grave = [spike for spike in spikes if _alarms(line, spike, limits)]
    worst = max(grave or spikes, key=lambda spike: spike.height)
    spans = [_span(line, spike) for spike in spikes]
    return Finding(
        severity=Severity.WARN if grave else Severity.NOTE,
        summary=_summary(line, worst, limits),
        steps=(spans[0][0], max(end for _, end in spans)),
        evidence=tuple(_evidence(trace, line, worst, limits)),
        treatments=(*_saved(trace, line, worst), *_treatments(trace, line, worst)),
    )


def _summary(line: _Line, worst: Spike, limits: Limits) -> str:
    first, top, back = (int(line.curve.steps[row]) for row in (worst.first, worst.top, worst.back))
    low, high = _usual(line, worst), float(line.curve.losses[worst.top])
    far = f"and peaks at step {top} at {high:.4g}" if top > first else f"to {high:.4g}"
    if low > 0 and high / low < 1e6:
        far += f", {high / low:.3g}-fold"
    often = ""
    if len(line.spikes) > 1:
        since = int(line.curve.steps[line.spikes[0].first])
        often = f"{len(line.spikes)} times since step {since}, most "
    end = f", and is back by step {back}"
    if worst.rows > 1:
        slowly = "falls back slowly, by" if _anew(worst) > ANEW else "back by"
        end = f"; it is high for {worst.rows} rows and {slowly} step {back}"
    doubt = ""
    if worst.lasting and _is_slow(line, worst):
        doubt = ", so slowly that the data may have become harder"
    elif not worst.lasting and _is_usual(line):
        doubt = "; so often it is the nature of the data rather than an accident"
    is_high = round(worst.height, 3) > _blip(line, limits)
    limit = _blip(line, limits) if is_high and not worst.lasting else limits.height
    return (
        f"Spike: the {line.name} jumps {often}at step {first} from {low:.4g} {far}{end}{doubt}"
        f" (limit {_share(line, limit)})."
    )


def _share(line: _Line, limit: float) -> str:
    """A limit in logarithms as a percentage, or of the range of losses below 0."""
    return f"{100 * math.expm1(limit):.2g} %" if line.curve.soft else f"{limit:.2g} of the range"


def _usual(line: _Line, spike: Spike) -> float:
    """The loss that was usual before a spike."""
    start = max(spike.first - 8, 0)
    return float(np.median(line.curve.losses[start : spike.first]))


def _evidence(trace: Trace, line: _Line, worst: Spike, limits: Limits) -> list[Evidence]:
    step = int(line.curve.steps[worst.top])
    scale = f"log(loss + {line.curve.soft:.4g})" if line.curve.soft else "loss over its range"
    limit = limits.blip if line.short else limits.height
    told = [
        Evidence(
            line.channel,
            f"height of the jump in {scale} at step {step}, over the rows before and after it",
            worst.height,
            limit,
            "1",
        )
    ]
    if not line.short:
        what = "the same height against the limit from which a single high row is an alarm"
        if worst.lasting:
            what = f"the same height times its {worst.rows} rows, against that of a single one"
        told.append(Evidence(line.channel, what, _cost(worst), _blip(line, limits), "1"))
    how = f" of its {worst.rows} rows, by running medians," if worst.lasting else ""
    what = (
        f"height{how} in standard deviations of the noise around it; the limit is what noise and"
        " the next highest peaks of this run reach"
    )
    reach = limits.clearness * worst.reach
    told.append(Evidence(line.channel, what, worst.deviations, reach, "standard deviations"))
    if worst.lasting and _is_slow(line, worst):
        steepness = worst.height * line.curve.level.size / (worst.back - worst.first)
        what = (
            "height in logarithms over the share of the run that the return takes; below the limit"
            " a slight rise is a note, as of harder data"
        )
        told.append(Evidence(line.channel, what, steepness, SLOW, "1"))
    elif _anew(worst) > ANEW:
        what = "rows from half the height to the return, over those above half; beyond the limit it"
        what += " is learnt anew"
        told.append(Evidence(line.channel, what, _anew(worst), ANEW, "times"))
    elif not worst.lasting and _is_usual(line):
        what = "single rows that stand out; beyond the limit they are a note, as of a kind of data"
        singles = sum(not spike.lasting for spike in line.spikes)
        told.append(Evidence(line.channel, what, singles, _most_singles(line), "rows"))
    left = _left(line, worst)
    what = f"share of the height that is left at step {int(line.curve.steps[worst.back])}"
    told.append(Evidence(line.channel, what, left, BACK, "share"))
    if len(line.spikes) > 1:
        steps = [str(int(line.curve.steps[spike.first])) for spike in line.spikes]
        more = ", ..." if len(steps) > LISTED else ""
        what = f"spikes, from steps {', '.join(steps[:LISTED])}{more}"
        told.append(Evidence(line.channel, what, len(steps), 0, "spikes"))
    if line.norms is not None:
        what = "highest gradient norm at most 2 rows from the spike, above its trend"
        channel = gradient_norm(trace)
        told.append(Evidence(channel, what, worst.company, 6.0, "standard deviations"))
    first, last = _span(line, worst)
    for event in trace.events:
        if event.kind == "resume" and first - 2 <= event.step <= last:
            what = f"steps from the resume at step {event.step} to the spike: look there first"
            told.append(Evidence(line.channel, what, first - event.step, last - first, "steps"))
            break
    return told


def _left(line: _Line, spike: Spike) -> float:
    """Share of the height that is left where the curve counts as back."""
    widths = (2, 7) if spike.lasting else (0,)  # of running medians, on each side
    level = line.curve.level
    near = [level[max(spike.back - width, 0) : spike.back + width + 1] for width in widths]
    back = min(float(np.median(rows)) for rows in near)
    return min(max((back - spike.before) / spike.height, 0.0), 1.0)


def _saved(trace: Trace, line: _Line, spike: Spike) -> tuple[Treatment, ...]:
    """Batches of its rows; those of an evaluation are none of the training's."""
    if line.channel != "loss":
        return ()
    first, last = (int(line.curve.steps[row]) for row in (spike.first, spike.last))
    return saved_batches(trace, range(first, last + 1))


def _treatments(trace: Trace, line: _Line, worst: Spike) -> tuple[Treatment, ...]:
    first, last = (int(line.curve.steps[row]) for row in (worst.first, worst.last))
    told = [
        Treatment(
            title=f"Evaluate {batches(last, first - 1 if last > first else None)} with weights from"
            " before: high again, and it is the data",
            when="check",
            safety="safe",
            source="a broken batch stays broken, a bad step of the weights does not",
        )
    ]
    has = {
        "the gradient norm": bool(gradient_norm(trace)),
        "the batch index": trace.has("batch_index"),
        "the rate": trace.has("lr"),
    }
    missing = [word for word, is_there in has.items() if not is_there]
    if missing:
        told.append(
            Treatment(
                title=f"Record {_listed(missing)} at every step",
                when="check",
                safety="safe",
                source="a norm that rises with the loss names the batch, one step before it the"
                " update",
            )
        )
    if _anew(worst) > ANEW:
        changed = Treatment(
            title=f"If data, objective or model were changed at step {first} on purpose, go on: the"
            " new is being learnt. If not, find what changed there",
            when="check",
            safety="safe",
            source="one bad batch, or one bad update, leaves less to be learnt anew: the loss is"
            " back soon after it has fallen by half",
        )
        return changed, *told
    if not line.averaged or line.channel == "eval_loss":
        told.append(
            Treatment(
                title=f"If it comes again: go back to about 100 steps before step {first} and leave"
                " out the next 200 to 500 batches",
                when="now",
                safety="manual",
                basis="literature",
                source="Chowdhery et al. 2022 (PaLM): the spikes did not come again, and the same"
                " batches did no harm elsewhere",
            )
        )
    beta2 = trace.facts.get("beta2")
    if isinstance(beta2, int | float) and 0.99 <= beta2 < 1:
        told.append(
            Treatment(
                title="Let the second moment follow faster",
                changes={"beta2": (beta2, 0.95)},
                when="next",
                safety="risky",
                basis="literature",
                source="Wortsman et al. 2023: spikes follow a second moment that is out of date;"
                " language models use 0.95",
            )
        )
    return tuple(told)


def _listed(words: list[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(words[:-1])] * (len(words) > 1) + words[-1:])


def _sick() -> Trace:
    loss = falling_loss()
    loss[240:245] *= 1.5
    return make_trace(loss=loss)


RULE = rule.Rule(
    name="loss-spike",
    needs=("loss|eval_loss",),
    uses=(
        *READ_FOR_IT,
        "batch_index",
        "lr",
        "beta2",
        "loss_kind",
        "step_source",
        "loss_form",
        *FILTERED_BY,
    ),
    check=check,
    limits=Limits(),
    sick=_sick,
    healthy=lambda: make_trace(loss=falling_loss()),
    doc=__doc__ or "",
)
