"""Several runs as one: follow and cancel groups, compare the trials of sweeps, move their jobs.

Start in `groups`, which reads the states of the runs of a group.
"""
