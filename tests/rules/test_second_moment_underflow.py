"""What the contract cannot know of `second-moment-underflow`."""

import numpy as np
import pytest
from numpy.typing import ArrayLike

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.second_moment_underflow import FOLK_CLAMP, RULE, Limits
from optdoctor.synthetic import make_trace
from optdoctor.trace import TensorInfo, Trace

FOUR = tuple(
    TensorInfo(f"t{i}", shape) for i, shape in enumerate([(1000,), (100,), (100,), (300,)])
)
LARGEST_GRADIENT = 2.0**-12  # whose square is 0 in float16 with beta2 = 0.5


def run(
    zero: ArrayLike,
    dtype: str = "float16",
    eps: float = 1e-8,
    beta2: float = 0.999,
    math_dtype: str = "float32",
    tensors: tuple[TensorInfo, ...] = FOUR,
    **more: ArrayLike,
) -> Trace:
    """A run with these facts; `zero` is [T, P], or [P] of three samples alike."""
    rows = np.asarray(zero, float)
    return make_trace(
        moment2_zero=np.tile(rows, (3, 1)) if rows.ndim == 1 else rows,
        state_dtype=dtype,
        math_dtype=math_dtype,
        eps=eps,
        beta2=beta2,
        tensors=tensors,
        **more,
    )


def thousand(zeroed: int) -> Trace:
    """That many zeroed entries of 1000."""
    tensors = TensorInfo("small", (8,)), TensorInfo("large", (992,))
    return run([zeroed / 8, 0.0], tensors=tensors)


def step_of(rates: float) -> Trace:
    """Entries that move at most that many learning rates in one step."""
    eps = LARGEST_GRADIENT / rates
    return run([0.5] * 4, eps=eps, beta2=0.5, math_dtype="float64")


def in_a_row(samples: int) -> Trace:
    """Ill samples between healthy ones."""
    return run([[0.0] * 4] + [[0.5] * 4] * samples + [[0.0] * 4])


AT_LIMIT = {
    "passing": (lambda: in_a_row(2), lambda: in_a_row(3)),
    "share": (lambda: thousand(2), lambda: thousand(3)),
    "harmless_step": (lambda: step_of(1.0), lambda: step_of(np.nextafter(1.0, 2))),
    "bounded_step": (lambda: step_of(100.0), lambda: step_of(100.00001)),
}


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def largest_step(finding: Finding) -> float:
    return next(e.observed for e in finding.evidence if e.unit == "learning rates")


def test_float16_fires_where_it_lasts_and_names_its_first_sample() -> None:
    healthy, ill = [0.0] * 4, [0.0, 0.5, 0.9, 0.0]
    finding = only_finding(run([healthy, ill, healthy, ill, ill, ill, healthy]))
    assert (finding.severity, finding.steps) == (Severity.WARN, (4, 6))
    assert finding.tensors == ("t2", "t1")
    assert finding.evidence[0].observed == pytest.approx(100 * (50 + 90) / 1500, rel=1e-6)


def test_a_flicker_at_the_start_of_a_run_that_trains_well_is_silent() -> None:
    assert examine(RULE, run([[0.5] * 4, *[[0.0] * 4] * 9])).status is Status.CLEAR


@pytest.mark.parametrize("broken", ["loss", "update_nonfinite"])
def test_one_ill_sample_is_enough_where_the_run_breaks_in_it(broken: str) -> None:
    ill = [[0.5] * 4, [0.0] * 4, [0.0] * 4]
    at_2 = [3.0, np.nan, np.nan] if broken == "loss" else np.array([[0] * 4, [7] * 4, [7] * 4])
    at_1 = [np.nan] * 3 if broken == "loss" else np.full((3, 4), 7)
    assert examine(RULE, run(ill, **{broken: at_2})).status is Status.CLEAR
    finding = only_finding(run(ill, **{broken: at_1}))
    assert (finding.severity, finding.steps) == (Severity.CRITICAL, (1, 1))


