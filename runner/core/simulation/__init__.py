"""Simulate weeks of a pool in seconds: queue, formula, evictions, cost. Start in `engine`."""
