"""How each optimizer is built for the probe contract: one file a family, as in the package."""
