"""What to do about a loss that comes back with a period."""

from optdoctor.findings import Safety, Treatment, When


def _do(title: str, when: When, source: str, safety: Safety = "manual") -> Treatment:
    return Treatment(title=title, when=when, safety=safety, basis="heuristic", source=source)


CLIP = _do(
    "Clip the gradient at 1.5 times the running mean of its norm",
    "now",
    "it bounds the step of a batch that stands out and leaves all others as they are",
    "risky",
)
SHUFFLE = _do("Shuffle the training data anew in each epoch", "next", "an order that comes back")
OTHER_ORDER = _do(
    "Train one epoch with another seed of the shuffle: if the jumps move, the data make them",
    "check",
    "only the order of the data differs",
)
COMPARE = _do(
    "Compare the period with the length of the epoch and with the distance of evaluations,"
    " checkpoints, changes of the rate and copies to a target network",
    "check",
    "what has the same period is where to look",
)
COMPARE_REST = _do(
    "Compare the period with the distance of evaluations, checkpoints, changes of the rate and"
    " copies to a target network",
    "check",
    "what has the same period is where to look",
)


def take_out(step: int) -> Treatment:
    """Of a learning rate that leaps."""
    title = f"Take the jumps out of the schedule: the learning rate leaps at step {step}"
    return _do(title, "next", "the loss jumps where the rate does")


def look_at(steps: list[int]) -> Treatment:
    """The batches of the first jumps."""
    at = ", ".join(str(step) for step in steps[:3])
    return _do(f"Look at the batches of steps {at}", "next", "what comes back is in the data")
