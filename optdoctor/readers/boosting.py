"""XGBoost and LightGBM: a line a round of boosting with a value a data set and measure.

Rounds are not updates of weights, but a curve is a curve: it overfits and stalls like others.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from optdoctor.reading.lazy_regex import lazy
from optdoctor.reading.log import Log
from optdoctor.reading.reader import Head, Reader, Source
from optdoctor.reading.text_format import NUMBER, clean_lines, lines_of, value_of

_ROUND = lazy(r"(?:^|\s)\[(?P<at>\d{1,9})\](?:#011|[ \t]{1,8})(?=[A-Za-z])")
_XGBOOST = rf"(?P<data>[A-Za-z]\w{{0,60}})-(?P<measure>[A-Za-z][\w@.-]{{0,60}}):(?P<value>{NUMBER})"
_LIGHTGBM = rf"(?P<of>[A-Za-z]\w{{0,60}})'s (?P<what>[A-Za-z][\w@.-]{{0,60}}): (?P<is>{NUMBER})"
_PAIR = lazy(rf"(?<!\S){_XGBOOST}|(?:(?<!\S)|(?<=#011)){_LIGHTGBM}")
_TRAINING = ("train", "training", "dtrain", "learn")
_LOSSES = (
    *("logloss", "mlogloss", "rmse", "mae", "rmsle", "mape", "mphe", "poisson-nloglik"),
    *("gamma-nloglik", "cox-nloglik", "aft-nloglik", "gamma-deviance", "tweedie-nloglik"),
    *("binary_logloss", "multi_logloss", "l1", "l2", "huber", "fair", "poisson", "quantile"),
    *("cross_entropy", "cross_entropy_lambda", "kullback_leibler", "gamma", "tweedie"),
)
"""Measures that fall in a good run and that the boosting itself minimises."""


@dataclass(frozen=True, slots=True)
class _Round:
    at: int
    values: dict[tuple[str, str], float]  # {(data set, measure): value}


def _rounds(lines: Iterator[str] | list[str]) -> Iterator[_Round]:
    for line in clean_lines(lines):
        found = _ROUND.search(line)
        if found is None:
            continue
        text = line.replace("#011", "\t")
        values = {
            (pair["data"] or pair["of"], pair["measure"] or pair["what"]): value_of(
                pair["value"] or pair["is"]
            )
            for pair in _PAIR.finditer(text)
        }
        if values:
            yield _Round(int(found["at"]), values)


def _sniff(head: Head) -> int:
    return sum(1 for _ in _rounds(head.lines))


def _names(values: dict[tuple[str, str], float]) -> dict[str, float]:
    """The row with the first loss of the training and of another data set under their channels."""
    row = {f"{data} {measure}": value for (data, measure), value in values.items()}
    measure = next((m for data, m in values if m.lower() in _LOSSES), None)
    if measure is not None:
        for (data, what), value in values.items():
            if what == measure:
                row.setdefault("loss" if data in _TRAINING else "eval_loss", value)
    return row


def _read(source: Source, log: Log) -> None:
    log.facts |= {"loss_kind": "falling", "loss_form": "mean", "loss_window": 1}
    log.count_from_one()
    for found in _rounds(lines_of(source)):
        log.row(_names(found.values), found.at)


READER = Reader(
    "boosting",
    _sniff,
    _read,
    {"loss": "loss", "eval_loss": "eval_loss"},
    marks=("]",),
    sample="""[0]\ttrain-logloss:0.68750\tvalid-logloss:0.69125
[1]\ttrain-logloss:0.65625\tvalid-logloss:0.66875
[2]\ttrain-logloss:0.62500\tvalid-logloss:0.65000
""",
)
