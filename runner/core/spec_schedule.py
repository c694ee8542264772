"""`schedule:` of a file for `runner submit`."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Any, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from runner.core.spec_form import Amount


def _moment(value: object) -> object:
    if not isinstance(value, str | date):
        return value
    try:
        # As text and back: what YAML makes of a time is a class of its own.
        return datetime.fromisoformat(value if isinstance(value, str) else value.isoformat())
    except ValueError as err:
        fix = "write 2026-12-31 or 2026-12-31T06:00+01:00"
        problem = f"{value!r} is not a date or time"
        raise PydanticCustomError("runner", "{problem}", {"problem": problem, "fix": fix}) from err


Moment = Annotated[
    datetime,
    BeforeValidator(_moment, json_schema_input_type=str),
    WithJsonSchema({"type": "string"}),
]
Every = Annotated[int, Amount("duration", "1m", "366d")]


class ScheduleFile(BaseModel):
    """When a run begins again and again."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True,
        json_schema_extra={"oneOf": cast("Any", [{"required": ["cron"]}, {"required": ["every"]}])},
    )  # fmt: skip

    cron: str | None = Field(None, description="Five fields that make an even interval: 0 3 * * *")
    every: Every | None = Field(None, description="Instead of cron: 6h, 1d12h, 90m.")
    timezone: str = Field("UTC", description="Of cron: UTC, Europe/Berlin, UTC+05:30.")
    start: Moment | None = Field(None, description="No run begins before.")
    until: Moment | None = Field(None, description="No run begins later.")
    max_runs: int | None = Field(None, ge=1, description="At most so many runs.")

    @model_validator(mode="after")
    def _one_source(self) -> ScheduleFile:
        if (self.cron is None) == (self.every is None):
            problem = f"a schedule has cron or every, got {'both' if self.cron else 'neither'}"
            fix = 'cron: "0 3 * * *", or every: 6h'
            raise PydanticCustomError("runner", "{problem}", {"problem": problem, "fix": fix})
        return self
