"""Steps of the run in logs that count them within epochs and do not say how long an epoch is."""

from dataclasses import dataclass, field


@dataclass
class EpochClock:
    """Takes the distance between the last row of an epoch and the first of the next as usual."""

    _epoch: int = 0
    _within: int = 0
    _offset: int = 0
    _gap: int = 0
    _begins: dict[int, int] = field(default_factory=dict)  # {epoch: offset of its steps}

    def step(self, epoch: int, within: int) -> int:
        """The step of the run for the step `within` an epoch."""
        if epoch in self._begins:  # goes on, or again from a checkpoint
            self._offset = self._begins[epoch]
        elif self._begins:
            self._offset += self._within + (self._gap or within) - within
        if epoch == self._epoch and within > self._within:
            self._gap = within - self._within
        self._begins[epoch] = self._offset
        self._epoch, self._within = epoch, within
        return self._offset + within
