"""Checkpoints for training scripts: `runner.hooks.keras`, `runner.hooks.torch`, or two functions.

This package only imports the standard library, because the node adds no other package of runner to
the script's PYTHONPATH.
"""

from runner.hooks.state import load_state, save_state

__all__ = ["load_state", "save_state"]
