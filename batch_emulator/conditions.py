"""Conditional headers: If-Match, If-None-Match, If-Modified-Since, If-Unmodified-Since."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum


class Verdict(Enum):
    """What to do with a request; the value is the status, 0 to go on."""

    PROCEED = 0
    NOT_MODIFIED = 304  # no body
    FAILED = 412  # ConditionNotMet
    UNSUPPORTED = 400  # MultipleConditionHeadersNotSupported
    MALFORMED = -400  # InvalidHeaderValue: a date that is none


_MATCH = "if-match"
_NONE_MATCH = "if-none-match"
_MODIFIED = "if-modified-since"
_UNMODIFIED = "if-unmodified-since"
# The two pairs that the service lets through together; the first of a pair decides.
_PAIRS = ({_NONE_MATCH, _MODIFIED}, {_MATCH, _UNMODIFIED})


def check(
    headers: Mapping[str, str], etag: str, last_modified: datetime, *, reading: bool
) -> Verdict:
    """Judge lower-case headers against the entity; `etag` is unquoted as on the wire."""
    given = {n for n in (_MATCH, _NONE_MATCH, _MODIFIED, _UNMODIFIED) if headers.get(n)}
    if not given:
        return Verdict.PROCEED
    if len(given) > 1 and given not in _PAIRS:
        return Verdict.UNSUPPORTED
    unchanged = Verdict.NOT_MODIFIED if reading else Verdict.FAILED
    for name in (_MATCH, _NONE_MATCH):
        if name in given:
            held = _matches(headers[name], etag) == (name == _MATCH)
            return Verdict.PROCEED if held else (Verdict.FAILED if name == _MATCH else unchanged)
    name = next(iter(given))
    moment = _date(headers[name])
    if moment is None:
        return Verdict.MALFORMED
    # Headers know whole seconds only, so the entity's time is compared in whole seconds.
    held = (last_modified.replace(microsecond=0) > moment) == (name == _MODIFIED)
    return Verdict.PROCEED if held else (unchanged if name == _MODIFIED else Verdict.FAILED)


def _matches(header: str, etag: str) -> bool:
    """The SDK quotes entity tags that the service sends bare: both forms are one."""
    if header.strip() == "*":
        return True
    return any(_bare(one) == _bare(etag) for one in header.split(","))


def _bare(tag: str) -> str:
    return tag.strip().removeprefix("W/").strip('"')


def _date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
