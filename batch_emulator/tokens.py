"""Authentication tokens of tasks: random, for the operations on one job, while the task runs.

Kept in memory only: after a crash the tasks that had one run again and get another.
"""

from __future__ import annotations

import hmac
import secrets


class Tokens:
    """The tokens that are valid now."""

    def __init__(self) -> None:
        self._given: dict[str, tuple[str, str]] = {}

    def issue(self, execution: str, job: str) -> str:
        """A token for the task of an execution, good for the job of that key."""
        token = secrets.token_urlsafe(32)
        self._given[execution] = (token, job)
        return token

    def revoke(self, execution: str) -> None:
        """The execution is over."""
        self._given.pop(execution, None)

    def job_of(self, token: str) -> str | None:
        """The key of the job that a token is good for, None for one that is not valid."""
        presented = token.encode()
        for known, job in self._given.values():
            if hmac.compare_digest(known.encode(), presented):
                return job
        return None
