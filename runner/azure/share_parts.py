"""Files on their way to a share: what a killed command leaves is in nobody's listing, nor for ever.

They lie in a folder of their own, because any name beside the files could be the name of a file.
"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from threading import Lock
from uuid import uuid4

from azure.core.exceptions import HttpResponseError, ResourceExistsError
from azure.storage.fileshare import FileProperties, ShareClient, ShareFileClient

from runner.core.stored_paths import SHARE_PARTS

# Whoever is alive has written to its part since: blocks of a few MiB follow each other.
_ABANDONED = timedelta(days=1)
_SECONDS = len("2026-11-21T22:30:00")  # a listing's times are text, in UTC to 100 ns


class ShareParts:
    """Safe to use from several threads."""

    def __init__(self, client: ShareClient) -> None:
        self._client = client
        self._lock = Lock()
        self._is_ready = False

    def new(self) -> ShareFileClient:
        """A file that nobody else writes to; it is not there yet."""
        with self._lock:
            if not self._is_ready:
                self._make_ready()
                self._is_ready = True
        return self._client.get_file_client(f"{SHARE_PARTS}/{uuid4().hex}")

    def _make_ready(self) -> None:
        folder = self._client.get_directory_client(SHARE_PARTS)
        with contextlib.suppress(ResourceExistsError):
            folder.create_directory()
            return
        before = (datetime.now(UTC) - _ABANDONED).isoformat()[:_SECONDS]
        for part in folder.list_directories_and_files(include=["timestamps"]):
            written = part.last_write_time if isinstance(part, FileProperties) else None
            if written and str(written)[:_SECONDS] < before:
                with contextlib.suppress(HttpResponseError):
                    folder.delete_file(str(part.name))
