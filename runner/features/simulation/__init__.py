"""Simulate weeks of a pool in seconds, check and apply autoscale formulas, compare their costs.

It needs the emulator's formula language, which the distribution of `batch-emulator` has, and an
account only for the pools that are named. Start in `engine.py`; `scenario.py` is its input,
`result.py` its output, `verbs/` the commands.
"""

VERBS = {
    "pool autoscale": ("verbs.autoscale", "app", "rm"),
    "cost whatif": ("verbs.whatif", "whatif", "show"),
}
