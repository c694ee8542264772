"""Containers mounted on nodes: which are, with whose rights, and when they are brought in step."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from batch_emulator.executor.layout import NodeLayout
from batch_emulator.executor.mirror import Mirror
from batch_emulator.executor.shared_key import BadKeyError, signer
from batch_emulator.executor.storage import LocalWriteError, Storage, StorageError

log = logging.getLogger(__name__)

_READ_ONLY = re.compile(r"(^|\s)(--read-only(=true)?|-o\s*(\S+,)?ro(,\S+)?)(\s|$)")
_PUSH_WITHIN_S = 60.0  # at the end of a task [S]


class ContainerError(Exception):
    """A container cannot be mounted; the message says why, without the key."""


@dataclass(slots=True)
class _Mounted:
    mirror: Mirror
    storage: Storage
    following: asyncio.Task[None] | None = None


class BlobMounts:
    """The mirrors of all nodes. `endpoint` is the blob service of the account in its path."""

    def __init__(self, endpoint: str | None) -> None:
        self._endpoint = endpoint.rstrip("/") if endpoint else None
        self._at: dict[Path, dict[str, _Mounted]] = {}

    async def mount(self, layout: NodeLayout, path: str, settings: Mapping[str, Any]) -> None:
        """Fill the folder of a mount and keep it in step. Raises ContainerError."""
        mounted = self._open(layout, path, settings)
        try:
            await mounted.mirror.pull()
        except (StorageError, LocalWriteError, OSError) as err:
            await mounted.storage.close()
            raise ContainerError(f"blobfuse: {_why(err)}") from err
        except asyncio.CancelledError:
            mounted.mirror.closed = True
            await mounted.storage.close()
            raise
        self._follow(layout.root, path, mounted)

    def resume(self, layout: NodeLayout, path: str, settings: Mapping[str, Any]) -> None:
        """Go on with a node that was there before the emulator was started."""
        try:
            self._follow(layout.root, path, self._open(layout, path, settings))
        except ContainerError as err:
            log.warning("%s is not followed: %s", path, err)

    def _open(self, layout: NodeLayout, path: str, settings: Mapping[str, Any]) -> _Mounted:
        account, key = str(settings["accountName"]), settings.get("accountKey")
        try:
            storage = Storage(sign=signer(account, str(key)) if key else None)
        except BadKeyError as err:
            raise ContainerError(f"blobfuse: {err}") from err
        url = self._container_url(account, str(settings["containerName"]))
        if settings.get("sasKey"):
            url = f"{url}?{str(settings['sasKey']).removeprefix('?')}"
        known = layout.root.parent / f"blobfuse-{quote(path, safe='')}.json"
        read_only = _READ_ONLY.search(str(settings.get("blobfuseOptions") or "")) is not None
        folder = layout.fsmounts / path
        return _Mounted(Mirror(storage, url, folder, known, read_only=read_only), storage)

    def _container_url(self, account: str, container: str) -> str:
        """At the endpoint when it is that account's, else in Azure."""
        endpoint = self._endpoint
        if endpoint is None or urlsplit(endpoint).path.strip("/") != account:
            endpoint = f"https://{quote(account, safe='')}.blob.core.windows.net"
        return f"{endpoint}/{quote(container, safe='$')}"

    def _follow(self, root: Path, path: str, mounted: _Mounted) -> None:
        self._at.setdefault(root, {})[path] = mounted
        mounted.following = asyncio.get_running_loop().create_task(mounted.mirror.follow())

    def any_at(self, root: Path) -> bool:
        """Whether a node has containers."""
        return root in self._at

    async def pull(self, root: Path) -> None:
        """Before a task starts; what cannot be had is not new to it."""
        await self._each(root, lambda mirror: mirror.pull())

    async def push(self, root: Path) -> None:
        """When a task has ended; what cannot be written now is tried again later."""
        await self._each(root, lambda mirror: mirror.push())

    async def _each(self, root: Path, work: Callable[[Mirror], Any]) -> None:
        for mounted in list(self._at.get(root, {}).values()):
            try:
                await asyncio.wait_for(work(mounted.mirror), _PUSH_WITHIN_S)
            except (StorageError, LocalWriteError, OSError) as err:
                log.warning("a mount below %s is not in step: %s", root, _why(err))

    def forget(self, root: Path) -> None:
        """The node is gone, or boots again: nothing of its folders reaches a container."""
        for mounted in self._at.pop(root, {}).values():
            mounted.mirror.closed = True
            if mounted.following is not None:
                mounted.following.cancel()

    async def close(self) -> None:
        """Stop following; what was not pushed is after the next start."""
        gone = [mounted for at in self._at.values() for mounted in at.values()]
        for root in list(self._at):
            self.forget(root)
        for mounted in gone:
            await mounted.storage.close()


def _why(err: Exception) -> str:
    if isinstance(err, StorageError):
        said = {"denied": "the credentials are refused", "missing": "there is no such container"}
        return f"{said.get(err.kind, 'the container cannot be read')} ({err.detail})"
    cause = err.cause if isinstance(err, LocalWriteError) else err
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
