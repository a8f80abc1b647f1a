"""What a run of the clinic is made of, as plain data: its family, its optimizer, its settings."""

import hashlib
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Literal

from tasks import Task

HERE = Path(__file__).resolve().parent
Size = Literal["small", "large"]
Precision = Literal["float32", "bfloat16-autocast", "float16-scaler", "bfloat16", "float16"]
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16-autocast", "float16-scaler")
"""Those that healthy runs are made in; the last two are weights of that dtype."""


@dataclass(frozen=True)
class Family:
    """A kind of task, with the rates at which it learns."""

    name: str
    build: Callable[[int, Size, int], Task]
    """(seed, size, batch) -> the task; all of it follows from the seed."""
    rates: Mapping[str, float]
    """{optimizer: peak rate}: the best of a grid."""
    steps: int
    batch: int
    precisions: tuple[Precision, ...] = PRECISIONS
    loss_kind: str = "falling"


@dataclass(frozen=True)
class Setup:
    """One configuration and a seed."""

    family: str
    optimizer: str
    seed: int = 0
    size: Size = "small"
    rate_factor: float = 1.0
    """Of the family's rate for this optimizer."""
    schedule: str = "warm-cosine"
    batch_factor: float = 1.0
    precision: Precision = "float32"
    clip: float | None = None
    weight_decay: float = 0.0
    accumulate: int = 1
    optimizer_options: tuple[tuple[str, object], ...] = field(default=())
    """Further arguments of the optimizer, as (("betas", (0.9, 0.95)),)."""

    @property
    def configuration(self) -> str:
        """All but the seed, as text."""
        told = asdict(self)
        del told["seed"]
        return json.dumps(told, sort_keys=True)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_held(configuration: str) -> bool:
    """Whether a configuration is of the half that no limit is set on."""
    return int(digest(configuration), 16) % 2 == 1


def load(path: Path) -> ModuleType:
    """A module of the clinic by its file."""
    name = f"clinic_{path.parent.name}_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def families() -> Mapping[str, Family]:
    """{name: family}: the files of `families`."""
    return _of("families")


@cache
def families_apart() -> Mapping[str, Family]:
    """{name: family}: the files of `families_apart`, which no limit has seen. They were written by
    somebody who had not read the rules, and whoever sets limits does not train them."""
    return _of("families_apart")


def _of(folder: str) -> Mapping[str, Family]:
    found = [load(path).FAMILY for path in sorted((HERE / folder).glob("*.py"))]
    return {family.name: family for family in found}
