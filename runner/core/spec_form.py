"""Names, sizes and durations in YAML files: schemas for editors, errors for people."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from runner.core.units import (
    DURATION_PATTERN,
    SIZE_PATTERN,
    UnitError,
    parse_duration,
    parse_size,
)


@dataclass(frozen=True, slots=True)
class Form:
    """Beside a `str` in Annotated: `what` it is, which `rule` it follows, and one that does."""

    pattern: str
    what: str
    rule: str
    example: str

    def __get_pydantic_core_schema__(
        self, source: type[Any], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Checked after it is known to be text."""
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """As Field(pattern=...) would write it."""
        return {**handler(schema), "pattern": self.pattern}

    def _checked(self, value: str) -> str:
        # fullmatch: `$` alone lets a newline at the end pass.
        if re.fullmatch(self.pattern, value):
            return value
        context = {
            "problem": f"{value!r} is not {self.what}",
            "why": f"it has {self.rule}",
            "fix": f"write it like {self.example}",
        }
        raise PydanticCustomError("runner", "{problem}", context)


@dataclass(frozen=True, slots=True)
class Amount:
    """Beside an `int` in Annotated: bytes or seconds, with bounds written as people write them."""

    kind: Literal["size", "duration"]
    least: str
    most: str | None = None

    def __get_pydantic_core_schema__(
        self, source: type[Any], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Read text first, then check the bounds of the number."""
        number = core_schema.no_info_before_validator_function(self._parsed, handler(source))
        return core_schema.no_info_after_validator_function(self._checked, number)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return the schema of a number within the bounds, or of a text of the grammar."""
        number = {"type": "integer", "minimum": self._number(self.least)}
        if self.most is not None:
            number["maximum"] = self._number(self.most)
        pattern = SIZE_PATTERN if self.kind == "size" else DURATION_PATTERN
        return {"anyOf": [number, {"type": "string", "pattern": pattern}]}

    def _number(self, text: str) -> int:
        return (
            parse_size(text) if self.kind == "size" else int(parse_duration(text).total_seconds())
        )

    def _parsed(self, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return self._number(value)
        except UnitError as err:
            context = {"problem": err.what, "why": err.why, "fix": err.fix}
            raise PydanticCustomError("runner", "{problem}", context) from err

    def _checked(self, value: int) -> int:
        if value < self._number(self.least):
            problem, fix = f"it is less than {self.least}", f"write {self.least} or more"
        elif self.most is not None and value > self._number(self.most):
            problem, fix = f"it is more than {self.most}", f"write {self.most} or less"
        else:
            return value
        allowed = f"{self.least} or more" if self.most is None else f"{self.least} to {self.most}"
        context = {"problem": problem, "why": f"allowed: {allowed}", "fix": fix}
        raise PydanticCustomError("runner", "{problem}", context)
