"""One module for each kind of page; each has functions that take a `PageRequest` and return a
`PageView`. Start reading in `pools.py`.
"""
