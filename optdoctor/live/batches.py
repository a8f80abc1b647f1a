"""What the model was given in updates that went wrong, saved where a run asks for it.

Until the numbers of an update are known, an update or two later, what its forward passes were given
is held: references to tensors, no copies, so that a healthy run pays for no transfer and no second
copy. What is written to in place meanwhile, by the model or a loader that fills one buffer again,
is then no longer what the model was given; torch counts such writes, and the file tells of them.

A compiled caller finds nothing of ours in a forward pass: what it runs is not seen, while a
compiled module that is watched itself is. `torch.jit.script` refuses a module with a hook.
"""

import io
import math
import os
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from optdoctor.live.incoming import Odd
from optdoctor.live.kept_values import Kept, keep, plain
from optdoctor.trace import Event

Entry = Literal["model", "training_step"]
"""What takes the saved values when they are given again."""
FOLDER = "batches"
OUTLIERS = 0.5
"""Share of the bytes that outliers may fill: the first NaN may come late, and must find room."""
NO_FOLDER = "save_batches has no folder to save to, as out is None: no batch is saved"
UNSEEN = (
    "no batch is saved: no forward pass of the watched model was seen, as where another module is"
    " called, or a compiled one"
)
TOO_LATE = (
    "the batch of step {} is not saved: it is larger than save_batches, or its numbers were known"
    " too late"
)
FULL = "the batch of step {} is not saved, nor are later ones like it: save_batches is full"
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30}


def num_bytes(size: str | int) -> int:
    """Bytes of `"100 MB"`, or of a number of them.

    Raises:
        ValueError: it is no size, or not above 0.
    """
    text = str(size).strip().lower()
    number = text.rstrip("bgikm ")
    with suppress(ValueError, KeyError, OverflowError):
        found = int(float(number) * _UNITS[text[len(number) :].strip()])
        if found > 0 and not isinstance(size, bool):
            return found
    raise ValueError(f'save_batches must be a size as "100 MB" or a number of bytes, not {size!r}')


class Process(NamedTuple):
    """Which of how many that train together."""

    rank: int = 0
    world_size: int = 1


@dataclass(slots=True)
class _Pass:
    """One forward pass: what it was given, and the update that it belongs to, 0 for the next."""

    kept: Kept
    step: int = 0


