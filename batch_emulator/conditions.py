"""Conditional headers: If-Match, If-None-Match, If-Modified-Since, If-Unmodified-Since."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import Enum


class Verdict(Enum):
    """What to do with a request; the value is the status, 0 to go on."""

    PROCEED = 0
    NOT_MODIFIED = 304  # no body
    FAILED = 412  # ConditionNotMet
    UNSUPPORTED = 400  # MultipleConditionHeadersNotSupported
    MALFORMED = -400  # InvalidHeaderValue: a date that is none


def check(
    headers: Mapping[str, str], etag: str, last_modified: datetime, *, reading: bool
) -> Verdict:
    """Judge lower-case headers against the entity; `etag` is unquoted as on the wire."""
    raise NotImplementedError
