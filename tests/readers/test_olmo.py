"""OLMo and OLMo-core: blocks, thousands, two sets of names."""

from optdoctor.readers import claiming
from optdoctor.reading.reader import Head
from tests.readers.language_model_logs import read, rows


def test_the_lines_of_a_block_stand_at_its_step() -> None:
    trace = read(
        "olmo",
        "2026-01-02 03:04:05.678\thost:0\tolmo.train:967\tINFO\t[step=1/739328]",
        "    optim/total_grad_norm=9.125",
        "    train/CrossEntropyLoss=11.25",
        "    train/Perplexity=76,879",
        "2026-01-02 03:04:15.678\thost:0\tolmo.train:967\tINFO\t[step=2/739328,epoch=0]",
        "    train/CrossEntropyLoss=nan",
        "    eval/c4_en-validation/CrossEntropyLoss=10.75",
    )
    assert rows(trace) == {1: 11.25, 2: "nan"}
    assert rows(trace, "grad_norm") == {1: 9.125}
    assert rows(trace, "metric:train/Perplexity") == {1: 76879.0}
    assert rows(trace, "eval_loss") == {2: 10.75}
    assert trace.facts["total_steps"] == 739328


def test_olmo_core_writes_names_with_blanks() -> None:
    trace = read(
        "olmo",
        "[step=10/???,epoch=1,eta=2 days3:04:05(hard stop)]",
        "    optim/LR (group 0)=1.50E-05",
        "    optim/total grad norm=1.250",
        "    optim/step skipped=0.0",
        "    train/CE loss=3.250",
        "    train/Z loss=0.0025",
        "[step=20/900,epoch=1]",
        "    train/CE loss=3.125",
    )
    assert rows(trace) == {10: 3.25, 20: 3.125}
    assert rows(trace, "lr") == {10: 1.5e-05}
    assert rows(trace, "grad_norm") == {10: 1.25}
    assert rows(trace, "step_skipped") == {10: 0.0}
    assert rows(trace, "metric:train/Z loss") == {10: 0.0025}
    assert trace.facts["total_steps"] == 900


def test_olmo_core_evaluates_per_data_set() -> None:
    trace = read(
        "olmo",
        "[step=10/900,epoch=1]",
        "    train/CE loss=3.250",
        "    eval/lm/c4_en-validation/CE loss=3.500",
        "    eval/lm/pile-validation/CE loss=3.750",
    )
    assert rows(trace, "eval_loss") == {10: 3.5}
    assert rows(trace, "metric:eval/lm/pile-validation/CE loss") == {10: 3.75}


def test_names_of_that_form_in_a_bar_are_not_olmo() -> None:
    text = "".join(f" 1%|# | {n}/60 [00:10<00:10, train/loss=2.{n}]\n" for n in range(1, 9))
    text += "".join(f"[step={n}/60] train/loss=2.{n}\n" for n in range(1, 9))
    found = claiming(Head(text.encode()))
    assert found is not None
    assert found.name == "prints"
