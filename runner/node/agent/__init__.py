"""The life of a task: the stages of an attempt, on the primary and on workers, and its outcome.

Start in `main`.
"""
