"""What processes used: measured by the executor, summed over attempts, tasks and nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Usage:
    """Time in seconds, of one attempt or of many together; operations are system calls."""

    user_s: float = 0.0
    kernel_s: float = 0.0
    wall_s: float = 0.0
    read_ops: int = 0
    write_ops: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    peak_bytes: int = 0  # the most memory that one process had

    def add(self, other: Usage) -> None:
        """Count another one in."""
        self.user_s += other.user_s
        self.kernel_s += other.kernel_s
        self.wall_s += other.wall_s
        self.read_ops += other.read_ops
        self.write_ops += other.write_ops
        self.read_bytes += other.read_bytes
        self.write_bytes += other.write_bytes
        self.peak_bytes = max(self.peak_bytes, other.peak_bytes)

    def record(self) -> list[Any]:
        """As it lies on disk."""
        times = (self.user_s, self.kernel_s, self.wall_s)  # astuple copies deeply: 10 us a task
        counts = (self.read_ops, self.write_ops, self.read_bytes, self.write_bytes, self.peak_bytes)
        return [*(round(seconds, 6) for seconds in times), *counts]


def usage_from(record: list[Any] | None) -> Usage | None:
    """What `record` wrote."""
    return None if record is None else Usage(*record)
