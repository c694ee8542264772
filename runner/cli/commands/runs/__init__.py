"""Verbs about runs: submit, watch, inspect, repeat and export them. Start in `train`."""
