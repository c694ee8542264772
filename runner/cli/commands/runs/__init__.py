"""Verbs about one run: submit, watch, inspect, repeat and export it. Start in `train`."""
