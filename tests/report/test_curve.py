import numpy as np
import pytest

from optdoctor.report.curve import Mark, draw, loss_of
from optdoctor.store import Series
from optdoctor.synthetic import falling_loss, make_trace


def series(values: object) -> Series:
    return make_trace(loss=values).series["loss"]


def picture(values: object, **options: object) -> list[str]:
    loss = series(values)
    return draw(loss, (1, int(loss.steps[-1])), **options)  # type: ignore[arg-type]


def words(values: object) -> str:
    return " ".join(" ".join(picture(values)).split())


def test_a_curve_has_five_rows_and_the_true_extremes_at_its_left() -> None:
    values = falling_loss(480)
    lines = picture(values)
    assert len(lines) == 6
    assert lines[0].startswith(f"  loss  {values.max():.2f} ")
    assert lines[4].startswith(f"        {values.min():.2f} ")
    assert lines[5].split() == ["step", "1", "100", "200", "300", "400", "480"]
    assert max(map(len, lines)) <= 79


@pytest.mark.parametrize("at", [3, 50_000, 99_999])
@pytest.mark.parametrize("value", [30.0, -30.0])
def test_one_row_in_a_hundred_thousand_is_visible(at: int, value: float) -> None:
    values = falling_loss(100_000)
    calm = picture(values)
    values[at] = value
    lines = picture(values)
    row, column = (0 if value > 0 else 4), 13 + min(at * 66 // 99_999, 65)
    assert lines[row].startswith(f"{'  loss' if row == 0 else '':<6}")
    assert any(ord(c) >= 0x2800 for c in lines[row][column - 1 : column + 2])
    assert lines != calm


def test_two_spikes_of_different_height_are_both_visible() -> None:
    values = falling_loss(20_000)
    values[6_000], values[14_000] = 9.0, 7.0
    lines = picture(values)
    assert sum(ord(c) >= 0x2800 for c in lines[0]) == 1
    assert sum(ord(c) >= 0x2800 for c in lines[1]) == 2


def test_the_line_stops_at_nan_and_the_gap_says_so() -> None:
    values = falling_loss(480)
    values[361:] = np.nan
    lines = picture(values, mark=Mark(362, "resumed"))
    assert sum("│" in line for line in lines[:5]) >= 4
    assert "NaN" in lines[2]
    assert "119 steps" in lines[3]
    assert "362 resumed" in lines[5]
    assert not any(ord(c) >= 0x2800 for line in lines for c in line[13 + 51 :])


def test_a_single_nan_is_named_beside_its_bar() -> None:
    values = falling_loss(300)
    values[150] = np.nan
    lines = picture(values, mark=Mark(151))
    assert any("│ NaN" in line or "NaN │" in line for line in lines)


def test_nan_in_every_second_row_is_named_once_or_twice_not_everywhere() -> None:
    values = falling_loss(3000)
    values[::2] = np.nan
    assert 1 <= "".join(picture(values)).count("NaN") <= 2


def test_infinite_losses_are_called_inf() -> None:
    values = falling_loss(300)
    values[150:] = np.inf
    assert "Inf" in picture(values)[2]


def test_the_axis_is_logarithmic_only_beyond_a_ratio_of_twenty() -> None:
    assert "log scale" in picture(np.geomspace(1, 21, 50))[5]
    assert "log scale" not in picture(np.geomspace(1, 19, 50))[5]
    assert "log scale" not in picture(np.linspace(-1, 40, 50))[5]


def test_few_losses_are_listed_and_none_draws_nothing() -> None:
    assert picture([4, 3, np.nan, 2.5]) == ["  loss  4, 3, NaN, 2.5 at steps 1-4"]
    assert draw(series([1.0]), (1, 1)) == ["  loss  1 at step 1"]
    assert picture([4, 3, np.inf, np.nan, 1]) == ["  loss  4, 3, Inf, NaN, 1 at steps 1-5"]
    assert draw(make_trace(grad_norm=[1.0]).series["grad_norm"], (1, 1), name="grad")
    assert len(picture([4, 3, 2, 2, 1])) == 6


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([2.31] + [np.nan] * 59, "2.31 at step 1, then NaN in 59 rows"),
        ([np.nan] * 6, "NaN in all 6 rows"),
        (
            [np.inf] * 9 + [3, 2.5] + [np.nan] * 2000,
            "Inf in 9 rows, then 3, 2.5 at steps 10-11, then NaN in 2,000 rows",
        ),
        (
            [np.nan, 3, np.inf, np.nan, -np.inf, 2],
            "NaN in 1 row, then 3 at step 2, then NaN and Inf in 3 rows, then 2 at step 6",
        ),
    ],
)
def test_of_few_finite_losses_none_is_hidden_by_the_others(values: object, text: str) -> None:
    assert words(values) == f"loss {text}"


