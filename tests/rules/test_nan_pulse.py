"""What the contract cannot know of `nan-pulse`."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from optdoctor.engine import examine
from optdoctor.findings import Finding, Severity, Status
from optdoctor.rules.nan_pulse import RULE
from optdoctor.synthetic import make_trace, small_gpt
from optdoctor.trace import Recorder, TensorInfo, Trace, Vitals

NAN, INF = np.nan, np.inf


def losses(*values: float, **more: object) -> Trace:
    return make_trace(loss=values, **more)


def only_finding(trace: Trace) -> Finding:
    outcome = examine(RULE, trace)
    assert outcome.status is Status.FOUND, outcome.reason
    (finding,) = outcome.findings
    return finding


def course(finding: Finding) -> str:
    return finding.evidence[0].what.partition(": ")[2]


def logged(rows: Sequence[tuple[float, float]]) -> Trace:
    """Rows of (loss, gradient norm), as the Hugging Face Trainer prints them."""
    loss, norm = zip(*rows, strict=True)
    return make_trace(loss=loss, grad_norm=norm)


def zeroed(zeros: int = 20, rows: int = 400, height: float = 1.0, **more: object) -> Trace:
    """Losses of 2 that fall, to `height` of that, and are exactly 0 in the last rows."""
    return make_trace(
        loss=np.r_[[2.0] * 3, [2 * height] * (rows - zeros - 3), [0.0] * zeros], **more
    )


AT_LIMIT = {
    "zero_rows": (lambda: zeroed(9, 50), lambda: zeroed(10, 50)),
    "zero_share": (lambda: zeroed(19), lambda: zeroed(20)),
    "zero_height": (lambda: zeroed(height=0.099), lambda: zeroed(height=0.1)),
    "healthy": (lambda: losses(2.0, 1.9, 1.8), lambda: losses(2.0, NAN, 1.8)),
    "permanent_rows": (lambda: losses(2.0, 1.9, NAN), lambda: losses(2.0, NAN, NAN)),
    "evaluations at the end": (
        lambda: make_trace(loss=[2.0] * 9, eval_loss=[2.0] * 8 + [NAN]),
        lambda: make_trace(loss=[2.0] * 9, eval_loss=[2.0] * 7 + [NAN, NAN]),
    ),
}


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_single_bad_loss_between_finite_ones_is_isolated(bad: float) -> None:
    finding = only_finding(losses(3.0, 2.0, bad, 1.9, 1.8))
    assert (finding.severity, finding.steps) == (Severity.WARN, (3, 3))
    assert course(finding).startswith("isolated")
    assert finding.evidence[0].observed == 1


def test_two_isolated_ones_span_from_the_first_to_the_last() -> None:
    finding = only_finding(losses(3.0, NAN, 2.0, 2.0, INF, 1.9))
    assert finding.steps == (2, 5)
    assert finding.evidence[0].observed == 2
    assert course(finding).startswith("isolated")


@pytest.mark.parametrize("bad", [NAN, INF])
def test_bad_losses_to_the_end_are_permanent(bad: float) -> None:
    finding = only_finding(losses(3.0, 2.0, bad, bad))
    assert (finding.severity, finding.steps) == (Severity.CRITICAL, (3, 4))
    assert course(finding).startswith("permanent")


def test_a_permanent_stretch_does_not_start_at_an_earlier_isolated_one() -> None:
    assert only_finding(losses(NAN, 3.0, 2.0, NAN, NAN)).steps == (4, 5)


def test_a_run_that_is_bad_from_the_start_is_permanent_from_step_1() -> None:
    finding = only_finding(losses(NAN, NAN, NAN))
    assert (finding.severity, finding.steps) == (Severity.CRITICAL, (1, 3))


def test_the_last_row_alone_could_still_be_isolated() -> None:
    finding = only_finding(losses(3.0, 2.0, NAN))
    assert (finding.severity, finding.steps) == (Severity.WARN, (3, 3))
    assert "not known yet" in course(finding)


def test_a_run_resumed_from_before_the_nan_is_isolated() -> None:
    finding = only_finding(losses(*[2.0] * 50, *[NAN] * 30, *[2.0] * 50))
    assert (finding.severity, finding.steps) == (Severity.WARN, (51, 80))
    assert finding.evidence[0].observed == 30


def test_a_zero_beside_a_bad_gradient_norm_is_a_hidden_nan() -> None:
    finding = only_finding(logged([(2.0, 1.0), (1.9, 1.0), (0.0, NAN), (0.0, NAN), (0.0, NAN)]))
    assert (finding.severity, finding.steps) == (Severity.CRITICAL, (3, 5))
    hidden = next(e for e in finding.evidence if e.channel == "grad_norm")
    assert hidden.observed == 3


@pytest.mark.parametrize(
    ("rows", "before"),
    [
        ([(2.0, 1.0), (1.4, NAN), (0.0, NAN), (0.0, NAN)], 1),
        ([(1.6, NAN), (1.4, INF), (0.0, NAN), (0.0, NAN)], 2),
        ([(1.6, NAN), (1.5, 1.0), (0.0, NAN), (0.0, NAN)], 0),
    ],
)
def test_rows_before_the_hidden_ones_are_told_but_not_counted_as_nan(
    rows: Sequence[tuple[float, float]], before: int
) -> None:
    finding = only_finding(logged(rows))
    assert (finding.steps, finding.evidence[0].observed) == ((3, 4), 2)
    told = [e.observed for e in finding.evidence if "just before" in e.what]
    assert told == ([before] if before else [])


def test_a_bad_gradient_norm_without_a_hidden_loss_is_no_business_of_this_rule() -> None:
    rows = [(2.0, INF), (1.9, 1.0), (1.8, INF), (1.7, 1.0)]
    assert examine(RULE, logged(rows)).status is Status.CLEAR


def test_true_zeros_beside_finite_gradient_norms_are_nothing() -> None:
    rows = [(0.0, 0.4), (0.0, 0.3), (0.001, 0.5), (0.0, 0.2)] * 20
    assert examine(RULE, logged(rows)).status is Status.CLEAR


def test_true_zeros_without_a_gradient_norm_are_nothing() -> None:
    assert examine(RULE, losses(0.0, 0.0, 0.0)).status is Status.CLEAR


def test_one_nan_among_a_million_rows_is_found_with_its_step() -> None:
    loss = np.full(1_000_000, 2.0)
    loss[345_677] = NAN
    finding = only_finding(make_trace(loss=loss))
    assert finding.steps[0] == 345_678
    assert finding.severity is Severity.WARN
    assert finding.evidence[0].observed == 1


def test_the_end_of_a_million_rows_is_found_permanent() -> None:
    loss = np.full(1_000_000, 2.0)
    loss[900_001:] = NAN
    finding = only_finding(make_trace(loss=loss))
    assert finding.steps == (900_002, 1_000_000)
    assert finding.severity is Severity.CRITICAL
    assert finding.evidence[0].observed == 99_999


def test_broken_weights_make_the_last_row_permanent_and_acquit_the_gradient() -> None:
    tensors = small_gpt("float16")
    broken = np.zeros((3, len(tensors)))
    broken[1:, 0] = 7
    trace = losses(
        2.0,
        1.9,
        NAN,
        update_nonfinite=broken,
        grad_nonfinite=np.zeros((3, len(tensors))),
        tensors=tensors,
    )
    finding = only_finding(trace)
    assert finding.severity is Severity.CRITICAL
    weights = next(e for e in finding.evidence if e.channel == "update_nonfinite")
    assert weights.observed == 7
    assert "after step 2" in weights.what
    gradient = next(e for e in finding.evidence if e.channel == "grad_nonfinite")
    assert gradient.observed == 0
    assert "data and loss did not break them" in gradient.what


def test_weights_that_came_broken_are_said_to_have_come_so() -> None:
    finding = only_finding(losses(NAN, weights_nonfinite=12))
    assert finding.severity is Severity.CRITICAL
    weights = next(e for e in finding.evidence if e.channel == "weights_nonfinite")
    assert weights.observed == 12
    assert "before the first update" in weights.what


def test_whoever_is_inside_already_is_not_told_to_look_inside() -> None:
    for tensors in ((), small_gpt("float32")):
        (finding,) = examine(RULE, make_trace(loss=[2.0, NAN, NAN], tensors=tensors)).findings
        told = [t.title for t in finding.treatments if "from inside" in t.title]
        assert bool(told) is (not tensors)


def test_weights_that_broke_after_the_loss_are_not_its_evidence() -> None:
    tensors = small_gpt("float16")
    broken = np.zeros((5, len(tensors)))
    broken[4, 0] = 7
    finding = only_finding(
        losses(2.0, NAN, 2.0, 2.0, 2.0, update_nonfinite=broken, tensors=tensors)
    )
    assert [e.channel for e in finding.evidence] == ["loss"]


@pytest.mark.parametrize("rows", [400, 200_000])
def test_hidden_losses_are_found_with_their_step_however_long_the_log(rows: int) -> None:
    loss, norm = np.full(rows, 2.0), np.ones(rows)
    loss[rows // 2 + 1 :], norm[rows // 2 + 1 :] = 0.0, NAN
    finding = only_finding(make_trace(loss=loss, grad_norm=norm))
    assert finding.steps == (rows // 2 + 2, rows)
    assert finding.evidence[0].observed == rows - rows // 2 - 1
    loss[rows // 2 + 2 :], norm[rows // 2 + 2 :] = 2.0, 1.0
    finding = only_finding(make_trace(loss=loss, grad_norm=norm))
    assert finding.steps == (rows // 2 + 2, rows // 2 + 2)


def test_an_isolated_nan_keeps_its_step_in_a_million_rows() -> None:
    loss = np.full(1_000_000, 2.0)
    loss[[345_677, 777_776]] = NAN
    finding = only_finding(make_trace(loss=loss))
    assert finding.steps == (345_678, 777_777)
    assert "2 of 1,000,000 losses" in finding.summary


def test_an_infinite_loss_is_not_called_nan() -> None:
    assert only_finding(losses(2.0, INF, INF)).summary.startswith("Inf loss")
    assert only_finding(losses(2.0, INF, NAN)).summary.startswith("NaN loss")


def test_weights_that_stay_finite_acquit_the_optimizer_and_spare_the_checkpoints() -> None:
    tensors = small_gpt("float32")
    whole = np.zeros((4, len(tensors)))
    finding = only_finding(losses(2.0, NAN, NAN, NAN, update_nonfinite=whole, tensors=tensors))
    assert finding.severity is Severity.CRITICAL
    assert any("not the weights" in e.what for e in finding.evidence)
    assert not any("checkpoint" in t.title for t in finding.treatments)


@pytest.mark.parametrize("rows", [400, 100_000])
def test_losses_that_alternate_are_not_permanent_however_long_the_run(rows: int) -> None:
    loss = np.full(rows, 2.0)
    loss[1::2] = NAN
    finding = only_finding(make_trace(loss=loss))
    assert finding.severity is Severity.WARN
    assert f"{rows // 2:,} of {rows:,} losses" in finding.summary
    assert "the last row is one" in finding.evidence[0].what


@pytest.mark.parametrize("rows", [400, 100_000])
def test_an_isolated_nan_before_the_end_is_no_part_of_it(rows: int) -> None:
    loss = np.full(rows, 2.0)
    loss[[rows - 3, rows - 1]] = NAN
    assert only_finding(make_trace(loss=loss)).severity is Severity.WARN
    loss[rows // 2], loss[rows // 2 + 2 :] = NAN, NAN
    finding = only_finding(make_trace(loss=loss))
    assert finding.severity is Severity.CRITICAL
    assert rows // 2 + 3 <= finding.steps[0] <= rows // 2 + 5


def test_weights_that_another_optimizer_moves_are_not_acquitted() -> None:
    tensors = (TensorInfo("mine", (4,)), TensorInfo("theirs", (4,), in_optimizer=False))
    whole = np.array([[0, NAN]] * 4)
    finding = only_finding(losses(2.0, NAN, NAN, NAN, update_nonfinite=whole, tensors=tensors))
    assert not any("not the weights" in e.what for e in finding.evidence)


def test_a_zero_that_the_doctor_saw_itself_is_a_zero() -> None:
    """Only a log of the Trainer's prints 0 for NaN; a hinge loss of 0 can have a NaN gradient."""
    rows = [(2.0, 1.0), (1.9, 1.0), (0.0, NAN), (1.8, 1.0)]
    seen: list[dict[str, object]] = [
        {"framework": "torch"},
        {"framework": "lightning", "loss_window": 1},
        {"framework": "huggingface", "loss_window": 1, "nan_filter": "on"},
        {"framework": "huggingface", "loss_window": 10, "nan_filter": "off"},
    ]
    logs: list[dict[str, object]] = [
        {},
        {"framework": "huggingface"},
        {"framework": "huggingface", "loss_window": 10, "nan_filter": "on"},
        {"framework": "huggingface", "loss_window": 1, "nan_filter": "seen"},
    ]
    for facts in (*seen, *logs):
        trace = replace(logged(rows), facts=facts)
        expected = Status.CLEAR if facts in seen else Status.FOUND
        assert examine(RULE, trace).status is expected, facts


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ([5], "isolated"),
        ([5, 9, 40], "isolated"),
        ([5, 6, 7, 8], "in one stretch"),
        (range(5, 95, 2), "they come and go"),
    ],
)
def test_few_are_isolated_and_many_are_not(bad: Sequence[int], word: str) -> None:
    loss = np.full(100, 2.0)
    loss[list(bad)] = NAN
    finding = only_finding(make_trace(loss=loss))
    assert (finding.severity, course(finding)) == (Severity.WARN, f"{word}, finite losses follow")
    assert "Look at the batch" in finding.treatments[0].title