def test_it_is_critical_once_the_run_is_broken() -> None:
    ill = [[0.5] * 4] * 6
    losses = [3.0, 2.9, 2.8, 2.7, 2.6, 2.5]
    assert only_finding(run(ill, loss=losses)).severity is Severity.WARN
    assert only_finding(run(ill, loss=[*losses[:5], np.nan])).severity is Severity.CRITICAL


def test_tensors_of_another_state_dtype_are_neither_counted_nor_named() -> None:
    tensors = (
        TensorInfo("half", (100,), state_dtype="float16"),
        TensorInfo("whole", (900,), state_dtype="float32"),
    )
    finding = only_finding(run([0.5, 0.9], tensors=tensors))
    assert finding.tensors == ("half",)
    assert "50 of 100 second-moment entries" in finding.summary


def test_the_worst_sample_is_told_beside_the_first() -> None:
    finding = only_finding(run([[0.5, 0, 0, 0], [0.9, 0, 0, 0], [0.6, 0, 0, 0]]))
    shares = [e.observed for e in finding.evidence if e.unit == "%"]
    assert shares == pytest.approx([100 * 500 / 1500, 100 * 900 / 1500], rel=1e-6)
    assert finding.evidence[1].what.endswith("first moment not, at step 2, the worst")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_zeros_in_a_dtype_with_small_numbers_are_silent(dtype: str) -> None:
    assert examine(RULE, run([0.6] * 4, dtype)).status is Status.CLEAR
    assert examine(RULE, run([0.6] * 4, "float16")).status is Status.FOUND


@pytest.mark.parametrize(
    ("eps", "rates"), [(1e-8, 546_000), (1e-6, 5_460), (1e-4, 54.6)], ids=["1e-8", "1e-6", "1e-4"]
)
def test_the_largest_step_is_that_of_the_documentation(eps: float, rates: float) -> None:
    assert largest_step(only_finding(run([0.6] * 4, eps=eps))) == pytest.approx(rates, rel=1e-3)


def test_the_largest_step_is_reached_by_adam_in_float16_state() -> None:
    smallest_kept = np.float16(2.0**-24)
    g = np.sqrt(float(smallest_kept) / 2 / 0.001)
    assert np.float16(0.001 * (g * (1 - 1e-6)) ** 2) == 0
    assert np.float16(0.001 * (g * (1 + 1e-6)) ** 2) == smallest_kept
    assert largest_step(only_finding(run([0.6] * 4))) == pytest.approx(g / 1e-8, rel=1e-6)


def test_a_large_epsilon_makes_it_a_note_without_an_emergency() -> None:
    finding = only_finding(run([0.6] * 4, eps=1e-4))
    assert finding.severity is Severity.NOTE
    assert [t.changes for t in finding.treatments] == [{"state_dtype": ("float16", "float32")}]


def test_an_epsilon_of_1e_6_is_as_bad_as_the_default() -> None:
    assert only_finding(run([0.6] * 4, eps=1e-6)).severity is Severity.WARN
    assert only_finding(run([0.6] * 4)).severity is Severity.WARN


def test_an_update_in_float16_divides_by_nothing() -> None:
    finding = only_finding(run([0.6] * 4, math_dtype="float16"))
    kept = next(e for e in finding.evidence if e.channel == "eps")
    assert (finding.severity, kept.observed, kept.limit) == (Severity.WARN, 0.0, 1e-8)


def test_no_treatment_keeps_or_lowers_what_is_already_there() -> None:
    already = only_finding(run([0.6] * 4, eps=1e-4, beta2=0.9999))
    assert [t.changes for t in already.treatments] == [{"state_dtype": ("float16", "float32")}]
    chosen_zero = only_finding(run([0.6] * 4, "float32", eps=0.0))
    assert [t.changes for t in chosen_zero.treatments] == [{"eps": (0.0, 1e-4)}]


def test_rows_of_an_embedding_that_no_batch_used_are_not_counted() -> None:
    """The channel counts v == 0 where m != 0: unused rows are no part of it."""
    assert examine(RULE, run([[0.0] * 4] * 5)).status is Status.CLEAR


