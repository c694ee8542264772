"""Use cases: what a command does, as data. Start in `submit/`, then `runs/watch`."""
