"""Decide everything about a run before it is submitted. Start in `plan`."""
