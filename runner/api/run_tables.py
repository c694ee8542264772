"""What a notebook shows of the attempts and checkpoints of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.core.units import format_duration, format_size

if TYPE_CHECKING:
    from runner.flows.attempts import AttemptRow
    from runner.flows.checkpoints import Checkpoint


def attempt_cells(attempt: AttemptRow) -> dict[str, object]:
    """One attempt."""
    return {
        "attempt": attempt.attempt,
        "state": attempt.why,
        "node": attempt.node,
        "spot": attempt.spot,
        "started": attempt.started,
        "took": "" if attempt.took_s is None else format_duration(attempt.took_s),
        "exit code": attempt.exit_code,
    }


def checkpoint_cells(checkpoint: Checkpoint) -> dict[str, object]:
    """One checkpoint."""
    return {
        "checkpoint": checkpoint.number,
        "attempt": checkpoint.attempt,
        "step": checkpoint.step,
        "time": checkpoint.time,
        "files": len(checkpoint.files),
        "size": format_size(checkpoint.size_bytes),
    }
