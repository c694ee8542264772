"""Metrics in files that tools write beside a script: start reading in `watch.py`.

`formats.py` has the table of formats; each format has a reader, which is found by what is in a file
and returns the values that are new since it was asked before.
"""
