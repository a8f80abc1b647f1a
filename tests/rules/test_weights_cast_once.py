"""What the contract cannot know of `weights-cast-once`."""

from dataclasses import replace

from optdoctor.engine import examine
from optdoctor.findings import Severity, Status
from optdoctor.rules.weights_cast_once import RULE
from optdoctor.synthetic import make_trace, small_gpt
from optdoctor.trace import TensorInfo, Trace

MATRIX = TensorInfo("fc.weight", (8, 8), dtype="float32", kind="mlp")


def run(*tensors: TensorInfo, kept: str = "yes") -> Trace:
    return make_trace(casts_kept=kept, tensors=tensors or (MATRIX,))


AT_LIMIT = {"copies": (lambda: run(kept="no"), lambda: run(kept="yes"))}


def status(trace: Trace) -> Status:
    return examine(RULE, trace).status


def test_it_warns_of_the_matrices_that_are_cast() -> None:
    (finding,) = examine(RULE, make_trace(casts_kept="yes", tensors=small_gpt("float32"))).findings
    assert (finding.severity, finding.steps) == (Severity.WARN, (0, 0))
    shapes = {t.name: (len(t.shape), t.kind) for t in small_gpt("float32")}
    assert all(shapes[name][0] > 1 for name in finding.tensors)
    assert "embedding" not in {shapes[name][1] for name in finding.tensors}


def test_weights_that_autocast_does_not_cast_are_silent() -> None:
    for other in (
        {"dtype": "bfloat16"},
        {"shape": (8,)},
        {"kind": "embedding"},
        {"trainable": False},
        {"in_optimizer": False},
    ):
        assert status(run(replace(MATRIX, **other))) is Status.CLEAR, other


def test_without_the_fact_it_is_not_examined() -> None:
    assert status(make_trace(tensors=(MATRIX,))) is Status.SKIPPED
