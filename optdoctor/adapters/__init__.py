"""One callback for each framework."""
