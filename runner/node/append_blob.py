"""One append blob with one writer: what is retried is never written twice."""

from __future__ import annotations

from runner.node.blobs import Container
from runner.node.transport import StorageError

# Largest block of the API version in use, and the most blocks an append blob takes
# (storage REST docs, "Append Block").
MAX_APPEND_BYTES = 4 * 1024 * 1024
MAX_BLOCKS = 50_000
# The last blocks are kept for the final flush.
RESERVED_BLOCKS = 100

QUICK_S = 0.1
QUICK_BLOCKS = 2_000
STEADY_S = 0.3
STEADY_BLOCKS = 25_000
BLOCKS_PER_DOUBLING = 1_800


def append_interval_s(blocks: int) -> float:
    """How long to wait between two appends when `blocks` blocks are used already.

    Quick at first; after two hours of constant output the interval doubles every 1,800 blocks, so
    that a task of 120 days that never stops printing stays below 50,000 blocks.
    """
    if blocks < QUICK_BLOCKS:
        return QUICK_S
    if blocks < STEADY_BLOCKS:
        return STEADY_S
    return STEADY_S * 2 ** ((blocks - STEADY_BLOCKS) / BLOCKS_PER_DOUBLING)


class BlobShrankError(Exception):
    """Storage lost bytes that it had acknowledged: they are to be sent again."""

    def __init__(self, name: str, lost_bytes: int) -> None:
        super().__init__(f"storage lost the last {lost_bytes} bytes of {name}")
        self.lost_bytes = lost_bytes


class AppendBlob:
    """Appends bytes behind what is there. Not for concurrent use by several threads."""

    def __init__(self, container: Container, name: str) -> None:
        self._container = container
        self.name = name
        self.position = 0
        self.blocks = 0

    def open(self) -> None:
        """Create the blob, or continue behind what an earlier attempt wrote."""
        if not self._container.create_append(self.name):
            self._refresh()

    @property
    def is_full(self) -> bool:
        """Whether only the blocks of the final flush are left."""
        return self.blocks >= MAX_BLOCKS - RESERVED_BLOCKS

    @property
    def is_at_end(self) -> bool:
        """Whether one block is left."""
        return self.blocks >= MAX_BLOCKS - 1

    def append(self, data: bytes) -> None:
        """Append at most 4 MiB, exactly once. Raises StorageError, BlobShrankError."""
        if len(data) > MAX_APPEND_BYTES:
            raise ValueError(f"{len(data)} bytes do not fit into one block")
        while not self._container.append(self.name, data, self.position):
            before = self.position
            self.check()
            if self._already_there(before, data):
                return
        self.position += len(data)
        self.blocks += 1

    def check(self) -> None:
        """Raise BlobShrankError when less is there than was written."""
        before = self.position
        self._refresh()
        if self.position < before:
            raise BlobShrankError(self.name, before - self.position)

    def _already_there(self, before: int, data: bytes) -> bool:
        """Whether a try whose answer was lost did write the data at `before`."""
        if self.position < before + len(data):
            return False
        return self._container.get_range(self.name, before, len(data)) == data

    def _refresh(self) -> None:
        found = self._container.head(self.name)
        if found is None:
            self._container.create_append(self.name)
            found = self._container.head(self.name)
        if found is None:
            raise StorageError(404, "BlobNotFound", f"append {self.name}: it cannot be created")
        self.position, self.blocks = found.size_bytes, found.blocks
