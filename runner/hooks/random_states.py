"""The states of a process's own random generators: Python's, NumPy's and PyTorch's."""

from __future__ import annotations

import random
import sys
from typing import Any


def random_states() -> dict[str, Any]:
    """Return the present states of Python and of the libraries that are imported."""
    states: dict[str, Any] = {"python": random.getstate()}
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy"] = numpy.random.get_state()
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "get_rng_state"):
        states["torch"] = torch.get_rng_state()
        if torch.cuda.is_available():
            states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def restore_random_states(states: dict[str, Any]) -> None:
    """Set the generators to the states that `random_states` returned."""
    random.setstate(states["python"])
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and "numpy" in states:
        numpy.random.set_state(states["numpy"])
    torch: Any = sys.modules.get("torch")
    if "torch" not in states or not hasattr(torch, "set_rng_state"):
        return
    torch.set_rng_state(states["torch"])
    cuda: list[Any] = states.get("cuda", [])
    if torch.cuda.is_available() and len(cuda) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(cuda)
