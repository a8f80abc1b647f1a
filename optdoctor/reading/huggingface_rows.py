"""What the rows mean that the Hugging Face `Trainer` and its kin log, in whatever file they stand.

Kin: TRL, unsloth, Axolotl, ms-swift, LLaMA-Factory, sentence-transformers, SetFit.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optdoctor.reading.lazy_regex import lazy
from optdoctor.reading.log import MAX_STEP, Log, number

Column = NDArray[np.float64] | np.ma.MaskedArray[Any, Any]

LOSSES = ("loss", "embedding_loss", "loss/policy_avg")
"""Names of the training loss: of the Trainer, of SetFit, of TRL's first PPO and RLOO trainers."""
ALIASES = {
    **dict.fromkeys(LOSSES, "loss"),
    "eval_embedding_loss": "eval_loss",
    "learning_rate": "lr",
    **dict.fromkeys(("step", "episode", "total_flos", "percentage", "throughput"), ""),
}
STEP = "step"
STEP_OF_TOTAL = "global_step/max_steps"
"""How ms-swift names the step: "10/500"."""
_UNUSED = lazy(
    r"per_second|_runtime$|_time$|(?:^|_)mem_[cg]pu_|^memory\b|^train_speed\("
    r"|(?:^|_)(?:num|total)_(?:input_)?tokens|^tokens[_/]"
)
_REWARD = lazy(r"reward|reward_std|frac_reward_zero_std|objective/.+")
"""Names that only trainers log which raise a reward: GRPO, RLOO, PPO, online DPO.

Not `rewards/chosen`, `rewards/margins` and `kl`, which DPO, KTO, ORPO, CPO and BCO log too, nor
`mean_reward` of the RewardTrainer: their losses fall.
"""
_MAX_KINDS = 1000
_SHORTENED = 1e-3
"""Relative difference between two prints of a number, one of which has four digits."""


def is_final(names: Mapping[str, Any]) -> bool:
    """Whether it is the row that sums the run up at its end: its loss is a mean over all of it."""
    return "train_runtime" in names or ("train_loss" in names and "loss" not in names)


def hides_nan(row: Mapping[str, Any]) -> bool:
    """Whether its loss of 0 beside a broken gradient is the mark of the Trainer's NaN filter."""
    if number(row.get("loss")) != 0:
        return False
    norm = number(row.get("grad_norm"))
    return norm is not None and not math.isfinite(norm)


def is_unused(name: str) -> bool:
    """Whether it names a clock, a speed, memory or a counter, which no rule reads."""
    return _UNUSED.search(name) is not None


@dataclass(frozen=True)
class _Kind:
    """What rows of one set of names mean."""

    is_final: bool
    is_loss: bool
    names: Mapping[str, str]
    """{name in the row: name for the log} of what is kept."""


@dataclass
class Rows:
    """Adds the Trainer's rows to a log."""

    log: Log
    _kinds: dict[tuple[str, ...], _Kind] = field(default_factory=dict)
    _evaluated: str = ""
    """Prefix of the evaluation whose loss is `eval_loss`, where there are several data sets."""

    def __post_init__(self) -> None:
        self.log.facts["framework"] = "huggingface"
        self.log.facts["loss_form"] = "mean"
        self.log.facts["loss_kind"] = "falling"

    def add(self, row: Mapping[str, Any], step: object = None) -> None:
        """Adds one row; a step that it names itself goes before `step`."""
        kind = self._kind(tuple(row))
        if kind.is_final:
            return
        if hides_nan(row):
            self.log.facts["nan_filter"] = "seen"
        self.log.row({name: row[raw] for raw, name in kind.names.items()}, self._step(row, step))

    def add_columns(
        self, columns: Mapping[str, Column], steps: NDArray[np.float64] | None = None
    ) -> None:
        """Adds rows of one set of names, as `add` would one by one."""
        kind = self._kind(tuple(columns))
        if kind.is_final:
            return
        losses, norms = columns.get("loss"), columns.get("grad_norm")
        if losses is not None and norms is not None:
            is_filtered = (losses == 0) & ~np.isfinite(norms)
            if np.ma.filled(is_filtered, False).any():
                self.log.facts["nan_filter"] = "seen"
        kept = {name: columns[raw] for raw, name in kind.names.items()}
        self.log.rows(kept, columns.get(STEP, steps))

    def is_loss(self, names: tuple[str, ...]) -> bool:
        """Whether rows of these names hold a training loss."""
        return self._kind(names).is_loss

    def _step(self, row: Mapping[str, Any], step: object) -> object:
        if STEP in row:
            return row[STEP]
        if STEP_OF_TOTAL not in row:
            return step
        at, _, total = str(row[STEP_OF_TOTAL]).partition("/")
        if (planned := number(total)) is not None and 1 <= planned < MAX_STEP:
            self.log.facts["total_steps"] = int(planned)
        return number(at)

    def _kind(self, names: tuple[str, ...]) -> _Kind:
        if names not in self._kinds:
            if len(self._kinds) == _MAX_KINDS:
                self._kinds.clear()
            self._kinds[names] = self._kind_of(names)
        return self._kinds[names]

    def _kind_of(self, names: tuple[str, ...]) -> _Kind:
        if any(_REWARD.fullmatch(name) for name in names):
            self.log.facts["loss_kind"] = "reward"
        evaluated = self._data_set(names)
        kept = {
            name: "eval_loss" if evaluated and name == f"{evaluated}_loss" else name
            for name in names
            if not is_unused(name)
        }
        row = dict.fromkeys(names)
        return _Kind(is_final(row), any(name in row for name in LOSSES), kept)

    def _data_set(self, names: tuple[str, ...]) -> str:
        """The prefix whose loss is `eval_loss`: of several data sets, the first evaluated."""
        if "eval_loss" in names:
            self._evaluated = "eval"
            return ""
        prefixes = [name.removesuffix("_runtime") for name in names if name.endswith("_runtime")]
        for prefix in prefixes:
            if prefix != "train" and f"{prefix}_loss" in names:
                self._evaluated = self._evaluated or prefix
                return prefix if prefix == self._evaluated else ""
        return ""


def is_same_row(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two callbacks logged one row, each in its own words and with its own digits."""
    if tuple(first) == tuple(second):
        return False
    for name, margin in (("loss", 0.0), ("learning_rate", 0.0), ("epoch", 0.01)):
        one, other = number(first.get(name)), number(second.get(name))
        if one is None or other is None:
            return False
        if not math.isclose(one, other, rel_tol=_SHORTENED, abs_tol=margin):
            return False
    return True