def test_nobody_is_sent_back_to_before_the_run() -> None:
    def advice(trace: Trace) -> list[str]:
        return [t.title for t in only_finding(trace).treatments]

    later = advice(losses(2.0, INF, INF))
    assert later[0] == (
        "Go back to a checkpoint from before step 2; of later ones the loss was not finite by then"
    )
    first = advice(losses(NAN, NAN, NAN))
    assert first[0].startswith("Restart; a checkpoint cannot help")
    assert first[1].startswith("Look at the batch of step 1")
    assert advice(losses(NAN, NAN, NAN, resumed_from=0))[0].startswith("Go back")
    assert advice(losses(NAN, NAN, weights_nonfinite=3))[0].startswith("Load weights")
    tensors = small_gpt("float16")
    for at, expected in ((1, "Restart"), (2, "Go back to a checkpoint from before step 2")):
        update = np.zeros((4, len(tensors)))
        update[at - 1 :, 0] = 7
        broken = losses(2.0, 2.0, NAN, NAN, update_nonfinite=update, tensors=tensors)
        assert advice(broken)[0].startswith(expected)


def test_a_loss_that_had_exploded_is_tried_at_a_lower_rate() -> None:
    """The batch of the step at which the number format ended is not to blame."""
    loss = np.array([2.0, 2.1, 2.2, 30.0, 4e5, 1e20, *[np.inf] * 4])
    finding = examine(RULE, make_trace(loss=loss)).findings[0]
    assert "a tenth of the rate" in finding.treatments[0].title
    assert finding.treatments[0].when == "check", "where a cause is found it goes"
    calm = np.array([2.0] * 6 + [np.inf] * 4)
    titles = [t.title for t in examine(RULE, make_trace(loss=calm)).findings[0].treatments]
    assert not any("rate" in title for title in titles)


