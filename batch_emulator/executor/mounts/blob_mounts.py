"""Containers mounted on nodes: which are, with whose rights, and when they are brought in step.

By blobfuse2 where it can be used (`blobfuse`), else as a mirror (`mirror`). A node that was begun
with a mirror stays with it: what its tasks wrote may not be in the container yet.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from batch_emulator.executor.layout import NodeLayout
from batch_emulator.executor.mounts import blobfuse
from batch_emulator.executor.mounts.blobfuse import Blobfuse, BlobfuseError
from batch_emulator.executor.mounts.mirror import INCOMING, Mirror
from batch_emulator.executor.transfer.blob_client import (
    BadKeyError,
    BlobClient,
    BlobRequestError,
    LocalWriteError,
    NodeIdentity,
    endpoint_of,
    signer,
)

log = logging.getLogger(__name__)

_READ_ONLY = re.compile(r"(^|\s)(--read-only(=true)?|-o\s*(\S+,)?ro(,\S+)?)(\s|$)")
_PUSH_WITHIN_S = 60.0  # at the end of a task [S]
_LONGEST_KEY = 100
_FAILURES = (BlobRequestError, LocalWriteError, BlobfuseError, OSError)


class ContainerError(Exception):
    """A container cannot be mounted; the message says why, without the key."""


class _Mounted(Protocol):
    async def mount(self) -> None: ...
    def resume(self) -> None: ...
    async def pull(self) -> None: ...
    async def push(self) -> None: ...
    def forget(self) -> None: ...
    async def release(self) -> None: ...


class _Mirrored:
    """A folder that is kept in step with its container."""

    def __init__(self, mirror: Mirror, storage: BlobClient) -> None:
        self._mirror = mirror
        self._storage = storage
        self._following: asyncio.Task[None] | None = None

    async def mount(self) -> None:
        """Returns when all blobs are there."""
        try:
            await self._mirror.pull()
        except BaseException:  # cancelled too
            self.forget()
            await self.release()
            raise
        self.resume()

    def resume(self) -> None:
        """Follow what is there."""
        self._following = asyncio.get_running_loop().create_task(self._mirror.follow())

    async def pull(self) -> None:
        """See what is new in the container."""
        await self._mirror.pull()

    async def push(self) -> None:
        """Tell the container what is new."""
        await self._mirror.push()

    def forget(self) -> None:
        """From now on nothing of the folder reaches the container."""
        self._mirror.closed = True
        if self._following is not None:
            self._following.cancel()

    async def release(self) -> None:
        """Close the connections."""
        await self._storage.close()


class _Fused:
    """A container that blobfuse2 has mounted: it is always in step."""

    def __init__(self, fuse: Blobfuse) -> None:
        self._fuse = fuse
        self._mounting: asyncio.Task[None] | None = None

    async def mount(self) -> None:
        """Returns when it is mounted."""
        await self._fuse.mount()

    def resume(self) -> None:
        """Mount again what the emulator unmounted when it ended or started."""
        self._mounting = asyncio.get_running_loop().create_task(self._fuse.mount())

    async def pull(self) -> None:
        """Tasks wait until it is mounted."""
        if self._mounting is not None:
            await asyncio.shield(self._mounting)

    async def push(self) -> None:
        """Nothing: files are written when they are closed."""

    def forget(self) -> None:
        """An attempt to mount is given up."""
        if self._mounting is not None:
            self._mounting.cancel()

    async def release(self) -> None:
        """Returns when it is unmounted."""
        if self._mounting is not None:
            await asyncio.gather(self._mounting, return_exceptions=True)
        await self._fuse.unmount()


class BlobMounts:
    """The containers of all nodes. `endpoint` is the blob service of the account in its path."""

    def __init__(self, endpoint: str | None, identity: NodeIdentity | None = None) -> None:
        self._endpoint = endpoint
        self._identity = identity
        self._at: dict[Path, dict[str, _Mounted]] = {}
        self._busy: dict[Path, set[asyncio.Task[None]]] = {}

    async def mount(self, layout: NodeLayout, path: str, settings: Mapping[str, Any]) -> None:
        """Mount and keep in step. Raises ContainerError."""
        mounted = self._open(layout, path, settings)
        try:
            await mounted.mount()
        except _FAILURES as err:
            raise ContainerError(f"blobfuse: {_why(err)}") from err
        self._at.setdefault(layout.root, {})[path] = mounted

    def resume(self, layout: NodeLayout, path: str, settings: Mapping[str, Any]) -> None:
        """Go on with a node that was there before the emulator was started."""
        try:
            mounted = self._open(layout, path, settings)
        except ContainerError as err:
            log.warning("%s is not followed: %s", path, err)
            return
        mounted.resume()
        self._at.setdefault(layout.root, {})[path] = mounted

    def _open(self, layout: NodeLayout, path: str, settings: Mapping[str, Any]) -> _Mounted:
        account = str(settings["accountName"])
        key = settings.get("accountKey") or self._key_for_identity(account, settings)
        try:
            sign = signer(account, str(key)) if key else None
        except BadKeyError as err:
            raise ContainerError(f"blobfuse: {err}") from err
        beside, short = layout.root.parent, _key(path)
        known = beside / f"blobfuse-{short}.json"
        options = str(settings.get("blobfuseOptions") or "")
        point = layout.fsmounts / path
        command = None if known.exists() else blobfuse.program()
        sas = str(settings.get("sasKey") or "").removeprefix("?")
        endpoint, name = endpoint_of(account, self._endpoint), str(settings["containerName"])
        if command is not None:
            container = blobfuse.FuseContainer(account, name, endpoint, str(key or ""), sas)
            return _Fused(Blobfuse(command, container, point, beside, short, options))
        url = f"{endpoint}/{quote(name, safe='$')}" + (f"?{sas}" if sas else "")
        storage = BlobClient(sign=sign)
        read_only = _READ_ONLY.search(options) is not None
        return _Mirrored(Mirror(storage, url, point, known, read_only=read_only), storage)

    def _key_for_identity(self, account: str, settings: Mapping[str, Any]) -> str | None:
        if not settings.get("identityReference"):
            return None
        if self._identity is None or self._identity.account != account:
            why = f"the identity has no access to the storage account {account}"
            raise ContainerError(f"blobfuse: the credentials are refused ({why})")
        return self._identity.key

    def any_at(self, root: Path) -> bool:
        """Whether a node has containers."""
        return root in self._at

    async def pull(self, root: Path) -> None:
        """Before a task starts; what cannot be had is not new to it."""
        await self._each(root, lambda mounted: mounted.pull())

    async def push(self, root: Path) -> None:
        """When a task has ended; what cannot be written now is tried again later."""
        await self._each(root, lambda mounted: mounted.push())

    async def _each(
        self, root: Path, work: Callable[[_Mounted], Coroutine[Any, Any, None]]
    ) -> None:
        loop = asyncio.get_running_loop()
        tasks = {loop.create_task(work(mounted)) for mounted in self._at.get(root, {}).values()}
        if not tasks:
            return
        busy = self._busy.setdefault(root, set())
        busy |= tasks
        try:
            await asyncio.wait(tasks, timeout=_PUSH_WITHIN_S)
        finally:
            late = [task for task in tasks if not task.done()]
            for task in late:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            busy -= tasks
            if not busy and self._busy.get(root) is busy:
                del self._busy[root]
        if late:
            log.warning("%d containers below %s do not answer", len(late), root)
        for result in results:
            if isinstance(result, _FAILURES):
                log.warning("a mount below %s is not in step: %s", root, _why(result))
            elif isinstance(result, Exception):
                raise result

    def forget(self, root: Path) -> Callable[[], Awaitable[None]] | None:
        """The node is gone, or boots again: nothing of its folders reaches a container.

        Returns what is left to do before its folders may be deleted, if there is something.
        """
        gone = list(self._at.pop(root, {}).values())
        for mounted in gone:
            mounted.forget()
        self.give_up_waiting(root)
        if not gone:
            return None

        async def release() -> None:
            await asyncio.gather(*(mounted.release() for mounted in gone))

        return release

    def give_up_waiting(self, root: Path) -> None:
        """End what is read and written for the tasks of a node: it may hang, and they are over."""
        for task in self._busy.get(root, ()):
            task.cancel()

    async def close(self) -> None:
        """Stop following; what was not pushed is after the next start."""
        for root in list(self._at):
            release = self.forget(root)
            if release is not None:
                await release()


def forget_leftovers(nodes: Path) -> None:
    """What a crash left behind on the nodes below a folder: mounts, and halves of blobs. Blocks."""
    blobfuse.unmount_leftovers(nodes)
    for half in nodes.glob(f"*/*/{INCOMING}*"):
        half.unlink(missing_ok=True)


def _key(path: str) -> str:
    """A name of a file for a mount path, which may be longer than names of files."""
    quoted = quote(path, safe="")
    return quoted if len(quoted) <= _LONGEST_KEY else hashlib.sha256(path.encode()).hexdigest()


def _why(err: Exception) -> str:
    if isinstance(err, BlobfuseError):
        return str(err)
    if isinstance(err, BlobRequestError):
        said = {"denied": "the credentials are refused", "missing": "there is no such container"}
        return f"{said.get(err.kind, 'the container cannot be read')} ({err.detail})"
    cause = err.cause if isinstance(err, LocalWriteError) else err
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
