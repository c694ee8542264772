"""Application packages on nodes: unpacked once per node, named by variables of its tasks.

The zip files are not trusted: unpacking creates no links, writes nothing outside the folder, and
does not fill the disk.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import stat
import threading
import zipfile
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

from batch_emulator.domain.applications import Applications, Package, reference_text, short_id
from batch_emulator.domain.launch import USER_ERROR, ExecutionError, FailureInfo
from batch_emulator.executor.layout import NodeLayout
from batch_emulator.executor.node_setup import Booted, NodeError, Step
from batch_emulator.folders import Owner, remove_tree

MAX_FILES = 200_000  # [S]
MAX_BYTES = 64 * 1024**3  # [S], unpacked
_CHUNK_BYTES = 1024 * 1024
_MODE = 0o644
_UNIX = 3  # `create_system` of archives that carry modes


class BrokenArchiveError(Exception):
    """The archive cannot be unpacked; the message says why."""


def unpack(
    archive: Path,
    target: Path,
    stop: threading.Event,
    *,
    max_bytes: int = MAX_BYTES,
    for_others: bool = False,
) -> None:
    """Unpack into a folder that exists. Raises BrokenArchiveError and OSError.

    Unpacking ends when `stop` is set. Sizes in the headers are not trusted. With `for_others`,
    every user may read and execute what the owner may, and only the owner writes.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            members = opened.infolist()
            if len(members) > MAX_FILES:
                raise BrokenArchiveError(f"it holds more than {MAX_FILES} files")
            left = max_bytes
            for member in members:
                left -= _unpack_one(opened, member, target, stop, left, for_others=for_others)
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError) as err:
        raise BrokenArchiveError(f"it is not a ZIP file: {err}") from err
    except (NotImplementedError, RuntimeError) as err:  # encrypted, or an unknown compression
        raise BrokenArchiveError(str(err)) from err


def _unpack_one(
    opened: zipfile.ZipFile,
    member: zipfile.ZipInfo,
    target: Path,
    stop: threading.Event,
    left: int,
    *,
    for_others: bool,
) -> int:
    mode = member.external_attr >> 16 if member.create_system == _UNIX else 0
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise BrokenArchiveError(f"'{member.filename}' is a link or a device")
    path = target.joinpath(*_parts(member.filename))
    if member.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    size = 0
    with opened.open(member) as source, path.open("xb") as file:
        while chunk := source.read(_CHUNK_BYTES):
            size += len(chunk)
            if size > left:
                raise BrokenArchiveError("it holds more bytes than are allowed")
            if stop.is_set():
                raise BrokenArchiveError("it was given up")
            file.write(chunk)
    mode = stat.S_IMODE(mode) & 0o777 | stat.S_IRUSR | stat.S_IWUSR if mode else _MODE
    if for_others:
        mode = (mode | (mode & 0o500) >> 3 | (mode & 0o500) >> 6) & ~0o022
    path.chmod(mode)
    return size


def _parts(name: str) -> tuple[str, ...]:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or not path.parts or ":" in path.parts[0]:
        raise BrokenArchiveError(f"'{name}' leads out of the folder")
    return path.parts


log = logging.getLogger(__name__)

CODE = "ApplicationPackageError"
_INVALID = "One or more application packages specified for the {} are invalid"
_NOT_ALPHANUMERIC = re.compile(r"[^A-Za-z0-9]")
Reference = Mapping[str, Any]


class PackageError(Exception):
    """A package cannot be installed; the message names it and the reason."""

    def __init__(self, reference: Reference, why: str) -> None:
        super().__init__(why)
        self.details = (
            ("ApplicationPackageReference", reference_text(reference)),
            ("Message", why),
        )


class _GoneError(Exception):
    """The package was replaced or deleted before it was opened."""