def test_rows_that_are_many_steps_apart_send_back_to_the_last_finite_one() -> None:
    def advice(*values: float, first: int = 10, **more: object) -> list[str]:
        at = [first + 10 * row for row in range(len(values))]
        trace = make_trace(loss=values, steps={"loss": at}, **more)
        return [t.title for t in only_finding(trace).treatments]

    assert advice(2.0, 1.9, NAN, NAN)[0] == (
        "Go back to a checkpoint from step 20 or before: none later is known sound"
    )
    assert advice(2.0, 1.9, NAN, 1.8)[0].startswith("Look at the batches of steps 21 to 30: ")
    assert advice(NAN, NAN, NAN)[0].startswith("Restart; a checkpoint cannot help")
    resumed = advice(NAN, NAN, NAN, first=5010, resumed_from=5000)[0]
    assert resumed.startswith("Go back to a checkpoint from step 5000 or before")


def test_the_summary_counts_the_bad_losses_among_all() -> None:
    assert only_finding(losses(2.0, 1.9, NAN, NAN)).summary == (
        "NaN loss from step 3 to the end, 4: the last 2 of 4 losses (limit 0)."
    )
    assert "all 3 losses (limit 0)" in only_finding(losses(NAN, NAN, NAN)).summary
    assert "between step 2 and step 4: 2 of 5 losses" in (
        only_finding(losses(2.0, NAN, 1.9, NAN, 1.8)).summary
    )
    assert "the only loss" in only_finding(losses(NAN)).summary


