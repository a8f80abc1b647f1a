"""The exam of the curve rules: healthy runs by family, faults of known truth, views of logs."""
