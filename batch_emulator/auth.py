"""Shared key authentication of the Batch service: signature and date of every request."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime


class AuthFault(Exception):
    """The request is not authenticated. `detail` says why, for the error body's values."""

    def __init__(self, code: str, message: str, detail: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.detail = detail


def verify(  # noqa: PLR0913 - a request is made of this much
    method: str,
    raw_path: str,
    raw_query: str,
    headers: Mapping[str, str],
    account: str,
    key: str,
    now: datetime,
) -> None:
    """Check signature and date; header names are lower-case, `key` is base64, `now` aware UTC.

    Raises AuthFault (answered 403).
    """
    raise NotImplementedError
