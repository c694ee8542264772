"""A text of one form in a YAML file: a pattern for editors, and words for people."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


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


def between(least: str, low: int, most: str, high: int) -> Callable[[int], int]:
    """For AfterValidator of a number that is written with a unit: the bounds as people say them."""

    def check(value: int) -> int:
        if low <= value <= high:
            return value
        problem, fix = f"it is less than {least}", f"write {least} or more"
        if value > high:
            problem, fix = f"it is more than {most}", f"write {most} or less"
        context = {"problem": problem, "why": f"allowed: {least} to {most}", "fix": fix}
        raise PydanticCustomError("runner", "{problem}", context)

    return check
