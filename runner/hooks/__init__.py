"""Checkpoints for training scripts: `runner.hooks.keras`, `runner.hooks.torch`, or two functions.

Imports only the standard library: the node adds this package alone to the script's PYTHONPATH.
"""

from runner.hooks.state import load_state, save_state

__all__ = ["load_state", "save_state"]
