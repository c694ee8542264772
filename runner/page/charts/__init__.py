"""Charts as SVG from the server: they need no script, print well, and have no inline style.

`axes.py` has what all share: scales, ticks, colours. Each other module draws one kind.
"""
