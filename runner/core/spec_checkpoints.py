"""`checkpoints:` of train.yaml, and the rule it becomes."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from runner.core.recipe import CheckpointRule
from runner.core.spec_form import Amount


def _refused(problem: str, fix: str) -> PydanticCustomError:
    # The text goes in as data: braces in it must not be read as a template.
    return PydanticCustomError("runner", "{problem}", {"problem": problem, "fix": fix})


class CheckpointsFile(BaseModel):
    """How `$RUNNER_CHECKPOINT_DIR` is committed to blob while the script runs."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    interval: Annotated[
        int,
        Amount("duration", "1s", "24h"),
        Field(description="Between two commits: 30s, 5m, 1h or seconds."),
    ] = 60
    keep: int = Field(default=3, ge=1, le=100, description="So many checkpoints stay in blob.")
    max_size: Annotated[
        int,
        Amount("size", "1B", "8TiB"),
        Field(description="A larger folder is not committed: 10GiB, 500MB."),
    ] = 10 << 30


def _switched(value: object) -> object:
    if value is None:
        raise _refused("nothing is said after `checkpoints:`", "write false, or interval: 60s")
    if isinstance(value, str) and value.lower() in ("no", "off", "n", "none", "never"):
        raise _refused(f"YAML 1.2 reads {value} as text", "write false")
    if isinstance(value, str) and value.lower() in ("yes", "on", "y"):
        raise _refused(f"YAML 1.2 reads {value} as text", "write true, or leave the key out")
    return {} if value is True else (None if value is False else value)


# `false` switches checkpoints off and becomes None, `true` is as without the key.
Checkpoints = Annotated[
    CheckpointsFile | None,
    BeforeValidator(_switched, json_schema_input_type=CheckpointsFile | bool),
]


def to_rule(parsed: CheckpointsFile | None) -> CheckpointRule | None:
    """The rule of a recipe; None is none."""
    if parsed is None:
        return None
    return CheckpointRule(parsed.interval, parsed.keep, parsed.max_size)