def test_a_thinned_log_sends_back_to_the_row_before_the_first_bad_one() -> None:
    recorder = Recorder(step_capacity=64)
    for step in range(1, 1001):
        recorder.add(Vitals(step, {"loss": NAN if step >= 700 else 2.0}))
    assert "before step 700" in only_finding(recorder.trace({})).treatments[0].title
    recorder = Recorder(step_capacity=64)
    for step in range(10, 10_001, 10):
        recorder.add(Vitals(step, {"loss": NAN if step >= 7000 else 2.0}))
    title = only_finding(recorder.trace({})).treatments[0].title
    assert "from step 6890 or before" in title, "the first row of a bucket of 16"


def test_a_lone_nan_beside_a_finite_gradient_is_the_batchs() -> None:
    loss, norm = np.full(100, 2.0), np.ones(100)
    loss[50] = NAN
    finding = only_finding(make_trace(loss=loss, grad_norm=norm))
    assert finding.severity is Severity.WARN
    assert course(finding) == "isolated, finite losses follow"
    (beside,) = (e for e in finding.evidence if e.channel == "grad_norm")
    assert (beside.observed, beside.limit) == (0, 0)
    assert beside.what.endswith("NaN or infinite: the loss of a batch, not its gradient")
    norm[50] = NAN
    both = only_finding(make_trace(loss=loss, grad_norm=norm))
    (beside,) = (e for e in both.evidence if e.channel == "grad_norm")
    assert beside.observed == 1
    assert "batch" not in beside.what
    sparse = make_trace(loss=loss, grad_norm=[1.0], steps={"grad_norm": [3]})
    assert not any(e.channel == "grad_norm" for e in only_finding(sparse).evidence)


