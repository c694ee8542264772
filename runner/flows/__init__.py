"""Use cases: the work of each command, as data. Start in `submit/`, then `runs/watch`."""
