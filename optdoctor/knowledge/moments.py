"""Ways to hold a second moment that say something else than one square for each weight."""

UNCOUNTED = {
    "quantized": "in fewer bits, rounded by blocks: a zero there is no underflow of its dtype",
    "factored": "as rows and columns: it has no entry for each weight that could be counted",
}
"""{form: why its entries are not judged}. Healthy small runs had up to 4.8 % zeros in 8 bits."""
ROOTED = "as sizes, not as squares: they vanish at gradients that are zero themselves"
AVERAGING = frozenset({"adam", "ademamix", "lamb", "nadam", "radam"})
"""Families whose second moment is the running mean of the squared gradients, corrected for its
start, and divides the update by its root."""
PROJECTED = "projected"
"""Squares of gradients in another basis: judged as they are, their number is not known."""


def why_uncounted(form: object) -> str:
    """Why entries of a moment of this form are not judged; "" where they are."""
    return f"second moments are held {UNCOUNTED[str(form)]}" if form in UNCOUNTED else ""
