"""Measure what the script uses of its node, and end a script whose devices are idle.

Start reading in `watch.py`, the thread, which `sampler.py` does the work for.
"""