def variables(reference: Reference, package: Package, folder: Path) -> dict[str, str]:
    """Return the variables of a package: with its version, and without if none was requested.

    Both were seen on nodes of pools that name no version. The id keeps its case (docs).
    """
    names = [f"{package.application}_{package.version}"]
    if not reference.get("version"):
        names.append(package.application)
    return {f"AZ_BATCH_APP_PACKAGE_{_NOT_ALPHANUMERIC.sub('_', one)}": str(folder) for one in names}


def installed(layout: NodeLayout) -> dict[str, str]:
    """Return the variables of the packages that the node installed when it booted."""
    try:
        return json.loads(layout.packages.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as err:
        log.warning("%s cannot be read: %s", layout.packages, err)
        return {}


class PackageInstaller:
    """Installs the packages of pools and tasks; tasks of a node share them."""

    def __init__(self, applications: Applications, owner: Owner | None = None) -> None:
        self._applications = applications
        self._owner = owner
        self._locks: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()

    def step(self) -> Step:
        """Return the step of a node's setup that installs the packages of its pool."""
        return Step(
            "application packages",
            lambda spec: bool(spec.get("applicationPackageReferences")),
            self._install_for_pool,
        )

    async def _install_for_pool(self, node: Booted) -> None:
        references: list[Reference] = node.spec["applicationPackageReferences"]
        try:
            found = await self._install(references, node.layout)
            node.layout.packages.write_text(json.dumps(found))
        except PackageError as err:
            raise NodeError(CODE, _INVALID.format("pool"), err.details) from err

    def for_task(
        self, references: Iterable[Reference], layout: NodeLayout
    ) -> Callable[[], Awaitable[dict[str, str]]]:
        """Return a function that installs the packages of a task and returns their variables.

        The function raises ExecutionError of the category UserError [S].
        """

        async def install() -> dict[str, str]:
            try:
                return await self._install(references, layout)
            except PackageError as err:
                failure = FailureInfo(USER_ERROR, CODE, _INVALID.format("task"), err.details)
                raise ExecutionError(failure) from err

        return install

    async def _install(self, references: Iterable[Reference], layout: NodeLayout) -> dict[str, str]:
        found: dict[str, str] = {}
        for reference in references:
            found |= await self._install_one(reference, layout)
        return found

    async def _install_one(self, reference: Reference, layout: NodeLayout) -> dict[str, str]:
        while True:
            package = self._applications.find(reference)
            if package is None:
                raise PackageError(reference, _missing(reference))
            folder = layout.applications / package.folder_name
            lock = self._locks.setdefault(folder, asyncio.Lock())
            async with lock:
                if not folder.is_dir():
                    try:
                        await self._unpack(reference, package, folder)
                    except _GoneError:
                        continue
            return variables(reference, package, folder)

    async def _unpack(self, reference: Reference, package: Package, folder: Path) -> None:
        stop = threading.Event()
        unpacking = asyncio.to_thread(_unpack, package.zip, folder, stop, self._owner)
        work = asyncio.ensure_future(unpacking)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait({work})
            raise
        except BrokenArchiveError as err:
            raise PackageError(reference, f"Resource extraction failed: {err}") from err
        except OSError as err:
            if folder.parent.is_dir() and not package.zip.exists():
                raise _GoneError from err
            why = err.strerror or str(err)
            raise PackageError(reference, f"Resource download failed: {why}") from err


def _missing(reference: Reference) -> str:
    wanted = "version" if reference.get("version") else "default version"
    return f"Resource download failed: '{short_id(reference)}' has no such {wanted}"


def _unpack(archive: Path, folder: Path, stop: threading.Event, owner: Owner | None) -> None:
    """Unpack into another folder and rename it, so that the package appears complete."""
    beside = folder.parent / f".{uuid4().hex}"
    beside.mkdir()  # fails if the node has left
    try:
        # An elevated task may execute a package, so other tasks must not change it.
        unpack(archive, beside, stop, for_others=owner is not None)
        beside.rename(folder)
    finally:
        remove_tree(beside)
