"""Verbs about several runs: sweeps, groups, schedules and experiments. Start in `sweep`."""
