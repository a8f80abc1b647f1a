"""scikit-learn's MLP estimators."""

from tests.text_logs import read_lines, rows_of


def test_an_iteration_is_an_epoch() -> None:
    trace = read_lines(
        "scikit-learn",
        *("Iteration 1, loss = 2.31250000", "Validation score: 0.125000"),
        *("Iteration 2, loss = inf", "Validation score: 0.250000"),
        "Validation score did not improve more than tol=0.000100 for 10 consecutive epochs.",
    )
    assert rows_of(trace) == [(1, 2.3125), (2, float("inf"))]
    assert rows_of(trace, "metric:validation_score") == [(1, 0.125), (2, 0.25)]


def test_a_second_fit_replaces_the_first() -> None:
    lines = [f"Iteration {n}, loss = {x}" for n, x in ((1, 2.5), (2, 2.25), (1, 1.5))]
    assert rows_of(read_lines("scikit-learn", *lines)) == [(1, 1.5)]
