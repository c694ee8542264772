"""StackOutputs from the cached stack export, or from the running local services."""

from __future__ import annotations

from pathlib import Path

from runner.contract import StackOutputs
from runner.core.settings import Settings


def outputs_path(settings: Settings) -> Path:
    """The file that describes the target: written by `runner local up`, or cached from Pulumi."""
    raise NotImplementedError


def load_outputs(settings: Settings) -> StackOutputs:
    """Read what is known of the target. Raises RunnerError when there is nothing, or it is wrong."""
    raise NotImplementedError
