"""What the callbacks of all frameworks share: their arguments, and that no failure gets out."""

import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypedDict, TypeVar

from optdoctor import settings
from optdoctor.live.doctor import Doctor, asked_for, check
from optdoctor.live.scaler import check_scaler
from optdoctor.live.told import checked
from optdoctor.sinks import Place, make, sink_names
from optdoctor.trace import Fact
from optdoctor.treatments import Intervention

Method = TypeVar("Method", bound=Callable[..., None])


class Options(TypedDict):
    """Keywords of `optdoctor.watch` that reach it as they were given."""

    overhead: float
    interval: int | None
    sinks: tuple[str, ...]
    treat: tuple[str | Intervention, ...]
    full_updates: bool
    attention: bool
    save_batches: str | int | None


def inert(method: Method) -> Method:
    """The method, with its exceptions kept from the training: told once, and the doctor is off."""

    @wraps(method)
    def guarded(self: "Attendant", *args: Any, **kwargs: Any) -> None:
        if self.failure is not None:
            return
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self._step_back(error)

    return guarded  # type: ignore[return-value]


class Attendant:
    """Has a doctor while its framework trains."""

    def __init__(
        self,
        *,
        out: str | Path | None = None,
        overhead: float = 0.01,
        interval: int | None = None,
        sinks: Iterable[str] = ("console",),
        treat: str | Iterable[str | Intervention] = (),
        scaler: Any = None,
        first_step: int | None = None,
        full_updates: bool = False,
        attention: bool = False,
        save_batches: str | int | None = None,
        facts: Mapping[str, Fact] = MappingProxyType({}),
    ) -> None:
        self.doctor: Doctor | None = None
        self.failure: Exception | None = None
        """What switched the doctor off, if anything did."""
        self._out, self._scaler, self._first_step = out, scaler, first_step
        self._told = checked(facts)
        """Facts of the user, who knows more than the framework."""
        self._options = Options(
            overhead=overhead,
            interval=interval,
            sinks=sink_names(sinks),
            treat=asked_for(treat),
            full_updates=full_updates,
            attention=attention,
            save_batches=save_batches,
        )
        # What is wrong with the arguments must be said here, not at the first step.
        check(
            overhead=overhead,
            interval=interval,
            treat=self._options["treat"],
            save_batches=save_batches,
        )
        check_scaler(scaler)
        settings.load()
        for name in self._options["sinks"]:
            make(name, Place(Path(out or "optdoctor-run")))  # writes nothing yet

    def __getstate__(self) -> dict[str, Any]:
        """A copy, as for another process, has no doctor: it belongs to this training."""
        return self.__dict__ | {"doctor": None}

    def _end(self) -> None:
        if self.doctor is not None:
            self.doctor.close()

    def _step_back(self, error: Exception) -> None:
        self.failure = error
        said = f"{type(error).__name__}: {error}"
        with suppress(Exception):
            print(f"optdoctor  {said}; it is off, training goes on", file=sys.stderr)
        with suppress(Exception):
            if self.doctor is not None:
                self.doctor.runs[0].event("doctor-failed", f"{said}\n{traceback.format_exc()}")
        with suppress(Exception):
            self._end()
