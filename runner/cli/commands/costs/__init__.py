"""Verbs about the costs of runs. Start in `cost`."""