def test_few_losses_among_a_million_rows_keep_their_steps() -> None:
    values = np.full(1_000_000, np.nan)
    values[0], values[499_999] = 2.5, 2.25
    assert words(values) == (
        "loss 2.5 at step 1, then NaN in 499,998 rows, "
        "then 2.25 at step 500000, then NaN in 500,000 rows"
    )


def test_a_list_of_few_losses_is_as_wide_as_a_curve() -> None:
    values = np.full(9 * 10**4, np.inf)
    values[::30_000] = -1.2345e-30
    values[1::3] = np.nan
    lines = picture(values)
    assert len(lines) > 1
    assert max(map(len, lines)) <= 79


@pytest.mark.parametrize("top", [5.3e34, -5.3e-34, 1e300])
def test_a_wide_label_does_not_stick_to_the_name(top: float) -> None:
    lines = picture(np.linspace(top - abs(top) / 2, top, 40))
    word, label = lines[0].split()[:2]
    assert word == "loss"
    assert float(label) == pytest.approx(top, rel=0.1)
    assert lines[0][12] == " "


def test_a_nan_printed_as_0_is_drawn_as_nan() -> None:
    loss, norm = falling_loss(300), np.ones(300)
    loss[150:] = 0
    norm[100], norm[150:] = np.inf, np.nan
    shown = loss_of(make_trace(loss=loss, grad_norm=norm))
    assert shown is not None
    assert (shown.num_finite, shown.first_bad.max()) == (150, 300)
    lines = draw(shown, (1, 300))
    assert "NaN" in lines[2]
    assert lines[4].startswith(f"        {loss[:150].min():.2f} ")


def test_a_true_zero_stays_a_zero() -> None:
    trace = make_trace(loss=[1.0, 0.0, 0.0], grad_norm=[1.0, 1.0, 0.0])
    assert loss_of(trace) is trace.series["loss"]
    assert loss_of(make_trace(loss=[0.0])) is not None
    assert loss_of(make_trace()) is None


def test_ascii_holds_only_ascii() -> None:
    values = falling_loss(480)
    values[361:] = np.nan
    text = "\n".join(picture(values, mark=Mark(362), ascii=True))
    assert text.isascii()
    assert "*" in text
    assert "|" in text


@pytest.mark.parametrize(
    "values",
    [[2.0] * 40, np.geomspace(1e-320, 1e308, 40), [-1.7e308, 1.7e308] * 9, [0.0] * 9],
)
def test_extreme_values_draw_without_a_warning(values: object) -> None:
    with np.errstate(all="raise", under="ignore"):
        lines = picture(values)
    assert max(map(len, lines)) <= 79


def test_steps_beyond_a_million_million_fit() -> None:
    steps = np.arange(1, 101) * 10**12
    loss = make_trace(loss=falling_loss(100), steps={"loss": steps}).series["loss"]
    assert max(map(len, draw(loss, (10**12, 10**14)))) <= 79
