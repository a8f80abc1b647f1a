"""Watching a run while it trains. Nothing here changes a weight, a gradient, a state or a seed."""
