"""Composer: a record of many lines, two clocks, the file logger."""

from tests.readers.language_model_logs import read, rows


def test_the_lines_of_a_block_stand_at_the_step_of_its_first() -> None:
    trace = read(
        "composer",
        "[batch=189/900]:",
        "\t Train time/batch: 188",
        "\t Train loss/train/total: 2.5000",
        "\t Train metrics/train/LanguageCrossEntropy: 2.2500",
        "\t Train lr-DecoupledAdamW/group0: 0.0005",
        "\t Train l2_norm/grad/global: 1.5000",
        "[batch=190/900]:",
        "\t Train loss/train/total: nan",
        "[Eval batch=1/9] Eval on eval data",
        "[Eval batch=9/9] Eval on eval data:",
        "\t Eval metrics/eval/LanguageCrossEntropy: 2.7500",
        "\t Eval metrics/eval/LanguagePerplexity: 15.6426",
    )
    assert rows(trace) == {189: 2.5, 190: "nan"}
    assert rows(trace, "metric:metrics/train/LanguageCrossEntropy") == {189: 2.25}
    assert rows(trace, "lr") == {189: 0.0005}
    assert rows(trace, "grad_norm") == {189: 1.5}
    assert rows(trace, "eval_loss") == {190: 2.75}
    assert trace.facts["total_steps"] == 900
    assert trace.lines_skipped == 0


def test_batches_are_counted_within_epochs() -> None:
    trace = read(
        "composer",
        "[epoch=1][batch=10/10]:",
        "\t Train loss/train/total: 2.5000",
        "[epoch=2][batch=3/10]:",
        "\t Train loss/train/total: 2.2500",
    )
    assert rows(trace) == {10: 2.5, 13: 2.25}


def test_the_file_logger_names_the_batch_in_each_line() -> None:
    trace = read(
        "composer",
        "[metric][batch=0]: time/epoch: 0 ",
        "[metric][batch=0]: loss/train/total: 2.5 ",
        "[metric][batch=0]: metrics/train/ArXiv_LanguageCrossEntropy: nan ",
        "[metric][batch=0]: metrics/train/ArXiv_count: 0 ",
        "[metric][batch=1]: loss/train/total: 2.25 ",
    )
    assert rows(trace) == {1: 2.5, 2: 2.25}
    assert rows(trace, "metric:metrics/train/ArXiv_LanguageCrossEntropy") == {1: "nan"}


def test_a_mean_over_nothing_is_nan() -> None:
    trace = read(
        "composer",
        "[metric][batch=0]: metrics/train/LanguageCrossEntropy: nan ",
        "[metric][batch=0]: metrics/train/Books_count: 0 ",
    )
    assert rows(trace) == {1: "nan"}
