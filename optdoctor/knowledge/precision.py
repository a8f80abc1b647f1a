"""Number formats of weights and optimizer state, from their bits."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format (IEEE 754 layout)."""

    exponent_bits: int
    mantissa_bits: int

    @property
    def smallest(self) -> float:
        """The smallest number above 0, subnormal."""
        bias = 2 ** (self.exponent_bits - 1) - 1
        return math.ldexp(1.0, 1 - bias - self.mantissa_bits)

    @property
    def step(self) -> float:
        """Distance from 1 to the next number above it."""
        return math.ldexp(1.0, -self.mantissa_bits)


FORMATS = {
    "float16": Format(5, 10),
    "bfloat16": Format(8, 7),
    "float32": Format(8, 23),
    "float64": Format(11, 52),
}


def round_to(value: float, dtype: str) -> float | None:
    """`value` (finite) rounded to nearest even, overflow ignored; None for an unknown dtype."""
    if dtype not in FORMATS:
        return None
    form = FORMATS[dtype]
    if value == 0:
        return 0.0
    _, exponent = math.frexp(abs(value))
    spacing = max(math.ldexp(form.step, exponent - 1), form.smallest)
    return math.copysign(round(abs(value) / spacing) * spacing, value)


def short(value: float) -> str:
    """A number as people write it in code: "1e-4", not "0.0001" or "1e-04"."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:g}"
    mantissa, _, exponent = f"{value:e}".partition("e")
    return f"{float(mantissa):g}e{int(exponent)}"


def least_precise(dtypes: list[str]) -> str | None:
    """The dtype with the shortest range, ties to the coarser one; None if there is none."""
    known = [d for d in dtypes if d in FORMATS]
    if not known:
        return dtypes[0] if dtypes else None
    return max(known, key=lambda d: (FORMATS[d].smallest, FORMATS[d].step))