def test_tensors_weigh_by_their_elements() -> None:
    tensors = TensorInfo("bias", (2,)), TensorInfo("weight", (100, 100))
    assert examine(RULE, run([1.0, 0.0], tensors=tensors)).status is Status.CLEAR
    assert examine(RULE, run([0.0, 1.0], tensors=tensors)).status is Status.FOUND


def test_a_partial_row_weighs_by_measured_elements_only() -> None:
    row = [np.nan, 0.5, 0.0, np.nan]  # 50 of 200 measured, of 1500 in all
    assert only_finding(run(row)).evidence[0].observed == pytest.approx(25)


def test_a_row_that_measured_nothing_is_clear() -> None:
    assert examine(RULE, run([np.nan] * 4)).status is Status.CLEAR


def test_only_tensors_beyond_the_limit_are_named() -> None:
    tensors = TensorInfo("at", (8,)), TensorInfo("beyond", (8,))
    (finding,) = RULE.check(run([0.25, 0.75], tensors=tensors), Limits(share=0.25))
    assert finding.tensors == ("beyond",)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "uint8"])
def test_an_unknown_number_format_makes_it_abstain(dtype: str) -> None:
    assert examine(RULE, run([0.6] * 4, dtype)).status is Status.ABSTAINED


def test_an_isolated_nan_is_not_blamed_on_it() -> None:
    ill = [[0.5] * 4] * 6
    isolated = [3.0, np.nan, 2.8, 2.7, 2.6, 2.5]
    assert only_finding(run(ill, loss=isolated)).severity is Severity.WARN
    lasting = [3.0, 2.9, np.nan, np.nan, np.nan, np.nan]
    whole = np.zeros((6, 4))
    assert only_finding(run(ill, loss=lasting)).severity is Severity.CRITICAL
    spared = only_finding(run(ill, loss=lasting, update_nonfinite=whole))
    assert spared.severity is Severity.WARN


def test_a_count_from_a_sample_is_said_to_be_about_that() -> None:
    large = TensorInfo("large", (100, 100))
    assert only_finding(run([0.5], tensors=(large,))).summary.startswith("About 5,000 of 10,000")
    assert only_finding(run([0.5] * 4)).summary.startswith("750 of 1,500")


def test_a_clamp_below_the_smallest_number_of_the_state_is_refused_with_its_reason() -> None:
    """In float16 it changes nothing; where it would, the entries do no harm: decision 0011."""
    torch = pytest.importorskip("torch")
    half = torch.zeros(4, dtype=torch.float16).clamp_(min=FOLK_CLAMP)
    assert half.count_nonzero() == 0
    (finding,) = examine(RULE, run([0.5, 0.0, 0.0, 0.0])).findings
    assert [(e.what, e.observed) for e in finding.evidence if "clamp" in e.what] == [
        ("what float16 keeps of a clamp at 1e-8, which therefore changes nothing", 0.0)
    ]
    assert not any("clamp" in treatment.title.lower() for treatment in finding.treatments)
    assert finding.treatments[0].changes == {"state_dtype": ("float16", "float32")}


@pytest.mark.parametrize(
    ("form", "said"), [("quantized", "blocks"), ("factored", "rows"), ("rooted", "sizes")]
)
def test_moments_that_are_no_square_for_each_weight_are_not_judged(form: str, said: str) -> None:
    outcome = examine(RULE, run([0.5] * 4, moment2_form=form))
    assert outcome.status is Status.ABSTAINED
    assert said in outcome.reason


def test_projected_moments_are_judged_without_a_count_of_their_entries() -> None:
    finding = only_finding(run([0.5] * 4, moment2_form="projected"))
    assert "projected" in finding.summary
    assert "1,500" not in finding.summary
    assert finding.evidence[0].observed == 50


def test_full_moments_are_judged() -> None:
    assert only_finding(run([0.5] * 4, moment2_form="full")) == only_finding(run([0.5] * 4))
