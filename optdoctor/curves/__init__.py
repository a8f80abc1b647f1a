"""Pure functions on series: what several rules and reports ask of a curve, one kind a file."""
