"""Submitted runs: find, list (`history`), watch, explain (`diagnose`) and cancel them.

Start in `documents`, which reads what blob storage has of a run.
"""
