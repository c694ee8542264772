"""Simulate weeks of a pool in seconds, check and apply autoscale formulas, compare their costs.

It needs no extra, and an account only for pools that are named. Start in `engine.py`, which drives
`tasks.py` and `pool.py`; `scenario.py` is its input, `result.py` its output, `verbs/` the commands.
"""

VERBS = {
    "pool autoscale": ("verbs.autoscale", "app", "rm"),
    "cost whatif": ("verbs.whatif", "whatif", "show"),
}
