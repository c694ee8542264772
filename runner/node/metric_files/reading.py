"""What all readers of metric files share: found values, growing files, and histories."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

READ_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 20  # longer lines end the reading of a file
_TAIL_BYTES = 64  # compared to find out whether a file still has its earlier content


class FoundValue(NamedTuple):
    """A value of a metric, as a file names it; `step` is None if the file has none."""

    name: str
    value: float
    step: int | None


class FileReader(ABC):
    """Reads one file that grows or is replaced."""

    @abstractmethod
    def read(self) -> Iterator[FoundValue]:
        """Yield the values that are new since the last call.

        Raises:
            OSError: the file cannot be read now.
            ValueError: the content is damaged; the file is not read again.
        """

    def finish(self) -> Iterator[FoundValue]:
        """Yield the values that are only known when the script has ended."""
        return iter(())


class SeenValues:
    """The values of a file that is written anew, or of several copies of it.

    Files such as `trainer_state.json` contain all earlier values again. Values are new if they
    follow those that were read before; if those differ, all values of the part are new.
    """

    def __init__(self) -> None:
        self._seen: dict[str, list[int]] = {}  # hashes of the values, by name
        self._read: dict[str, int] = {}  # number of values that were read of the present copy

    def new_values(self, found: Mapping[str, Sequence[FoundValue]]) -> Iterator[FoundValue]:
        """Yield the new values of another copy; `found` has its values, or the first, by name."""
        self._read.clear()
        yield from self.following_values(found)

    def following_values(self, found: Mapping[str, Sequence[FoundValue]]) -> Iterator[FoundValue]:
        """Yield the new values of the next part of the copy."""
        for name, values in found.items():
            hashes = [_hash(each) for each in values]
            seen, begin = self._seen.setdefault(name, []), self._read.get(name, 0)
            known = seen[begin : begin + len(hashes)]
            self._read[name] = begin + len(hashes)
            if known == hashes:
                continue  # perhaps from a later copy
            start = len(known) if hashes[: len(known)] == known else 0
            seen[begin:] = hashes
            yield from values[start:]


def _hash(found: FoundValue) -> int:
    return hash((found.step, repr(found.value)))  # NaN is not equal to itself


class GrowingText:
    """Reads the complete lines of a text file that grows, or is written anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0  # the end of the last complete line
        self._head = b""
        self._tail = b""  # the last bytes before the offset

    def read_lines(self) -> tuple[bool, list[bytes]]:
        """Return the lines that are new, and True if they are all lines of the file.

        Raise OSError, or ValueError for a line that is too long.
        """
        with self.path.open("rb") as file:
            is_whole = not self._offset or not self._is_continued(file)
            start = 0 if is_whole else self._offset
            file.seek(start)
            data = file.read(READ_BYTES)
            end = data.rfind(b"\n") + 1
            if not end:
                if len(data) >= MAX_LINE_BYTES:
                    raise ValueError(f"a line is longer than {MAX_LINE_BYTES} bytes")
                return False, []
            data = data[:end]
        self._offset = start + end
        if is_whole:
            self._head = data[: data.find(b"\n") + 1]
        self._tail = (b"" if is_whole else self._tail) + data[-_TAIL_BYTES:]
        self._tail = self._tail[-_TAIL_BYTES:]
        return is_whole, data.splitlines()

    def _is_continued(self, file: BinaryIO) -> bool:
        """Return True if the file still has the beginning and the end that were read."""
        if file.read(len(self._head)) != self._head:
            return False
        file.seek(self._offset - len(self._tail))
        return file.read(len(self._tail)) == self._tail
