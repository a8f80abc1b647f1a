"""When to sample: often while the run is young, ever rarer later, within a share of its time."""

from dataclasses import dataclass, field

DENSE = 3
"""Updates after every start that are always sampled."""
YOUNG = 1000
"""Age, in updates of this process, until which faults show most and more may be spent."""
YOUNG_SHARE = 0.10
FLOOR_S = 15e-6
"""What samples and examinations may cost an update in any case, in seconds."""
BURST = 2
"""Updates sampled after an alarm."""
BURST_REST = 64
"""Samples between two bursts."""


@dataclass
class Schedule:
    """Decides for each update, in order, whether it is sampled.

    Spacing of age/16 until `YOUNG` and age/128 later makes samples log-uniform: at most about 950
    in a million updates. `interval` fixes it instead.

    Two bills: idle, of hooks without a sample and of logging, which every update costs, and work,
    of samples and examinations. Work takes what idle leaves of the share, and its floor where
    that is more, so that a loop of short updates is sampled too. The share of youth is its own.
    """

    overhead: float = 0.01
    interval: int | None = None
    idle_s: float = 0.0
    work_s: float = 0.0
    samples: int = 0
    _age: int = 0
    _last: int = 0
    _burst: int = 0
    _samples_at_burst: int = field(default=-BURST_REST)

    @property
    def billed_s(self) -> float:
        """What watching has cost so far."""
        return self.idle_s + self.work_s

    @property
    def sampling(self) -> bool:
        """Whether the update last asked for is sampled."""
        return self.samples > 0 and self._last == self._age

    def account(self, steps: int, elapsed_s: float) -> str:
        """What `steps` updates in that time have cost, in words."""
        share, steps = self.billed_s / max(elapsed_s, 1e-9), max(steps, 1)
        per_step, idle = self.billed_s / steps * 1e6, self.idle_s / steps * 1e6
        return (
            f"{share * 100:.2g} % of training time, {per_step:.0f} us a step, {idle:.0f} of them"
            f" between samples (budget {self.overhead * 100:.2g} % once the run is"
            f" {YOUNG} steps old, or {FLOOR_S * 1e6:.0f} us for samples), {self.samples} steps"
            f" sampled"
        )

    def add(self, seconds: float, *, idle: bool) -> None:
        """Bills time."""
        if idle:
            self.idle_s += seconds
        else:
            self.work_s += seconds

    def due(self, elapsed_s: float) -> bool:
        """Whether the next update is sampled; to be asked once for each update."""
        self._age += 1
        if not self._wanted(elapsed_s):
            return False
        self._last = self._age
        self.samples += 1
        return True

    def may_spend(self, elapsed_s: float) -> bool:
        """Whether the bill has room for work that is not tied to a sample: half of it is theirs."""
        return self.work_s <= self._allowed(elapsed_s) / 2

    def alarm(self) -> bool:
        """Asks for the next updates to be sampled; False if a burst was had lately."""
        if self.samples - self._samples_at_burst < BURST_REST:
            return False
        self._samples_at_burst = self.samples
        self._burst = BURST
        return True

    def _wanted(self, elapsed_s: float) -> bool:
        if self.interval is not None:
            return (self._age - 1) % self.interval == 0
        if self._age <= DENSE:
            return True
        if self._burst:
            self._burst -= 1
            return True
        since = self._age - self._last
        if self._age <= YOUNG:
            return since * 16 >= self._age and self.work_s <= max(
                YOUNG_SHARE * elapsed_s, self._allowed(elapsed_s)
            )
        return since * 128 >= self._age and self.work_s <= self._allowed(elapsed_s)

    def _allowed(self, elapsed_s: float) -> float:
        return max(self.overhead * elapsed_s - self.idle_s, FLOOR_S * self._age)
