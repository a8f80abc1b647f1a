"""Boxes of Stable-Baselines and its kin."""

from optdoctor.readers import claiming
from optdoctor.reading.reader import Head
from optdoctor.trace import Trace
from tests.text_logs import read_lines, rows_of

EDGE = "-" * 40


def read(*lines: str) -> Trace:
    return read_lines("sb3-console", *lines)


def box(steps: int, loss: float | str, reward: float) -> list[str]:
    return [
        *(EDGE, "| rollout/                |              |"),
        f"|    ep_rew_mean          | {reward:<12} |",
        "| time/                   |              |",
        "|    fps                  | 1500         |",
        f"|    total_timesteps      | {steps:<12} |",
        "| train/                  |              |",
        "|    clip_fractio...      | 0.25         |",
        "|    learning_rate        | 0.0003       |",
        f"|    loss                 | {loss:<12} |",
        "| zeta                    | 0.5          |",
        EDGE,
    ]


def test_a_box_is_a_row_with_the_names_of_the_progress_file() -> None:
    trace = read("Using cuda device", *box(2048, 6.5, 21.5), *box(4096, "nan", 1e3))
    assert rows_of(trace) == [(2048, 6.5), (4096, None)]
    assert rows_of(trace, "lr") == [(2048, 0.0003), (4096, 0.0003)]
    assert rows_of(trace, "metric:rollout/ep_rew_mean") == [(2048, 21.5), (4096, 1000.0)]
    assert set(trace.series) == {
        *(
            "loss",
            "lr",
            "metric:rollout/ep_rew_mean",
            "metric:train/clip_fractio...",
            "metric:zeta",
        ),
    }
    assert trace.facts["loss_kind"] == "reward"


def test_a_box_without_its_end_is_no_row() -> None:
    assert rows_of(read(*box(2048, 6.5, 21.5), *box(4096, 5.5, 22.5)[:-1])) == [(2048, 6.5)]


def test_boxes_of_old_baselines_have_no_sections() -> None:
    lines = (
        EDGE,
        "| % time spent exploring  | 10           |",
        "| episodes                | 100          |",
        "| mean 100 episode reward | -20.5        |",
        "| steps                   | 9000         |",
        EDGE,
    )
    trace = read(*lines, *(line.replace("9000", "9500") for line in lines))
    assert rows_of(trace, "metric:mean 100 episode reward") == [(9000, -20.5), (9500, -20.5)]
    assert "loss" not in trace.series


def test_a_progress_bar_in_front_of_an_edge_does_not_hide_the_box() -> None:
    lines = box(2048, 6.5, 21.5)
    lines[0] = " 10% ━━━━   2,048/20,000  [ 0:00:01 < 0:00:11 , 1500 it/s ] " + lines[0]
    assert rows_of(read(*lines)) == [(2048, 6.5)]


def test_other_tables_in_boxes_are_not_claimed() -> None:
    lines = (EDGE, "| name | value |", "| loss | 0.5   |", EDGE, "")
    found = claiming(Head("\n".join(lines).encode()))
    assert found is None or found.name != "sb3-console"
