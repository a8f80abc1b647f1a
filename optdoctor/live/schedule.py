"""When to sample: often while the run is young, ever rarer later, within a share of its time, and
never so rarely that most of the run lies behind the last sample."""

from dataclasses import dataclass, field

GROWTH = 1.5
"""Factor by which a run may grow since its last sample; then it has one whatever the bill: at
updates 1, 2, 3, 5, 8, 12, 18, 27, ..., of 1,000 at 16 at least. A loop of short updates was else
not looked at after the third for hundreds of them."""
YOUNG = 1000
"""Age, in updates of this process, until which faults show most and more may be spent."""
YOUNG_SHARE = 0.10
FLOOR_S = 15e-6
"""What samples and examinations may cost an update in any case, in seconds."""
SPARE = 1.2
"""What even urgent work keeps to, as a multiple of what is allowed, once a run is no longer young:
the bill may exceed its budget by a quarter, and the cost of the next piece is a guess."""
BURST = 2
"""Updates sampled after an alarm."""
BURST_REST = 64
"""Samples between two bursts."""


@dataclass
class Schedule:
    """Decides for each update, in order, whether it is sampled.

    Spacing of age/16 until `YOUNG` and age/128 later makes samples log-uniform: at most about 950
    in a million updates, where the bill has room for them, and at least those of `GROWTH`.
    `interval` fixes it instead.

    Two bills: idle, of hooks without a sample and of logging, which every update costs, and work,
    of samples and examinations. Work takes what idle leaves of the share, but at least half of
    it; samples have a floor of their own besides, so that a loop of short updates is sampled too.
    The share of youth is its own.
    """

    overhead: float = 0.01
    interval: int | None = None
    part: float = 1.0
    """Of several optimizers of one training, each has this part of what all may cost."""
    idle_s: float = 0.0
    work_s: float = 0.0
    samples: int = 0
    _age: int = 0
    _next_sample_s: float = 0.0
    """What a sample may be expected to cost: what the last one did."""
    _next_look_s: float = 0.0
    """The same of an examination."""
    _looks_s: float = 0.0
    """What examinations have cost of the work."""
    _before_sample_s: float = 0.0
    _samples_s: float = 0.0
    """What samples have cost of the work."""
    _paid_samples_s: float = 0.0
    """Of that, once the run is old, what its youth has cost: no floor has to make up for it."""
    _last: int = 0
    _burst: int = 0
    _changed: bool = False
    _samples_at_burst: int = field(default=-BURST_REST)

    @property
    def billed_s(self) -> float:
        """What watching has cost so far."""
        return self.idle_s + self.work_s

    @property
    def floor_s(self) -> float:
        """What samples and examinations may cost an update in any case, in seconds."""
        return FLOOR_S * self.part

    @property
    def sampling(self) -> bool:
        """Whether the update last asked for is sampled."""
        return self.samples > 0 and self._last == self._age

    def account(self, steps: int, elapsed_s: float) -> str:
        """What `steps` updates in that time have cost, in words."""
        share, steps = self.billed_s / max(elapsed_s, 1e-9), max(steps, 1)
        per_step, idle = self.billed_s / steps * 1e6, self.idle_s / steps * 1e6
        told = (
            f"{share * 100:.2g} % of training time, {per_step:.0f} us a step: {idle:.0f} us hooks"
            f" and log of every step, the rest {self.samples} samples and the examinations"
        )
        if self.interval is not None:
            return f"{told} (as interval={self.interval} asks)"
        budget = self.part * self.overhead * 100
        young = f"{YOUNG_SHARE * 100:.2g} % until step {YOUNG}, then " if steps <= YOUNG else ""
        return f"{told} (which may take {young}{budget:.2g} % less the hooks, or half of that)"

    def add(self, seconds: float, *, idle: bool) -> None:
        """Bills time."""
        if idle:
            self.idle_s += seconds
        else:
            self.work_s += seconds

    def due(self, elapsed_s: float) -> bool:
        """Whether the next update is sampled; to be asked once for each update."""
        if self.sampling:
            self._next_sample_s = self.work_s - self._before_sample_s
            self._samples_s += self._next_sample_s
        self._age += 1
        if self._age == YOUNG + 1:
            self._paid_samples_s = self._samples_s
        if not self._wanted(elapsed_s):
            return False
        self._before_sample_s = self.work_s
        self._last = self._age
        self.samples += 1
        return True

    def may_spend(self, elapsed_s: float) -> bool:
        """Whether the bill has room for an examination that can wait: half of it is for samples,
        which for their part leave room for one examination."""
        allowed = self._allowed(elapsed_s)
        mine = self._looks_s + self._next_look_s <= allowed / 2
        return mine and self.work_s + self._next_look_s <= allowed

    def may_hurry(self, elapsed_s: float) -> bool:
        """Whether it has room for one that should not wait.

        A young run borrows what it will be allowed when it comes of age.
        """
        if self.interval is not None:  # whoever fixes the samples has taken leave of the bill
            return True
        allowed = self._allowed(elapsed_s)
        if self._age < YOUNG:
            ahead = YOUNG / max(self._age, 1)
            by_then_s = (elapsed_s - self.billed_s) * ahead + self.billed_s
            share_s = self.part * self.overhead * by_then_s
            allowed = max(share_s - self.idle_s * ahead, self.floor_s * YOUNG)
        return self.work_s + self._next_look_s <= SPARE * allowed

    def looked(self, seconds: float) -> None:
        """Takes what an examination has cost, which was billed already."""
        self._next_look_s = seconds
        self._looks_s += seconds

    def alarm(self) -> bool:
        """Asks for the next updates to be sampled; False if a burst was had lately."""
        if self.samples - self._samples_at_burst < BURST_REST:
            return False
        self._samples_at_burst = self.samples
        self._burst = BURST
        return True

    def changed(self) -> None:
        """The tensors are others now: the next update is sampled, whatever else holds."""
        self.alarm()
        self._changed = True

    def _wanted(self, elapsed_s: float) -> bool:
        if self._changed:
            self._changed = False
            return True
        if self.interval is not None:
            return (self._age - 1) % self.interval == 0
        if self._age >= GROWTH * self._last:
            return True
        if self._burst:
            self._burst -= 1
            return True
        since = self._age - self._last
        if since * (16 if self._age <= YOUNG else 128) < self._age:
            return False
        next_s = self.work_s + self._next_sample_s
        if self._age <= YOUNG and next_s <= self._youth_s(elapsed_s):
            return True
        if next_s + self._next_look_s <= self._share_s(elapsed_s):
            return True
        return self._samples_s - self._paid_samples_s + self._next_sample_s <= self._floor_due_s()

    def _youth_s(self, elapsed_s: float) -> float:
        """What work may cost a young run by now: with what is idle a tenth of its time, and no more
        than leaves it, when it comes of age, with a bill of half that share; two fifths of it
        whatever is idle."""
        share_s = YOUNG_SHARE * self.part * elapsed_s
        left_s = min(share_s - self.idle_s, (share_s / 2 - self.idle_s) * YOUNG / self._age)
        return max(left_s, 0.4 * share_s)

    def _floor_due_s(self) -> float:
        """What samples may have cost in any case: since the run is old where it is, so that what a
        dear youth has cost leaves it no blinder than others."""
        age = self._age if self._age <= YOUNG else self._age - YOUNG
        return self.floor_s * age

    def _share_s(self, elapsed_s: float) -> float:
        """What idle leaves of the share; half of it in any case: hooks that cost more than the
        share are no reason to be blind besides."""
        share_s = self.part * self.overhead * elapsed_s
        return max(share_s - self.idle_s, share_s / 2)

    def _allowed(self, elapsed_s: float) -> float:
        return max(self._share_s(elapsed_s), self.floor_s * self._age)
