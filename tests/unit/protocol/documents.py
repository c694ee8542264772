"""The documents that client and agent write to blob storage, as files in tests/golden/protocol.

Newer versions of runner read runs of older ones, and client and agent may have different versions.
These bytes therefore change only together with docs/run-format.md. After such a change, write the
files again, and check the difference:

    python -m tests.unit.protocol.documents
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from unittest.mock import patch

from tests.unit.node.fake_blob import CONTAINER, FakeBlobs, serve_fake_blobs
from tests.unit.protocol import agents_documents, clients_documents

GOLDEN = Path(__file__).parents[2] / "golden" / "protocol"
OLD = "old-"  # prefix of documents that only older versions wrote
NOW = datetime(2026, 11, 21, 15, 31, 17, 784871, tzinfo=UTC)
ATTEMPTED = "cats-20261122-143005-eeee"  # ID of the run that the agent executes


class _Fixed(datetime):
    """A `datetime` whose `now` is always NOW."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # pyright: ignore[reportIncompatibleMethodOverride]
        return NOW.astimezone(tz)


@contextmanager
def _fixed_time() -> Generator[None]:
    """Give every module of the product the same time during the block."""
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("runner.") and getattr(module, "datetime", None) is datetime:
                stack.enter_context(patch.object(module, "datetime", _Fixed))
        yield


def render() -> dict[str, bytes]:
    """Return the bytes of every document by the name of its golden file."""
    with (
        tempfile.TemporaryDirectory() as folder,
        serve_fake_blobs() as service,
        _fixed_time(),
    ):

        def metadata(blob: str) -> bytes:
            return _metadata(service, blob)

        written = clients_documents.render(Path(folder), service, metadata)
        written |= agents_documents.render(Path(folder), service, ATTEMPTED, metadata)
        written |= clients_documents.remove_model(service, metadata)
        address = service.url.removesuffix(CONTAINER).encode()
        return {name: body.replace(address, b"http://here") for name, body in written.items()}


def _metadata(service: FakeBlobs, blob: str) -> bytes:
    """Return the metadata of the last write of a blob, one `name=value` per line."""
    written = [
        {name.lower(): value for name, value in headers.items()}
        for method, path, headers in service.requests
        if method == "PUT" and path.partition("?")[0] == f"{CONTAINER}/{blob}"
    ]
    lines = [
        f"{name}={value}\n"
        for name, value in sorted(written[-1].items())
        if name.startswith("x-ms-meta-")
    ]
    return "".join(lines).encode()


def main() -> None:
    """Write all golden files."""
    GOLDEN.mkdir(parents=True, exist_ok=True)
    written = render()
    for file in GOLDEN.iterdir():
        if file.name not in written and not file.name.startswith(OLD):
            file.unlink()
    for name, body in written.items():
        (GOLDEN / name).write_bytes(body)


if __name__ == "__main__":
    main()
