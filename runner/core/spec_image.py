"""`image:` of train.yaml: a container image's name."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

# distribution/reference: [domain/]path[:tag][@digest]; a path has lower case only.
_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_NAME = re.compile(
    rf"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\d{{1,5}})?/)?{_PART}(?:/{_PART})*"
    r"(?::\w[\w.-]{0,127})?(?P<digest>@sha256:[0-9a-f]{64})?",
    re.ASCII,
)


def _checked(value: str) -> str:
    if len(value) > 255 or _NAME.fullmatch(value) is None:
        problem = {
            "problem": f"{value!r} is not the name of an image",
            "fix": "write repository:tag or registry.example/repository:tag, in lower case",
        }
        raise PydanticCustomError("runner", "{problem}", problem)
    return value


ImageName = Annotated[str, AfterValidator(_checked), Field(max_length=255)]


def image_digest(name: str) -> str | None:
    """`sha256:…` where the name holds it: a tag alone may mean another image tomorrow."""
    match = _NAME.fullmatch(name)
    return match["digest"][1:] if match and match["digest"] else None
