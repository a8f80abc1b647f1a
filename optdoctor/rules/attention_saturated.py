"""Attention looks at hardly more than one key, because its logits are very large.

## What it finds
Three samples in a row in which the softmax of some call of attention is spread over fewer keys than
an entropy of 1 nat stands for, which is 2.7 keys of equal share, while some logit (query times key
times scale) is larger than 32. Both are measured only where `attention=True` was asked for, of a
few heads and queries; keys that the mask hides do not count. It is a note, and becomes a warning
beside a symptom that it can bring about. The limits are heuristic: trials outside this repository
saw 2.2 nats or more and logits of 14 or less in healthy runs, of five kinds only.
## Why it matters
A softmax that sits on one key passes on hardly any gradient to queries and keys, so that the logits
do not come down again by themselves, and the smallest change of a logit moves the output from one
value to another.
## What to do
Normalize queries and keys before their product, or lower the learning rate of the layers that make
them; a longer warm-up keeps logits from growing in the first place.
## When it is fine
Heads that copy one token or look at the one before are sharp by nature, and a model that does its
task with them takes no harm. Each alone, little entropy or a large logit, says nothing.
## Told apart from
`layer-learning-rate-mismatch`: layers of attention that learn too fast, as the weights show it.
`loss-spike`, `divergence`: what may become of it.
"""

from dataclasses import dataclass

import numpy as np

from optdoctor import rule
from optdoctor.curves.rows import spans
from optdoctor.findings import Evidence, Finding, Severity, Treatment
from optdoctor.synthetic import make_trace
from optdoctor.trace import Trace


@dataclass(frozen=True, slots=True)
class Limits(rule.Limits):
    """The numbers that this rule judges by."""

    rows: int = 3
    """As many samples as have to agree."""
    entropy: float = 1.0
    """Least mean entropy, in nats, of attention that is spread: heuristic."""
    logit: float = 32.0
    """Largest logit of attention that can still change its mind: heuristic; a key whose logit is 32
    below another's has less than a part in 10^13 of its share."""
    passing: int = 2
    """Most samples in a row beyond both limits that pass: three are no accident of a batch."""


def check(trace: Trace, limits: Limits) -> list[Finding]:
    entropy, logit = trace.series["attention_entropy"], trace.series["attention_logit_max"]
    steps, here, there = np.intersect1d(entropy.steps, logit.steps, return_indices=True)
    nats = np.asarray(entropy.values, np.float64)[here]
    sizes = np.asarray(logit.values, np.float64)[there]
    with np.errstate(invalid="ignore"):
        sharp = (nats >= 0) & (nats < limits.entropy) & (sizes > limits.logit)
    stretches = [(first, last) for first, last in spans(sharp) if last - first + 1 > limits.passing]
    if not stretches:
        return []
    first, last = stretches[0][0], stretches[-1][1]
    since, largest = int(steps[first]), min(float(sizes[first]), 1e300)
    return [
        Finding(
            severity=Severity.NOTE,
            awaits_symptom=True,
            summary=(
                f"Attention had an entropy of {nats[first]:.2g} nats (limit {limits.entropy:g}) and"
                f" logits up to {largest:.3g} (limit {limits.logit:g}) at step {since:,}."
            ),
            steps=(since, int(steps[last])),
            evidence=(
                Evidence(
                    "attention_entropy",
                    f"smallest mean entropy of a call of attention at step {since:,}",
                    float(nats[first]),
                    limits.entropy,
                    "nats",
                ),
                Evidence(
                    "attention_logit_max",
                    f"largest logit of attention at step {since:,}",
                    largest,
                    limits.logit,
                    "1",
                ),
            ),
            treatments=(
                Treatment(
                    title="Normalize queries and keys before their product",
                    safety="risky",
                    basis="literature",
                    source="Wortsman et al., Small-scale proxies for large-scale Transformer"
                    " training instabilities, arXiv 2309.14322: it bounds the logits",
                ),
                Treatment(
                    title="Or lower the learning rate of the layers that make queries and keys",
                    safety="manual",
                    source="logits are a product of what two weights make, and grow with both",
                ),
            ),
        )
    ]


def _run(nats: float, logit: float) -> Trace:
    """Twenty samples of spread attention, and twenty with these."""
    entropy, logits = np.full(40, 2.5), np.full(40, 8.0)
    entropy[20:], logits[20:] = nats, logit
    return make_trace(attention_entropy=entropy, attention_logit_max=logits)


RULE = rule.Rule(
    name="attention-saturated",
    needs=("attention_entropy", "attention_logit_max"),
    explains=("loss-spike", "divergence"),
    check=check,
    limits=Limits(),
    sick=lambda: _run(0.2, 120.0),
    healthy=lambda: _run(2.4, 9.0),
    doc=__doc__ or "",
)
