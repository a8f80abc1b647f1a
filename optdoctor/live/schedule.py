"""When to sample: often while the run is young, ever rarer later, within a share of its time."""

from dataclasses import dataclass, field

DENSE = 3
"""Updates after every start that are always sampled."""
YOUNG = 1000
"""Age, in updates of this process, until which faults show most and more may be spent."""
YOUNG_SHARE = 0.10
FLOOR_S = 30e-6
"""What an update may cost in any case, in seconds."""
BURST = 2
"""Updates sampled after an alarm."""
BURST_REST = 64
"""Samples between two bursts."""


@dataclass
class Schedule:
    """Decides for each update, in order, whether it is sampled.

    Spacing of age/16 until `YOUNG` and age/128 later makes samples log-uniform: at most about 950
    in a million updates. `interval` fixes it instead.
    """

    overhead: float = 0.01
    interval: int | None = None
    billed_s: float = 0.0
    """What watching has cost so far."""
    samples: int = 0
    _age: int = 0
    _last: int = 0
    _burst: int = 0
    _samples_at_burst: int = field(default=-BURST_REST)

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
        return self._within(self.overhead, elapsed_s, part=0.5)

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
            return since * 16 >= self._age and self._within(YOUNG_SHARE, elapsed_s)
        return since * 128 >= self._age and self._within(self.overhead, elapsed_s)

    def _within(self, share: float, elapsed_s: float, part: float = 1.0) -> bool:
        return self.billed_s <= part * max(share * elapsed_s, FLOOR_S * self._age)
