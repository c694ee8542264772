"""Measure a pool against the criteria of Microsoft's capacity guide, and write a one-page report.

It needs no extra. Start in `measure.py`; `criteria.py` decides what passes.
"""

VERBS = {"qualify": ("verbs", "qualify", "image")}