def searching(skips: int = 5, bad: int = 5, first: int = 0) -> Trace:
    """`bad` infinite losses in the first updates, of which a scaler skipped `skips`."""
    loss, skipped = np.full(300, 2.0), np.zeros(300)
    loss[first : first + bad], skipped[first : first + skips] = INF, 1
    scale = 65536.0 * 2.0 ** np.maximum(skips - np.maximum(np.arange(300) - first, 0), 0)
    return make_trace(loss=loss, step_skipped=skipped, loss_scale=scale)


def test_infinite_losses_of_a_scalers_first_search_are_a_note() -> None:
    finding = only_finding(searching())
    assert (finding.severity, finding.steps) == (Severity.NOTE, (1, 5))
    assert finding.summary == (
        "Inf loss between step 1 and step 5: 5 of 300 losses (limit 0), in updates that the "
        "gradient scaler skipped while it looked for its scale."
    )
    assert finding.treatments == ()
    flags = searching()
    series = {name: rows for name, rows in flags.series.items() if name != "loss_scale"}
    assert only_finding(replace(flags, series=series)).severity is Severity.NOTE
    series = {name: rows for name, rows in flags.series.items() if name != "step_skipped"}
    assert only_finding(replace(flags, series=series)).severity is Severity.NOTE


@pytest.mark.parametrize("trace", [searching(skips=4), searching(first=200), losses(INF, 2.0, 2.0)])
def test_infinite_losses_of_other_updates_are_a_warning(trace: Trace) -> None:
    assert only_finding(trace).severity is Severity.WARN


def test_a_search_that_never_ends_is_no_note() -> None:
    trace = make_trace(
        loss=[INF] * 5, step_skipped=[1] * 5, loss_scale=2.0 ** np.arange(16, 11, -1)
    )
    assert only_finding(trace).severity is Severity.CRITICAL


def test_a_scaler_that_searches_with_finite_losses_is_nothing() -> None:
    assert examine(RULE, searching(bad=0)).status is Status.CLEAR


EVERY_TENTH = {"eval_loss": np.arange(10, 101, 10)}


