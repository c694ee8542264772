"""Blob containers mounted on nodes: by blobfuse2 if FUSE can be used, else as a mirror (`mirror`).

A node that began with a mirror keeps it, because files that tasks wrote may not be in the container
yet. Command line options of blobfuse2 outrank its configuration file, and of repeated options the
last one counts, so the emulator's folders for cache and log come after the `blobfuseOptions` of the
pool. The key is only in a file of mode 0600. After a crash, the next start finds mounts by it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from batch_emulator.executor.blob_client import (
    BadKeyError,
    BlobClient,
    BlobRequestError,
    LocalWriteError,
    NodeIdentity,
    endpoint_of,
    signer,
)
from batch_emulator.executor.layout import NodeLayout
from batch_emulator.executor.mirror import INCOMING, Mirror
from batch_emulator.folders import Owner

log = logging.getLogger(__name__)

FUSE = Path("/dev/fuse")
_MOUNTINFO = Path("/proc/self/mountinfo")
_PREFIX = "blobfuse2-"
_MOUNT_WITHIN_S = 60.0
_UNMOUNT_WITHIN_S = 30.0
_OUTPUT_BYTES = 500
Json = dict[str, Any]


class BlobfuseError(Exception):
    """blobfuse2 failed to mount; the message is its output without secrets."""


def blobfuse_program() -> str | None:
    """Return the path of blobfuse2, or None if it cannot be used."""
    usable = os.access(FUSE, os.R_OK | os.W_OK)
    return shutil.which("blobfuse2") if usable else None


@dataclass(frozen=True, slots=True)
class FuseContainer:
    """A container to mount; `endpoint` is the blob service of the account."""

    account: str
    name: str
    endpoint: str
    key: str
    sas: str

    def config(self, cache: Path) -> Json:
        """Return the configuration of blobfuse2 as JSON, which is valid YAML."""
        secret = {"mode": "key", "account-key": self.key} if self.key else {}
        return {
            "components": ["libfuse", "file_cache", "attr_cache", "azstorage"],
            "file_cache": {"path": str(cache)},
            "azstorage": {
                "type": "block",
                "account-name": self.account,
                "container": self.name,
                "endpoint": self.endpoint,
                "use-http": self.endpoint.startswith("http:"),
                **(secret or {"mode": "sas", "sas": self.sas}),
            },
        }


class Blobfuse:
    """One container on one node. Its own files are in `beside`, where tasks do not see them."""

    def __init__(
        self,
        command: str,
        container: FuseContainer,
        point: Path,
        beside: Path,
        key: str,
        options: str,
    ) -> None:
        self._command = command
        self._container = container
        self._point = point
        self._options = options
        self._config = beside / f"{_PREFIX}{key}.yaml"
        self._cache = beside / f"{_PREFIX}{key}.cache"
        self._log = beside / f"{_PREFIX}{key}.log"
        self._mounting: asyncio.Task[None] | None = None

    async def mount(self) -> None:
        """Mount, and return when the files are visible. Raises BlobfuseError and OSError."""
        arguments = self._arguments()
        self._prepare()
        with self._log.open("ab") as said:  # a pipe would stay open as long as the daemon lives
            process = await asyncio.create_subprocess_exec(
                self._command,
                *arguments,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        try:
            code = await asyncio.wait_for(process.wait(), _MOUNT_WITHIN_S)
        except BaseException as err:  # also if cancelled: an incomplete mount must not stay
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            await self._unmount()
            if isinstance(err, TimeoutError):
                raise BlobfuseError(f"no answer within {_MOUNT_WITHIN_S:g} s") from err
            raise
        if code != 0:
            self._config.unlink()
            raise BlobfuseError(self._output() or f"exit code {code}")

    def _arguments(self) -> list[str]:
        try:
            options = shlex.split(self._options)
        except ValueError as err:
            raise BlobfuseError(f"blobfuseOptions cannot be read: {err}") from err
        if "--" in options:
            raise BlobfuseError("blobfuseOptions: '--' is not an option")
        return [
            "mount",
            str(self._point),
            *options,
            f"--config-file={self._config}",
            f"--tmp-path={self._cache}",
            "--log-type=base",
            f"--log-file-path={self._log}",
        ]

    def _prepare(self) -> None:
        shutil.rmtree(self._cache, ignore_errors=True)  # blobfuse2 needs an empty one
        self._cache.mkdir(mode=0o700)
        for path in (self._config, self._log):
            path.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(self._config, flags, 0o600), "w") as file:
            file.write(f"# {json.dumps(str(self._point))}\n")
            json.dump(self._container.config(self._cache), file)

    def _output(self) -> str:
        text = self._log.read_text(errors="replace")[-_OUTPUT_BYTES:]
        for secret in (self._container.key, self._container.sas):
            if secret:
                text = text.replace(secret, "***")
        return " ".join(text.split())

    def resume(self) -> None:
        """Mount again after a restart of the emulator."""
        self._mounting = asyncio.get_running_loop().create_task(self.mount())

    async def pull(self) -> None:
        """Wait until it is mounted."""
        if self._mounting is not None:
            await asyncio.shield(self._mounting)

    async def push(self) -> None:
        """Do nothing: files are written when they are closed."""

    def forget(self) -> None:
        """Cancel an attempt to mount."""
        if self._mounting is not None:
            self._mounting.cancel()

    async def release(self) -> None:
        """Unmount, and return when nothing is mounted, or when that has failed."""
        if self._mounting is not None:
            await asyncio.gather(self._mounting, return_exceptions=True)
        await self._unmount()

    async def _unmount(self) -> None:
        await asyncio.shield(asyncio.to_thread(_unmount, self._command, self._config))


def unmount_leftovers(nodes: Path) -> None:
    """Unmount file systems that a crash left on the nodes below a folder. Blocks."""
    for config in nodes.glob(f"*/*/{_PREFIX}*.yaml"):
        _unmount(shutil.which("blobfuse2"), config)


def _unmount(command: str | None, config: Path) -> None:
    """Unmount with blobfuse2, else with fusermount or umount, then delete the configuration."""
    try:
        point = Path(json.loads(config.read_text().partition("\n")[0].removeprefix("# ")))
    except FileNotFoundError:
        return
    except (OSError, ValueError, TypeError) as err:
        log.warning("%s cannot be read: %s", config, err)
        return
    tries = [["fusermount3", "-u", "-z", str(point)], ["umount", "-l", str(point)]]
    if command is not None:
        tries.insert(0, [command, "unmount", str(point)])
    for one in tries:
        if _run(one) and not is_mounted(point):
            break
    if is_mounted(point):
        log.error("%s cannot be unmounted; its node's folder stays", point)
        return
    shutil.rmtree(config.with_suffix(".cache"), ignore_errors=True)
    config.unlink(missing_ok=True)


def _run(command: list[str]) -> bool:
    try:
        done = subprocess.run(
            command, timeout=_UNMOUNT_WITHIN_S, capture_output=True, check=False, text=True
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        log.warning("%s: %s", command[0], err)
        return False
    if done.returncode != 0:
        log.warning("%s says: %s", command[0], done.stderr.strip()[-_OUTPUT_BYTES:])
    return done.returncode == 0


def is_mounted(point: Path) -> bool:
    """Return True if something is mounted there, even if it does not respond."""
    return point in set(_mount_points())


def mounted_below(folder: Path) -> list[Path]:
    """Return the mounts at or below a folder: deleting the folder would delete their content."""
    real = Path(os.path.realpath(folder))
    return [point for point in _mount_points() if point.is_relative_to(real)]


def _mount_points() -> Iterator[Path]:
    try:
        text = _MOUNTINFO.read_bytes()
    except OSError:  # not Linux, so no blobfuse2
        return
    for line in text.splitlines():
        escaped = line.split(b" ")[4]
        yield Path(os.fsdecode(escaped.decode("unicode_escape").encode("latin-1")))


_READ_ONLY = re.compile(r"(^|\s)(--read-only(=true)?|-o\s*(\S+,)?ro(,\S+)?)(\s|$)")
_PUSH_WITHIN_S = 60.0  # at the end of a task [S]
_LONGEST_KEY = 100
_FAILURES = (BlobRequestError, LocalWriteError, BlobfuseError, OSError)


class ContainerError(Exception):
    """A container cannot be mounted; the message says why, without the key."""


_Mounted = Mirror | Blobfuse


class BlobMounts:
    """The containers of all nodes. `endpoint` is the blob service of the account in its path."""

    def __init__(
        self,
        endpoint: str | None,
        identity: NodeIdentity | None = None,
        owner: Owner | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._owner = owner
        self._identity = identity
        self._at: dict[Path, dict[str, _Mounted]] = {}
        self._busy: dict[Path, set[asyncio.Task[None]]] = {}

    async def mount(self, layout: NodeLayout, path: str, settings: Mapping[str, Any]) -> None:
        """Mount a container and synchronize it. Raises ContainerError."""
        mounted = self._open(layout, path, settings)
        try:
            await mounted.mount()
        except _FAILURES as err:
            raise ContainerError(f"blobfuse: {_why(err)}") from err
        self._at.setdefault(layout.root, {})[path] = mounted

    def resume(self, layout: NodeLayout, path: str, settings: Mapping[str, Any]) -> None:
        """Continue with a node from before a restart of the emulator."""
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
        command = None if known.exists() else blobfuse_program()
        sas = str(settings.get("sasKey") or "").removeprefix("?")
        endpoint, name = endpoint_of(account, self._endpoint), str(settings["containerName"])
        if command is not None:
            if self._owner is not None:
                options += " --allow-other"  # otherwise only root, which mounts it, has access
            container = FuseContainer(account, name, endpoint, str(key or ""), sas)
            return Blobfuse(command, container, point, beside, short, options)
        url = f"{endpoint}/{quote(name, safe='$')}" + (f"?{sas}" if sas else "")
        storage = BlobClient(sign=sign)
        read_only = _READ_ONLY.search(options) is not None
        return Mirror(storage, url, point, known, read_only=read_only, owner=self._owner)

    def _key_for_identity(self, account: str, settings: Mapping[str, Any]) -> str | None:
        if not settings.get("identityReference"):
            return None
        if self._identity is None or self._identity.account != account:
            why = f"the identity has no access to the storage account {account}"
            raise ContainerError(f"blobfuse: the credentials are refused ({why})")
        return self._identity.key

    def any_at(self, root: Path) -> bool:
        """Return True if a node has mounted containers."""
        return root in self._at

    async def pull(self, root: Path) -> None:
        """Download changes before a task starts; failures are ignored."""
        await self._each(root, lambda mounted: mounted.pull())

    async def push(self, root: Path) -> None:
        """Upload changes after a task; failures are retried later."""
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
        """Stop uploading changes of a node that has left or boots again.

        Return a function to await before its folders are deleted, or None if that is not needed.
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
        """Cancel transfers for the tasks of a node, which have ended."""
        for task in self._busy.get(root, ()):
            task.cancel()

    async def close(self) -> None:
        """Stop synchronizing; remaining changes are uploaded after the next start."""
        for root in list(self._at):
            release = self.forget(root)
            if release is not None:
                await release()


def forget_leftovers(nodes: Path) -> None:
    """Remove mounts and partial blobs that a crash left on the nodes below a folder. Blocks."""
    unmount_leftovers(nodes)
    for half in nodes.glob(f"*/*/{INCOMING}*"):
        half.unlink(missing_ok=True)


def _key(path: str) -> str:
    """Return a file name for a mount path, which may be too long for a file name."""
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
