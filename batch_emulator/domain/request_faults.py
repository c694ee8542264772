"""Planned faults: errors and delays that the next requests of an operation get.

Programs that use Batch meet busy services and slow answers rarely, and then all at once. A test
plans them here, with the admin API.
"""

from __future__ import annotations

from dataclasses import dataclass

from batch_emulator.domain.faults import FAULTS, Fault

EVERY_OPERATION = "*"
MOST_PLANNED = 100
LONGEST_DELAY_S = 300.0
MOST_REQUESTS = 1_000_000
_LEAST_ERROR = 400
_MOST_ERROR = 599


@dataclass(slots=True)
class PlannedFault:
    """What the next `left` requests of an operation get: a delay, then an error if `code` is set.

    Attributes:
        operation: A name of the service's description, such as `Task_Add`, or `*` for each.
        code: An error code of the service; empty if the request is only delayed.
        status: The status of the answer; that of the code if None.
        delay_s: Seconds of this machine before the answer.
        retry_after_s: The value of `Retry-After`, without which the header is absent.
    """

    operation: str
    code: str
    left: int
    status: int | None = None
    delay_s: float = 0.0
    retry_after_s: float | None = None

    def fault(self) -> Fault | None:
        """Return the error of the answer, or None if the request is only delayed."""
        if not self.code:
            return None
        reason = {"Reason": "a planned fault of the admin API"}
        return Fault(self.code, reason, status=self.status, retry_after_s=self.retry_after_s)

    def document(self) -> dict[str, object]:
        """Return the planned fault as JSON shows it."""
        document: dict[str, object] = {"operation": self.operation, "count": self.left}
        if self.code:
            known, _ = FAULTS.get(self.code, (_LEAST_ERROR, ""))
            document |= {"code": self.code, "status": self.status or known}
        if self.delay_s:
            document["delaySeconds"] = self.delay_s
        if self.retry_after_s is not None:
            document["retryAfterSeconds"] = self.retry_after_s
        return document


class RequestFaults:
    """The planned faults of one emulator. They are not stored: a restart forgets them."""

    def __init__(self) -> None:
        self._planned: list[PlannedFault] = []

    def add(self, planned: PlannedFault) -> None:
        """Plan a fault after those that are planned already."""
        self._planned.append(planned)

    def clear(self) -> None:
        """Forget all planned faults."""
        self._planned.clear()

    @property
    def planned(self) -> tuple[PlannedFault, ...]:
        """Return the planned faults with requests left, in order."""
        return tuple(self._planned)

    def take(self, operation: str) -> PlannedFault | None:
        """Return the first fault that is planned for an operation, counted, or None."""
        for planned in self._planned:
            if planned.operation in (operation, EVERY_OPERATION):
                planned.left -= 1
                if planned.left <= 0:
                    self._planned.remove(planned)
                return planned
        return None


def is_error_status(status: object) -> bool:
    """Return True for a status that an error answer can have."""
    return type(status) is int and _LEAST_ERROR <= status <= _MOST_ERROR
