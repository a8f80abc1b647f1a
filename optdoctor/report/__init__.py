"""Forms of a diagnosis: each module here turns one into a string."""