class Batches:
    """Holds what the model is given, and saves that of updates that went wrong."""

    def __init__(
        self,
        size: int,
        folder: Path,
        process: Process,
        told: Entry | None = None,
        prefix: str = "",
    ) -> None:
        """`size`: bytes of files in all, and of what is held. `told`: what takes the batches
        where a framework tells them, None where the model is to be seen. `prefix` stands before
        names that are told, as of one of several runs."""
        self._size, self._folder, self._process = size, folder / FOLDER, process
        self._sees_model, self._prefix = told is None, prefix
        self._entry: Entry = told or "model"
        self._held: deque[_Pass] = deque()
        self._num_bytes = self._num_passes = 0
        """Of all that is held; passes of the update being made."""
        self._totals: dict[int, int] = {}
        """{update whose passes may be held: passes that it had}."""
        self._told: set[object] = set()
        self._seen = False
        self._handle: Any = None

    def attach(self, model: nn.Module, take: Callable[[Any, Any], None]) -> None:
        """Lets `take` see what each forward pass of the model that trains is given."""
        if self._sees_model:
            tap = _Tap(model, take)
            self._handle = model.register_forward_pre_hook(tap, with_kwargs=True)

    def close(self) -> None:
        """Removes the hook, and lets go of all."""
        if self._handle is not None:
            self._handle.remove()
        self._handle = None
        self._held.clear()
        self._totals.clear()

    def take(self, args: Any, kwargs: Any) -> None:
        """Holds what one pass is given, unless it is larger than what may be held."""
        if _is_transformed():
            return
        kept = keep(args, kwargs)
        if any(t.is_cuda for t, _ in kept.tensors) and torch.cuda.is_current_stream_capturing():
            return  # replays of the graph come through no hook
        self._seen = True
        self._num_passes += 1
        if kept.num_bytes > self._size:
            return
        self._held.append(_Pass(kept))
        self._num_bytes += kept.num_bytes
        while self._num_bytes > self._size:
            self._drop()

    def belong_to(self, step: int) -> None:
        """What was taken since the last update was given for this one."""
        self._totals[step], self._num_passes = self._num_passes, 0
        for one in reversed(self._held):
            if one.step:
                break
            one.step = step

    def release(self, step: int) -> None:
        """Lets go of updates up to this one: their numbers are known."""
        while self._held and 0 < self._held[0].step <= step:
            self._drop()
        for known in [at for at in self._totals if at <= step]:
            del self._totals[known]

    def save(self, odd: Odd) -> Event | None:
        """Saves the batch of an update, if it is one to look at; what there is to tell."""
        if not odd.of_batch or (path := self._path(odd.step)).name in self._told:
            return None
        passes = [one.kept for one in self._held if one.step == odd.step]
        if not passes:
            return self._once(odd.step, TOO_LATE if self._seen else UNSEEN)
        left_out = self._totals.get(odd.step, 0) - len(passes)
        document = self._document(odd, passes, left_out)
        room = self._size if not math.isfinite(odd.value) else int(OUTLIERS * self._size)
        least = sum(kept.num_bytes for kept in passes)
        content = _content(document) if least <= room else None
        if content is None or self._used(path) + len(content) > room:
            return self._once(odd.step, FULL, room)
        _write(path, content)
        self._told.add(path.name)
        name = f"{self._prefix}{FOLDER}/{path.name}"
        text = f"{odd.what}: what the model was given is in {name}"
        if left_out:
            text += f", without its first {left_out} of {left_out + len(passes)} passes"
        if changed := document["changed_in_place"]:
            text += f", with {changed} written to in place since"
        if self._process.world_size > 1:
            text += "; this process's part, others save theirs beside it"
        return Event(odd.step, "batch-saved", text, old=self._entry, new=name)

    def _document(self, odd: Odd, passes: list[Kept], left_out: int) -> dict[str, Any]:
        index = odd.row.get("batch_index", math.nan)
        return {
            "step": odd.step,
            "reason": odd.what,
            "loss": odd.row.get("loss"),
            "grad_norm": odd.row.get("grad_norm", odd.row.get("grad_norm_used")),
            "batch_index": int(index) if math.isfinite(index) else None,
            "rank": self._process.rank,
            "given_to": self._entry,
            "passes": [{"args": plain(kept.args), "kwargs": plain(kept.kwargs)} for kept in passes],
            "passes_left_out": left_out,
            "changed_in_place": sum(kept.num_changed for kept in passes),
        }

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:06d}{self._suffix}.pt"

    @property
    def _suffix(self) -> str:
        return f"-rank{self._process.rank}" if self._process.world_size > 1 else ""

    def _used(self, path: Path) -> int:
        """Bytes of the other files, those of an earlier part of this run too."""
        files = self._folder.glob(f"step-*{self._suffix}.pt")
        return sum(file.stat().st_size for file in files if file != path)

    def _once(self, step: int, text: str, room: int = 0) -> Event | None:
        if (text, room) in self._told:
            return None
        self._told.add((text, room))
        return Event(step, "gap", text.format(step))

    def _drop(self) -> None:
        self._num_bytes -= self._held.popleft().kept.num_bytes


class _Tap:
    """The hook. Copied or pickled with its model, it becomes one of Python's own that does
    nothing: a copy is not watched, and a saved one needs no optdoctor to be loaded."""

    def __init__(self, model: nn.Module, take: Callable[[Any, Any], None]) -> None:
        self._model, self._take = weakref.ref(model), weakref.WeakMethod(take)

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        take = self._take()
        # Replicas of DataParallel have the hook too, and run in threads.
        if take is not None and module is self._model():
            take(args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


def _is_transformed() -> bool:
    """Whether a tracer or a function transform runs the pass, on tensors that are none."""
    return (
        torch._C._get_tracing_state() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def _content(document: Mapping[str, Any]) -> memoryview:
    """The bytes of the file: how many they are is known before any is written."""
    buffer = io.BytesIO()
    torch.save(document, buffer)
    return buffer.getbuffer()


def _write(path: Path, content: memoryview) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
