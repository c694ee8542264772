"""Loopback addresses of nodes: one of 127.0.0.0/8 each, so that what runs on two nodes can meet.

Linux answers on all of them without set-up; macOS only on 127.0.0.1 until the others are added
to its loopback interface.
"""

from __future__ import annotations

_SIZE = 256 * 254  # 127.N.0.1 to 127.N.253.255, the second number being the emulator's
_FIRST = 2  # 127.0.0.1 is everybody's


class Addresses:
    """Hands out the addresses of one emulator; another on the same machine has another network.

    `network` is 0 to 255, the second number of the addresses.
    """

    def __init__(self, network: int = 0) -> None:
        self._network = network
        self._taken: set[int] = set()
        self._next = _FIRST

    def take(self) -> str:
        """An address that no node has; when all are taken they are given out again."""
        for _ in range(_SIZE):
            number = self._next
            self._next = number + 1 if number + 1 < _SIZE else _FIRST
            if number not in self._taken:
                break
        else:
            number = _FIRST
        self._taken.add(number)
        return f"127.{self._network}.{number >> 8}.{number & 255}"

    def keep(self, address: str) -> None:
        """The address was given out before a restart."""
        self._taken.add(_number(address))

    def free(self, address: str) -> None:
        """The node is gone."""
        self._taken.discard(_number(address))


def _number(address: str) -> int:
    third, fourth = address.split(".")[2:]
    return int(third) * 256 + int(fourth)