@pytest.mark.parametrize(
    ("bad", "severity", "steps", "word"),
    [
        ([4], Severity.NOTE, (50, 50), "isolated"),
        ([2, 3, 4, 5], Severity.NOTE, (30, 60), "in one stretch"),
        ([9], Severity.NOTE, (100, 100), "not known yet"),
        ([8, 9], Severity.WARN, (90, 100), "permanent"),
        (range(10), Severity.WARN, (10, 100), "permanent"),
    ],
)
def test_an_evaluation_that_is_not_finite_beside_a_finite_training_is_told_as_such(
    bad: Sequence[int], severity: Severity, steps: tuple[int, int], word: str
) -> None:
    evaluated = np.linspace(2, 1, 10)
    evaluated[list(bad)] = NAN
    finding = only_finding(
        make_trace(loss=np.full(100, 2.0), eval_loss=evaluated, steps=EVERY_TENTH)
    )
    assert (finding.severity, finding.steps) == (severity, steps)
    assert finding.summary.startswith("NaN evaluation loss")
    assert f"{len(bad)} of 10 evaluations (limit 0), while the training" in finding.summary
    assert word in course(finding)
    alone = only_finding(make_trace(eval_loss=evaluated, steps=EVERY_TENTH))
    assert alone.summary.endswith("with no training loss logged.")


def test_an_evaluation_that_breaks_with_the_training_is_not_told_twice() -> None:
    loss, evaluated = np.full(100, 2.0), np.linspace(2, 1, 10)
    loss[50:], evaluated[5:] = NAN, NAN
    (finding,) = examine(
        RULE, make_trace(loss=loss, eval_loss=evaluated, steps=EVERY_TENTH)
    ).findings
    assert finding.summary.startswith("NaN loss from step 51 to the end")
    loss[60:] = 2.0
    trace = make_trace(loss=loss, eval_loss=evaluated, steps=EVERY_TENTH)
    assert len(examine(RULE, trace).findings) == 2, "the training came back and it did not"


def test_a_loss_that_is_0_at_once_and_to_the_end_is_a_nan_as_it_seems() -> None:
    finding = only_finding(zeroed(300))
    assert (finding.severity, finding.steps) == (Severity.WARN, (101, 400))
    assert finding.summary == (
        "NaN loss, as it seems: the loss is exactly 0 from step 101 to the end, 400, 300 losses"
        " (limit 10), after 2 one row before: a Trainer prints 0 for NaN; grad_norm would tell."
    )
    assert "logging_nan_inf_filter=False" in finding.treatments[0].title
    assert {t.when for t in finding.treatments} == {"check"}
    norm = np.where(np.arange(400) < 100, 0.5, 0.0)
    assert "norm is 0 too" in only_finding(zeroed(300, grad_norm=norm)).summary


def test_a_true_loss_of_0_to_the_end_is_nothing() -> None:
    hinge = np.maximum(1 - np.arange(400) / 300, 0)
    dotted = np.where(np.arange(400) % 7 == 0, 0.0, 2.0)
    dotted[300:] = 0
    one, short = np.full(400, 2.0), np.full(400, 2.0)
    one[-1] = one[100] = 0
    short[100:200] = 0
    long = np.full(200_000, 2.0)
    long[100_000::2] = 0
    told = [losses(*values) for values in (hinge, hinge[::20], dotted, one, short)]
    told.append(make_trace(loss=long))
    told += [zeroed(300, **fact) for fact in ({"nan_filter": "off"}, {"loss_kind": "reward"})]
    told += [zeroed(300, framework="torch"), zeroed(300, grad_norm=np.full(400, 0.5))]
    for trace in told:
        assert examine(RULE, trace).status is Status.CLEAR


@pytest.mark.parametrize("rows", [400, 200_000])
def test_an_evaluation_that_is_nan_beside_such_zeros_makes_them_nan(rows: int) -> None:
    at = np.arange(rows // 10, rows + 1, rows // 10)
    evaluated = np.where(at > rows // 4, NAN, 3.0)
    steps = {"eval_loss": at}
    finding = only_finding(zeroed(3 * rows // 4, rows, eval_loss=evaluated, steps=steps))
    assert (finding.severity, finding.steps[1]) == (Severity.CRITICAL, rows)
    assert abs(finding.steps[0] - rows // 4 - 1) <= 4, "to a bucket"
    assert "finite" not in finding.summary
    (seen,) = (e for e in finding.evidence if e.channel == "eval_loss")
    assert seen.observed == 8
    evaluated[-1] = 3.0
    both = examine(RULE, zeroed(3 * rows // 4, rows, eval_loss=evaluated, steps=steps)).findings
    assert not any(f.severity is Severity.CRITICAL for f in both)
