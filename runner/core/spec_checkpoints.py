"""`checkpoints:` of train.yaml, and the rule it becomes."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from runner.core.recipe import CheckpointRule
from runner.core.spec_form import between

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B)?", re.IGNORECASE)
_UNITS = {
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def _refused(problem: str, fix: str) -> PydanticCustomError:
    # The text goes in as data: braces in it must not be read as a template.
    return PydanticCustomError("runner", "{problem}", {"problem": problem, "fix": fix})


def parse_size(value: object) -> object:
    """Bytes from `1073741824`, `"1GiB"` or `"500 MB"`."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if not match:
        raise _refused(f"{value!r} is not a size", "write 500MB, 10GiB or a number of bytes")
    return int(float(match[1]) * _UNITS.get((match[2] or "").lower(), 1))


def _seconds(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(value.strip())
    if not match or not any(match.groups()):
        raise _refused(f"{value!r} is not a duration", "write 30s, 5m, 1h or seconds")
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return (hours * 60 + minutes) * 60 + seconds


class CheckpointsFile(BaseModel):
    """How `$RUNNER_CHECKPOINT_DIR` is committed to blob while the script runs."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    interval: Annotated[
        int,
        BeforeValidator(_seconds),
        AfterValidator(between("1s", 1, "24h", 86400)),
        Field(description="Between two commits: 30s, 5m or seconds."),
        WithJsonSchema({"type": ["integer", "string"]}),
    ] = 60
    keep: int = Field(default=3, ge=1, le=100, description="So many checkpoints stay in blob.")
    max_size: Annotated[
        int,
        BeforeValidator(parse_size),
        AfterValidator(between("1 byte", 1, "8TiB", 1 << 43)),
        Field(description="A larger folder is not committed: 10GiB, 500MB."),
        WithJsonSchema({"type": ["integer", "string"]}),
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
