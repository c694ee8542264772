"""What several runs of one submission take from the same place is read once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class Once:
    """Keeps what was read, by what it was read from, for as long as one submission lasts."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Any] = {}

    def __call__(self, source: Hashable, read: Callable[[], T]) -> T:
        """What `read` gave for this source; a read that fails is not kept."""
        if source not in self._kept:
            self._kept[source] = read()
        return self._kept[source]
