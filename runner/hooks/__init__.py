"""What a training script uses to continue where it stopped: `runner.hooks.keras`, `.torch`, or
the two functions below.

Standard library only, and nothing else of runner: the node puts this package, alone, on the
script's PYTHONPATH.
"""

from runner.hooks.state import load_state, save_state

__all__ = ["load_state", "save_state"]
