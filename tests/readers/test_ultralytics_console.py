"""The table of YOLOv5 and Ultralytics."""

from text_logs import read_lines, rows_of

HEADER = "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size"
SCORES = "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95):"
ALL = "                   all        128        929       0.75        0.5      0.625      0.375"


def test_the_sum_of_the_weighted_losses_is_the_loss() -> None:
    trace = read_lines(
        "ultralytics-console",
        HEADER,
        "      1/100      2.31G       1.25        2.5       1.25         48        640: 100%|##|",
        SCORES,
        ALL,
        HEADER,
        "      2/100      2.31G        nan        nan        nan         48        640: 100%|##|",
    )
    assert rows_of(trace) == [(1, 5.0), (2, None)]
    assert rows_of(trace, "metric:box_loss") == [(1, 1.25), (2, None)]
    assert rows_of(trace, "metric:P") == [(1, 0.75)]
    assert rows_of(trace, "metric:mAP50-95") == [(1, 0.375)]
    assert rows_of(trace, "epoch") == [(1, 1.0), (2, 2.0)]
    assert trace.facts["step_source"] == "epochs"
    assert not {"metric:Instances", "metric:Size"} & trace.series.keys()


def test_a_bar_that_is_written_anew_is_one_row() -> None:
    bar = "      1/100      2.31G       {}        2.5       1.25     48      640:  {}%|##|"
    trace = read_lines(
        "ultralytics-console", HEADER, bar.format(9.25, 12) + "\r\x1b[K" + bar.format(1.25, 100)
    )
    assert rows_of(trace) == [(1, 5.0)]


def test_epochs_of_yolov5_count_from_zero() -> None:
    trace = read_lines(
        "ultralytics-console",
        "     Epoch   gpu_mem       box       obj       cls    labels  img_size",
        "       0/2     3.35G    0.0625     0.125    0.0625        30       640: 100%|##|",
        "       1/2     3.35G    0.0625    0.0625    0.0625        30       640: 100%|##|",
    )
    assert rows_of(trace) == [(1, 0.25), (2, 0.1875)]


def test_a_total_is_the_loss() -> None:
    trace = read_lines(
        "ultralytics-console",
        "     Epoch   gpu_mem       box       obj       cls     total   targets  img_size",
        "     0/299     3.35G    0.0625     0.125    0.0625      0.75        30       640: 99%|##|",
    )
    assert rows_of(trace) == [(1, 0.75)]
    assert rows_of(trace, "metric:obj") == [(1, 0.125)]


def test_a_classifier_has_one_loss() -> None:
    trace = read_lines(
        "ultralytics-console",
        "      Epoch    GPU_mem       loss  Instances       Size",
        "        1/3      0.55G       2.25         16        224: 100%|##|",
        "        2/3         0G       1.25         16        224: 100%|##|",
    )
    assert rows_of(trace) == [(1, 2.25), (2, 1.25)]


def test_scores_that_are_cut_are_left_out() -> None:
    row = "      1/100      2.31G       1.25        2.5       1.25         48        640: 100%|##|"
    trace = read_lines("ultralytics-console", HEADER, row, SCORES, ALL[: ALL.rindex("0.625")])
    assert "metric:P" not in trace.series


def test_a_row_that_is_cut_in_front_of_its_losses_is_none() -> None:
    trace = read_lines(
        "ultralytics-console",
        HEADER,
        "      1/100      2.31G       1.25        2.5       1.25         48        640: 100%|##|",
        HEADER,
        "      2/100      2.31G       1.25        2.5",
    )
    assert rows_of(trace) == [(1, 5.0)]
